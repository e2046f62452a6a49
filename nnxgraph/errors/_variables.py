"""Errors of Variables and random streams."""

from __future__ import annotations

from ._base import NnxError, did_you_mean


class LeakedVariableError(NnxError, RuntimeError):
    """A Variable made inside a transformed function is used after the function ended."""

    def __init__(self, variable: str, transform: str):
        super().__init__(variable, transform)

    def text(self) -> str:
        variable, transform = self.args
        return (
            f"{variable} was made inside a function under {transform} and is used after that function "
            f"ended, so its value is gone. Expected: the function returns the Variable, or stores it on "
            f"an object that was passed in. Write `return` it from the function."
        )


class TraceWriteError(NnxError, ValueError):
    """A Variable is written where its new value could not be handed back."""

    def __init__(self, variable: str, transform: str, inside: str | None):
        super().__init__(variable, transform, inside)

    def text(self) -> str:
        variable, transform, inside = self.args
        where = f" inside nnx.{inside}" if inside else ""
        return (
            f"Cannot write {variable} from another trace level: a raw JAX transform ({transform}) is active "
            f"here{where}, the Variable was made outside of it, and the new value could not leave. "
            f"Expected: writes under the transforms of nnxgraph, which hand state back. Write nnx.jit, "
            f"nnx.grad, nnx.vmap, nnx.scan ... for jax.jit, jax.grad, jax.vmap, jax.lax.scan, and pass "
            f"the object as an argument."
        )


class AttributeNotFoundError(NnxError, AttributeError):
    """A Variable has neither metadata nor an array attribute of that name."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...]):
        super().__init__(kind, name, known)

    def text(self) -> str:
        kind, name, known = self.args
        return (
            f"{kind} has no attribute {name!r}: neither metadata nor the value has it."
            f"{did_you_mean(name, known)}"
        )


class KindMismatchError(NnxError, ValueError):
    """A value of one kind of Variable is given to another kind."""

    def __init__(self, target: str, source: str):
        super().__init__(target, source)

    def text(self) -> str:
        target, source = self.args
        return (
            f"Cannot copy from a {source} to a {target}: the kinds differ. Expected a {target}. "
            f"To take the value alone write `variable.set_value(other.get_value())`."
        )


class ValueMismatchError(NnxError, ValueError):
    """`variable[...] = value` with a value of another shape or type."""

    def __init__(self, variable: str, found: str, reason: str):
        super().__init__(variable, found, reason)

    def text(self) -> str:
        variable, found, reason = self.args
        return (
            f"{variable}: cannot assign {found} with `variable[...] = value`: {reason}. Expected a "
            "value that "
            f"fits the present shape and dtype. To change them write `variable.set_value(value)`."
        )


class UnsupportedVariableError(NnxError, NotImplementedError):
    """A mode of Variables that this version does not have."""

    def __init__(self, kind: str, option: str):
        super().__init__(kind, option)

    def text(self) -> str:
        kind, option = self.args
        return (
            f"{kind}(..., {option}=True): this version has no {option} Variables. Expected {option}=None or "
            f"False. Write nnx.jit, nnx.grad ... around the code that mutates the Variable."
        )


class MissingStreamError(NnxError, AttributeError, KeyError):
    """A random stream is asked for that there is not, and there is no default."""

    def __init__(self, name: str, known: tuple[str, ...]):
        super().__init__(name, known)

    def text(self) -> str:
        name, known = self.args
        has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
        return (
            f"Rngs has no stream {name!r} and no default; {has}.{did_you_mean(name, known)} "
            f"Write nnx.Rngs({name}=0) or, for a default, nnx.Rngs(0)."
        )


class SplitStreamError(NnxError, ValueError):
    """A split random stream is drawn from outside of the transform it was split for."""

    def __init__(self, tag: str, shape: tuple[int, ...]):
        super().__init__(tag, shape)

    def text(self) -> str:
        tag, shape = self.args
        return (
            f"The random stream {tag!r} holds {shape} keys, one for each lane, and a draw needs one. "
            "Expected "
            f"the call to stand inside the transform that the stream was split for. Write nnx.vmap or "
            f"nnx.scan with axis 0 for the stream, or restore it with nnx.restore_rngs."
        )


class SqueezeError(NnxError, ValueError):
    """Random streams are to be split into several and the axis dropped."""

    def __init__(self, splits: object):
        super().__init__(splits)

    def text(self) -> str:
        return (
            f"split_rngs: found squeeze=True with splits={self.args[0]!r}. Expected splits=1, the one case "
            f"in which the axis can be dropped. Write squeeze=False."
        )
