"""The exact text of each error of the engine, provoked as a user would."""

import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph import errors
from tests.provoked import check_error


class Net(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))
        self.n = nnx.BatchStat(jnp.zeros(3))
        self.mode = "train"


class Slotted(nnx.Module):
    __slots__ = ("a",)


def leaks():
    kept = []
    nnx.grad(lambda x: (kept.append(nnx.Param(x)), x.sum())[1])(jnp.ones(2))
    return kept[0][...]


def contains_itself():
    model, items = Net(), []
    items.append(items)
    model.items = items
    nnx.split(model)


def shares():
    model = Net()
    model.v = model.w
    nnx.split(model, graph=False)


def marks_an_array_static():
    Net().c = nnx.static(np.ones(3, np.float32))


def captures():
    scale = nnx.Param(jnp.ones(2))
    hidden = weakref.ref(scale)

    @nnx.jit
    def scaled(x):
        return hidden() * x

    scaled(1.0)


TABLE = [
    (
        errors.LeakedVariableError,
        leaks,
        "Param(float32[2]) was made inside a function under grad and is used after that function "
        "ended, so its value is gone. Expected: the function returns the Variable, or stores it on "
        "an object that was passed in. Write `return` it from the function.",
    ),
    (
        errors.CaptureError,
        captures,
        "nnx.jit: the function captures.<locals>.scaled reaches what it was not given, by a way that cannot "
        "be followed:\n"
        "  - Param(float32[2])\n"
        "The compiled function would keep what it is today for ever. Expected: an argument, or an object "
        "behind the function's closure, globals, defaults or helpers. Write `nnx.jit(lambda model, x: ...)"
        "(model, x)`.",
    ),
    (
        errors.AttributeNotFoundError,
        lambda: nnx.Param(jnp.ones(2), axes=1).axs,
        "Param(float32[2]) has no attribute 'axs': neither metadata nor the value has it. Did you "
        "mean 'axes' or 'max'?",
    ),
    (
        errors.KindMismatchError,
        lambda: nnx.BatchStat(1).copy_from(nnx.Param(1)),
        "Cannot copy from a Param to a BatchStat: the kinds differ. Expected a BatchStat. To take "
        "the value alone write `variable.set_value(other.get_value())`.",
    ),
    (
        errors.ValueMismatchError,
        lambda: nnx.Param(jnp.ones(2)).set_value(jnp.ones(3), index=...),
        "Param(float32[2]): cannot assign float32[3] with `variable[...] = value`: shape (3,) does "
        "not broadcast to (2,). Expected a value that fits the present shape and dtype. To change "
        "them write `variable.set_value(value)`.",
    ),
    (
        errors.ValueMismatchError,
        lambda: nnx.Variable(jnp.array(1)).set_value(1.5, index=...),
        "Variable(int32[]): cannot assign float32[] with `variable[...] = value`: dtype float32 "
        "would be cut down to int32. Expected a value that fits the present shape and dtype. To "
        "change them write `variable.set_value(value)`.",
    ),
    (
        errors.UnsupportedVariableError,
        lambda: nnx.Param(1, hijax=True),
        "Param(..., hijax=True): this version has no hijax Variables. Expected hijax=None or "
        "False. Write nnx.jit, nnx.grad ... around the code that mutates the Variable.",
    ),
    (
        errors.MissingStreamError,
        lambda: nnx.Rngs(params=0).dropout(),
        "Rngs has no stream 'dropout' and no default; it has 'params'. Write nnx.Rngs(dropout=0) "
        "or, for a default, nnx.Rngs(0).",
    ),
    (
        errors.SplitStreamError,
        lambda: nnx.Rngs(0).fork(split=3)(),
        "The random stream 'default' holds (3,) keys, one for each lane, and a draw needs one. "
        "Expected the call to stand inside the transform that the stream was split for. Write "
        "nnx.vmap or nnx.scan with axis 0 for the stream, or restore it with nnx.restore_rngs.",
    ),
    (
        errors.SqueezeError,
        lambda: nnx.split_rngs(nnx.Rngs(0), splits=2, squeeze=True),
        "split_rngs: found squeeze=True with splits=2. Expected splits=1, the one case in which "
        "the axis can be dropped. Write squeeze=False.",
    ),
    (
        errors.LaneShapeError,
        lambda: nnx.split_rngs(nnx.Rngs(0), splits="two"),
        "split_rngs: found 'two' for the lanes of a random stream. Expected their number, their "
        "shape as a tuple, or a mapping from filters to these. Write for example {'dropout': 4}.",
    ),
    (
        errors.ReseedError,
        lambda: nnx.reseed(nnx.Rngs(params=0), param=1),
        "reseed: found no stream 'param'; there is 'params'. Expected the tag of a stream of the "
        "object. Nothing was changed.",
    ),
    (
        errors.FilterError,
        lambda: nnx.state(Net(), 3),
        "int is not a filter. Expected a Variable type, a tag (str), True or ..., False or None, a "
        "callable (path, value) -> bool, or a list or tuple of these. Write for example nnx.Param "
        "or nnx.PathContains('kernel').",
    ),
    (
        errors.FilterOrderError,
        lambda: nnx.split(Net(), ..., nnx.Param),
        "Filter 1 of 2 is `...` or True and takes everything, so those behind it match nothing. "
        "Expected `...` only as the last filter. Write the narrow filters first.",
    ),
    (
        errors.NonExhaustiveError,
        lambda: nnx.split(Net(), nnx.Param),
        "split: the filters leave out:\n"
        "  - .n: BatchStat(float32[3])\n"
        "Expected filters that match every leaf. Write `...` as the last filter to take the rest.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.merge(nnx.graphdef(Net()), nnx.state(Net(), nnx.Param)),
        "merge: the state does not fit:\n"
        "  - .n is missing\n"
        "Nothing was changed. Expected one leaf for each path. Write merge(graphdef, state, "
        "other_state) to join parts.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.update(Net(), {"w": jnp.ones(5), "q": 1}),
        "update: the state does not fit:\n"
        "  - .w is float32[2], found float32[5]\n"
        "  - .q is not in the object\n"
        "Nothing was changed. Write update(..., strict=False) to accept other shapes and to skip "
        "unknown paths.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.replace_by_pure_dict(nnx.state(Net()), {"q": 1}),
        "replace_by_pure_dict: the state does not fit:\n"
        "  - .q is not in the state\n"
        "Nothing was changed. Expected paths that the state has.",
    ),
    (
        errors.CycleError,
        contains_itself,
        "The list at .items contains itself. Expected plain containers without cycles, since they "
        "have no identity in the graph. Write nnx.List, nnx.Dict or a Module for one that takes "
        "part in a cycle.",
    ),
    (
        errors.NotANodeError,
        lambda: nnx.split("a"),
        "split: found 'a'. Expected a Module or another nnx.Pytree object, a Variable, or a "
        "container of them.",
    ),
    (
        errors.NotANodeError,
        lambda: nnx.update("a", {}),
        "update: found 'a'. Expected a Module or another nnx.Pytree object, a Variable, or a "
        "container of them.",
    ),
    (
        errors.NotANodeError,
        lambda: nnx.pop("a", nnx.Param),
        "pop: found 'a'. Expected a Module or another nnx.Pytree object, a Variable, or a container of them.",
    ),
    (
        errors.NotANodeError,
        lambda: nnx.flatten(None),
        "flatten: found None. Expected a Module or another nnx.Pytree object, a Variable, or a "
        "container of them.",
    ),
    (
        errors.NotANodeError,
        lambda: nnx.view("a", x=1),
        "view: found 'a'. Expected a Module or another nnx.Pytree object, a Variable, or a "
        "container of them.",
    ),
    (
        errors.NotANodeError,
        lambda: nnx.with_attributes("a", x=1),
        "with_attributes: found 'a'. Expected a Module or another nnx.Pytree object, a Variable, or a "
        "container of them.",
    ),
    (
        errors.NotAGraphDefError,
        lambda: nnx.call("a"),
        "call: the first argument is a str. Expected the GraphDef, and the States behind it. "
        "Write `graphdef, state = nnx.split(model)`, then `nnx.merge(graphdef, state)`.",
    ),
    (
        errors.StateMismatchError,
        lambda: nnx.merge(nnx.graphdef(nnx.Param(1.0)), nnx.State({})),
        "merge: the state does not fit:\n"
        "  - the value is missing\n"
        "Nothing was changed. Expected one leaf for each path. Write merge(graphdef, state, "
        "other_state) to join parts.",
    ),
    (
        errors.KindMismatchError,
        lambda: nnx.Param(1.0).update_from_state(nnx.BatchStat(2.0)),
        "Cannot copy from a BatchStat to a Param: the kinds differ. Expected a Param. To take "
        "the value alone write `variable.set_value(other.get_value())`.",
    ),
    (
        errors.ModuleInVariableError,
        lambda: nnx.Param([Net()]),
        "Param(Net): a Variable cannot hold a Net, whose own Variables would be hidden from "
        "state, split and update. Expected an array or a pytree of arrays. Write "
        "`self.layer = Net(...)`: a Module is an attribute as it is.",
    ),
    (
        errors.ModuleInVariableError,
        lambda: nnx.Param(1.0).set_value({"a": Net()}),
        "Param(Net): a Variable cannot hold a Net, whose own Variables would be hidden from "
        "state, split and update. Expected an array or a pytree of arrays. Write "
        "`self.layer = Net(...)`: a Module is an attribute as it is.",
    ),
    (
        errors.FilterError,
        lambda: nnx.state(Net(), nnx.Param(1)),
        "Param is not a filter. Expected a Variable type, a tag (str), True or ..., False or None, a "
        "callable (path, value) -> bool, or a list or tuple of these. Write for example nnx.Param "
        "or nnx.PathContains('kernel').",
    ),
    (
        errors.FilterError,
        lambda: nnx.state(Net(), Net()),
        "Net is not a filter. Expected a Variable type, a tag (str), True or ..., False or None, a "
        "callable (path, value) -> bool, or a list or tuple of these. Write for example nnx.Param "
        "or nnx.PathContains('kernel').",
    ),
    (
        errors.EntryNotFoundError,
        lambda: delattr(nnx.State({"a": 1}), "b"),
        "State has no entry 'b'; it has 'a'.",
    ),
    (
        errors.NotAGraphDefError,
        lambda: nnx.merge(nnx.state(Net())),
        "merge: the first argument is a State. Expected the GraphDef, and the States behind it. "
        "Write `graphdef, state = nnx.split(model)`, then `nnx.merge(graphdef, state)`.",
    ),
    (
        errors.SharedVariableError,
        shares,
        "split: found one object at .w and at .v; this is a duplicate in tree mode (graph=False). "
        "Expected no shared objects. Write graph=True to share them.",
    ),
    (
        errors.UnknownAttributesError,
        lambda: Net().set_attributes(moed="x"),
        "Net.set_attributes: no module below has 'moed'. Did you mean 'mode'? Expected attributes "
        "that a module has. Write raise_if_not_found=False to skip those that none has.",
    ),
    (
        errors.UnknownAttributesError,
        lambda: Net().eval(moed="x"),
        "Net.set_attributes: no module below has 'moed'. Did you mean 'mode'? Expected attributes "
        "that a module has. Write raise_if_not_found=False to skip those that none has.",
    ),
    (
        errors.MissingFilterError,
        lambda: nnx.pop(Net()),
        "pop: found no filter. Expected at least one, which says what is meant. Write "
        "nnx.pop(model, nnx.Intermediate).",
    ),
    (
        errors.NameTakenError,
        lambda: Net().sow(nnx.Intermediate, "w", 1),
        "Net.sow: attribute 'w' is a Param. Expected no such attribute, or one of the kind "
        "Intermediate. Choose another name.",
    ),
    (
        errors.StaticArrayError,
        marks_an_array_static,
        "Net.c: found float32[3] marked static. Expected a value that is not an array, since "
        "static values are compared at each call. Write `self.c = value` (arrays are data).",
    ),
    (
        errors.MarkArgumentsError,
        lambda: nnx.data(1, default=3),
        "nnx.data: found a value and default. Expected a value alone, for an attribute, or "
        "arguments of dataclasses.field, for a field. Write nnx.data(value).",
    ),
    (
        errors.MisplacedMarkError,
        lambda: nnx.split([nnx.data(1)]),
        "Found nnx.data(...) at [0], inside a container. Expected it around the whole value of an "
        "attribute, since a mark belongs to the attribute. Write `self.name = nnx.data([...])`.",
    ),
    (
        errors.EntryNotFoundError,
        lambda: nnx.State({}).w,
        "State has no entry 'w'; it has none.",
    ),
    (
        errors.FixedContainerError,
        lambda: nnx.pop((nnx.Param(1),), nnx.Param),
        "pop: cannot take out [0]: it stands in a tuple, which cannot lose an entry. Nothing was "
        "changed. Expected an attribute, or an entry of a list, dict or tuple below an object. "
        "Write `self.name = variable` where the Variable is made.",
    ),
    (
        errors.SlotsError,
        lambda: nnx.split(Slotted()),
        "Slotted declares __slots__ = ('a',). Expected attributes in the instance's __dict__, "
        "where the graph looks for them. Write the class without __slots__ (a dataclass without "
        "slots=True).",
    ),
    (
        errors.BranchError,
        lambda: nnx.switch(0, []),
        "nnx.switch: branches is empty. Expected at least one function of the operands.",
    ),
    (
        errors.PredicateError,
        lambda: nnx.cond(jnp.ones(2), lambda: 1, lambda: 2),
        "nnx.cond: pred is float32[2]. Expected a scalar.",
    ),
    (
        errors.PredicateError,
        lambda: nnx.switch(1.5, [lambda: 1]),
        "nnx.switch: index is float32[]. Expected an integer scalar.",
    ),
    (
        errors.PredicateError,
        lambda: nnx.while_loop(lambda x: x, lambda x: x, 1.0),
        "nnx.while_loop: the result of cond_fun is float32[]. Expected a bool scalar.",
    ),
]


@pytest.mark.parametrize(("error", "provoke", "text"), TABLE)
def test_the_text_of_an_error_also_after_a_pickle(error, provoke, text):
    check_error(error, provoke, text)


def test_texts_hold_no_contents_of_arrays():
    with pytest.raises(errors.NonExhaustiveError) as caught:
        nnx.split({"a": nnx.Param(jnp.full(3, 123.0))}, nnx.BatchStat)
    assert "123" not in str(caught.value)


def test_a_failed_update_changes_nothing():
    model = Net()
    with pytest.raises(errors.StateMismatchError):
        nnx.update(model, {"w": jnp.zeros(2), "n": jnp.zeros(7)})
    assert model.w[...].tolist() == [1.0, 1.0]
