"""Random streams for the time of a call: split for lanes, forked, broadcast; and given new keys for good.

`split_rngs`, `fork_rngs` and `with_rngs` replace what streams hold, in place, and remember what the streams
would have gone on with. Each is a function, a context manager and a decorator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import jax
import jax.numpy as jnp

from ._filters import Filter
from ._pytree import Pytree
from ._rngs import RngStream, check_lanes, matches, shape_for, typed_key
from ._settings import current_mode
from ._typing import MISSING, Missing, Path
from .errors import ReseedError, SqueezeError
from .graph._registry import is_graph_value
from .graph._traverse import check_sharing, iter_graph
from .graph._walk import flatten

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Objects = Pytree | Sequence[Any] | Mapping[Any, Any]


class RngBackups:
    """What streams held before they were replaced; as a context manager, puts it back on exit, once."""

    def __init__(self) -> None:
        self._saved: list[tuple[RngStream, Any, Any]] = []

    def replace(self, stream: RngStream, new: RngStream) -> None:
        """Give a stream the state of another one, and note what it would have gone on with."""
        self._saved.append((stream, *_state(stream)))
        _put(stream, *_state(new))

    def restore(self) -> None:
        """Put the keys and counts back."""
        saved, self._saved = self._saved, []
        for stream, key, count in saved:
            _put(stream, key, count)

    def __enter__(self) -> RngBackups:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()


class _Helper(Protocol[P]):
    """What replaces the streams of an object, or those in the arguments of a function."""

    @overload
    def __call__(self, node: Objects, /, *args: P.args, **kwargs: P.kwargs) -> RngBackups: ...
    @overload
    def __call__(self, f: F, /, *args: P.args, **kwargs: P.kwargs) -> F: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[F], F]: ...


def _helper(f: Callable[Concatenate[Any, P], Any]) -> _Helper[P]:
    """Declare such a function, for type checkers."""
    return cast(_Helper[P], f)


def _state(stream: RngStream) -> tuple[Any, Any]:
    """The key and the count that a stream holds."""
    return stream.key.get_raw_value(), stream.count.get_raw_value()


def _put(stream: RngStream, key: Any, count: Any) -> None:
    """Make a stream hold a key and a count."""
    stream.key.set_raw_value(key)
    stream.count.set_raw_value(count)


def _streams(where: str, node: Any, graph: bool | None) -> list[tuple[Path, RngStream]]:
    """The streams of an object, each once, with their paths."""
    if not current_mode(graph, None).sharing:
        check_sharing(where, flatten(node)[0], graph)
    return [(path, x) for path, x in iter_graph(node, graph=True) if isinstance(x, RngStream)]


Fresh = Callable[[Path, RngStream], RngStream | None]


def _replaced(where: str, node: Any, fresh: Fresh, graph: bool | None) -> RngBackups:
    """Replace the streams for which there is a fresh one; if that fails, all are as they were."""
    streams = _streams(where, node, graph)
    before = [(stream, *_state(stream)) for _, stream in streams]
    backups = RngBackups()
    try:
        for path, stream in streams:
            new = fresh(path, stream)
            if new is not None:
                backups.replace(stream, new)
    except BaseException:
        for stream, key, count in before:
            if any(now is not then for now, then in zip(_state(stream), (key, count), strict=True)):
                _put(stream, key, count)
        raise
    return backups


def _around(where: str, node: Any, fresh: Fresh, graph: bool | None) -> Any:
    """Replace the streams of an object; or, given a function or nothing, decorate one."""
    if isinstance(node, Missing):
        return lambda f: _around(where, f, fresh, graph)
    if not callable(node) or is_graph_value(node):
        return _replaced(where, node, fresh, graph)

    @functools.wraps(node, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = {"self": getattr(node, "__self__", None), "args": args, "kwargs": kwargs}
        with _replaced(where, given, fresh, graph):
            return node(*args, **kwargs)

    return wrapper


@_helper
def split_rngs(
    node: Any = MISSING,
    /,
    *,
    splits: Any,
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Split the random streams of an object for a transform with several lanes.

    Each stream draws one key and splits it; when the backups are restored, the stream goes on after it.

    Args:
        node: The object; a function, to split the streams in all its arguments while it runs; left out for
            a decorator.
        splits: The number of lanes, their shape, or a mapping from filters to these; streams that no filter
            of the mapping names stay as they are.
        only: Which streams to split, by tag or another filter.
        squeeze: Whether to drop the axis of a split into one.
        graph: False to refuse shared Variables.
        graph_updates: Accepted like elsewhere; streams keep their identity.

    Returns:
        Backups with `restore()`, also a context manager; or the decorated function, or a decorator.

    Raises:
        LaneShapeError: If `splits` is no number and no shape.
        SplitStreamError: If a stream is split already.
        SqueezeError: If `squeeze` is set and `splits` is not 1.

    Example:
        >>> @nnx.split_rngs(splits=3)
        ... @nnx.vmap
        ... def make(rngs):
        ...     return nnx.Linear(2, 2, rngs=rngs)
        >>> make(nnx.Rngs(0)).kernel.shape
        (3, 2, 2)
    """
    check_lanes("split_rngs", splits)
    if squeeze and splits != 1:
        raise SqueezeError(splits)

    def fresh(path: Path, stream: RngStream) -> RngStream | None:
        if not matches(only, path, stream):
            return None
        shape = shape_for(splits, path, stream)
        return None if shape is None else stream.fork(split=None if squeeze else shape)

    return _around("split_rngs", node, fresh, graph)


