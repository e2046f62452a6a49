"""The exact text of each error of Variables and their kinds, provoked as a user would."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import errors
from tests.provoked import check_error


class Scale(nnx.Variable):
    """A kind without a name."""


def param():
    return nnx.Param(jnp.ones(2, jnp.float32), kernel=1, axes=("in",))


def written_under_raw_jit():
    scale = param()
    jax.jit(scale.set_value)(jnp.ones(2))


def written_after_raw_jit():
    kept = []
    jax.jit(lambda x: (kept.append(nnx.Param(x)), x)[1])(jnp.ones(2))
    kept[0].set_value(1)


def keeps_data_of_the_function():
    model = nnx.Dict()
    nnx.grad(lambda x: (setattr(model, "last", x), x.sum())[1])(jnp.ones(2))


def changes_in_a_branch():
    model = nnx.Dict(mode="a")
    nnx.cond(False, lambda x: setattr(model, "mode", "b"), lambda x: None, jnp.ones(2))


TABLE = [
    (
        errors.AttributeNotFoundError,
        lambda: param().kernal,
        "Param(float32[2]) has no attribute 'kernal': neither metadata nor the value has it. "
        "Did you mean 'kernel' or 'real'?",
    ),
    (
        errors.AttributeNotFoundError,
        lambda: param().reshap,
        "Param(float32[2]) has no attribute 'reshap': neither metadata nor the value has it. "
        "Did you mean 'reshape' or 'shape' or 'real'?",
    ),
    (
        errors.AttributeNotFoundError,
        lambda: param().get_valu,
        "Param(float32[2]) has no attribute 'get_valu': neither metadata nor the value has it. "
        "Did you mean 'get_value' or 'set_value' or 'get_raw_value'?",
    ),
    (
        errors.AttributeNotFoundError,
        lambda: param().qqq,
        "Param(float32[2]) has no attribute 'qqq': neither metadata nor the value has it.",
    ),
    (
        errors.AttributeNotFoundError,
        lambda: param().__delattr__("axis"),
        "Param(float32[2]) has no metadata 'axis'; it has 'axes', 'kernel'. Did you mean 'axes'?",
    ),
    (
        errors.AttributeNotFoundError,
        lambda: param().get_metadata("mean"),
        "Param(float32[2]) has no metadata 'mean'; it has 'axes', 'kernel'.",
    ),
    (
        errors.AttributeNotFoundError,
        lambda: nnx.Param({"a": 1}).get_metadata("tag"),
        "Param(dict) has no metadata 'tag'; it has none.",
    ),
    (
        errors.UnknownKindNameError,
        lambda: nnx.variable_type_from_name("param"),
        "variable_type_from_name: no kind of Variable has the name 'param'. Did you mean 'params'? "
        "Expected a registered name. Write nnx.register_variable_name('param', kind) first, or "
        "allow_register=True to make a new kind.",
    ),
    (
        errors.UnnamedKindError,
        lambda: nnx.variable_name_from_type(Scale),
        "variable_name_from_type: Scale has no name. Expected a registered kind. Write "
        "nnx.register_variable_name(name, Scale) first, or allow_register=True to use 'Scale'.",
    ),
    (
        errors.KindNameTakenError,
        lambda: nnx.register_variable_name("params", Scale),
        "register_variable_name('params', Scale): the name belongs to Param. Expected one name for "
        "each kind. Write another name, or overwrite=True to take it over.",
    ),
    (
        errors.KindNameTakenError,
        lambda: nnx.register_variable_name("weights", nnx.Param),
        "register_variable_name('weights', Param): Param has the name 'params'. Expected one name "
        "for each kind. Write another name, or overwrite=True to take it over.",
    ),
    (
        errors.ModuleInVariableError,
        lambda: nnx.Param(nnx.Linear(2, 3, rngs=nnx.Rngs(0))),
        "Param(Linear): a Variable cannot hold a Linear, whose own Variables would be hidden from "
        "state, split and update. Expected an array or a pytree of arrays. Write "
        "`self.layer = Linear(...)`: a Module is an attribute as it is.",
    ),
    (
        errors.UnsupportedVariableError,
        lambda: Scale(jnp.ones(1), ref=True),
        "Scale(..., ref=True): this version has no ref Variables. Expected ref=None or False. Write "
        "nnx.jit, nnx.grad ... around the code that mutates the Variable.",
    ),
    (
        errors.ValueMismatchError,
        lambda: nnx.Param(jax.ShapeDtypeStruct((2,), jnp.float32)).__setitem__(0, 1.0),
        "Param(float32[2]): cannot assign 1.0 with `variable[...] = value`: there is no value yet. "
        "Expected a value that fits the present shape and dtype. To change them write "
        "`variable.set_value(value)`.",
    ),
    (
        errors.ValueMismatchError,
        lambda: param().__setitem__(slice(0, 2), jnp.ones(3, jnp.float32)),
        "Param(float32[2]): cannot assign float32[3] with `variable[...] = value`: Incompatible types "
        "for broadcasting: input type=float32[3] and requested type=float32[2]. Expected a value that "
        "fits the present shape and dtype. To change them write `variable.set_value(value)`.",
    ),
    (
        errors.ValueMismatchError,
        lambda: param().set_value(jax.random.key(0), index=...),
        "Param(float32[2]): cannot assign key<fry>[] with `variable[...] = value`: dtype key<fry> would "
        "be cut down to float32. Expected a value that fits the present shape and dtype. To change them "
        "write `variable.set_value(value)`.",
    ),
    (
        errors.KindMismatchError,
        lambda: param().replace(nnx.BatchStat(1)),
        "Cannot copy from a BatchStat to a Param: the kinds differ. Expected a Param. To take the value "
        "alone write `variable.set_value(other.get_value())`.",
    ),
    (
        errors.NotAKindError,
        lambda: nnx.register_variable_name("ints", int),
        "register_variable_name: found the class int. Expected a kind of Variable, such as "
        "nnx.Intermediate. Write `class Mine(nnx.Variable): ...` for one of your own.",
    ),
    (
        errors.NotAKindError,
        lambda: nnx.variable_name_from_type(int),
        "variable_name_from_type: found the class int. Expected a kind of Variable, such as "
        "nnx.Intermediate. Write `class Mine(nnx.Variable): ...` for one of your own.",
    ),
    (
        errors.TraceWriteError,
        written_under_raw_jit,
        "Cannot write Param(float32[2]) from another trace level: a raw JAX transform (jit, scan, cond, "
        "while_loop or checkpoint) is active here, the Variable was made outside of it, and the new "
        "value could not leave. Expected: writes under the transforms of nnxgraph, which hand state "
        "back. Write nnx.jit, nnx.grad, nnx.vmap, nnx.scan ... for jax.jit, jax.grad, jax.vmap, "
        "jax.lax.scan, and pass the object as an argument.",
    ),
    (
        errors.LeakedVariableError,
        written_after_raw_jit,
        "Param(float32[2]) was made inside a function under a raw JAX transform and is used after that "
        "function ended, so its value is gone. Expected: the function returns the Variable, or stores "
        "it on an object that was passed in. Write `return` it from the function.",
    ),
    (
        errors.CapturedChangeError,
        keeps_data_of_the_function,
        "Cannot change attribute 'last' of Dict inside nnx.grad: the Dict is no argument of the function, "
        "and what is set holds data of the function, which ends with it. Expected: objects that change "
        "are arguments. Write `nnx.grad(lambda model, x: ...)(model, x)`.",
    ),
    (
        errors.CapturedChangeError,
        changes_in_a_branch,
        "Cannot change attribute 'mode' of Dict inside nnx.cond: the Dict is no argument of the function, "
        "which is traced once, however often it runs, so the change would happen even if it never runs. "
        "Expected: functions of nnx.cond write Variables only. Change attribute 'mode' before or after "
        "nnx.cond, or keep what changes in a Variable.",
    ),
]


@pytest.mark.parametrize(("error", "provoke", "text"), TABLE)
def test_the_text_of_an_error_also_after_a_pickle(error, provoke, text):
    check_error(error, provoke, text)
