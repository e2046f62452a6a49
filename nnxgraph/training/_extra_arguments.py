"""What optax asks for beyond gradients: functions of the parameters, and arguments that a user may forget."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from .._frame import reading_constants
from .._repr import function_name
from .._state import FlatState
from ..errors import OptimizerArgumentError, ValueFunctionError
from ..graph._functional import merge, split
from ._optax import items_of, raw, update_function

# Keyword arguments that optax calls with the parameters.
_FUNCTIONS = ("value_fn", "obj_fn")

# How Python says that a transformation was not given what it needs.
_FORGOTTEN = re.compile(r"update\w*\(\) missing \d+ required keyword-only arguments?: (.*)")


def ready_for_optax(extra: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The extra arguments, with functions of the State of the parameters for functions of the model."""
    return {
        name: _of_state(name, x, model) if name in _FUNCTIONS and callable(x) else raw(x)
        for name, x in extra.items()
    }


def _of_state(name: str, function: Callable[..., Any], model: Any) -> Callable[..., Any]:
    """A function of the State of the parameters, from one of that or of the model.

    Nothing but calling it tells which of the two it takes. The State comes first: a function that works on
    both, such as a norm, means the parameters.
    """
    graphdef, everything = split(model)
    takes_model: bool | None = None

    def of_model(params: Any, args: Any, kwargs: Any) -> Any:
        values = FlatState([(path, raw(leaf)) for path, leaf in items_of(params)], sort=False)
        return function(merge(graphdef, everything, values), *args, **kwargs)

    @functools.wraps(function)
    @reading_constants(False)
    def of_state(params: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal takes_model
        if takes_model:
            return of_model(params, args, kwargs)
        try:
            value = function(params, *args, **kwargs)
        except Exception as with_state:
            if takes_model is False:
                raise
            try:
                value = of_model(params, args, kwargs)
            except Exception as with_model:
                texts = map(_in_short, (with_state, with_model))
                raise ValueFunctionError(name, function_name(function), *texts) from with_model
            takes_model = True
            return value
        takes_model = False
        return value

    return of_state


def _in_short(error: Exception) -> str:
    """The kind of an error and the first line of its text."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:200]}"


def call_update(tx: Any, grads: Any, opt_state: Any, params: Any, extra: Mapping[str, Any]) -> Any:
    """`tx.update`, with our text where an extra argument is missing."""
    try:
        return update_function(tx)(grads, opt_state, params, **extra)
    except TypeError as error:
        forgotten = _FORGOTTEN.search(str(error))
        if forgotten is None:
            raise
        names = re.findall(r"'(\w+)'", forgotten[1])
        given = ", ".join(f"{name}=..." for name in names)
        raise OptimizerArgumentError(
            "Optimizer.update",
            f"no {' and no '.join(names)}",
            "the extra arguments that the transformation needs",
            f"Write optimizer.update(model, grads, {given}); value is the loss, grad the gradients again, "
            f"and value_fn a function of the model that returns the loss.",
        ) from error
