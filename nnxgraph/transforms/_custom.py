"""custom_vjp and custom_jvp: functions with a rule of their own for derivatives."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from .. import _jax
from .._repr import function_name, short
from .._settings import Mode, current_mode
from .._static import compare_by_parts
from .._typing import MISSING
from ..errors import (
    KeywordOnlyError,
    LeakedVariableError,
    LostCaptureError,
    MissingRuleError,
    PredicateError,
    ResultError,
)
from ..graph._walk import flatten, unflatten
from ._boundary import Boundary
from ._branches import Branch
from ._crossing import Call, Crossing
from ._functions import as_tuple, decorating, positions_and_names, unbind, unbind_all
from ._lanes import Names
from ._rules import CustomCall, Result, Rule, Ruled, instantiated, pair
from ._signatures import Declare
from ._tangents import Form

P = ParamSpec("P")
R = TypeVar("R")


class _Custom(Generic[P, R]):
    """A function with a rule of its own; calls go by the rule where a derivative is asked for."""

    transform: str
    advice: str

    def __init__(
        self, fun: Callable[P, R], argnums: Any, argnames: Any, graph: bool | None, graph_updates: bool | None
    ):
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun
        named = positions_and_names(fun, None, as_tuple(argnames), 0)[0]
        self._nondiff = (*as_tuple(argnums), *named)
        self._modes = (graph, graph_updates)
        self._rules: tuple[Rule, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        try:
            return tuple(inspect.signature(self._fun).parameters)
        except ValueError:
            return ()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = function_name(self._fun)
        if not self._rules:
            raise MissingRuleError(self.transform, name, self.advice.format(name.rpartition(".")[2]))
        call = CustomCall(self.transform, self._fun, self._nondiff, self._positional(args, kwargs))
        result: R = self._apply(call, current_mode(*self._modes))
        return result

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, with defaults filled in, as in JAX."""
        try:
            signature = inspect.signature(self._fun)
        except ValueError:  # a function that Python knows no signature of
            if not kwargs:
                return args
            raise
        found = signature.bind(*args, **kwargs)
        found.apply_defaults()
        if found.kwargs:
            raise KeywordOnlyError(self.transform, function_name(self._fun), tuple(found.kwargs))
        return found.args

    def _apply(self, call: CustomCall, mode: Mode) -> Any:
        """Trace the function and the rule, and let JAX choose."""
        raise NotImplementedError


class CustomVjp(_Custom[P, R]):
    """A function with a reverse rule of its own; `custom_vjp` makes it.

    Example:
        >>> f = nnx.custom_vjp(lambda x: x)
        >>> f.defvjp(lambda x: (x, None), lambda residuals, g: (2 * g,))
        >>> nnx.grad(f)(1.0).item()
        2.0
    """

    transform = "custom_vjp"
    advice = "{}.defvjp(fwd, bwd)"

    def defvjp(self, fwd: Rule, bwd: Rule) -> None:
        """Set the rule.

        Args:
            fwd: Takes the arguments of the function, and returns its result and residuals for `bwd`.
            bwd: Takes the arguments in `nondiff_argnums`, the residuals and the cotangent of the result, and
                returns a tuple with a cotangent for each of the other arguments.
        """
        self._rules = (fwd, bwd)

    def _apply(self, call: CustomCall, mode: Mode) -> Any:
        fwd, bwd = self._rules
        (fun, fwd, _), bound = unbind_all((self._fun, fwd, bwd))
        backward = _Backward(call, bwd, len(bound))

        def forward(*args: Any) -> Any:
            out, residuals = pair("custom_vjp", "fwd", fwd(*args), "out, residuals")
            return backward.packed(args, residuals), out

        branches = Branch("the function", fun), Branch("fwd", forward, lambda pair: pair)
        ruled = Ruled(call, call.boundary(mode), lambda crossing: branches, self, bound)

        def with_residuals(*primals: Any) -> Any:
            ruled.check_hidden(*jax.tree.map(lambda x: x.perturbed, primals))
            packed, out = ruled.rule(*jax.tree.map(lambda x: x.value, primals))
            return out, packed

        def pull(packed: Any, cotangents: Any) -> Any:
            form = call.form(ruled.crossing, "the cotangents that bwd returned")
            found = backward(packed, ruled.result, jax.tree.map(instantiated, cotangents), form)
            return (found, None), None

        by_rule = jax.custom_vjp(ruled.function)
        by_rule.defvjp(with_residuals, pull, symbolic_zeros=True)
        # shard_map runs a rule that gets symbolic zeros only in compiled code
        run = jax.jit(by_rule) if _jax.is_eager_shard_map() else by_rule
        return ruled.result.merge(*run(*ruled.inputs))


