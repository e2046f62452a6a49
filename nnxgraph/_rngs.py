"""Random streams: keys that are never handed out twice.

A `RngStream` holds a key and a count; each call folds the count into the key and counts on. `Rngs` is a
set of named streams with a default. What transforms need of them is in `_rng_helpers`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ._filters import Filter, to_predicate
from ._pytree import Pytree
from ._repr import short
from ._typing import Path
from ._variable import Variable
from ._variable_names import register_variable_name
from .errors import LaneShapeError, MissingStreamError, SplitStreamError


@register_variable_name("RngState")
class RngState(Variable[jax.Array]):
    """What a random stream holds.

    Example:
        >>> len(nnx.state(nnx.Rngs(0), nnx.RngState).default)
        2
    """

    __slots__ = ()


@register_variable_name("RngKey")
class RngKey(RngState):
    """The key of a random stream.

    Example:
        >>> nnx.Rngs(0).default.key
        RngKey( # 1 (8 B)
          value=key<fry>[],
          tag='default'
        )
    """

    __slots__ = ()


@register_variable_name("RngCount")
class RngCount(RngState):
    """How many keys a random stream has handed out.

    Example:
        >>> nnx.Rngs(0).default.count.item()
        0
    """

    __slots__ = ()


def typed_key(key: Any) -> jax.Array:
    """A typed key from a seed, a typed key, or the raw data of one."""
    if isinstance(key, Variable):
        key = key.get_value()
    if isinstance(key, int):
        return jax.random.key(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        typed: jax.Array = key
    elif key.dtype == jnp.uint32 and key.ndim > 0:
        typed = jax.random.wrap_key_data(key)
    else:
        typed = jax.random.key(key)
    return typed


class _Samplers:
    """The functions of `jax.random` and the initializers as methods, each with a fresh key."""

    __slots__ = ()

    def __call__(self) -> jax.Array:
        """A fresh key."""
        raise NotImplementedError


def _sampler(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """The method that draws from a function of `jax.random`."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return f(self(), *args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"_Samplers.{name}"
    method.__doc__ = f"`jax.random.{name}` with a fresh key of this stream."
    return method


