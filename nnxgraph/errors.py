"""What nnxgraph raises. Each class takes facts and builds the text from them.

Every text says where, what was found, what was expected, and what to write instead. The facts are the
`args` of the exception, so that every error pickles. No text ever holds the contents of an array.
"""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterable


def _listed(items: Iterable[object], limit: int = 20) -> str:
    """A bulleted list, cut after `limit` lines."""
    lines = [str(item) for item in items]
    shown = "".join(f"\n  - {line}" for line in lines[:limit])
    return shown + (f"\n  - ... and {len(lines) - limit} more" if len(lines) > limit else "")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


class NnxError(Exception):
    """Base of all errors of nnxgraph."""

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The message, built from the facts in `args`."""
        return " ".join(map(str, self.args))


class LeakedVariableError(NnxError, RuntimeError):
    """A Variable made inside a transformed function is used after the function ended."""

    def __init__(self, variable: str, transform: str):
        super().__init__(variable, transform)

    def text(self) -> str:
        variable, transform = self.args
        return (
            f"{variable} was made inside a function under {transform} and is used after that function "
            f"ended, so its value is gone. Expected: the function returns the Variable, or stores it on "
            f"an object that was passed in. Write `return` it from the function."
        )


class TraceWriteError(NnxError, ValueError):
    """A Variable is written where its new value could not be handed back."""

    def __init__(self, variable: str, transform: str, inside: str | None):
        super().__init__(variable, transform, inside)

    def text(self) -> str:
        variable, transform, inside = self.args
        where = f" inside nnx.{inside}" if inside else ""
        return (
            f"Cannot write {variable} from another trace level: it was made outside of {transform}, a raw "
            f"JAX transform that is active{where}, and the new value could not leave it. Expected: writes "
            f"under the transforms of nnxgraph, which hand state back. Write nnx.jit, nnx.grad, nnx.vmap, "
            f"nnx.scan ... for jax.jit, jax.grad, jax.vmap, jax.lax.scan, and pass the object as an argument."
        )


class CaptureError(NnxError, ValueError):
    """A cached transform reached a Variable that it was not given."""

    def __init__(self, transform: str, function: str, variables: tuple[str, ...], written: bool):
        super().__init__(transform, function, variables, written)

    def text(self) -> str:
        transform, function, variables, written = self.args
        verb = "writes" if written else "reads"
        return (
            f"nnx.{transform}: the function {function} {verb} Variables that it was not given:"
            f"{_listed(variables)}\nThe compiled function would keep today's values for ever. Expected: the "
            f"object that holds them is an argument. Write `nnx.{transform}(lambda model, x: ...)(model, x)`."
        )


class AttributeNotFoundError(NnxError, AttributeError):
    """A Variable has neither metadata nor an array attribute of that name."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...]):
        super().__init__(kind, name, known)

    def text(self) -> str:
        kind, name, known = self.args
        return (
            f"{kind} has no attribute {name!r}: neither metadata nor the value has it."
            f"{_did_you_mean(name, known)}"
        )


class KindMismatchError(NnxError, ValueError):
    """A value of one kind of Variable is given to another kind."""

    def __init__(self, target: str, source: str):
        super().__init__(target, source)

    def text(self) -> str:
        target, source = self.args
        return (
            f"Cannot copy from a {source} to a {target}: the kinds differ. Expected a {target}. "
            f"To take the value alone write `variable.set_value(other.get_value())`."
        )


class ValueMismatchError(NnxError, ValueError):
    """`variable[...] = value` with a value of another shape or type."""

    def __init__(self, variable: str, found: str, reason: str):
        super().__init__(variable, found, reason)

    def text(self) -> str:
        variable, found, reason = self.args
        return (
            f"{variable}: cannot assign {found} with `variable[...] = value`: {reason}. Expected a value that "
            f"fits the present shape and dtype. To change them write `variable.set_value(value)`."
        )


class UnsupportedVariableError(NnxError, NotImplementedError):
    """A mode of Variables that this version does not have."""

    def __init__(self, kind: str, option: str):
        super().__init__(kind, option)

    def text(self) -> str:
        kind, option = self.args
        return (
            f"{kind}(..., {option}=True): this version has no {option} Variables. Expected {option}=None or "
            f"False. Write nnx.jit, nnx.grad ... around the code that mutates the Variable."
        )


