"""The operators of a Variable, made from the operators of Python: each reads the value and goes on."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

_Method = Callable[[Any, Any], Any]


def _value(x: Any) -> Any:
    """The value of a Variable, anything else as it is."""
    operand: Any = x
    return operand.get_value() if isinstance(x, Operators) else x


def _binary(op: Callable[[Any, Any], Any]) -> _Method:
    """The method of an operator with the Variable on the left."""

    def method(self: Any, other: Any) -> Any:
        return op(self.get_value(), _value(other))

    return method


def _reflected(op: Callable[[Any, Any], Any]) -> _Method:
    """The method of an operator with the Variable on the right."""

    def method(self: Any, other: Any) -> Any:
        return op(_value(other), self.get_value())

    return method


def _in_place(op: Callable[[Any, Any], Any]) -> _Method:
    """The method of an operator that writes its result back."""

    def method(self: Any, other: Any) -> Any:
        self.set_value(op(self.get_value(), _value(other)))
        return self

    return method


def _unary(op: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The method of an operator of the Variable alone."""

    def method(self: Any) -> Any:
        return op(self.get_value())

    return method


class Operators:
    """Arithmetic, comparison and conversion over `get_value()`; in-place operators write `set_value()`."""

    __slots__ = ()

    __add__, __radd__, __iadd__ = (
        _binary(operator.add),
        _reflected(operator.add),
        _in_place(operator.add),
    )
    __sub__, __rsub__, __isub__ = (
        _binary(operator.sub),
        _reflected(operator.sub),
        _in_place(operator.sub),
    )
    __mul__, __rmul__, __imul__ = (
        _binary(operator.mul),
        _reflected(operator.mul),
        _in_place(operator.mul),
    )
    __pow__, __rpow__, __ipow__ = (
        _binary(operator.pow),
        _reflected(operator.pow),
        _in_place(operator.pow),
    )
    __mod__, __rmod__, __imod__ = (
        _binary(operator.mod),
        _reflected(operator.mod),
        _in_place(operator.mod),
    )
    __and__, __rand__, __iand__ = (
        _binary(operator.and_),
        _reflected(operator.and_),
        _in_place(operator.and_),
    )
    __or__, __ror__, __ior__ = (
        _binary(operator.or_),
        _reflected(operator.or_),
        _in_place(operator.or_),
    )
    __xor__, __rxor__, __ixor__ = (
        _binary(operator.xor),
        _reflected(operator.xor),
        _in_place(operator.xor),
    )
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __imatmul__ = _in_place(operator.matmul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __itruediv__ = _in_place(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)
    __ilshift__ = _in_place(operator.lshift)
    __rshift__, __rrshift__ = _binary(operator.rshift), _reflected(operator.rshift)
    __irshift__ = _in_place(operator.rshift)
    __divmod__, __rdivmod__ = _binary(divmod), _reflected(divmod)

    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
    __contains__ = _binary(operator.contains)

    __neg__, __pos__, __abs__ = _unary(operator.neg), _unary(operator.pos), _unary(abs)
    __invert__ = _unary(operator.invert)
    __bool__, __int__, __float__, __complex__ = (
        _unary(bool),
        _unary(int),
        _unary(float),
        _unary(complex),
    )
    __index__, __len__, __iter__ = _unary(operator.index), _unary(len), _unary(iter)

    def __eq__(self, other: object) -> Any:
        return operator.eq(self.get_value(), _value(other))  # type: ignore[attr-defined]  # on Variable

    def __ne__(self, other: object) -> Any:
        return operator.ne(self.get_value(), _value(other))  # type: ignore[attr-defined]  # on Variable

    def __hash__(self) -> int:
        return id(self)

    def __round__(self, *ndigits: int) -> Any:
        return round(self.get_value(), *ndigits)  # type: ignore[attr-defined]  # on Variable

    def __format__(self, spec: str) -> str:
        return format(self.get_value(), spec) if spec else str(self)  # type: ignore[attr-defined]  # on Variable