class _Backward:
    """The backward rule of a call, and what it needs from the forward run."""

    def __init__(self, call: CustomCall, bwd: Rule, count: int):
        self.call = call
        self.f, own = unbind(bwd)
        self.own = slice(count - len(own), count)  # what bwd is bound to, among all that is bound
        self.count = count
        self.boundary = Boundary("custom_vjp", (None,), head=lambda pair: pair)

    def packed(self, args: tuple[Any, ...], residuals: Any) -> Any:
        """What bwd needs, taken apart at the end of the forward run."""
        names = ("what bwd is bound to", "nondiff_argnums", "residuals")
        data = [args[self.count + i] for i in self.call.data]
        crossing = self.boundary.split((args[self.own], data, residuals), {}, names=names)
        return crossing.layout, crossing.lanes

    def __call__(self, packed: Any, result: Result, cotangents: Any, form: Form) -> list[Any]:
        """The cotangents of what is differentiated by, in order; None for zero."""
        layout, lanes = packed

        def run(own: Any, data: Any, residuals: Any) -> Any:
            (cotangent,) = result.form.show(result.tangents(*cotangents))
            given = self.f(*own, *self.call.nondiff_values(data), residuals, cotangent)
            count = len(form.roots)
            if not isinstance(given, (tuple, list)) or len(given) != count:
                expected = f"a tuple with {count}, one for each argument that is differentiated by"
                raise ResultError("custom_vjp", "bwd returned", short(given), expected)
            return form.find(given), None

        objects = [None] * len(layout.graphdef.records)  # those of the forward run are gone
        call = Call(Crossing(layout, lanes, [], objects, Names("custom_vjp", "")))
        try:
            found: list[Any]
            found, (change, _) = self.boundary.purify(run, call)(layout, lanes)
        except LeakedVariableError as error:
            raise LostCaptureError("custom_vjp", error.args[0]) from error
        if call.written or change.written or change.edits:
            advice = "one that only reads, since it runs after the call. Write in fwd instead"
            raise PredicateError("custom_vjp", "bwd", "a function that writes", advice)
        return found


class CustomJvp(_Custom[P, R]):
    """A function with a forward rule of its own; `custom_jvp` makes it.

    Example:
        >>> f = nnx.custom_jvp(lambda x: x)
        >>> rule = f.defjvp(lambda primals, tangents: (f(*primals), 2 * tangents[0]))
        >>> nnx.grad(f)(1.0).item()
        2.0
    """

    transform = "custom_jvp"
    advice = "{}.defjvp(rule)"

    def defjvp(self, rule: Rule) -> Rule:
        """Set the rule; also a decorator.

        Args:
            rule: Takes the arguments in `nondiff_argnums`, a tuple of the others, and a tuple of their
                tangents; returns the result and its tangent.

        Returns:
            The rule.
        """
        self._rules = (rule,)
        self._by_argument = False
        return rule

    def defjvps(self, *rules: Rule | None) -> None:
        """Set a rule for each argument.

        Args:
            *rules: For each argument None, or a function of its tangent, the result, and the arguments, that
                returns its part of the result's tangent.
        """
        self._rules = tuple(rule or _no_tangent for rule in rules)
        self._by_argument = True

    def _apply(self, call: CustomCall, mode: Mode) -> Any:
        functions, bound = unbind_all((self._fun, *self._rules))
        count = len(bound)

        def make(crossing: Crossing) -> tuple[Branch, Branch]:
            form = call.form(crossing, "tangents")

            def along(given: Sequence[Any], *args: Any) -> Any:
                tangents = tuple(form.show(given))
                primals = tuple(args[count + i] for i in call.diff)
                if self._by_argument:
                    out = functions[0](*args)
                    each = zip(functions[1:], tangents, strict=True)
                    return [flatten(f(*args[:count], t, out, *primals))[:2] for f, t in each], out
                nondiff = call.nondiff_values([args[count + i] for i in call.data])
                both = functions[1](*args[:count], *nondiff, primals, tangents)
                out, tangent = pair("custom_jvp", "the rule", both, "out, tangent_out")
                return [flatten(tangent)[:2]], out

            zeros = [t.zero() for t in form.all_types()]
            return Branch("the function", functions[0]), Branch(
                "the rule", along, lambda pair: pair, (zeros,)
            )

        ruled = Ruled(call, call.boundary(mode), make, self, bound)

        def push(primals: Any, tangents: Any) -> Any:
            ruled.check_hidden(*jax.tree.map(lambda t: not isinstance(t, SymbolicZero), tangents))
            parts, out = ruled.rule(*primals, jax.tree.map(instantiated, tangents[0][0]))
            return out, ruled.result.all_tangents(_summed(ruled.result.form, parts), *out)

        by_rule = jax.custom_jvp(ruled.function)
        by_rule.defjvp(push, symbolic_zeros=True)
        return ruled.result.merge(*by_rule(*ruled.inputs))


def _parts(f: _Custom[Any, Any]) -> list[tuple[str, Any]]:
    """What distinguishes two such functions inside static values."""
    return [("fun", f._fun), ("rules", f._rules), ("nondiff", f._nondiff), ("modes", f._modes)]


for _kind in (CustomVjp, CustomJvp):
    compare_by_parts(_kind, _parts)


def _no_tangent(*args: Any) -> None:
    """The rule of an argument that the result does not depend on."""


