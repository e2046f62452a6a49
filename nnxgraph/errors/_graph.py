"""Errors of objects, States and filters."""

from __future__ import annotations

from ._base import NnxError, did_you_mean, listed


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
            f"{where}: the filters leave out:{listed(leftover)}\nExpected filters that match every leaf. "
            f"Write `...` as the last filter to take the rest."
        )


class StateMismatchError(NnxError, ValueError):
    """A State does not fit the graph it is given to."""

    def __init__(self, where: str, problems: tuple[str, ...], advice: str):
        super().__init__(where, problems, advice)

    def text(self) -> str:
        where, problems, advice = self.args
        return f"{where}: the state does not fit:{listed(problems)}\nNothing was changed. {advice}"


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
            f"{cls} declares __slots__ = {slots!r}. Expected attributes in the instance's __dict__, where "
            f"the graph looks for them. Write the class without __slots__ (a dataclass without slots=True)."
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
    """`set_attributes` or `with_attributes` names attributes that no module has."""

    def __init__(self, where: str, unknown: tuple[str, ...], known: tuple[str, ...]):
        super().__init__(where, unknown, known)

    def text(self) -> str:
        where, unknown, known = self.args
        hints = "".join(did_you_mean(name, known) for name in unknown)
        names = ", ".join(map(repr, unknown))
        return (
            f"{where}: no module below has {names}.{hints} Expected attributes that a "
            f"module has. Write raise_if_not_found=False to skip those that none has."
        )


class NotAGraphDefError(NnxError, TypeError):
    """Something else stands where a GraphDef is expected."""

    def __init__(self, where: str, found: str):
        super().__init__(where, found)

    def text(self) -> str:
        where, found = self.args
        return (
            f"{where}: the first argument is a {found}. Expected the GraphDef, and the States behind it. "
            f"Write `graphdef, state = nnx.split(model)`, then `nnx.merge(graphdef, state)`."
        )


class MissingFilterError(NnxError, ValueError):
    """A function that takes filters is given none."""

    def __init__(self, where: str):
        super().__init__(where)

    def text(self) -> str:
        where = self.args[0]
        return (
            f"{where}: found no filter. Expected at least one, which says what is meant. "
            f"Write nnx.{where}(model, nnx.Intermediate)."
        )


class MarkArgumentsError(NnxError, TypeError):
    """`nnx.data` or `nnx.static` is given a value and the arguments of a field at once."""

    def __init__(self, mark: str, arguments: tuple[str, ...]):
        super().__init__(mark, arguments)

    def text(self) -> str:
        mark, arguments = self.args
        return (
            f"nnx.{mark}: found a value and {', '.join(arguments)}. Expected a value alone, for an "
            f"attribute, or arguments of dataclasses.field, for a field. Write nnx.{mark}(value)."
        )


class EntryNotFoundError(NnxError, AttributeError):
    """A State or Dict has no entry that is read as an attribute."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...]):
        super().__init__(kind, name, known)

    def text(self) -> str:
        kind, name, known = self.args
        has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
        return f"{kind} has no entry {name!r}; {has}.{did_you_mean(name, known)}"


class NameTakenError(NnxError, ValueError):
    """A value is to be recorded under a name that stands for something else."""

    def __init__(self, where: str, name: str, found: str, expected: str):
        super().__init__(where, name, found, expected)

    def text(self) -> str:
        where, name, found, expected = self.args
        return (
            f"{where}: attribute {name!r} is a {found}. Expected no such attribute, or one of the kind "
            f"{expected}. Choose another name."
        )


class UnknownIndexError(NnxError, KeyError):
    """A GraphDef names objects by numbers that the caller's index has not."""

    def __init__(self, missing: tuple[int, ...], known: int):
        super().__init__(missing, known)

    def text(self) -> str:
        missing, known = self.args
        numbers = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        return (
            f"unflatten: the GraphDef refers to object {numbers} of another graph, and index_ref has {known} "
            f"objects. Expected the objects of the graphs that were flattened before with the same "
            f"ref_index. Write `index = {{}}`, then `nnx.unflatten(first, state, index_ref=index)` for each "
            f"in order."
        )


class RegistrationError(NnxError, ValueError):
    """A class cannot be registered."""

    def __init__(self, where: str, cls: str, found: str):
        super().__init__(where, cls, found)

    def text(self) -> str:
        where, cls, found = self.args
        node = where == "register_graph_node_type"
        return f"{where}: {cls} is {found}. Expected a class that neither the graph nor JAX knows" + (
            ", whose objects have a __dict__. Write `attributes=` and `assign=` for one that keeps its "
            "values elsewhere."
            if node
            else ". Leave the call out: values of a registered class are walked through as they are."
        )


class PathError(NnxError, ValueError):
    """Something else stands where paths, or nested mappings, are expected."""

    def __init__(self, where: str, found: str, expected: str):
        super().__init__(where, found, expected)

    def text(self) -> str:
        where, found, expected = self.args
        return (
            f"traversals.{where}: found {found}. Expected {expected}. Write for example "
            f"`flatten_mapping({{'a': {{'b': x}}}})`, which is `{{('a', 'b'): x}}`."
        )


class CaptureTraceError(NnxError, ValueError):
    """Under `capture`, a value is recorded where it could not be handed back."""

    def __init__(self, where: str, transform: str):
        super().__init__(where, transform)

    def text(self) -> str:
        where, transform = self.args
        return (
            f"{where}: nnx.capture stands around {transform}, which would not hand back what is recorded "
            f"here. Expected the capture inside of the transform, with its State among the results. Write "
            f"`lambda model, x: nnx.capture(model, nnx.Intermediate)(x)` as the function that is transformed."
        )


class NoModuleError(NnxError, TypeError):
    """A function over a module finds none."""

    def __init__(self, where: str, function: str):
        super().__init__(where, function)

    def text(self) -> str:
        where, function = self.args
        return (
            f"{where}: found no module in {function} and its arguments. Expected a module, a method of one, "
            f"or a function that is called with one. Write nnx.{where}(model, nnx.Intermediate)(x)."
        )


class NotAKindError(NnxError, TypeError):
    """Something else stands where a kind of Variable is expected."""

    def __init__(self, where: str, found: str):
        super().__init__(where, found)

    def text(self) -> str:
        where, found = self.args
        return (
            f"{where}: found {found}. Expected a kind of Variable, such as nnx.Intermediate. Write "
            f"`class Mine(nnx.Variable): ...` for one of your own."
        )


class UnknownViewArgumentsError(NnxError, ValueError):
    """`view` is given arguments that no module takes."""

    def __init__(self, where: str, unknown: tuple[str, ...], known: tuple[str, ...]):
        super().__init__(where, unknown, known)

    def text(self) -> str:
        where, unknown, known = self.args
        hints = "".join(did_you_mean(name, known) for name in unknown)
        names = ", ".join(map(repr, unknown))
        return (
            f"{where}: no module below takes {names} in set_view.{hints} Expected parameters that a module "
            f"has; nnx.view_info(model) lists them. Write raise_if_not_found=False to skip those that "
            f"none has."
        )