@_helper
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
        node: The object; a function, to fork the streams in all its arguments while it runs; left out for a
            decorator.
        split: The shape of lanes to split the fresh streams for, or a mapping from filters to shapes;
            streams that no filter names are forked without a split.
        graph: False to refuse shared Variables.
        graph_updates: Accepted like elsewhere; streams keep their identity.

    Returns:
        Backups with `restore()`, also a context manager; or the decorated function, or a decorator.

    Raises:
        LaneShapeError: If `split` is no number and no shape.
        SplitStreamError: If a stream is split already.

    Example:
        >>> rngs = nnx.Rngs(0)
        >>> with nnx.fork_rngs(rngs, split=3):
        ...     rngs.default.key.shape
        (3,)
        >>> @nnx.fork_rngs
        ... def sample(rngs):
        ...     return rngs.normal(())
    """
    check_lanes("fork_rngs", split)

    def fresh(path: Path, stream: RngStream) -> RngStream:
        return stream.fork(split=shape_for(split, path, stream))

    return _around("fork_rngs", node, fresh, graph)


@_helper
def with_rngs(
    node: Any = MISSING,
    /,
    *,
    split: Any = None,
    fork: Filter = None,
    broadcast: Any = None,
    only: Filter = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Split, fork and broadcast random streams of an object, each as its name says.

    The first that names a stream decides: a mapping of `split`, one of `broadcast`, then `fork`; a shape for
    all streams comes after what names some. Streams that nothing names stay as they are.

    Args:
        node: The object; a function, to replace the streams in all its arguments while it runs; left out for
            a decorator.
        split: A mapping from filters to shapes of lanes in which the keys differ, or one shape for all.
        fork: A filter for the streams that go on with a fresh key.
        broadcast: A mapping from filters to shapes of lanes that draw the same keys, or one shape for all.
        only: Which streams may be replaced at all.
        graph: False to refuse shared Variables.
        graph_updates: Accepted like elsewhere; streams keep their identity.

    Returns:
        Backups with `restore()`, also a context manager; or the decorated function, or a decorator.

    Raises:
        LaneShapeError: If `split` or `broadcast` has what is no number and no shape.
        SplitStreamError: If a stream is split already.

    Example:
        >>> rngs = nnx.Rngs(params=0, dropout=1, noise=2)
        >>> with nnx.with_rngs(rngs, split={'dropout': 4}, broadcast={'params': 4}, fork='noise'):
        ...     rngs.dropout.key.shape, rngs.params.key.shape, rngs.noise.key.shape
        ((4,), (4,), ())
    """
    for shapes in (split, broadcast):
        check_lanes("with_rngs", shapes)
    lanes = ((split, RngStream.split), (broadcast, RngStream.broadcast))
    forks = [(fork, None, lambda stream, _: stream.fork())]
    rules: list[tuple[Filter, Any, Callable[[RngStream, Any], RngStream]]] = [
        *((f, shape, make) for x, make in lanes if isinstance(x, Mapping) for f, shape in x.items()),
        *([] if fork in (..., True) else forks),
        *((..., x, make) for x, make in lanes if not isinstance(x, Mapping) and x is not None),
        *forks,
    ]

    def fresh(path: Path, stream: RngStream) -> RngStream | None:
        if not matches(only, path, stream):
            return None
        return next((make(stream, x) for f, x, make in rules if matches(f, path, stream)), None)

    return _around("with_rngs", node, fresh, graph)


