"""grad and value_and_grad: the leaves to differentiate by are one lane, all others the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._filters import Filter, to_predicate
from .._repr import short
from .._settings import current_mode
from .._state import from_flat_state
from .._typing import MISSING, Key, Path
from .._variable import Param, Variable, new_variable
from ..errors import ArgnumsError, LossError, NotDifferentiableError, ReduceAxesError
from ..graph._graphdef import Desc, GraphDef, count_leaves, desc_children, descriptions, leaf_starts
from ..graph._walk import flatten
from ._boundary import Boundary, Call, Crossing, leaf_text
from ._functions import argument_names, in_range, parameter_names, returns, unbind
from ._lanes import Lane, PrefixRule

DIFF, REST = "differentiated", "not differentiated"


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


def _has_nodes(x: Any) -> bool:
    """Whether an argument holds objects, besides Variables."""
    return any(not isinstance(o, Variable) for o in flatten(x)[2])


@returns(tuple[Any, Any])
def value_and_grad(
    f: Any = MISSING,
    *,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """A function that returns the value of `f` and its gradients.

    Args:
        f: A function that returns a scalar, or `(scalar, aux)`; left out for a decorator.
        argnums: The positional arguments to differentiate by: an int, an `nnx.DiffState`, or a tuple.
            Of an object the Params are meant, unless a DiffState says otherwise.
        has_aux: Whether `f` returns `(scalar, aux)`.
        holomorphic: As for `jax.grad`.
        allow_int: As for `jax.grad`.
        reduce_axes: Accepted for compatibility; must be empty.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        A function that returns `(value, gradients)`, or `((value, aux), gradients)`. The gradients of an
        object are a State with the paths of what was differentiated by; those of other arguments have their
        shape; a tuple if `argnums` is one. A shared Param has one gradient, at its first path.

    Raises:
        LossError: If `f` does not return a scalar float.
        NotDifferentiableError: If a leaf to differentiate by is not floating point.
        AliasError: If a Variable is both differentiated by and not.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> loss, grads = nnx.value_and_grad(lambda model, x: model(x).sum())(model, jnp.ones((1, 2)))
        >>> grads['bias'].tolist()
        [1.0, 1.0, 1.0]
    """
    return _differentiated("value_and_grad", **locals())


@returns(Any)
def grad(
    f: Any = MISSING,
    *,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """A function that returns the gradients of `f`; see `value_and_grad`.

    Args:
        f: A function that returns a scalar, or `(scalar, aux)`; left out for a decorator.
        argnums: The positional arguments to differentiate by: an int, an `nnx.DiffState`, or a tuple.
        has_aux: Whether `f` returns `(scalar, aux)`.
        holomorphic: As for `jax.grad`.
        allow_int: As for `jax.grad`.
        reduce_axes: Accepted for compatibility; must be empty.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        A function that returns the gradients, or `(gradients, aux)`.

    Raises:
        LossError: If `f` does not return a scalar float.
        NotDifferentiableError: If a leaf to differentiate by is not floating point.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.grad(lambda model, x: model(x).sum())(model, jnp.ones((1, 2)))['bias'].tolist()
        [1.0, 1.0, 1.0]
    """
    both = _differentiated("grad", **locals())

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapper


def _differentiated(
    name: str,
    f: Any,
    argnums: Any,
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    reduce_axes: Any,
    graph: bool | None,
    graph_updates: bool | None,
) -> Callable[..., Any]:
    """value_and_grad under the name that the user wrote."""
    if reduce_axes:
        raise ReduceAxesError(name, repr(reduce_axes))
    inner, bound = unbind(f)
    names, keywords = argument_names(inner, len(bound)), parameter_names(inner, len(bound))
    wanted = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
    head = functools.partial(_head, name, has_aux, holomorphic)

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = [_place(name, w, args, kwargs, keywords) for w in wanted]
        rules = _rules(wanted, places, args, kwargs)
        boundary = Boundary(
            name,
            (DIFF, REST),
            tuple(rules.get(i, REST) for i in range(len(args))),
            {k: rules.get(k, REST) for k in kwargs},
            REST,
            REST,
            head,
            lambda path: (1, *path),
            mode=current_mode(graph, graph_updates),
            parameter="argnums",
        )
        crossing = boundary.split(args, kwargs, bound, names=names)
        _check_leaves(name, crossing, holomorphic, allow_int)
        call = Call(crossing)
        pure = boundary.purify(inner, call)

        def flat(diff: Any, rest: Any) -> Any:
            return pure(crossing.layout, (diff, rest))

        lifted = jax.value_and_grad(flat, has_aux=True, holomorphic=holomorphic, allow_int=allow_int)
        (loss, packed), leaves = lifted(*crossing.lanes)
        aux = boundary.merge(packed, crossing, call)
        views = _views(crossing, leaves)
        grads = tuple(views[place] for place in places)
        result = grads if isinstance(argnums, (tuple, list)) else grads[0]
        return ((loss, aux) if has_aux else loss), result

    return wrapper


def _position(wanted: Any) -> int:
    """The position of an argument to differentiate by."""
    return wanted.argnum if isinstance(wanted, DiffState) else int(wanted)


def _place(
    name: str, wanted: Any, args: tuple[Any, ...], kwargs: dict[str, Any], keywords: tuple[str, ...]
) -> int | str:
    """Where an argument to differentiate by stands in the call: its position, or its keyword."""
    i = in_range(_position(wanted), len(args))
    if 0 <= i < len(args):
        return i
    if 0 <= i < len(keywords) and keywords[i] in kwargs:
        return keywords[i]
    raise ArgnumsError(name, _position(wanted), len(args))


def _rules(
    wanted: tuple[Any, ...], places: list[int | str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[int | str, PrefixRule]:
    """The rule of each argument to differentiate by."""
    rules: dict[int | str, PrefixRule] = {}
    for w, place in zip(wanted, places, strict=True):
        value = args[place] if isinstance(place, int) else kwargs[place]
        rules[place] = w if isinstance(w, DiffState) else _ByDefault(_has_nodes(value))
    return rules


def _head(name: str, has_aux: bool, holomorphic: bool, out: Any) -> tuple[Any, Any]:
    """The loss, which JAX must see, and the rest."""
    aux = None
    if has_aux:
        if not isinstance(out, tuple) or len(out) != 2:
            raise LossError(name, short(out), "Write `return loss, aux`, or has_aux=False.")
        out, aux = out
    loss = out.get_value() if isinstance(out, Variable) else out
    if not hasattr(loss, "shape") and not isinstance(loss, (int, float, complex)):
        raise LossError(name, short(out), "Write has_aux=True to return `(loss, aux)`.")
    loss = jnp.asarray(loss)
    if loss.shape != ():
        raise LossError(name, short(loss), "Write `loss.mean()` or `loss.sum()`.")
    if not holomorphic and not jnp.issubdtype(loss.dtype, jnp.floating):
        raise LossError(name, short(loss), "Write `loss.astype(jnp.float32)`, or holomorphic=True.")
    return loss, aux


def _check_leaves(name: str, crossing: Crossing, holomorphic: bool, allow_int: bool) -> None:
    """Refuse to differentiate by integers, by path."""
    if allow_int:
        return
    wrong = []
    for k, (leaf, lane) in enumerate(zip(crossing.leaves, crossing.layout.lane_of, strict=True)):
        if lane == 0:
            dtypes = [jax.dtypes.result_type(x) for x in jax.tree.leaves(leaf)]
            if any(not jnp.issubdtype(d, np.inexact) for d in dtypes):
                wrong.append(f"{leaf_text(crossing, k)}: {short(leaf)}")
    if wrong:
        raise NotDifferentiableError(name, tuple(wrong))


def _views(crossing: Crossing, leaves: list[Any]) -> dict[Key, Any]:
    """The gradients in the shape of each argument, by position and keyword."""
    graphdef = crossing.layout.graphdef
    feed = iter(leaves)
    by_number = {k: next(feed) for k, lane in enumerate(crossing.layout.lane_of) if lane == 0}
    view = _View(graphdef, by_number)
    _, bound, args, kwargs = graphdef.root[2]
    numbers = iter(range(count_leaves(bound), graphdef.num_leaves))
    return {k: view.value(d, numbers) for part in (args, kwargs) for k, d in desc_children(part)}


class _View:
    """Reads gradients by the number of their leaf, in the shape of a description."""

    def __init__(self, graphdef: GraphDef, by_number: dict[int, Any]):
        self.graphdef = graphdef
        self.records = graphdef.records
        self.starts = leaf_starts(graphdef)
        self.by_number = by_number
        self.entered: set[int] = set()

    def value(self, desc: Desc, numbers: Iterator[int]) -> Any:
        """Containers as they are, arrays by gradients, objects by States."""
        tag = desc[0]
        if tag == "leaf":
            return self.by_number.get(next(numbers))
        if tag == "container":
            return desc[1].close([self.value(child, numbers) for child in desc[2]])
        if tag == "static":
            return desc[1].value
        record = self.records[desc[1]]
        if record[0] == "variable":
            return self._variable(desc[1])
        return from_flat_state(self._below(desc))

    def _variable(self, i: int) -> Any:
        """The gradient of a Variable, as a Variable of the same spec."""
        grad = self.by_number.get(self.starts[i])
        return new_variable(self.records[i][1], grad)

    def _below(self, desc: Desc) -> list[tuple[Path, Any]]:
        """The gradients below an object that were not met before, with their paths."""
        found: list[tuple[Path, Any]] = []
        following = dict(enumerate(self.starts))
        for path, below, owner in descriptions(self.graphdef, desc, self.entered):
            if below[0] == "leaf":
                k, following[owner] = following[owner], following[owner] + 1
                if k in self.by_number:
                    found.append((path, self.by_number[k]))
            elif below[0] == "node" and below[1] not in self.entered:
                i = below[1]
                if self.records[i][0] == "variable" and self.starts[i] in self.by_number:
                    found.append((path, self._variable(i)))
        return found
