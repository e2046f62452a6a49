"""Calling a split object as a function of its state."""

from __future__ import annotations

from typing import Any

from .._typing import Key
from ..errors import NotAGraphDefError
from ._functional import merge, split
from ._graphdef import GraphDef


def call(graphdef_state: tuple[GraphDef, Any], /) -> Any:
    """Call a split object, or its methods, as a function of its state.

    Args:
        graphdef_state: The pair that `split` returns.

    Returns:
        A proxy: calling it, or an attribute of it, returns `(result, (graphdef, state))`.

    Example:
        >>> pair = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> y, (graphdef, state) = nnx.call(pair)(jnp.ones((1, 2)))
        >>> y.shape
        (1, 3)
    """
    pair = graphdef_state if isinstance(graphdef_state, tuple) else (graphdef_state,)
    if len(pair) < 2 or not isinstance(pair[0], GraphDef):
        raise NotAGraphDefError("call", type(pair[0] if pair else pair).__name__)
    return _apply(*pair)


class CallProxy:
    """A method of an object that exists only while it is called."""

    __slots__ = ("_graph", "_pair", "_path")

    def __init__(self, pair: tuple[Any, ...], path: tuple[Any, ...], graph: bool | None = None):
        self._pair = pair
        self._path = path
        self._graph = graph

    def __getattr__(self, name: str) -> CallProxy:
        return CallProxy(self._pair, (*self._path, (True, name)), self._graph)

    def __getitem__(self, key: Key) -> CallProxy:
        return CallProxy(self._pair, (*self._path, (False, key)), self._graph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        node = merge(*self._pair)
        target = node
        for is_attribute, key in self._path:
            target = getattr(target, key) if is_attribute else target[key]
        result = target(*args, **kwargs)
        return result, split(node, graph=self._graph)


def _apply(graphdef: GraphDef, state: Any, *states: Any, graph: bool | None = None) -> CallProxy:
    """The proxy of an object that is given as description and values."""
    return CallProxy((graphdef, state, *states), (), graph)


GraphDef.apply = _apply