def _summed(form: Form, parts: Sequence[Any]) -> list[Any]:
    """The sum of tangents of a result."""
    total: list[Any] = [None] * len(form.all_types())
    for graphdef, leaves in parts:
        found = form.find([unflatten(graphdef, leaves)[0]])
        for i, x in enumerate(found):
            if x is not None:
                total[i] = x if total[i] is None else jax.tree.map(lax.add, total[i], x)
    return form.filled(total)


class _Options(TypedDict, total=False):
    """The options of custom_vjp and custom_jvp."""

    nondiff_argnums: int | Sequence[int]
    nondiff_argnames: str | Sequence[str]
    graph: bool | None
    graph_updates: bool | None


class _MakesVjp(Protocol):
    """The type of custom_vjp."""

    @overload
    def __call__(self, fun: Callable[P, R], **options: Unpack[_Options]) -> CustomVjp[P, R]: ...
    @overload
    def __call__(self, **options: Unpack[_Options]) -> Callable[[Callable[P, R]], CustomVjp[P, R]]: ...


class _MakesJvp(Protocol):
    """The type of custom_jvp."""

    @overload
    def __call__(self, fun: Callable[P, R], **options: Unpack[_Options]) -> CustomJvp[P, R]: ...
    @overload
    def __call__(self, **options: Unpack[_Options]) -> Callable[[Callable[P, R]], CustomJvp[P, R]]: ...


_making_vjp: Declare[_MakesVjp] = decorating
_making_jvp: Declare[_MakesJvp] = decorating


@_making_vjp
def custom_vjp(
    fun: Any = MISSING, *, nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: str | Sequence[str] = (), graph: bool | None = None, graph_updates: bool | None = None,
) -> Any:  # fmt: skip
    """Give a function of arrays and objects a rule of its own for reverse mode.

    Both `fun` and `fwd` may write; the caller sees what the one wrote that ran. What is written carries no
    derivative, unless the Variable is in the result.

    Args:
        fun: The function, method or callable object; left out for a decorator.
        nondiff_argnums: Positions of arguments that the rule gives no cotangent for; `bwd` gets them first.
            Functions, strings and other static values may stand there.
        nondiff_argnames: Names of such arguments.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        The function, with a method `defvjp(fwd, bwd)` that sets the rule, or a decorator. `fwd(*args)`
        returns `(out, residuals)`, `bwd(*nondiff, residuals, cotangent)` a tuple with one cotangent for each
        other argument. The cotangent of an object is a State, a nested dict, or such an object; paths that
        are missing, and None, are zero. Residuals may hold objects.

    Raises:
        HiddenGradientError: If a derivative is asked for by what is captured, bound or not differentiated by.
        MissingRuleError: If it is called before `defvjp`.
        GraphChangeError: If `fwd` leaves another graph than `fun`, or returns another type.
        TangentError: If what `bwd` returns does not fit the arguments.

    Example:
        >>> @nnx.custom_vjp
        ... def scaled(model, x):
        ...     return model.scale * x
        >>> def fwd(model, x):
        ...     return scaled(model, x), (model, x)
        >>> def bwd(residuals, g):
        ...     model, x = residuals
        ...     return {'scale': g * x}, jnp.clip(g * model.scale, -1.0, 1.0)
        >>> scaled.defvjp(fwd, bwd)
        >>> model = nnx.Dict(scale=nnx.Param(jnp.array(5.0)))
        >>> nnx.grad(scaled, argnums=1)(model, 2.0).item()
        1.0
    """
    return CustomVjp(fun, nondiff_argnums, nondiff_argnames, graph, graph_updates)


@_making_jvp
def custom_jvp(
    fun: Any = MISSING, *, nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: str | Sequence[str] = (), graph: bool | None = None, graph_updates: bool | None = None,
) -> Any:  # fmt: skip
    """Give a function of arrays and objects a rule of its own for forward mode, and so for reverse mode.

    Args:
        fun: The function, method or callable object; left out for a decorator.
        nondiff_argnums, nondiff_argnames: Arguments without a tangent; the rule gets them first.
        graph, graph_updates: As for `nnx.custom_vjp`.

    Returns:
        The function, with the methods `defjvp` and `defjvps` that set the rule, or a decorator.
        `rule(*nondiff, primals, tangents)` returns `(out, tangent_out)`; the tangent of an object is a State.

    Raises:
        HiddenGradientError: If a derivative is asked for by what is captured, bound or not differentiated by.
        MissingRuleError: If it is called before `defjvp`.
        GraphChangeError: If the rule leaves another graph than `fun`, or returns another type.
        TangentError: If `tangent_out` does not fit the result.

    Example:
        >>> @nnx.custom_jvp
        ... def scaled(model, x):
        ...     return model.scale * x
        >>> @scaled.defjvp
        ... def rule(primals, tangents):
        ...     (model, x), (by_model, by_x) = primals, tangents
        ...     return scaled(model, x), 2.0 * (by_model['scale'] * x + model.scale * by_x)
        >>> model = nnx.Dict(scale=nnx.Param(jnp.array(5.0)))
        >>> nnx.grad(scaled, argnums=1)(model, 2.0).item()
        10.0
    """
    return CustomJvp(fun, nondiff_argnums, nondiff_argnames, graph, graph_updates)
