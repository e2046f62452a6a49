"""Errors of the transforms."""

from __future__ import annotations

from ._base import NnxError, listed

_STATIC_PARAMETERS = {  # where a transform takes what is a part of the program
    "custom_jvp": "nondiff_argnums or nondiff_argnames",
    "custom_vjp": "nondiff_argnums or nondiff_argnames",
    "jit": "static_argnums or static_argnames",
    "make_jaxpr": "static_argnums",
    "pmap": "static_broadcasted_argnums",
    "remat": "static_argnums or static_argnames",
}


class CaptureError(NnxError, ValueError):
    """A cached transform reached a Variable that it was not given."""

    def __init__(self, transform: str, function: str, variables: tuple[str, ...], written: bool):
        super().__init__(transform, function, variables, written)

    def text(self) -> str:
        transform, function, variables, written = self.args
        verb = "writes" if written else "reaches"
        return (
            f"nnx.{transform}: the function {function} {verb} what it was not given, by a way that cannot be "
            f"followed:{listed(variables)}\nThe compiled function would keep what it is today for ever. "
            f"Expected: an argument, or an object behind the function's closure, globals, defaults or "
            f"helpers. Write `nnx.{transform}(lambda model, x: ...)(model, x)`."
        )


class TransformCallError(NnxError, TypeError):
    """A transform is given more than the function and options by keyword, such as the arguments."""

    def __init__(self, transform: str, found: int, most: int):
        super().__init__(transform, found, most)

    def text(self) -> str:
        transform, found, most = self.args
        expected = "the function alone" if most == 1 else f"{most} at most"
        return (
            f"nnx.{transform}: found {found} positional arguments. Expected {expected}, options by keyword. "
            f"It makes a function, to be called with the arguments: write `nnx.{transform}(f, ...)(x)`."
        )


class StageError(NnxError, TypeError):
    """A stage of a compiled function is called with other arguments, or before it is compiled."""

    def __init__(self, stage: str | None, other_types: tuple[str, ...] = ()):
        super().__init__(stage, other_types)

    def text(self) -> str:
        stage, other_types = self.args
        again = "Write `.lower(...)` again with these arguments, or call the function that nnx.jit returned."
        if stage is not None:
            return (
                f"nnx.jit: found a call of a stage of the kind {stage}. Expected a compiled one. Write "
                f"`.compile()` before the call."
            )
        if other_types:
            return (
                f"nnx.jit: found arguments of other types than the function was compiled for: "
                f"{'; '.join(other_types)}. Expected the same shapes and dtypes. {again}"
            )
        return (
            f"nnx.jit: found arguments of another structure than the function was compiled for. Expected the "
            f"same objects, containers, static values and number of arguments. {again}"
        )


class AliasError(NnxError, ValueError):
    """One Variable is given to a transform in two ways."""

    def __init__(
        self,
        transform: str,
        parameter: str,
        variable: str,
        first: tuple[str, str],
        second: tuple[str, str],
    ):
        super().__init__(transform, parameter, variable, first, second)

    def text(self) -> str:
        transform, parameter, variable, (first, lane1), (second, lane2) = self.args
        return (
            f"nnx.{transform}: inconsistent aliasing: {variable} is one Variable, found at {first} with "
            f"{parameter} {lane1} and at {second} with {lane2}. Expected the same {parameter} wherever it "
            f"is reached. Give both places the same {parameter}, or pass a copy: nnx.clone(...)."
        )


class ArgumentTypeError(NnxError, TypeError):
    """An argument or result of a transformed function is neither data nor declared static."""

    def __init__(self, transform: str, where: str, found: str):
        super().__init__(transform, where, found)

    def text(self) -> str:
        transform, where, found = self.args
        advice = "Close over it instead of passing it"
        if where.startswith("result"):
            advice = "Return arrays, numbers and objects only"
        elif transform in _STATIC_PARAMETERS:
            advice = f"Name it in {_STATIC_PARAMETERS[transform]}, or close over it"
        return (
            f"nnx.{transform}: {where} is {found}. Expected an array, a number, an object of the graph, or a "
            f"container of these. {advice}."
        )


class PrefixError(NnxError, ValueError):
    """A prefix such as `in_axes` does not fit the arguments."""

    def __init__(self, transform: str, parameter: str, where: str, found: str, expected: str):
        super().__init__(transform, parameter, where, found, expected)

    def text(self) -> str:
        transform, parameter, where, found, expected = self.args
        return (
            f"nnx.{transform}: {parameter} does not fit {where}: found {found}, expected {expected}. "
            f"Write {parameter} as one value for everything, or as a container shaped like the arguments."
        )


class UnmatchedFilterError(NnxError, ValueError):
    """A StateAxes or StateSharding has no filter for a Variable."""

    def __init__(self, rule: str, path: str, variable: str):
        super().__init__(rule, path, variable)

    def text(self) -> str:
        rule, path, variable = self.args
        return (
            f"{rule}: no filter matches {variable} at {path or 'the argument'}. Expected filters for every "
            f"Variable. Write `...: None` as the last entry to take the rest."
        )


class GraphChangeError(NnxError, ValueError):
    """Branches or loop bodies leave graphs that cannot be joined."""

    def __init__(self, transform: str, problem: str, differences: tuple[str, ...], advice: str):
        super().__init__(transform, problem, differences, advice)

    def text(self) -> str:
        transform, problem, differences, advice = self.args
        return f"nnx.{transform}: {problem}:{listed(differences)}\n{advice}"


