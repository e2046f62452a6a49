"""Padding of convolutions: what the user writes, and what JAX is given.

A padding is `'SAME'` or `'VALID'`; `'CIRCULAR'` and `'REFLECT'`, which pad as `'SAME'`
does with what stands at the other end or mirrored; `'CAUSAL'`, all in front; an int for all
sides; or an int or a pair `(before, after)` for each spatial axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from ..errors import LayerOptionError
from ._checks import as_int, name_of
from ._types import Array, Shape

Padding: TypeAlias = str | int | Sequence[int | tuple[int, int]]
Pairs: TypeAlias = list[tuple[int, int]]

NAMES = ("SAME", "SAME_LOWER", "VALID", "CIRCULAR", "REFLECT", "CAUSAL")
# How jnp.pad calls the paddings that copy entries of the input.
COPYING = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


def check_padding(layer: object, padding: Padding, kernel_size: Shape, input_dilation: Shape) -> str | Pairs:
    """The padding as one of the names or a pair for each spatial axis."""
    spatial = len(kernel_size)
    if isinstance(padding, str):
        name = padding.upper()
        if name not in NAMES:
            expected = f"one of {', '.join(NAMES)}, an int, or a pair of ints for each axis"
        elif name == "CAUSAL" and spatial != 1:
            expected = f"another one: 'CAUSAL' is for one spatial axis, kernel_size={kernel_size}"
        elif name in COPYING and input_dilation != (1,) * spatial:
            expected = f"another one: {padding!r} needs input_dilation=1, not {input_dilation}"
        else:
            return name
        raise LayerOptionError(name_of(layer), "padding", repr(padding), expected)
    sides = padding if isinstance(padding, list | tuple) else [padding] * spatial
    pairs = [as_pair(side) for side in sides]
    if None in pairs or len(pairs) != spatial:
        expected = f"an int or a pair of ints for each of {spatial} spatial axes"
        raise LayerOptionError(name_of(layer), "padding", repr(padding), expected)
    return [pair for pair in pairs if pair is not None]


def as_pair(side: Any) -> tuple[int, int] | None:
    """What to add before and after one axis; None if it is not that."""
    pair = side if isinstance(side, list | tuple) else (side, side)
    whole = [n for n in map(as_int, pair) if n is not None]
    return (whole[0], whole[1]) if len(whole) == len(pair) == 2 else None


def pad_inputs(
    x: Array,
    padding: str | Pairs,
    kernel_size: Shape,
    strides: Shape,
    dilation: Shape,
    input_dilation: Shape,
) -> tuple[Array, str | Pairs]:
    """Pads by copying where the padding says so; returns the padding that is left to JAX.

    x: (batch, *spatial, features)
    """
    # All that a kernel of k entries, d apart, reaches beyond one entry: (k - 1) * d
    reach = [(size - 1) * step for size, step in zip(kernel_size, dilation, strict=True)]
    if padding == "CAUSAL":
        return x, [(reach[0], 0)]
    if padding in ("SAME", "SAME_LOWER", "VALID") and input_dilation != (1,) * len(reach):
        # JAX takes no names here
        spread = zip(x.shape[1:-1], input_dilation, strict=True)
        dilated = [max((size - 1) * step + 1, 0) for size, step in spread]
        window = [total + 1 for total in reach]
        return x, list(jax.lax.padtype_to_pads(dilated, window, strides, padding))
    if not isinstance(padding, str) or padding not in COPYING:
        return x, padding
    sides = [(total // 2, total - total // 2) for total in reach]
    return jnp.pad(x, [(0, 0), *sides, (0, 0)], mode=COPYING[padding]), "VALID"
