"""Errors of the optimizer and of metrics."""

from __future__ import annotations

import pickle

from ._base import NnxError, did_you_mean, listed


class OptimizerArgumentError(NnxError, TypeError):
    """An optimizer is made or called in another way than it can be."""

    def __init__(self, where: str, found: str, expected: str, instead: str):
        super().__init__(where, found, expected, instead)

    def text(self) -> str:
        where, found, expected, instead = self.args
        return f"{where}: found {found}. Expected {expected}. {instead}"


class GradientMismatchError(NnxError, ValueError):
    """Gradients do not fit the parameters that an optimizer updates."""

    def __init__(self, where: str, name: str, problems: tuple[str, ...]):
        super().__init__(where, name, problems)

    def text(self) -> str:
        where, name, problems = self.args
        return (
            f"{where}: {name} does not fit the parameters:{listed(problems)}\nNothing was changed. Expected "
            f"a gradient for each parameter that `wrt` selects, of the parameter's shape. Write "
            f"nnx.grad(loss, argnums=nnx.DiffState(0, wrt))(model) with the same `wrt` as the optimizer."
        )


class ParametersChangedError(NnxError, ValueError):
    """A model has other parameters than the one an optimizer was made for."""

    def __init__(self, where: str, model: str, gone: tuple[str, ...], new: tuple[str, ...]):
        super().__init__(where, model, gone, new)

    def text(self) -> str:
        where, model, gone, new = self.args
        problems = [f"{path} is gone" for path in gone] + [f"{path} is new" for path in new]
        return (
            f"{where}: the parameters of this {model} are not those that the optimizer was made for:"
            f"{listed(problems)}\nNothing was changed. Expected the model that the optimizer was made for. "
            f"Write nnx.Optimizer(model, tx, wrt=...) again after the parameters of a model have changed."
        )


class NoParametersError(NnxError, ValueError):
    """The `wrt` of an optimizer selects nothing."""

    def __init__(self, where: str, model: str, wrt: str, kinds: tuple[str, ...]):
        super().__init__(where, model, wrt, kinds)

    def text(self) -> str:
        where, model, wrt, kinds = self.args
        has = f"it has {', '.join(kinds)}" if kinds else "it has none"
        return (
            f"{where}: wrt = {wrt} selects no Variable of {model}; {has}. Expected a filter that "
            "selects what "
            f"is to be trained. Write wrt=nnx.Param for all parameters."
        )


class ValueFunctionError(NnxError, TypeError):
    """A function of the parameters that an optimizer calls takes neither their State nor the model."""

    def __init__(self, name: str, function: str, with_state: str, with_model: str):
        super().__init__(name, function, with_state, with_model)

    def text(self) -> str:
        name, function, with_state, with_model = self.args
        return (
            f"Optimizer.update: {name} = the function {function} failed on the State of the "
            "parameters and on "
            f"the model:{listed((f'State: {with_state}', f'model: {with_model}'))}\nExpected a function of "
            f"one of the two that returns the loss. Write `{name}=lambda model: loss(model, x, y)`."
        )


class TransformationPickleError(NnxError, pickle.PicklingError):
    """The transformation of an optimizer cannot be pickled."""

    def __init__(self, transformation: str):
        super().__init__(transformation)

    def text(self) -> str:
        return (
            f"Optimizer: cannot pickle tx = {self.args[0]}: optax builds transformations of functions inside "
            f"functions. Expected a function that makes the transformation, or the package "
            "cloudpickle. Write "
            f"tx=functools.partial(optax.adam, 1e-3) for tx=optax.adam(1e-3), or install cloudpickle."
        )


class MetricArgumentError(NnxError, TypeError):
    """A metric is given keyword arguments that it does not take, or not those that it needs."""

    def __init__(
        self, metric: str, missing: tuple[str, ...], unknown: tuple[str, ...], known: tuple[str, ...]
    ):
        super().__init__(metric, missing, unknown, known)

    def text(self) -> str:
        metric, missing, unknown, known = self.args
        problems = [f"{x} is missing" for x in missing] + [f"{x} is taken by no metric" for x in unknown]
        hints = "".join(did_you_mean(x.strip("'"), known) for x in unknown)
        return (
            f"{metric}.update: the keyword arguments do not fit:{listed(problems)}\nNothing was "
            f"changed.{hints} "
            f"Expected {', '.join(map(repr, known)) or 'none, as there is no metric'}. "
            f"Write `update({known[0] if known else ''}=...)`."
        )


class MetricNameError(NnxError, ValueError):
    """A MultiMetric is made of something that is no metric, or under a name that it cannot have."""

    def __init__(self, name: str, found: str, instead: str):
        super().__init__(name, found, instead)

    def text(self) -> str:
        name, found, instead = self.args
        return (
            f"MultiMetric({name}=...): found {found}. Expected metrics, under names that MultiMetric "
            "does not "
            f"use itself. Write {instead}."
        )


class MetricValueError(NnxError, ValueError):
    """A metric is given arrays that do not fit each other."""

    def __init__(self, metric: str, found: str, expected: str, instead: str = ""):
        super().__init__(metric, found, expected, instead)

    def text(self) -> str:
        metric, found, expected, instead = self.args
        return f"{metric}.update: found {found}. Expected {expected}.{instead and ' ' + instead}"
