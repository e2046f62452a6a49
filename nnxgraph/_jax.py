"""The only module that touches private JAX names.

Each private name stands here once, with the reason why the public interface does not serve, and with a
fallback built from public names. Both ways are tested at both ends of the supported range of JAX.

===========================  ====================================  =====================================
private name                 why                                   fallback
===========================  ====================================  =====================================
core.trace_ctx               identity of the active trace          jax.extend.core.get_opaque_trace_state
                             in 0.1 us
batching.BatchTracer         which value differs from lane to      None: JAX's own error is passed on
                             lane
core.pytype_aval_mappings    jax.lax asks for the type of a        none: JAX's own error says to convert
                             Variable
dtypes.register_...          binding a primitive takes the value   the same
canonicalize_value_handler   of a Variable
lax.lax.asarray              split, cholesky and a few more ask    the same
                             whether an operand is an array
indexing.NDIndexer           `x[v]` and `x.at[v]` ask the same     the same
                             of an index
===========================  ====================================  =====================================

The last four serve `register_array_like`; without them jax.numpy still takes Variables. The first two of
them are JAX's own tables of types; for the other two there is no table, so that a function is wrapped.

Checked on JAX 0.10.2 and 0.12.0.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

_core: Any
_batching: Any
_dtypes: Any
_indexing: Any
_lax: Any
try:
    from jax._src import core as _core
except ImportError:  # pragma: no cover - no supported JAX lacks it
    _core = None
try:
    from jax._src.interpreters import batching as _batching
except ImportError:  # pragma: no cover - no supported JAX lacks it
    _batching = None
try:
    from jax._src import dtypes as _dtypes
    from jax._src.lax import lax as _lax
    from jax._src.numpy import indexing as _indexing
except ImportError:  # pragma: no cover - no supported JAX lacks them
    _dtypes = _lax = _indexing = None


def trace_by_context() -> object:
    """The active trace itself; traces are compared by identity."""
    return _core.trace_ctx.trace


class _OpaqueTrace:
    """One trace state, interned so that equal states are one object."""

    def __init__(self, state: Any):
        self.state = state


_opaque_traces: list[weakref.ref[_OpaqueTrace]] = []


def trace_by_opaque_state() -> object:
    """The public way: slower, an interned stand-in for the active trace."""
    state = get_opaque_trace_state()  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    _opaque_traces[:] = [ref for ref in _opaque_traces if ref() is not None]
    for ref in _opaque_traces:
        known = ref()
        if known is not None and known.state == state:
            return known
    fresh = _OpaqueTrace(state)
    _opaque_traces.append(weakref.ref(fresh))
    return fresh


current_trace: Callable[[], object] = (
    trace_by_context if hasattr(_core, "trace_ctx") else trace_by_opaque_state
)


def _trace_of_eager_code() -> object:
    """The trace of a new thread: this module may be imported while a function is traced."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(current_trace()))
    thread.start()
    thread.join()
    return found[0]


EVAL_TRACE: object = _trace_of_eager_code()


def trace_reference(trace: object) -> Callable[[], object]:
    """A way to the trace that does not keep it alive."""
    if isinstance(trace, _OpaqueTrace):
        return lambda: trace  # holds but a weak reference itself
    return weakref.ref(trace)


_TRANSFORM_NAMES = {
    "JVP": "jvp or grad",
    "Linearize": "grad or vjp",
    "Batch": "vmap",
    "ShardMap": "shard_map",
    "Eval": "custom_vjp or custom_jvp",  # their rules run outside of the transform that is active
    "DynamicJaxpr": "jit, scan, cond, while_loop or checkpoint",
}


def transform_name(trace: object) -> str:
    """What users call the JAX transform that a trace belongs to."""
    if isinstance(trace, _OpaqueTrace):
        return "jit, grad, vmap ..."
    kind = type(trace).__name__.removesuffix("Trace")
    return _TRANSFORM_NAMES.get(kind, kind)


def is_eager_shard_map() -> bool:
    """Whether the code runs operation by operation on the parts of a shard_map that is not compiled."""
    return transform_name(current_trace()) == _TRANSFORM_NAMES["ShardMap"]


def differs_by_lane(x: object) -> bool | None:
    """Whether x has one value for each lane of the vmap that is running; None if that is unknown."""
    tracer = getattr(_batching, "BatchTracer", None)
    if tracer is None:
        return None
    if not isinstance(x, tracer):
        return False
    return x._trace is current_trace() and x.batch_dim is not None


def varying_axes(x: object) -> frozenset[object]:
    """The axes of a mesh along which x has a value of its own on each device, as far as shard_map checks."""
    kind = getattr(jax.typeof(x), "manual_axis_type", None)
    return frozenset(getattr(kind, "varying", ()))


def is_tracer(x: object) -> bool:
    """Whether x is a value under a JAX transform."""
    return isinstance(x, jax.core.Tracer)


_readers: dict[type, Callable[[Any], Any]] = {}


def register_array_like(kind: type, read: Callable[[Any], Any]) -> None:
    """Let the functions of JAX take objects of a type for the arrays that `read` finds in them.

    What they do with such an object in the place of a pytree stays as it is.
    """
    _readers[kind] = read
    mappings = getattr(_core, "pytype_aval_mappings", None)
    handle = getattr(_dtypes, "register_canonicalize_value_handler", None)
    if mappings is not None and handle is not None:
        mappings[kind] = lambda x: _core.typeof(read(x))
        handle(kind, lambda x: _dtypes.canonicalize_value(read(x)))


def plain(x: Any) -> Any:
    """The array in an object of a registered type, anything else as it is."""
    read = _readers.get(type(x))
    return x if read is None else read(x)


def plain_index(index: Any) -> Any:
    """An index in which objects of registered types are replaced by their arrays."""
    if type(index) is tuple:
        return tuple(map(plain_index, index))
    if type(index) is slice:
        return slice(plain(index.start), plain(index.stop), plain(index.step))
    return plain(index)


def _convert_first(owner: Any, name: str, convert: Callable[[Any], Any]) -> None:
    """Wrap a function, or class method, so that it sees its first argument converted."""
    function = getattr(owner, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def wrapped(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(convert(first), *args, **kwargs)

    setattr(owner, name, staticmethod(wrapped) if isinstance(owner, type) else wrapped)


_convert_first(_lax, "asarray", plain)
_convert_first(getattr(_indexing, "NDIndexer", None), "from_raw_indices", plain_index)
