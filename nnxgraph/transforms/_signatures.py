"""The types of the derivative transforms: what they return depends on the function, and on `has_aux`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from ._functions import decorating

Q = ParamSpec("Q")
T = TypeVar("T")
U = TypeVar("U")


class _Modes(TypedDict, total=False):
    """The options of every transform."""

    graph: bool | None
    graph_updates: bool | None


class _VjpOptions(_Modes, total=False):
    """The options of vjp."""

    reduce_axes: Any


class _GradOptions(_VjpOptions, total=False):
    """The options of grad."""

    argnums: Any
    holomorphic: bool
    allow_int: bool


class _Grad(Protocol):
    """The type of `grad`."""

    @overload
    def __call__(
        self, f: Callable[Q, tuple[Any, U]], *, has_aux: Literal[True], **options: Unpack[_GradOptions]
    ) -> Callable[Q, tuple[Any, U]]: ...
    @overload
    def __call__(
        self, f: Callable[Q, Any], *, has_aux: bool = False, **options: Unpack[_GradOptions]
    ) -> Callable[Q, Any]: ...
    @overload
    def __call__(
        self, *, has_aux: bool = False, **options: Unpack[_GradOptions]
    ) -> Callable[[Callable[Q, Any]], Callable[Q, Any]]: ...


class _ValueAndGrad(Protocol):
    """The type of `value_and_grad`: the first part of the result is what the function returns."""

    @overload
    def __call__(
        self, f: Callable[Q, T], *, has_aux: bool = False, **options: Unpack[_GradOptions]
    ) -> Callable[Q, tuple[T, Any]]: ...
    @overload
    def __call__(
        self, *, has_aux: bool = False, **options: Unpack[_GradOptions]
    ) -> Callable[[Callable[Q, T]], Callable[Q, tuple[T, Any]]]: ...


_Pull = Callable[[Any], tuple[Any, ...]]


class _Vjp(Protocol):
    """The type of `vjp`."""

    @overload
    def __call__(
        self,
        f: Callable[..., tuple[T, U]],
        first: Any,
        /,
        *primals: Any,
        has_aux: Literal[True],
        **options: Unpack[_VjpOptions],
    ) -> tuple[T, _Pull, U]: ...
    @overload
    def __call__(
        self,
        f: Callable[..., T],
        first: Any,
        /,
        *primals: Any,
        has_aux: Literal[False] = False,
        **options: Unpack[_VjpOptions],
    ) -> tuple[T, _Pull]: ...
    @overload
    def __call__(
        self, f: Callable[Q, tuple[T, U]], *, has_aux: Literal[True], **options: Unpack[_VjpOptions]
    ) -> Callable[Q, tuple[T, _Pull, U]]: ...
    @overload
    def __call__(
        self, f: Callable[Q, T], *, has_aux: Literal[False] = False, **options: Unpack[_VjpOptions]
    ) -> Callable[Q, tuple[T, _Pull]]: ...
    @overload
    def __call__(
        self, *, has_aux: bool = False, **options: Unpack[_VjpOptions]
    ) -> Callable[[Callable[Q, Any]], Callable[Q, Any]]: ...


class _Linearize(Protocol):
    """The type of `linearize`: the tangent of the result has its type."""

    @overload
    def __call__(
        self,
        f: Callable[..., tuple[T, U]],
        first: Any,
        /,
        *primals: Any,
        has_aux: Literal[True],
        **options: Unpack[_Modes],
    ) -> tuple[T, Callable[..., T], U]: ...
    @overload
    def __call__(
        self,
        f: Callable[..., T],
        first: Any,
        /,
        *primals: Any,
        has_aux: Literal[False] = False,
        **options: Unpack[_Modes],
    ) -> tuple[T, Callable[..., T]]: ...
    @overload
    def __call__(
        self, f: Callable[Q, T], *, has_aux: Literal[False] = False, **options: Unpack[_Modes]
    ) -> Callable[Q, tuple[T, Callable[..., T]]]: ...
    @overload
    def __call__(
        self, f: Callable[Q, Any], *, has_aux: bool, **options: Unpack[_Modes]
    ) -> Callable[Q, Any]: ...
    @overload
    def __call__(
        self, *, has_aux: bool = False, **options: Unpack[_Modes]
    ) -> Callable[[Callable[Q, Any]], Callable[Q, Any]]: ...


class _Jvp(Protocol):
    """The type of `jvp`: the tangent of the result has its type."""

    @overload
    def __call__(
        self,
        f: Callable[..., tuple[T, U]],
        primals: Any,
        tangents: Any,
        *,
        has_aux: Literal[True],
        **options: Unpack[_Modes],
    ) -> tuple[T, T, U]: ...
    @overload
    def __call__(
        self,
        f: Callable[..., T],
        primals: Any,
        tangents: Any,
        *,
        has_aux: Literal[False] = False,
        **options: Unpack[_Modes],
    ) -> tuple[T, T]: ...
    @overload
    def __call__(
        self, f: Callable[..., T], *, has_aux: Literal[False] = False, **options: Unpack[_Modes]
    ) -> Callable[..., tuple[T, T]]: ...
    @overload
    def __call__(
        self, f: Callable[..., Any], *, has_aux: bool, **options: Unpack[_Modes]
    ) -> Callable[..., Any]: ...
    @overload
    def __call__(
        self, *, has_aux: bool = False, **options: Unpack[_Modes]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def typed_grad(lift: Callable[..., Any]) -> _Grad:
    """Declare a transform of the type of `grad`."""
    result: _Grad = decorating(lift)
    return result


def typed_value_and_grad(lift: Callable[..., Any]) -> _ValueAndGrad:
    """Declare a transform of the type of `value_and_grad`."""
    result: _ValueAndGrad = decorating(lift)
    return result


def typed_vjp(lift: Callable[..., Any]) -> _Vjp:
    """Declare a transform of the type of `vjp`."""
    result: _Vjp = decorating(lift)
    return result


def typed_linearize(lift: Callable[..., Any]) -> _Linearize:
    """Declare a transform of the type of `linearize`."""
    result: _Linearize = decorating(lift)
    return result


def typed_jvp(lift: Callable[..., Any]) -> _Jvp:
    """Declare a transform of the type of `jvp`."""
    result: _Jvp = decorating(lift)
    return result
