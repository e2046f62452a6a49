"""The exact text of each error of captures, views and dataclasses, provoked as a user would."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import errors
from tests.provoked import check_error


class Net(nnx.Module):
    def __call__(self, x):
        self.sow(nnx.Intermediate, "h", x)
        return self.perturb("p", x)


class TwoKinds(nnx.Module):
    def __call__(self, x):
        self.sow(nnx.Intermediate, "h", x)
        self.sow(nnx.Cache, "h", x)


ONE = jnp.asarray(1.0)


def net():
    return nnx.Dict(w=nnx.Param(jnp.ones(2, jnp.float32)))


def contains_itself():
    items = []
    items.append(items)
    return nnx.Dict(items=items)


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
        lambda: nnx.capture(nnx.vmap(lambda m, x: m(x), in_axes=(None, 0)), nnx.Perturbation)(
            Net(), ONE[None]
        ),
        "Net.perturb: nnx.capture stands around vmap, which would not hand back what is recorded "
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
    (
        errors.EntryNotFoundError,
        lambda: nnx.Dict(weight=1).weigth,
        "Dict has no entry 'weigth'; it has 'weight'. Did you mean 'weight'?",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.from_flat_state({(): 1}),
        "State: the state does not fit:\n"
        "  - a leaf has an empty path\n"
        "Nothing was changed. Expected a key for each leaf. Write nnx.State({'name': value}).",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.from_flat_state({("a",): 1, ("a", "b"): 2}),
        "State: the state does not fit:\n"
        "  - .a.b is both a leaf and a level\n"
        "Nothing was changed. Expected paths of which none begins another.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.update(net(), {"w": nnx.BatchStat(jnp.ones(2))}),
        "update: the state does not fit:\n"
        "  - .w is a Param, found a BatchStat\n"
        "Nothing was changed. Write update(..., strict=False) to accept other shapes and to skip unknown "
        "paths.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.update((jnp.ones(2), net()), {0: jnp.zeros(2)}),
        "update: the state does not fit:\n"
        "  - [0] is a plain array outside of any object\n"
        "Nothing was changed. Write update(..., strict=False) to accept other shapes and to skip unknown "
        "paths.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.merge(*nnx.split(net()), nnx.State({"q": 1})),
        "merge: the state does not fit:\n"
        "  - .q is not in the graph\n"
        "Nothing was changed. Expected one leaf for each path. Write merge(graphdef, state, other_state) "
        "to join parts.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.unflatten(nnx.flatten(net())[0], nnx.FlatState([], sort=True)),
        "unflatten: the state does not fit:\n"
        "  - .w is missing\n"
        "Nothing was changed. Expected one leaf for each path. Write merge(graphdef, state, other_state) "
        "to join parts.",
    ),
    (
        errors.CycleError,
        lambda: nnx.find_duplicates(contains_itself()),
        "The list at .items contains itself. Expected plain containers without cycles, since they have "
        "no identity in the graph. Write nnx.List, nnx.Dict or a Module for one that takes part in a "
        "cycle.",
    ),
    (
        errors.NameTakenError,
        lambda: nnx.capture(TwoKinds(), nnx.Variable)(ONE),
        "TwoKinds.sow: attribute 'h' is a Intermediate. Expected no such attribute, or one of the kind "
        "Cache. Choose another name.",
    ),
    (
        errors.MarkArgumentsError,
        lambda: nnx.static(1, default=2),
        "nnx.static: found a value and default. Expected a value alone, for an attribute, or arguments "
        "of dataclasses.field, for a field. Write nnx.static(value).",
    ),
    (
        ValueError,
        lambda: nnx.List([1]).index(3),
        "List.index: the value is not in the list",
    ),
]


@pytest.mark.parametrize(("error", "provoke", "text"), TABLE)
def test_the_text_of_an_error_also_after_a_pickle(error, provoke, text):
    check_error(error, provoke, text)
