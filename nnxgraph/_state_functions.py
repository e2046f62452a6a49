"""The functions over States: methods of `State`, also for plain nested mappings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ._filters import Filter
from ._state import State, levels, plain, to_flat_state
from ._typing import Key, Path


def _as_state(x: Any) -> State:
    """A nested mapping as a State; over a plain dict itself, so that changes reach it."""
    if isinstance(x, State):
        return x
    return State(x, _copy=type(x) is not dict)


def to_pure_dict(state: Any, extract_fn: Callable[[Any], Any] | None = None) -> dict[Key, Any]:
    """Nested dicts with the plain values of a State.

    Args:
        state: A State or nested mapping.
        extract_fn: What to keep of each leaf; by default the raw value of a Variable, else the leaf.

    Returns:
        Nested dicts.

    Example:
        >>> nnx.to_pure_dict(nnx.State({'a': nnx.Param(3)}))
        {'a': 3}
    """
    return _as_state(state).to_pure_dict(extract_fn)


def replace_by_pure_dict(
    state: Any, pure_dict: Mapping[Key, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Set the values of a State from nested dicts of plain values, in place.

    Args:
        state: The State.
        pure_dict: Nested dicts; digits in string keys also address integer keys.
        replace_fn: How to make the new leaf from (old leaf, value).

    Raises:
        StateMismatchError: If a path is not in the State.

    Example:
        >>> state = nnx.State({'a': nnx.Param(3)})
        >>> nnx.replace_by_pure_dict(state, {'a': 4})
        >>> state['a'].get_value()
        4
    """
    _as_state(state).replace_by_pure_dict(pure_dict, replace_fn)


def restore_int_paths(pure_dict: Mapping[Key, Any]) -> dict[Key, Any]:
    """Turn string keys that are digits back into integers, as lists of layers have them.

    Args:
        pure_dict: Nested dicts.

    Returns:
        Nested dicts with integer keys.

    Example:
        >>> nnx.restore_int_paths({'layers': {'0': 1}})
        {'layers': {0: 1}}
    """

    def whole(key: Key) -> Key:
        return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key

    flat = to_flat_state(levels(pure_dict))
    return plain((tuple(whole(k) for k in path), value) for path, value in flat)


def split_state(state: Any, first: Filter, /, *filters: Filter) -> Any:
    """Split a State into one State for each filter.

    Args:
        state: The State.
        first: A filter.
        *filters: Further filters; together they must match every leaf.

    Returns:
        A State if there is one filter, else a tuple of States.

    Raises:
        NonExhaustiveError: If a leaf matches no filter.

    Example:
        >>> state = nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
        >>> params, rest = nnx.split_state(state, nnx.Param, ...)
        >>> list(rest)
        ['mean', 'var']
    """
    return _as_state(state).split(first, *filters)


def filter_state(state: Any, first: Filter, /, *filters: Filter) -> Any:
    """The leaves of a State that match, one State for each filter.

    Args:
        state: The State.
        first: A filter.
        *filters: Further filters.

    Returns:
        A State if there is one filter, else a tuple of States.

    Example:
        >>> state = nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
        >>> list(nnx.filter_state(state, nnx.BatchStat))
        ['mean', 'var']
    """
    return _as_state(state).filter(first, *filters)


def merge_state(state: Any, /, *states: Any, cls: type[State] = State) -> State:
    """All leaves of several States in one; later ones win.

    Args:
        state: A State.
        *states: Further States.
        cls: The class of the result.

    Returns:
        A State.

    Example:
        >>> sorted(nnx.merge_state(nnx.State({'a': 1}), nnx.State({'b': 2})))
        ['a', 'b']
    """
    return cls(State.merge(state, *states), _copy=False)


def map_state(f: Callable[[Path, Any], Any], state: Any) -> State:
    """A State with `f(path, leaf)` for each leaf.

    Args:
        f: The function.
        state: The State.

    Returns:
        A State with the same paths.

    Example:
        >>> nnx.map_state(lambda path, x: x * 2, nnx.State({'a': 3}))
        State({
          'a': 6
        })
    """
    return _as_state(state).map(f)