class FilterError(NnxError, TypeError):
    """A value that is not a filter stands where a filter is expected."""

    def __init__(self, found: str):
        super().__init__(found)

    def text(self) -> str:
        return (
            f"{self.args[0]} is not a filter. Expected a Variable type, a tag (str), True or ..., False or "
            f"None, a callable (path, value) -> bool, or a list or tuple of these. "
            f"Write for example nnx.Param or nnx.PathContains('kernel')."
        )


class FilterOrderError(NnxError, ValueError):
    """`...` or True stands before other filters, which could match nothing."""

    def __init__(self, position: int, total: int):
        super().__init__(position, total)

    def text(self) -> str:
        position, total = self.args
        return (
            f"Filter {position} of {total} is `...` or True and takes everything, so those behind it match "
            f"nothing. Expected `...` only as the last filter. Write the narrow filters first."
        )


class NonExhaustiveError(NnxError, ValueError):
    """Some leaves match no filter."""

    def __init__(self, where: str, leftover: tuple[str, ...]):
        super().__init__(where, leftover)

    def text(self) -> str:
        where, leftover = self.args
        return (
            f"{where}: the filters leave out:{_listed(leftover)}\nExpected filters that match every leaf. "
            f"Write `...` as the last filter to take the rest."
        )


class StateMismatchError(NnxError, ValueError):
    """A State does not fit the graph it is given to."""

    def __init__(self, where: str, problems: tuple[str, ...], advice: str):
        super().__init__(where, problems, advice)

    def text(self) -> str:
        where, problems, advice = self.args
        return f"{where}: the state does not fit:{_listed(problems)}\nNothing was changed. {advice}"


class CycleError(NnxError, ValueError):
    """A plain container contains itself."""

    def __init__(self, path: str, kind: str):
        super().__init__(path, kind)

    def text(self) -> str:
        path, kind = self.args
        return (
            f"The {kind} at {path or 'the root'} contains itself. Expected plain containers without cycles, "
            f"since they have no identity in the graph. Write nnx.List, nnx.Dict or a Module for one that "
            f"takes part in a cycle."
        )


class MisplacedMarkError(NnxError, ValueError):
    """A mark of `nnx.data` or `nnx.static` stands inside a container."""

    def __init__(self, path: str, mark: str):
        super().__init__(path, mark)

    def text(self) -> str:
        path, mark = self.args
        return (
            f"Found nnx.{mark}(...) at {path}, inside a container. Expected it around the whole value of an "
            f"attribute, since a mark belongs to the attribute. Write `self.name = nnx.{mark}([...])`."
        )


class SlotsError(NnxError, TypeError):
    """A class of objects keeps attributes in slots."""

    def __init__(self, cls: str, slots: tuple[str, ...]):
        super().__init__(cls, slots)

    def text(self) -> str:
        cls, slots = self.args
        return (
            f"{cls} declares __slots__ = {slots!r}. Expected attributes in the instance's __dict__, where the "
            f"graph looks for them. Write the class without __slots__ (and a dataclass without slots=True)."
        )


class FixedContainerError(NnxError, ValueError):
    """A Variable shall be taken out of a container that cannot lose an entry."""

    def __init__(self, path: str, kind: str):
        super().__init__(path, kind)

    def text(self) -> str:
        path, kind = self.args
        return (
            f"pop: cannot take out {path}: it stands in a {kind}, which cannot lose an entry. Nothing was "
            f"changed. Expected an attribute, or an entry of a list, dict or tuple below an object. Write "
            f"`self.name = variable` where the Variable is made."
        )


class StaticArrayError(NnxError, ValueError):
    """An array is marked static."""

    def __init__(self, owner: str, attribute: str, found: str):
        super().__init__(owner, attribute, found)

    def text(self) -> str:
        owner, attribute, found = self.args
        return (
            f"{owner}.{attribute}: found {found} marked static. Expected a value that is not an array, since "
            f"static values are compared at each call. Write `self.{attribute} = value` (arrays are data)."
        )


