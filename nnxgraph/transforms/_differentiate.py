"""What a transform differentiates by: the leaves to differentiate by are one lane, all others the rest.

`grad`, `vjp`, `jvp`, `jacfwd` ... differ in which function of JAX they call over the two lanes, and in what
they do with what it returns; what they share stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._filters import Filter, to_predicate
from .._repr import path_text, short
from .._settings import Mode
from .._typing import Path
from .._variable import Param, Variable
from ..errors import ArgnumsError, NotDifferentiableError, ReduceAxesError, ResultError
from ..graph._graphdef import descriptions
from ..graph._walk import flatten
from ._boundary import Boundary
from ._crossing import Crossing, leaf_text
from ._functions import Lifted, in_range, parameter_names
from ._lanes import Lane, PrefixRule

DIFF, REST = "differentiated", "not differentiated"
_NOT_HOLOMORPHIC = "Expected complex numbers. Leave out holomorphic=True."
Place = int | str  # where an argument stands in a call: its position, or its keyword
_ONLY_ARRAYS = "arrays and Variables. Write has_aux=True to return `(out, aux)` with the rest in aux"


class DiffState(PrefixRule):
    """Which leaves of an argument `grad` differentiates by.

    Args:
        argnum: The position of the argument.
        filter: Which of its leaves.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> bias = nnx.DiffState(0, nnx.PathContains('bias'))
        >>> list(nnx.grad(lambda model, x: model(x).sum(), argnums=bias)(model, jnp.ones((1, 2))))
        ['bias']
    """

    def __init__(self, argnum: int, filter: Filter):
        self.argnum = argnum
        self.filter = filter
        self._predicate = to_predicate(filter)

    def map_prefix(self, path: Path, variable: Any) -> bool:
        """Whether a leaf is differentiated by."""
        return self._predicate(path, variable)

    def lane_at(self, path: Path, x: Any, in_node: bool) -> Lane:
        return DIFF if self._predicate(path, x) else REST

    def lane_values(self) -> list[Lane]:
        return [DIFF, REST]

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, DiffState) and self.argnum == other.argnum
        return same and bool(self.filter == other.filter)  # type: ignore[attr-defined]  # checked above

    def __hash__(self) -> int:
        return hash((self.argnum, self._predicate))

    def __repr__(self) -> str:
        return f"DiffState({self.argnum}, {self.filter!r})"


class _ByDefault(PrefixRule):
    """Params of an object; every leaf of anything else."""

    def __init__(self, has_nodes: bool):
        self.has_nodes = has_nodes

    def lane_at(self, path: Path, x: Any, in_node: bool) -> Lane:
        if not in_node or not self.has_nodes:
            return DIFF
        return DIFF if isinstance(x, Param) else REST

    def lane_values(self) -> list[Lane]:
        return [DIFF, REST]


def by_default(x: Any) -> PrefixRule:
    """The rule of an argument that is given by its position alone."""
    return _ByDefault(any(not isinstance(o, Variable) for o in flatten(x)[2]))


class Chosen:
    """The arguments that a transform differentiates by, as the user chose them."""

    def __init__(self, name: str, user: Lifted, argnums: Any):
        self.name = name
        self.is_one = not isinstance(argnums, (tuple, list))
        self.wanted = (argnums,) if self.is_one else tuple(argnums)
        self._keywords = parameter_names(user.f, len(user.bound))

    def places(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Place]:
        """Where the arguments stand in a call."""
        return [self._place(w, args, kwargs) for w in self.wanted]

    def _place(self, wanted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place:
        """Where one argument stands in a call."""
        given = wanted.argnum if isinstance(wanted, DiffState) else wanted
        if not isinstance(given, (int, np.integer)):
            raise ArgnumsError(self.name, repr(given), len(args))
        position = int(given)
        i = in_range(position, len(args))
        if 0 <= i < len(args):
            return i
        if 0 <= i < len(self._keywords) and self._keywords[i] in kwargs:
            return self._keywords[i]
        raise ArgnumsError(self.name, position, len(args))

    def rules(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Place, PrefixRule]:
        """The rule of each of the arguments."""
        found = zip(self.wanted, self.places(args, kwargs), strict=True)
        values: Any = dict(enumerate(args)) | kwargs
        return {at: w if isinstance(w, DiffState) else by_default(values[at]) for w, at in found}

    def pick(self, parts: Sequence[Any]) -> Any:
        """What belongs to the arguments, as one thing or a tuple, as they were chosen."""
        return parts[0] if self.is_one else tuple(parts)


def derivative_boundary(
    name: str,
    rules: dict[Place, PrefixRule],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    head: Callable[[Any], tuple[Any, Any]],
    mode: Mode,
) -> Boundary:
    """The Boundary of a transform that differentiates by the arguments that have a rule."""
    return Boundary(
        name,
        (DIFF, REST),
        tuple(rules.get(i, REST) for i in range(len(args))),
        {k: rules.get(k, REST) for k in kwargs},
        REST,
        REST,
        head,
        lambda path: (1, *path),
        mode=mode,
        parameter="argnums",
    )


def check_reduce_axes(name: str, reduce_axes: Any) -> None:
    """Refuse what JAX has no more."""
    if reduce_axes:
        raise ReduceAxesError(name, repr(reduce_axes))


def check_leaves(crossing: Crossing, kind: Any, expected: str, advice: str) -> None:
    """Refuse to differentiate by leaves of another kind of number, by path."""
    wrong = []
    for k, (leaf, lane) in enumerate(zip(crossing.leaves, crossing.layout.lane_of, strict=True)):
        dtypes = [jax.dtypes.result_type(x) for x in jax.tree.leaves(leaf)] if lane == 0 else []
        if any(not jnp.issubdtype(d, kind) for d in dtypes):
            wrong.append(f"{leaf_text(crossing, k)}: {short(leaf)}")
    if wrong:
        raise NotDifferentiableError(crossing.names.transform, tuple(wrong), expected, advice)


def check_reverse(crossing: Crossing, holomorphic: bool, allow_int: bool) -> None:
    """Refuse leaves that the reverse mode of JAX does not differentiate by."""
    if holomorphic:
        check_leaves(
            crossing, np.complexfloating, "complex", "Expected complex numbers. Leave out holomorphic=True."
        )
    elif not allow_int:
        advice = "Expected floats. Choose with argnums=nnx.DiffState(0, filter), or set allow_int=True."
        check_leaves(crossing, np.inexact, "floating point", advice)


def check_forward(crossing: Crossing, holomorphic: bool) -> None:
    """Refuse leaves that the forward mode of JAX does not differentiate by."""
    if holomorphic:
        check_leaves(
            crossing, np.complexfloating, "complex", "Expected complex numbers. Leave out holomorphic=True."
        )
    else:
        advice = "Expected floats. Choose with argnums=nnx.DiffState(0, filter), or use nnx.jvp."
        check_leaves(crossing, np.floating, "real floating point", advice)


def result_and_aux(name: str, has_aux: bool, out: Any) -> tuple[Any, Any]:
    """The result, as the arrays that JAX must see, and the rest."""
    aux = None
    if has_aux:
        if not isinstance(out, tuple) or len(out) != 2:
            expected = "a pair `(out, aux)`. Write `return out, aux`, or has_aux=False"
            raise ResultError(name, "the function returned", short(out), expected)
        out, aux = out
    return values_of(name, "result", out), aux


def values_of(name: str, where: str, tree: Any) -> Any:
    """A pytree of arrays, with the values of its Variables; objects are refused."""
    graphdef, _, objects = flatten(tree)
    for path, desc, _ in descriptions(graphdef):
        found = desc[1].value if desc[0] == "static" else None
        if desc[0] == "node" and not isinstance(objects[desc[1]], Variable):
            found = objects[desc[1]]
        if found is not None:
            raise ResultError(name, f"{where}{path_text(path)} is", short(found), _ONLY_ARRAYS)
    return jax.tree.map(
        lambda x: x.get_value() if isinstance(x, Variable) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Variable),
    )


def over_lanes(pure: Callable[..., Any], crossing: Crossing) -> Callable[[Any, Any], Any]:
    """The function over what is differentiated by and the rest."""
    return lambda diff, rest: pure(crossing.layout, (diff, rest))


def path_of(place: Place) -> Path:
    """The path of an argument in the GraphDef of a call."""
    return (2, place) if isinstance(place, int) else (3, place)
