"""The exact text of each error of captures, views and dataclasses, provoked as a user would."""

import pickle

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import errors


class Net(nnx.Module):
    def __call__(self, x):
        self.sow(nnx.Intermediate, "h", x)
        return self.perturb("p", x)


ONE = jnp.asarray(1.0)

TABLE = [
    (
        errors.CaptureTraceError,
        lambda: nnx.capture(jax.vmap(Net()), nnx.Intermediate)(ONE[None]),
        "Net.sow: nnx.capture stands around vmap, which would not hand back what is recorded here. "
        "Expected the capture inside of the transform, with its State among the results. Write "
        "`lambda model, x: nnx.capture(model, nnx.Intermediate)(x)` as the function that is "
        "transformed.",
    ),
    (
        errors.CaptureTraceError,
        lambda: nnx.capture(nnx.remat(lambda m, x: m(x)), nnx.Perturbation)(Net(), ONE),
        "Net.perturb: nnx.capture stands around remat, which would not hand back what is recorded "
        "here. Expected the capture inside of the transform, with its State among the results. "
        "Write `lambda model, x: nnx.capture(model, nnx.Intermediate)(x)` as the function that is "
        "transformed.",
    ),
    (
        errors.NoModuleError,
        lambda: nnx.capture(abs, nnx.Intermediate)(1),
        "capture: found no module in abs and its arguments. Expected a module, a method of one, or "
        "a function that is called with one. Write nnx.capture(model, nnx.Intermediate)(x).",
    ),
    (
        errors.NotAKindError,
        lambda: nnx.capture(Net(), "h"),
        "capture: found 'h'. Expected a kind of Variable, such as nnx.Intermediate. Write "
        "`class Mine(nnx.Variable): ...` for one of your own.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.capture(Net(), init={"net": {"p": 1.0}})(ONE),
        "capture: the state does not fit:\n"
        "  - .net.p is not in the object\n"
        "Nothing was changed. Expected paths of modules, each with one name more: what the module "
        "sows or perturbs.",
    ),
    (
        errors.NameTakenError,
        lambda: Net().sow(nnx.Intermediate, "train", ONE),
        "Net.sow: attribute 'train' is a function. Expected no such attribute, or one of the kind "
        "Intermediate. Choose another name.",
    ),
    (
        errors.UnknownViewArgumentsError,
        lambda: nnx.view(nnx.Dropout(0.5), determinstic=True),
        "view: no module below takes 'determinstic' in set_view. Did you mean 'deterministic'? "
        "Expected parameters that a module has; nnx.view_info(model) lists them. Write "
        "raise_if_not_found=False to skip those that none has.",
    ),
    (
        errors.UnknownAttributesError,
        lambda: nnx.with_attributes(nnx.Dropout(0.5), determinstic=True),
        "with_attributes: no module below has 'determinstic'. Did you mean 'deterministic'? Expected "
        "attributes that a module has. Write raise_if_not_found=False to skip those that none has.",
    ),
    (
        errors.SlotsError,
        lambda: nnx.dataclass(slots=True)(type("Made", (nnx.Module,), {"__annotations__": {"x": int}})),
        "Made declares __slots__ = ('x',). Expected attributes in the instance's __dict__, where the "
        "graph looks for them. Write the class without __slots__ (a dataclass without slots=True).",
    ),
]


@pytest.mark.parametrize(("error", "provoke", "text"), TABLE)
def test_the_text_of_an_error(error, provoke, text):
    with pytest.raises(error) as caught:
        provoke()
    assert str(caught.value) == text
    twin = pickle.loads(pickle.dumps(caught.value))
    assert (type(twin), str(twin)) == (error, text)
