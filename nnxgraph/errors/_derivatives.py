"""Errors of the derivative transforms: results, tangents and custom rules."""

from __future__ import annotations

from ._base import NnxError, listed


class ResultError(NnxError, TypeError):
    """A function that is differentiated does not return what can be differentiated."""

    def __init__(self, transform: str, where: str, found: str, expected: str):
        super().__init__(transform, where, found, expected)

    def text(self) -> str:
        transform, where, found, expected = self.args
        return f"nnx.{transform}: {where} {found}. Expected {expected}."


class TangentError(NnxError, ValueError):
    """Tangents or cotangents do not fit what they belong to."""

    def __init__(self, transform: str, what: str, problems: tuple[str, ...]):
        super().__init__(transform, what, problems)

    def text(self) -> str:
        transform, what, problems = self.args
        return (
            f"nnx.{transform}: {what} do not fit:{listed(problems)}\n"
            f"Expected the structure, shapes and dtypes of what they belong to; for an object a State, a "
            f"nested dict of paths, or such an object, in which paths may be missing. Write None for zero."
        )


class MissingRuleError(NnxError, AttributeError):
    """A function with a rule of its own for derivatives is called before it has the rule."""

    def __init__(self, transform: str, function: str, call: str):
        super().__init__(transform, function, call)

    def text(self) -> str:
        transform, function, call = self.args
        return (
            f"nnx.{transform}: {function} is called and has no rule. Expected the rule before the first "
            f"call. Write `{call}`."
        )


class KeywordOnlyError(NnxError, TypeError):
    """A function with a rule of its own has arguments without a position."""

    def __init__(self, transform: str, function: str, names: tuple[str, ...]):
        super().__init__(transform, function, names)

    def text(self) -> str:
        transform, function, names = self.args
        return (
            f"nnx.{transform}: {function} takes {', '.join(names)} by keyword only. Expected arguments that "
            f"have a position, which the rule gets them by. Leave out the `*` in the signature."
        )


class LostCaptureError(NnxError, RuntimeError):
    """A backward rule reads what it captured, and that is gone."""

    def __init__(self, transform: str, variable: str):
        super().__init__(transform, variable)

    def text(self) -> str:
        transform, variable = self.args
        return (
            f"nnx.{transform}: bwd reads the captured {variable} when the function that made it has ended. "
            f"Expected all that bwd reads among the residuals. Write `return out, (model, x)` in fwd."
        )


class HiddenGradientError(NnxError, ValueError):
    """A derivative is asked for by what a custom rule does not see."""

    def __init__(self, transform: str, function: str, variables: tuple[str, ...]):
        super().__init__(transform, function, variables)

    def text(self) -> str:
        transform, function, variables = self.args
        return (
            f"nnx.{transform}: a derivative is asked for by what {function} captures, is bound to, or gets "
            f"in nondiff_argnums:{listed(variables)}\nThe rule gives derivatives by the other arguments "
            f"only, so that this one would be lost. Expected: what is differentiated by is an argument. "
            f"Write `f(model, x)` with the object that holds it, or jax.lax.stop_gradient for its value."
        )
