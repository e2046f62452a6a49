"""The types of the derivative transforms: what they return depends on the function, and on `has_aux`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from ._functions import decorating

Q = ParamSpec("Q")
T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
D_co = TypeVar("D_co", covariant=True)


_F = Callable[..., Any]


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
        self, *, has_aux: bool = False, **options: Unpack[_GradOptions]
    ) -> Callable[[Callable[Q, Any]], Callable[Q, Any]]: ...
    @overload
    def __call__(
        self, f: Callable[Q, tuple[Any, U]], *, has_aux: Literal[True], **options: Unpack[_GradOptions]
    ) -> Callable[Q, tuple[Any, U]]: ...
    @overload
    def __call__(
        self, f: Callable[Q, Any], *, has_aux: bool = False, **options: Unpack[_GradOptions]
    ) -> Callable[Q, Any]: ...


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


class _AtPrimals(Protocol[D_co]):
    """The type of `vjp` and `linearize`: the function's result, and a function of type D."""

    @overload
    def __call__(
        self,
        f: Callable[..., tuple[T, U]],
        first: Any,
        /,
        *primals: Any,
        has_aux: Literal[True],
        **options: Unpack[_VjpOptions],
    ) -> tuple[T, D_co, U]: ...
    @overload
    def __call__(
        self, f: Callable[..., T], first: Any, /, *primals: Any, **options: Unpack[_VjpOptions]
    ) -> tuple[T, D_co]: ...
    @overload
    def __call__(
        self, f: Callable[Q, tuple[T, U]], *, has_aux: Literal[True], **options: Unpack[_VjpOptions]
    ) -> Callable[Q, tuple[T, D_co, U]]: ...
    @overload
    def __call__(self, f: Callable[Q, T], **options: Unpack[_VjpOptions]) -> Callable[Q, tuple[T, D_co]]: ...
    @overload
    def __call__(
        self, *, has_aux: bool = False, **options: Unpack[_VjpOptions]
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
    def __call__(self, f: _F, *, has_aux: bool, **options: Unpack[_Modes]) -> _F: ...
    @overload
    def __call__(self, *, has_aux: bool = False, **options: Unpack[_Modes]) -> Callable[[_F], _F]: ...


Declare = Callable[[Callable[..., Any]], S]

typed_grad: Declare[_Grad] = decorating
typed_value_and_grad: Declare[_ValueAndGrad] = decorating
typed_vjp: Declare[_AtPrimals[Callable[[Any], tuple[Any, ...]]]] = decorating
typed_linearize: Declare[_AtPrimals[Callable[..., Any]]] = decorating
typed_jvp: Declare[_Jvp] = decorating