def restore_rngs(backups: RngBackups, /) -> None:
    """Put back what streams held before `split_rngs`, `fork_rngs` or `with_rngs`.

    Args:
        backups: What these returned. It restores once: doing it again changes nothing.

    Example:
        >>> rngs = nnx.Rngs(0)
        >>> backups = nnx.split_rngs(rngs, splits=2)
        >>> nnx.restore_rngs(backups)
        >>> rngs.default.key.shape
        ()
    """
    backups.restore()


def reseed(
    node: Any, /, *, graph: bool | None = None, policy: Any = "scalars_only", **stream_keys: Any
) -> None:
    """Give random streams of an object new keys, by name; they count from 0 again.

    Where an object has several streams of one name, as layers have that each forked one, the first gets the
    key itself and the others keys derived from it, so that no two draw the same.

    Args:
        node: The object.
        graph: False to refuse shared Variables.
        policy: What to do with a stream that is split for lanes: 'scalars_only' refuses it, 'match_shape'
            splits the new key into its shape, a function `(path, key, shape) -> key` does as it likes.
        **stream_keys: The seed or key of each stream to change, by the tag of the stream.

    Raises:
        ReseedError: If there is no stream of a name, a stream is split and the policy does not allow it, or
            the policy is unknown.

    Example:
        >>> model = nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=0))
        >>> nnx.reseed(model, dropout=42)
        >>> first = model(jnp.ones(8))
        >>> nnx.reseed(model, dropout=42)
        >>> bool((model(jnp.ones(8)) == first).all())
        True
    """
    if policy not in ("scalars_only", "match_shape") and not callable(policy):
        raise ReseedError(f"found policy={policy!r}", "'scalars_only', 'match_shape' or a function")
    by_tag: dict[str, list[tuple[Path, RngStream]]] = {}
    for path, stream in _streams("reseed", node, graph):
        by_tag.setdefault(stream.tag, []).append((path, stream))
    unknown = [name for name in stream_keys if name not in by_tag]
    if unknown:
        known = ", ".join(map(repr, by_tag)) or "none"
        raise ReseedError(
            f"found no stream {unknown[0]!r}; there is {known}", "the tag of a stream of the object"
        )
    fresh = [
        (stream, _shaped(policy, path, stream, _derived(typed_key(key), number)))
        for name, key in stream_keys.items()
        for number, (path, stream) in enumerate(by_tag[name])
    ]
    for stream, key in fresh:
        _put(stream, key, jnp.zeros(key.shape, jnp.uint32))


_NEVER_DRAWN = 2**32 - 1  # no stream counts as far, so that no key drawn is one derived


def _derived(key: jax.Array, number: int) -> jax.Array:
    """The key of the stream with this number among those of one name."""
    return jax.random.fold_in(jax.random.fold_in(key, _NEVER_DRAWN), number) if number else key


def _shaped(policy: Any, path: Path, stream: RngStream, key: jax.Array) -> jax.Array:
    """A new key in the shape that a stream has."""
    shape = tuple(stream.key.shape)
    if callable(policy):
        return typed_key(policy(path, key, shape))
    if shape and policy == "scalars_only":
        found = f"found the stream {stream.tag!r} split into {shape}"
        raise ReseedError(found, "streams with one key. Write policy='match_shape'")
    return jax.random.split(key, shape) if shape else key