class AxisSizeError(NnxError, ValueError):
    """Mapped axes differ in size, or there is none."""

    def __init__(self, transform: str, problem: str, sizes: tuple[str, ...]):
        super().__init__(transform, problem, sizes)

    def text(self) -> str:
        transform, problem, sizes = self.args
        return f"nnx.{transform}: {problem}:{listed(sizes)}" if sizes else f"nnx.{transform}: {problem}"


class LaneWriteError(NnxError, ValueError):
    """A value that differs from lane to lane goes where all lanes share one."""

    def __init__(
        self,
        transform: str,
        receiver: str,
        example: str = "in_axes=nnx.StateAxes({nnx.BatchStat: 0, ...: None})",
    ):
        super().__init__(transform, receiver, example)

    def text(self) -> str:
        transform, receiver, example = self.args
        return (
            f"nnx.{transform}: a value that differs from lane to lane goes to what all lanes share: "
            f"{receiver}. "
            f"Expected one value for all. Give it an axis, as in {example}, or reduce it over the lanes "
            f"first."
        )


class ArgnumsError(NnxError, ValueError):
    """A gradient is asked for by an argument that the call has not."""

    def __init__(self, transform: str, argnums: int | str, count: int, parameter: str = "argnums"):
        super().__init__(transform, argnums, count, parameter)

    def text(self) -> str:
        transform, argnums, count, parameter = self.args
        return (
            f"nnx.{transform}: found {parameter}={argnums} in a call with {count} positional arguments. "
            f"Expected the position of an argument of the call, or of a parameter that is given by name. "
            f"Write {parameter}=0 for the first."
        )


class ReduceAxesError(NnxError, ValueError):
    """A gradient is asked for with reduce_axes, which JAX has no more."""

    def __init__(self, transform: str, found: str):
        super().__init__(transform, found)

    def text(self) -> str:
        transform, found = self.args
        return (
            f"nnx.{transform}: found reduce_axes={found}. Expected (), since JAX has no such option any "
            f"more. Write jax.lax.psum(grads, axis_name) behind it."
        )


class LossError(NnxError, TypeError):
    """The function given to grad does not return what can be differentiated."""

    def __init__(self, transform: str, found: str, advice: str):
        super().__init__(transform, found, advice)

    def text(self) -> str:
        transform, found, advice = self.args
        return f"nnx.{transform}: the function returned {found}. Expected a real scalar loss. {advice}"


class NotDifferentiableError(NnxError, TypeError):
    """A leaf that grad is asked to differentiate by is not of the right kind of number."""

    def __init__(self, transform: str, leaves: tuple[str, ...], expected: str, advice: str):
        super().__init__(transform, leaves, expected, advice)

    def text(self) -> str:
        transform, leaves, expected, advice = self.args
        return (
            f"nnx.{transform}: cannot differentiate by leaves that are not {expected}:{listed(leaves)}\n"
            f"{advice}"
        )


class DonationError(NnxError, ValueError):
    """One array is donated twice."""

    def __init__(self, transform: str, first: str, second: str):
        super().__init__(transform, first, second)

    def text(self) -> str:
        transform, first, second = self.args
        return (
            f"nnx.{transform}: {first} is donated, and {second} holds the very same array. Expected an "
            f"array for each. Write nnx.clone(model, arrays=True) for one of them, or do not donate it."
        )


class InputReturnedError(NnxError, ValueError):
    """A function returns one of its input objects in a mode that does not allow it."""

    def __init__(self, transform: str, where: str):
        super().__init__(transform, where)

    def text(self) -> str:
        transform, where = self.args
        return (
            f"nnx.{transform}: {where} is also an input. With graph_updates=False expected outputs that are "
            f"no input objects. Write graph_updates=True, or return a clone."
        )


class BranchError(NnxError, ValueError):
    """A switch without branches."""

    def __init__(self, transform: str):
        super().__init__(transform)

    def text(self) -> str:
        return f"nnx.{self.args[0]}: branches is empty. Expected at least one function of the operands."


class PredicateError(NnxError, TypeError):
    """A predicate, index or bound of control flow is not what it must be."""

    def __init__(self, transform: str, parameter: str, found: str, expected: str):
        super().__init__(transform, parameter, found, expected)

    def text(self) -> str:
        transform, parameter, found, expected = self.args
        return f"nnx.{transform}: {parameter} is {found}. Expected {expected}."


class ScanAxesError(NnxError, ValueError):
    """`in_axes`, `out_axes` and the function of a scan do not fit together."""

    def __init__(self, found: str, expected: str):
        super().__init__(found, expected)

    def text(self) -> str:
        found, expected = self.args
        return (
            f"nnx.scan: {found}. Expected {expected}. Of jax.lax.scan, the carry is what has nnx.Carry in "
            f"in_axes and out_axes, xs what has an axis in in_axes, ys what has one in out_axes; None in "
            f"in_axes is for constants. Write for example in_axes=(nnx.Carry, 0, None), "
            f"out_axes=(nnx.Carry, 0) for `f(carry, x, constant) -> (carry, y)`."
        )


class ContextError(NnxError, ValueError):
    """A split or merge by hand does not say, or cannot find, the crossing that it belongs to."""

    def __init__(self, where: str, found: str, advice: str):
        super().__init__(where, found, advice)

    def text(self) -> str:
        where, found, advice = self.args
        return (
            f"{where}: {found}. Expected the splits and merges of one crossing inside of one update_context, "
            f"with its tag. Write `{advice}`."
        )


class NodeStatesError(NnxError, ValueError):
    """A NodeStates is asked for what it does not hold."""

    def __init__(self, attribute: str, found: str, advice: str):
        super().__init__(attribute, found, advice)

    def text(self) -> str:
        attribute, found, advice = self.args
        return f"NodeStates.{attribute}: found {found}. Expected {advice}."
