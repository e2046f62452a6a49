"""Errors of layers."""

from __future__ import annotations

from ._base import NnxError


class DtypeNotInexactError(NnxError, ValueError):
    """A layer is told to compute in an integer dtype."""

    def __init__(self, dtype: str):
        super().__init__(dtype)

    def text(self) -> str:
        return (
            f"promote_dtype: found dtype={self.args[0]}. Expected a floating or complex dtype. "
            f"Write dtype=jnp.float32, or inexact=False to cast to integers."
        )


class LayerError(NnxError, ValueError):
    """A layer is made or called in a way it cannot serve: `layer: argument is found; expected ...`."""

    def __init__(self, layer: str, argument: str, found: str, expected: str, instead: str = ""):
        super().__init__(layer, argument, found, expected, instead)

    def text(self) -> str:
        layer, argument, found, expected, instead = self.args
        return f"{layer}: found {argument} = {found}. Expected {expected}.{instead and ' ' + instead}"


class LayerOptionError(LayerError):
    """A layer is made with an option that has no meaning."""


class LayerInputError(LayerError):
    """A layer is called with an input that does not fit it."""


class MissingKeyError(NnxError, ValueError):
    """A layer draws at random, but neither the call nor the layer has a stream."""

    def __init__(self, layer: str, stream: str):
        super().__init__(layer, stream)

    def text(self) -> str:
        layer, stream = self.args
        return (
            f"{layer}: found no random stream, neither in the call nor on the layer. Expected one named "
            f"{stream!r} (or a default stream), since the layer is not deterministic. Write "
            f"`{layer}(..., rngs=nnx.Rngs(0))` where the layer is made, `layer(x, "
            f"rngs=nnx.Rngs({stream}=0))` "
            f"where it is called, or call `model.eval()` to turn the randomness off."
        )


class DecodeCacheError(NnxError, ValueError):
    """The decode cache of an attention layer is missing, full, or made for another shape."""

    def __init__(self, layer: str, found: str, expected: str, instead: str):
        super().__init__(layer, found, expected, instead)

    def text(self) -> str:
        layer, found, expected, instead = self.args
        return f"{layer}: decode cache: found {found}. Expected {expected}. {instead}"


class UnboundAxisWarning(UserWarning):
    """A normalisation layer with an axis_name runs where no such axis is mapped."""

    def __init__(self, layer: str, axes: tuple[str, ...]):
        super().__init__(layer, axes)

    def __str__(self) -> str:
        layer, axes = self.args
        return (
            f"{layer}: found no mapped axis named {' or '.join(map(repr, axes))}, so the statistics "
            "are those "
            f"of this call alone. Expected a call under nnx.vmap, nnx.pmap or nnx.shard_map with that "
            "axis name. "
            f"Make the layer with axis_name=None where statistics are not shared."
        )
