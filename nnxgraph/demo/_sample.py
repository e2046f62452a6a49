"""Text written by the model."""

import jax
import jax.numpy as jnp

import nnxgraph as nnx

from ._data import UNKNOWN
from ._model import Transformer

TEMPERATURE = 0.8


@nnx.jit
def generate(model: Transformer, window: jax.Array, keys: jax.Array) -> jax.Array:
    """Goes on with a text, one character for each key.

    Args:
        model: The model, in evaluation mode.
        window: The last characters of the text, (T,).
        keys: Random keys, (N,).

    Returns:
        The N characters that follow, (N,).
    """

    @nnx.scan(in_axes=(nnx.Carry, None, 0), out_axes=(nnx.Carry, 0))
    def write(window: jax.Array, model: Transformer, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = model(window[None])[0, -1].at[UNKNOWN].set(-jnp.inf)  # (T,) -> (V,)
        character = jax.random.categorical(key, logits / TEMPERATURE).astype(window.dtype)  # ()
        return jnp.append(window[1:], character), character  # (T,), ()

    _, characters = write(window, model, keys)
    return characters
