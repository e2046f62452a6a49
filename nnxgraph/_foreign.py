"""Classes that are not ours as objects of the graph, or as containers in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from jax.tree_util import DictKey

from ._pytree_jax import register_jax
from ._static import Static
from .errors import RegistrationError
from .graph._registry import NodeType, is_registered, register_node_type


def _assign(x: Any, attributes: dict[Any, Any]) -> None:
    """Give an object these attributes in its `__dict__`, and no others."""
    own = vars(x)
    own.clear()
    own.update(attributes)


def register_graph_node_type(
    type_: type,
    /,
    *,
    attributes: Callable[[Any], Mapping[Any, Any]] = vars,
    assign: Callable[[Any, dict[Any, Any]], None] = _assign,
    create: Callable[[type], Any] = object.__new__,
    pytree: bool = True,
) -> None:
    """Make the objects of a class, and of its subclasses, objects of the graph with identity.

    Args:
        type_: The class, which need not derive from `nnx.Pytree`.
        attributes: `(object) -> mapping`, the live values by name, in order.
        assign: `(object, dict) -> None`, gives the object exactly these attributes.
        create: `(class) -> object`, makes an object without attributes; `__init__` is not called.
        pytree: Whether to register the class with JAX too, if it is not yet.

    Raises:
        RegistrationError: If the class is an object of the graph already, or keeps no `__dict__` and
            `attributes` is left out.

    Example:
        >>> class Ensemble:
        ...     def __init__(self, members):
        ...         self.members = members
        >>> nnx.register_graph_node_type(Ensemble)
        >>> pair = Ensemble([nnx.Param(jnp.ones(2)), nnx.Param(jnp.zeros(2))])
        >>> nnx.clone(pair).members[0] is pair.members[0]
        False
    """
    if is_registered(type_):
        raise RegistrationError("register_graph_node_type", type_.__name__, "known to the graph already")
    if attributes is vars and not type_.__dictoffset__:
        raise RegistrationError("register_graph_node_type", type_.__name__, "a class without a __dict__")

    def replace(x: Any, values: dict[Any, Any], marks: Mapping[Any, str]) -> None:
        assign(x, values)

    register_node_type(type_, NodeType(attributes, lambda x: {}, create, replace))
    if pytree:
        with contextlib.suppress(ValueError):  # JAX knows the class already
            register_jax(type_)


def register_container_type(
    type_: type,
    /,
    *,
    open: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    close: Callable[[Any, list[Any]], Any],
) -> None:
    """Make the values of a class containers: walked through, without identity, as lists and dicts are.

    JAX's own registrations (`jax.tree_util.register_pytree_node` and its kin) do the same.
    Here what is static may be any value: it is compared by structure and never hashed.

    Args:
        type_: The class; subclasses are not meant.
        open: `(value) -> (pairs, static)`, the children as (key, child) pairs, and the rest.
        close: `(static, children) -> value`, the opposite.

    Raises:
        RegistrationError: If JAX or the graph knows the class already.

    Example:
        >>> class Scaled:
        ...     def __init__(self, array, unit):
        ...         self.array, self.unit = array, unit
        >>> nnx.register_container_type(
        ...     Scaled,
        ...     open=lambda x: ([('array', x.array)], x.unit),
        ...     close=lambda unit, children: Scaled(*children, unit),
        ... )
        >>> nnx.to_flat_state(nnx.state([Scaled(jnp.ones(2), {'m': 1})])).paths
        ((0, 'array'),)
    """
    if is_registered(type_):
        raise RegistrationError("register_container_type", type_.__name__, "known to the graph already")

    def flatten(x: Any) -> tuple[tuple[tuple[Any, Any], ...], Static]:
        pairs, static = open(x)
        return tuple((DictKey(key), child) for key, child in pairs), Static(static)

    try:
        jax.tree_util.register_pytree_with_keys(
            type_, flatten, lambda static, children: close(static.fresh(), list(children))
        )
    except ValueError:
        found = "registered with JAX already"
        raise RegistrationError("register_container_type", type_.__name__, found) from None
