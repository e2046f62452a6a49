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


def _stands(place: str, origin: str | None) -> str:
    """Where a Variable or object stands and was made, as far as that is known."""
    parts = [f"at {place}"] if place else []
    parts += [f"made at {origin}"] if origin else []
    return f" ({', '.join(parts)})" if parts else ""


class TraceWriteError(NnxError, ValueError):
    """A Variable is written where its new value could not be handed back."""

    def __init__(self, variable: str, place: str, origin: str | None, transform: str, inside: str | None):
        super().__init__(variable, place, origin, transform, inside)

    def text(self) -> str:
        variable, place, origin, transform, inside = self.args
        where = f" inside nnx.{inside}" if inside else ""
        return (
            f"Cannot write {variable}{_stands(place, origin)} from another trace level: a raw JAX transform "
            f"({transform}) is active here{where}, the Variable was made outside of it, and the new value "
            f"could not leave. Expected: writes under the transforms of nnxgraph, which hand state back. "
            f"Write nnx.jit, nnx.grad, nnx.vmap, nnx.scan ... for jax.jit, jax.grad, jax.vmap, "
            f"jax.lax.scan, and pass the object as an argument."
        )


class TraceChangeError(NnxError, ValueError):
    """An attribute, or metadata, is changed under a raw JAX transform that its owner does not belong to."""

    def __init__(
        self,
        what: str,
        owner: str,
        place: str,
        origin: str | None,
        transform: str,
        inside: str | None,
    ):
        super().__init__(what, owner, place, origin, transform, inside)

    def text(self) -> str:
        what, owner, place, origin, transform, inside = self.args
        where = f" inside nnx.{inside}" if inside else ""
        return (
            f"Cannot change {what} of {owner}{_stands(place, origin)} from another trace level: a raw JAX "
            f"transform ({transform}) is active here{where}, and the {owner} was made outside of it, so the "
            f"change would happen while JAX traces and not when the function runs. Expected: changes under "
            f"the transforms of nnxgraph, which hand them back. Write nnx.jit, nnx.grad ... for jax.jit, "
            f"jax.grad ..., and pass the object as an argument."
        )


class CapturedChangeError(NnxError, ValueError):
    """An attribute, or metadata, of an object that is no argument is changed in a transformed function."""

    def __init__(
        self,
        what: str,
        owner: str,
        place: str,
        origin: str | None,
        transform: str,
        cached: bool,
        replayed: bool = False,
    ):
        super().__init__(what, owner, place, origin, transform, cached, replayed)

    def text(self) -> str:
        what, owner, place, origin, transform, cached, replayed = self.args
        cannot = (
            f"Cannot change {what} of {owner}{_stands(place, origin)} inside nnx.{transform}: the {owner} is "
            f"no argument of the function, "
        )
        if replayed and not cached:
            return (
                f"{cannot}which is traced once, however often it runs, so the change would happen even if it "
                f"never runs. Expected: functions of nnx.{transform} write Variables only. Change {what} "
                f"before or after nnx.{transform}, or keep what changes in a Variable."
            )
        why = (
            "so the change would happen once, while the function is traced"
            if cached
            else "and what is set holds data of the function, which ends with it"
        )
        return (
            f"{cannot}{why}. Expected: objects that change are arguments. Write "
            f"`nnx.{transform}(lambda model, x: ...)(model, x)`."
        )


class AttributeNotFoundError(NnxError, AttributeError):
    """A Variable has no attribute, or no metadata, of that name."""

    def __init__(self, variable: str, name: str, known: tuple[str, ...], metadata: bool = False):
        super().__init__(variable, name, known, metadata)

    def text(self) -> str:
        variable, name, known, metadata = self.args
        if metadata:
            has = f"it has {', '.join(map(repr, sorted(known)))}" if known else "it has none"
            return f"{variable} has no metadata {name!r}; {has}.{did_you_mean(name, known)}"
        return (
            f"{variable} has no attribute {name!r}: neither metadata nor the value has it."
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


class UnknownKindNameError(NnxError, ValueError):
    """No kind of Variable is registered by a name."""

    def __init__(self, name: str, known: tuple[str, ...]):
        super().__init__(name, known)

    def text(self) -> str:
        name, known = self.args
        return (
            f"variable_type_from_name: no kind of Variable has the name {name!r}.{did_you_mean(name, known)} "
            f"Expected a registered name. Write nnx.register_variable_name({name!r}, kind) first, or "
            f"allow_register=True to make a new kind."
        )


class UnnamedKindError(NnxError, ValueError):
    """A kind of Variable is registered by no name."""

    def __init__(self, kind: str):
        super().__init__(kind)

    def text(self) -> str:
        kind = self.args[0]
        return (
            f"variable_name_from_type: {kind} has no name. Expected a registered kind. Write "
            f"nnx.register_variable_name(name, {kind}) first, or allow_register=True to use {kind!r}."
        )


class KindNameTakenError(NnxError, ValueError):
    """A name belongs to another kind of Variable, or the kind has another name."""

    def __init__(self, name: str, kind: str, other: str, former: str):
        super().__init__(name, kind, other, former)

    def text(self) -> str:
        name, kind, other, former = self.args
        found = f"{kind} has the name {former!r}" if former != name else f"the name belongs to {other}"
        return (
            f"register_variable_name({name!r}, {kind}): {found}. Expected one name for each kind. Write "
            f"another name, or overwrite=True to take it over."
        )


class ModuleInVariableError(NnxError, TypeError):
    """A Variable is made of a Module."""

    def __init__(self, kind: str, module: str):
        super().__init__(kind, module)

    def text(self) -> str:
        kind, module = self.args
        return (
            f"{kind}({module}): a Variable cannot hold a {module}, whose own Variables would be hidden from "
            f"state, split and update. Expected an array or a pytree of arrays. Write "
            f"`self.layer = {module}(...)`: a Module is an attribute as it is."
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


class LaneShapeError(NnxError, TypeError):
    """Random streams are to be split into what is no number and no shape."""

    def __init__(self, where: str, found: str):
        super().__init__(where, found)

    def text(self) -> str:
        where, found = self.args
        return (
            f"{where}: found {found} for the lanes of a random stream. Expected their number, their shape as "
            f"a tuple, or a mapping from filters to these. Write for example {{'dropout': 4}}."
        )


class ReseedError(NnxError, ValueError):
    """Random streams cannot be given the keys that they are to have."""

    def __init__(self, found: str, expected: str):
        super().__init__(found, expected)

    def text(self) -> str:
        found, expected = self.args
        return f"reseed: {found}. Expected {expected}. Nothing was changed."