def _initializer(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """The method that makes a drawing initializer."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = f(*args, **kwargs)
        return lambda *a, **k: made(self(), *a, **k)

    method.__name__ = name
    method.__qualname__ = f"_Samplers.{name}"
    method.__doc__ = f"`jax.nn.initializers.{name}`; the result takes a shape and draws a fresh key."
    return method


_NOT_SAMPLERS = {
    "split",
    "fold_in",
    "clone",
    "key_data",
    "key_impl",
    "wrap_key_data",
    "key",
    "PRNGKey",
}


def _first_parameter(f: Any) -> str:
    """The name of a function's first parameter; empty if there is none to read."""
    try:
        return next(iter(inspect.signature(f).parameters), "")
    except (TypeError, ValueError):
        return ""


def _add_samplers() -> None:
    """Make methods of all samplers and random initializers."""
    for name in dir(jax.nn.initializers):
        f = getattr(jax.nn.initializers, name)
        if inspect.isfunction(f) and name not in ("zeros", "ones", "constant"):
            setattr(_Samplers, name, _initializer(name, f))
    for name in dir(jax.random):
        f = getattr(jax.random, name)
        if not name.startswith("_") and name not in _NOT_SAMPLERS and _first_parameter(f) == "key":
            setattr(_Samplers, name, _sampler(name, f))


_add_samplers()


class RngStream(Pytree, _Samplers):
    """A stream of random keys.

    Has a method for every sampler of `jax.random` and every random initializer.

    Args:
        key: A seed, a key, or the raw uint32 data of a key.
        tag: The name of the stream.

    Example:
        >>> stream = nnx.RngStream(0, tag='dropout')
        >>> bool(stream() == stream())
        False
        >>> stream.normal((2, 3)).shape
        (2, 3)
    """

    def __init__(self, key: Any, *, tag: str):
        typed = typed_key(key)
        self.tag = tag
        self.key = RngKey(typed, tag=tag)
        self.count = RngCount(jnp.zeros(typed.shape, jnp.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """The next key.

        Raises:
            SplitStreamError: If the stream was split and is not under the transform it was split for.
        """
        key, count = self.key[...], self.count[...]
        if key.ndim:
            raise SplitStreamError(self.tag, tuple(key.shape))
        self.count[...] = count + jnp.ones((), jnp.uint32)
        return jax.random.fold_in(key, count)

    def split(self, k: int | tuple[int, ...]) -> RngStream:
        """A new stream whose key is split, for a transform with `k` lanes; this stream counts on."""
        return RngStream(jax.random.split(self(), k), tag=self.tag)

    def fork(self, *, split: int | tuple[int, ...] | None = None) -> RngStream:
        """A new independent stream; this stream counts on.

        Args:
            split: The shape of lanes to split the new stream for, if any.
        """
        return RngStream(self(), tag=self.tag) if split is None else self.split(split)

    def broadcast(self, k: int | tuple[int, ...]) -> RngStream:
        """A new stream that draws the same keys in each of `k` lanes; this stream counts on."""
        shape = (k,) if isinstance(k, int) else tuple(k)
        return RngStream(jnp.broadcast_to(self(), shape), tag=self.tag)


class Rngs(Pytree, _Samplers):
    """Named random streams, with a default for names that have none.

    Has a method for every sampler of `jax.random` and every random initializer; they draw from the default.

    Args:
        default: The seed or key of the default stream, or a mapping from names to seeds or keys.
        **rngs: The seeds or keys of further streams.

    Example:
        >>> rngs = nnx.Rngs(0, dropout=1)
        >>> key = rngs.params()           # no such stream: the default
        >>> key = rngs.dropout()
        >>> rngs.normal((2,)).shape
        (2,)
    """

    def __init__(self, default: Any = None, **rngs: Any):
        streams = dict(default) if isinstance(default, Mapping) else {"default": default}
        for name, key in (streams | rngs).items():
            if key is not None:
                fresh = key.fork() if isinstance(key, RngStream) else key
                setattr(self, name, fresh if isinstance(key, RngStream) else RngStream(key, tag=name))

    def __call__(self) -> jax.Array:
        """The next key of the default stream."""
        return self["default"]()

    def __getitem__(self, name: str) -> RngStream:
        found = vars(self).get(name, vars(self).get("default"))
        if found is None:
            raise MissingStreamError(name, tuple(vars(self)))
        return found  # type: ignore[no-any-return]  # attributes are streams

    def __getattr__(self, name: str) -> RngStream:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __contains__(self, name: str) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def keys(self) -> Any:
        """The names of the streams."""
        return vars(self).keys()

    def values(self) -> Any:
        """The streams."""
        return vars(self).values()

    def items(self) -> Any:
        """Names and streams."""
        return vars(self).items()

    def fork(self, /, *, split: Any = None) -> Rngs:
        """New independent streams under the same names; these streams count on.

        Args:
            split: The shape of lanes to split the new streams for, or a mapping from filters to shapes.
        """
        check_lanes("Rngs.fork", split)
        return self._derive(lambda path, stream: stream.fork(split=shape_for(split, path, stream)))

    def split(self, k: Any) -> Rngs:
        """New streams whose keys are split for `k` lanes (or by a mapping from filters); these count on."""
        return self.fork(split=k)

    def broadcast(self, k: Any) -> Rngs:
        """New streams that draw the same keys in each of `k` lanes (or by filter); these streams count on."""
        check_lanes("Rngs.broadcast", k)

        def derive(path: Path, stream: RngStream) -> RngStream:
            shape = shape_for(k, path, stream)
            return stream.fork() if shape is None else stream.broadcast(shape)

        return self._derive(derive)

    def _derive(self, f: Callable[[Path, RngStream], RngStream]) -> Rngs:
        """New streams under the same names."""
        derived = Rngs()
        for name, stream in self.items():
            setattr(derived, name, f((name,), stream))
        return derived


def check_lanes(where: str, split: Any) -> None:
    """Refuse what is no number of lanes, no shape of lanes, and no mapping from filters to these."""
    for shape in split.values() if isinstance(split, Mapping) else (split,):
        numbers = shape if isinstance(shape, tuple) else (0 if shape is None else shape,)
        if any(isinstance(n, bool) or not hasattr(n, "__index__") or n < 0 for n in numbers):
            raise LaneShapeError(where, repr(shape) if isinstance(shape, tuple) else short(shape))


def shape_for(split: Any, path: Path, stream: RngStream) -> Any:
    """The shape of lanes that a number, a shape, or a mapping from filters gives to a stream."""
    if not isinstance(split, Mapping):
        return split
    return next((shape for filter, shape in split.items() if matches(filter, path, stream)), None)


def matches(filter: Filter, path: Path, stream: RngStream) -> bool:
    """Whether a filter means a stream or its key."""
    predicate = to_predicate(filter)
    return predicate(path, stream) or predicate(path, stream.key)