class NotANodeError(NnxError, TypeError):
    """A function over objects is given something that holds no object."""

    def __init__(self, where: str, found: str):
        super().__init__(where, found)

    def text(self) -> str:
        where, found = self.args
        return (
            f"{where}: found {found}. Expected a Module or another nnx.Pytree object, a Variable, or a "
            f"container of them."
        )


class DtypeNotInexactError(NnxError, ValueError):
    """A layer is told to compute in an integer dtype."""

    def __init__(self, dtype: str):
        super().__init__(dtype)

    def text(self) -> str:
        return (
            f"promote_dtype: found dtype={self.args[0]}. Expected a floating or complex dtype. "
            f"Write dtype=jnp.float32, or inexact=False to cast to integers."
        )


class LayerError(NnxError, ValueError):
    """A layer is made or called in a way it cannot serve: `layer: argument is found; expected ...`."""

    def __init__(self, layer: str, argument: str, found: str, expected: str, instead: str = ""):
        super().__init__(layer, argument, found, expected, instead)

    def text(self) -> str:
        layer, argument, found, expected, instead = self.args
        return f"{layer}: found {argument} = {found}. Expected {expected}.{instead and ' ' + instead}"


class LayerOptionError(LayerError):
    """A layer is made with an option that has no meaning."""


class LayerInputError(LayerError):
    """A layer is called with an input that does not fit it."""


class MissingKeyError(NnxError, ValueError):
    """A layer draws at random, but neither the call nor the layer has a stream."""

    def __init__(self, layer: str, stream: str):
        super().__init__(layer, stream)

    def text(self) -> str:
        layer, stream = self.args
        return (
            f"{layer}: found no random stream, neither in the call nor on the layer. Expected one named "
            f"{stream!r} (or a default stream), since the layer is not deterministic. Write "
            f"`{layer}(..., rngs=nnx.Rngs(0))` where the layer is made, `layer(x, rngs=nnx.Rngs({stream}=0))` "
            f"where it is called, or call `model.eval()` to turn the randomness off."
        )


class DecodeCacheError(NnxError, ValueError):
    """The decode cache of an attention layer is missing, full, or made for another shape."""

    def __init__(self, layer: str, found: str, expected: str, instead: str):
        super().__init__(layer, found, expected, instead)

    def text(self) -> str:
        layer, found, expected, instead = self.args
        return f"{layer}: decode cache: found {found}. Expected {expected}. {instead}"


class UnboundAxisWarning(UserWarning):
    """A normalisation layer with an axis_name runs where no such axis is mapped."""

    def __init__(self, layer: str, axes: tuple[str, ...]):
        super().__init__(layer, axes)

    def __str__(self) -> str:
        layer, axes = self.args
        return (
            f"{layer}: found no mapped axis named {' or '.join(map(repr, axes))}, so the statistics are those "
            f"of this call alone. Expected a call under nnx.vmap, nnx.pmap or nnx.shard_map with that axis name. "
            f"Make the layer with axis_name=None where statistics are not shared."
        )


class SharedVariableError(NnxError, ValueError):
    """An object is shared where only trees are allowed."""

    def __init__(self, where: str, first: str, second: str):
        super().__init__(where, first, second)

    def text(self) -> str:
        where, first, second = self.args
        return (
            f"{where}: found one object at {first} and at {second}; this is a duplicate in tree mode "
            f"(graph=False). Expected no shared objects. Write graph=True to share them."
        )


class UnknownAttributesError(NnxError, ValueError):
    """`set_attributes` names attributes that no module has."""

    def __init__(self, module: str, unknown: tuple[str, ...], known: tuple[str, ...]):
        super().__init__(module, unknown, known)

    def text(self) -> str:
        module, unknown, known = self.args
        hints = "".join(_did_you_mean(name, known) for name in unknown)
        names = ", ".join(map(repr, unknown))
        return (
            f"{module}.set_attributes: no module below has {names}.{hints} Expected attributes that a "
            f"module has. Write raise_if_not_found=False to skip those that none has."
        )


