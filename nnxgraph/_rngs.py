"""Random streams: keys that are never handed out twice.

A `RngStream` holds a key and a count; each call folds the count into the key and counts on. `Rngs` is a
set of named streams with a default. For transforms that need a key for each lane, `split_rngs` splits
streams for the time of a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp

from ._filters import Filter, to_predicate
from ._pytree import Pytree
from ._typing import MISSING, Missing, Path
from ._variable import Variable
from ._variable_names import register_variable_name
from .errors import MissingStreamError, SplitStreamError, SqueezeError
from .graph._traverse import iter_graph


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


def _typed_key(key: Any) -> jax.Array:
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
        typed = _typed_key(key)
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
        return self._derive(lambda path, stream: stream.fork(split=_shape_for(split, path, stream)))

    def split(self, k: Any) -> Rngs:
        """New streams whose keys are split for `k` lanes (or by a mapping from filters); these count on."""
        return self.fork(split=k)

    def broadcast(self, k: Any) -> Rngs:
        """New streams that draw the same keys in each of `k` lanes; these streams count on."""
        return self._derive(lambda path, stream: stream.broadcast(k))

    def _derive(self, f: Callable[[Path, RngStream], RngStream]) -> Rngs:
        """New streams under the same names."""
        derived = Rngs()
        for name, stream in self.items():
            setattr(derived, name, f((name,), stream))
        return derived


def _shape_for(split: Any, path: Path, stream: RngStream) -> Any:
    """The shape of lanes that a number, a shape, or a mapping from filters gives to a stream."""
    if not isinstance(split, Mapping):
        return split
    for filter, shape in split.items():
        if _matches(filter, path, stream):
            return shape
    return None


def _matches(filter: Filter, path: Path, stream: RngStream) -> bool:
    """Whether a filter means a stream or its key."""
    predicate = to_predicate(filter)
    return predicate(path, stream) or predicate(path, stream.key)


def _streams(node: Any, only: Filter) -> list[tuple[Path, RngStream]]:
    """The streams of an object that a filter means, with their paths."""
    return [(p, x) for p, x in iter_graph(node) if isinstance(x, RngStream) and _matches(only, p, x)]


class RngBackups:
    """What streams held before they were replaced; as a context manager, puts it back on exit."""

    def __init__(self, saved: list[tuple[RngStream, Any, Any]]):
        self._saved = saved

    def restore(self) -> None:
        """Put the keys and counts back."""
        for stream, key, count in self._saved:
            stream.key.set_raw_value(key)
            stream.count.set_raw_value(count)

    def __enter__(self) -> RngBackups:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()


def _replace_streams(
    node: Any, only: Filter, fresh: Callable[[Path, RngStream], RngStream | None]
) -> RngBackups:
    """Give streams the state of others, and remember what they would have gone on with."""
    saved = []
    for path, stream in _streams(node, only):
        new = fresh(path, stream)
        if new is not None:
            saved.append((stream, stream.key.get_raw_value(), stream.count.get_raw_value()))
            stream.key.set_raw_value(new.key.get_raw_value())
            stream.count.set_raw_value(new.count.get_raw_value())
    return RngBackups(saved)


def _around(open_backups: Callable[[Any], RngBackups]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that replaces the streams of all arguments while the function runs."""

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with open_backups((args, kwargs)):
                return f(*args, **kwargs)

        return wrapper

    return decorate


def split_rngs(
    node: Any = MISSING,
    /,
    *,
    splits: int | tuple[int, ...],
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Split the random streams of an object for a transform with several lanes.

    Each stream draws one key and splits it; when the backups are restored, the stream goes on after it.

    Args:
        node: The object; left out for a decorator that splits the streams in all arguments of a function.
        splits: The number of lanes, or their shape.
        only: Which streams to split, by tag or another filter.
        squeeze: Whether to drop the axis of a split into one.
        graph: Accepted like elsewhere; streams keep their identity in each mode.
        graph_updates: Accepted like elsewhere.

    Returns:
        Backups with `restore()`, also a context manager; or a decorator.

    Raises:
        SqueezeError: If `squeeze` is set and `splits` is not 1.

    Example:
        >>> @nnx.split_rngs(splits=3)
        ... @nnx.vmap
        ... def make(rngs):
        ...     return nnx.Linear(2, 2, rngs=rngs)
        >>> make(nnx.Rngs(0)).kernel.shape
        (3, 2, 2)
    """
    if squeeze and splits != 1:
        raise SqueezeError(splits)

    def fresh(path: Path, stream: RngStream) -> RngStream:
        return stream.fork() if squeeze else stream.split(splits)

    def open_backups(x: Any) -> RngBackups:
        return _replace_streams(x, only, fresh)

    return _around(open_backups) if isinstance(node, Missing) else open_backups(node)


def fork_rngs(
    node: Any = MISSING,
    /,
    *,
    split: Any = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Let the random streams of an object go on with fresh independent keys.

    Args:
        node: The object; left out for a decorator that forks the streams in all arguments of a function.
        split: The shape of lanes to split the fresh streams for, or a mapping from filters to shapes;
            streams that no filter names are forked without a split.
        graph: Accepted like elsewhere; streams keep their identity in each mode.
        graph_updates: Accepted like elsewhere.

    Returns:
        Backups with `restore()`, also a context manager; or a decorator.

    Example:
        >>> rngs = nnx.Rngs(0)
        >>> with nnx.fork_rngs(rngs, split=3):
        ...     rngs.default.key.shape
        (3,)
    """

    def fresh(path: Path, stream: RngStream) -> RngStream:
        return stream.fork(split=_shape_for(split, path, stream))

    def open_backups(x: Any) -> RngBackups:
        return _replace_streams(x, ..., fresh)

    return _around(open_backups) if isinstance(node, Missing) else open_backups(node)


def restore_rngs(backups: RngBackups, /) -> None:
    """Put back what streams held before `split_rngs` or `fork_rngs`.

    Args:
        backups: What `split_rngs` or `fork_rngs` returned.

    Example:
        >>> rngs = nnx.Rngs(0)
        >>> backups = nnx.split_rngs(rngs, splits=2)
        >>> nnx.restore_rngs(backups)
        >>> rngs.default.key.shape
        ()
    """
    backups.restore()
