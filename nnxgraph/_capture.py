"""`capture`: run a function and collect what the modules in it sow, without leaving anything in them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ._filters import PathIn
from ._module import Module, record_output
from ._recorder import OUTPUT, CallRecorder, open_recorders
from ._repr import function_name, short
from ._typing import MISSING, Missing
from ._variable import Variable
from .errors import NoModuleError, NotAKindError
from .graph._edit import pop
from .graph._traverse import iter_graph


def capture(
    fn: Callable[..., Any],
    *var_types: type[Variable[Any]],
    init: Any = None,
    method_outputs: type[Variable[Any]] | None = None,
) -> Callable[..., Any]:
    """A function that also returns what the modules in it sow and perturb, and leaves nothing in them.

    The paths start at one module: `fn` itself, the object whose method it is, or the first argument that
    is or holds a module. What other modules sow is no affair of the capture.

    It works inside of transforms, and around `nnx.jit`, `nnx.grad`, `nnx.remat` and their like: a compiled
    function is traced once for all captures. Around maps, loops, branches, and transforms of JAX itself,
    which could not hand back what is sown, sowing is an error: capture inside of them, as in
    `nnx.vmap(lambda model, x: nnx.capture(model, nnx.Intermediate)(x))`.

    Args:
        fn: A module, a method of one, or a function that takes one.
        *var_types: The kinds of Variables to collect; all if there are none. What is sown in other kinds
            is dropped.
        init: A State, or nested dicts, with values to begin with: perturbations to add, or what `sow`
            reduces into.
        method_outputs: The kind of Variable under which to collect what each call of a module returns,
            as a tuple named `__call__`.

    Returns:
        A function of the same arguments that returns `(output, state)`. In the State each value stands
        under the path of its module and its own name; of a shared module, under its first path.

    Raises:
        NotAKindError: If a kind is no class of Variables.

    Example:
        >>> class Net(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.layers = [nnx.Linear(2, 2, rngs=rngs) for _ in range(2)]
        ...     def __call__(self, x):
        ...         for layer in self.layers:
        ...             x = layer(x)
        ...         self.sow(nnx.Intermediate, 'last', x)
        ...         return x
        >>> forward = nnx.capture(Net(nnx.Rngs(0)), nnx.Intermediate, method_outputs=nnx.Intermediate)
        >>> y, state = forward(jnp.ones((1, 2)))
        >>> [path for path, _ in nnx.to_flat_state(state)]
        [('layers', 0, '__call__'), ('layers', 1, '__call__'), ('last',), ('__call__',)]
    """
    for kind in (*var_types, *([] if method_outputs is None else [method_outputs])):
        if not (isinstance(kind, type) and issubclass(kind, Variable)):
            raise NotAKindError("capture", short(kind))

    @functools.wraps(fn, updated=())
    def captured(*args: Any, **kwargs: Any) -> Any:
        recorder = CallRecorder(_root_of(fn, args, kwargs), var_types, method_outputs, init)
        try:
            with recorder, _outputs_recorded(recorder):
                output = fn(*args, **kwargs)
        finally:
            left = recorder.left_behind()
            if left:
                pop(recorder.root, PathIn(*[path for path, _ in left]))
        return output, recorder.state(left)

    return captured


def _root_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the paths start at: of the function and its arguments, the first that is or holds a module."""
    for candidate in (*_owners(fn), *args, *kwargs.values()):
        if any(isinstance(x, Module) for _, x in iter_graph(candidate)):
            return candidate
    raise NoModuleError("capture", function_name(fn))


def _owners(fn: Any) -> Iterator[Any]:
    """What a function brings along: itself if it is an object, its `self`, the arguments of a partial."""
    fn = fn if isinstance(fn, Module) else inspect.unwrap(fn)
    if isinstance(fn, types.MethodType):
        yield fn.__self__
    elif isinstance(fn, functools.partial):
        yield from _owners(fn.func)
        yield from (*fn.args, *fn.keywords.values())
    else:
        yield fn


class _Calls:
    """A class of modules whose calls are recorded for a while, in all threads: others pass through."""

    lock = threading.Lock()
    watched: ClassVar[dict[type, _Calls]] = {}

    def __init__(self, cls: type):
        self.cls = cls
        self.users = 0
        self.own = vars(cls).get(OUTPUT, MISSING)
        inherited: Any = next(vars(c)[OUTPUT] for c in cls.__mro__ if OUTPUT in vars(c))

        @functools.wraps(inherited)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            bound = inherited.__get__(module, type(module)) if hasattr(inherited, "__get__") else inherited
            output = bound(*args, **kwargs)
            if type(module) is cls and open_recorders():
                record_output(module, output)
            return output

        self.call = call

    def start(self) -> None:
        """Watch the class."""
        if self.users == 0:
            setattr(self.cls, OUTPUT, self.call)
        self.users += 1

    def stop(self) -> None:
        """Give the class its own method back, once nobody watches it."""
        self.users -= 1
        if self.users:
            return
        del self.watched[self.cls]
        if isinstance(self.own, Missing):
            delattr(self.cls, OUTPUT)
        else:
            setattr(self.cls, OUTPUT, self.own)


@contextlib.contextmanager
def _outputs_recorded(recorder: CallRecorder) -> Iterator[None]:
    """Record the calls of the modules below the root, if the recorder asks for them."""
    if recorder.outputs is None:
        yield
        return
    classes = {type(x) for _, x in iter_graph(recorder.root) if isinstance(x, Module)}
    callable_ones = [cls for cls in classes if any(OUTPUT in vars(c) for c in cls.__mro__)]
    with _Calls.lock:
        watched = [
            _Calls.watched.get(cls) or _Calls.watched.setdefault(cls, _Calls(cls)) for cls in callable_ones
        ]
        for calls in watched:
            calls.start()
    try:
        yield
    finally:
        with _Calls.lock:
            for calls in watched:
                calls.stop()