class MissingStreamError(NnxError, AttributeError, KeyError):
    """A random stream is asked for that there is not, and there is no default."""

    def __init__(self, name: str, known: tuple[str, ...]):
        super().__init__(name, known)

    def text(self) -> str:
        name, known = self.args
        has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
        return (
            f"Rngs has no stream {name!r} and no default; {has}.{_did_you_mean(name, known)} "
            f"Write nnx.Rngs({name}=0) or, for a default, nnx.Rngs(0)."
        )


class SplitStreamError(NnxError, ValueError):
    """A split random stream is drawn from outside of the transform it was split for."""

    def __init__(self, tag: str, shape: tuple[int, ...]):
        super().__init__(tag, shape)

    def text(self) -> str:
        tag, shape = self.args
        return (
            f"The random stream {tag!r} holds {shape} keys, one for each lane, and a draw needs one. Expected "
            f"the call to stand inside the transform that the stream was split for. Write nnx.vmap or "
            f"nnx.scan with axis 0 for the stream, or restore it with nnx.restore_rngs."
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
        advice = (
            "Return arrays, numbers and objects only"
            if where.startswith("result")
            else "Name it in static_argnums or static_argnames, or close over it"
        )
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
        return f"nnx.{transform}: {problem}:{_listed(differences)}\n{advice}"


class AxisSizeError(NnxError, ValueError):
    """Mapped axes differ in size, or there is none."""

    def __init__(self, transform: str, problem: str, sizes: tuple[str, ...]):
        super().__init__(transform, problem, sizes)

    def text(self) -> str:
        transform, problem, sizes = self.args
        return f"nnx.{transform}: {problem}:{_listed(sizes)}" if sizes else f"nnx.{transform}: {problem}"


class LaneWriteError(NnxError, ValueError):
    """A value that differs from lane to lane goes where all lanes share one."""

    def __init__(self, transform: str, receiver: str):
        super().__init__(transform, receiver)

    def text(self) -> str:
        transform, receiver = self.args
        return (
            f"nnx.{transform}: a value that differs from lane to lane goes to what all lanes share: {receiver}. "
            f"Expected one value for all. Give it an axis, as in "
            f"in_axes=nnx.StateAxes({{nnx.BatchStat: 0, ...: None}}), or reduce it over the lanes first."
        )


class LossError(NnxError, TypeError):
    """The function given to grad does not return what can be differentiated."""

    def __init__(self, transform: str, found: str, advice: str):
        super().__init__(transform, found, advice)

    def text(self) -> str:
        transform, found, advice = self.args
        return f"nnx.{transform}: the function returned {found}. Expected a real scalar loss. {advice}"


class NotDifferentiableError(NnxError, TypeError):
    """A leaf that grad is asked to differentiate by is not real or complex."""

    def __init__(self, transform: str, leaves: tuple[str, ...]):
        super().__init__(transform, leaves)

    def text(self) -> str:
        transform, leaves = self.args
        return (
            f"nnx.{transform}: cannot differentiate by leaves that are not floating point:{_listed(leaves)}\n"
            f"Expected floats. Choose with argnums=nnx.DiffState(0, filter), or set allow_int=True."
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


class OptimizerArgumentError(NnxError, TypeError):
    """An optimizer is made or called in another way than it can be."""

    def __init__(self, where: str, found: str, expected: str, instead: str):
        super().__init__(where, found, expected, instead)

    def text(self) -> str:
        where, found, expected, instead = self.args
        return f"{where}: found {found}. Expected {expected}. {instead}"


class GradientMismatchError(NnxError, ValueError):
    """Gradients do not fit the parameters that an optimizer updates."""

    def __init__(self, where: str, name: str, problems: tuple[str, ...]):
        super().__init__(where, name, problems)

    def text(self) -> str:
        where, name, problems = self.args
        return (
            f"{where}: {name} does not fit the parameters:{_listed(problems)}\nNothing was changed. Expected "
            f"a gradient for each parameter that `wrt` selects, of the parameter's shape. Write "
            f"nnx.grad(loss, argnums=nnx.DiffState(0, wrt))(model) with the same `wrt` as the optimizer."
        )


class ParametersChangedError(NnxError, ValueError):
    """A model has other parameters than the one an optimizer was made for."""

    def __init__(self, where: str, model: str, gone: tuple[str, ...], new: tuple[str, ...]):
        super().__init__(where, model, gone, new)

    def text(self) -> str:
        where, model, gone, new = self.args
        problems = [f"{path} is gone" for path in gone] + [f"{path} is new" for path in new]
        return (
            f"{where}: the parameters of this {model} are not those that the optimizer was made for:"
            f"{_listed(problems)}\nNothing was changed. Expected the model that the optimizer was made for. "
            f"Write nnx.Optimizer(model, tx, wrt=...) again after the parameters of a model have changed."
        )


class NoParametersError(NnxError, ValueError):
    """The `wrt` of an optimizer selects nothing."""

    def __init__(self, where: str, model: str, wrt: str, kinds: tuple[str, ...]):
        super().__init__(where, model, wrt, kinds)

    def text(self) -> str:
        where, model, wrt, kinds = self.args
        has = f"it has {', '.join(kinds)}" if kinds else "it has none"
        return (
            f"{where}: wrt = {wrt} selects no Variable of {model}; {has}. Expected a filter that selects what "
            f"is to be trained. Write wrt=nnx.Param for all parameters."
        )


class ValueFunctionError(NnxError, TypeError):
    """A function of the parameters that an optimizer calls takes neither their State nor the model."""

    def __init__(self, name: str, function: str, with_state: str, with_model: str):
        super().__init__(name, function, with_state, with_model)

    def text(self) -> str:
        name, function, with_state, with_model = self.args
        return (
            f"Optimizer.update: {name} = the function {function} failed on the State of the parameters and on "
            f"the model:{_listed((f'State: {with_state}', f'model: {with_model}'))}\nExpected a function of "
            f"one of the two that returns the loss. Write `{name}=lambda model: loss(model, x, y)`."
        )


class TransformationPickleError(NnxError, pickle.PicklingError):
    """The transformation of an optimizer cannot be pickled."""

    def __init__(self, transformation: str):
        super().__init__(transformation)

    def text(self) -> str:
        return (
            f"Optimizer: cannot pickle tx = {self.args[0]}: optax builds transformations of functions inside "
            f"functions. Expected a function that makes the transformation, or the package cloudpickle. Write "
            f"tx=functools.partial(optax.adam, 1e-3) for tx=optax.adam(1e-3), or install cloudpickle."
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
            f"nnx.scan: {found}. Expected {expected}. Write for example in_axes=(nnx.Carry, 0, None), "
            f"out_axes=(nnx.Carry, 0) for `f(carry, x, constant) -> (carry, y)`."
        )


class MetricArgumentError(NnxError, TypeError):
    """A metric is given keyword arguments that it does not take, or not those that it needs."""

    def __init__(
        self, metric: str, missing: tuple[str, ...], unknown: tuple[str, ...], known: tuple[str, ...]
    ):
        super().__init__(metric, missing, unknown, known)

    def text(self) -> str:
        metric, missing, unknown, known = self.args
        problems = [f"{x} is missing" for x in missing] + [f"{x} is taken by no metric" for x in unknown]
        hints = "".join(_did_you_mean(x.strip("'"), known) for x in unknown)
        return (
            f"{metric}.update: the keyword arguments do not fit:{_listed(problems)}\nNothing was changed.{hints} "
            f"Expected {', '.join(map(repr, known)) or 'none, as there is no metric'}. "
            f"Write `update({known[0] if known else ''}=...)`."
        )


class MetricNameError(NnxError, ValueError):
    """A MultiMetric is made of something that is no metric, or under a name that it cannot have."""

    def __init__(self, name: str, found: str, instead: str):
        super().__init__(name, found, instead)

    def text(self) -> str:
        name, found, instead = self.args
        return (
            f"MultiMetric({name}=...): found {found}. Expected metrics, under names that MultiMetric does not "
            f"use itself. Write {instead}."
        )


class MetricValueError(NnxError, ValueError):
    """A metric is given arrays that do not fit each other."""

    def __init__(self, metric: str, found: str, expected: str, instead: str = ""):
        super().__init__(metric, found, expected, instead)

    def text(self) -> str:
        metric, found, expected, instead = self.args
        return f"{metric}.update: found {found}. Expected {expected}.{instead and ' ' + instead}"
