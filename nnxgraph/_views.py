"""Views: other objects over the same Variables, with other modes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ._filters import Filter, filters_to_predicates
from ._module import set_where_found
from ._repr import path_text
from ._typing import Path
from .errors import UnknownViewArgumentsError
from .graph._functional import copied
from .graph._registry import is_node
from .graph._traverse import iter_graph

N = TypeVar("N")
Parameters = Mapping[str, inspect.Parameter]


def view(
    node: N,
    /,
    *,
    only: Filter = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **kwargs: Any,
) -> N:
    """Other objects over the same Variables, with modes set by the `set_view` methods of the modules.

    Each module that has a method `set_view` is given those of the arguments that it takes. The node itself
    stays as it is; a Variable that is written through one is seen by the other.

    Args:
        node: A module, or another object or container of them.
        only: Which modules to set: a filter over the path and the module.
        raise_if_not_found: Whether an argument that no module takes is an error.
        graph: False to refuse shared Variables.
        **kwargs: The arguments of the `set_view` methods.

    Returns:
        The view: new objects of the same structure, with the same Variables.

    Raises:
        UnknownViewArgumentsError: If no module takes one of the arguments.

    Example:
        >>> model = nnx.Dict(a=nnx.Linear(2, 2, rngs=nnx.Rngs(0)), drop=nnx.Dropout(0.5))
        >>> eval_model = nnx.view(model, deterministic=True)
        >>> eval_model.drop.deterministic, model.drop.deterministic
        (True, False)
        >>> eval_model.a.kernel is model.a.kernel
        True
    """
    twin = copied("view", node, False, False, graph)
    found = list(_viewable(twin, only))
    known = {name for _, _, parameters in found for name in parameters}
    takes_all = any(map(_takes_all, (parameters for _, _, parameters in found)))
    unknown = tuple(name for name in kwargs if name not in known and not takes_all)
    if unknown and raise_if_not_found:
        raise UnknownViewArgumentsError("view", unknown, tuple(sorted(known)))
    for _, module, parameters in found:
        accepted = kwargs if _takes_all(parameters) else {k: v for k, v in kwargs.items() if k in parameters}
        if accepted:
            module.set_view(**accepted)
    return twin


def with_attributes(
    node: N,
    /,
    *,
    only: Filter = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **attributes: Any,
) -> N:
    """Other objects over the same Variables, with attributes of the modules set where they exist.

    Args:
        node: A module, or another object or container of them; it stays as it is.
        only: Which modules to set: a filter over the path and the module.
        raise_if_not_found: Whether an attribute that no module has is an error.
        graph: False to refuse shared Variables.
        **attributes: The attributes and their values.

    Returns:
        New objects of the same structure, with the same Variables.

    Raises:
        UnknownAttributesError: If no module has one of the attributes.

    Example:
        >>> model = nnx.Dict(a=nnx.Dropout(0.5), b=nnx.Dropout(0.5))
        >>> twin = nnx.with_attributes(model, only=nnx.PathContains('a'), rate=0.1)
        >>> twin.a.rate, twin.b.rate, model.a.rate
        (0.1, 0.5, 0.5)
    """
    twin = copied("with_attributes", node, False, False, graph)
    set_where_found("with_attributes", twin, (only,), raise_if_not_found, graph, attributes)
    return twin


def view_info(node: Any, /, *, only: Filter = ..., graph: bool | None = None) -> str:
    """What `view` can set: the modules with a `set_view` method, and its parameters.

    Args:
        node: A module, or another object or container of them.
        only: Which modules to list: a filter over the path and the module.
        graph: False to refuse shared Variables.

    Returns:
        A text with types, defaults and descriptions of the parameters, by module.

    Example:
        >>> print(nnx.view_info(nnx.Dict(drop=nnx.Dropout(0.5))))
        .drop: Dropout
          deterministic: bool | None = None
            Whether the layer is off.
    """
    lines = []
    for path, module, parameters in _viewable(node, only, graph):
        lines.append(f"{path_text(path) or 'the root'}: {type(module).__name__}")
        described = _descriptions(inspect.getdoc(type(module).set_view) or "")
        for name, parameter in parameters.items():
            lines.append(f"  {_parameter_text(parameter)}")
            lines += [f"    {line}" for line in described.get(name, ())]
    return "\n".join(lines) or "No module has a method set_view."


def _viewable(node: Any, only: Filter, graph: bool | None = None) -> Iterator[tuple[Path, Any, Parameters]]:
    """The modules that have a `set_view` method, with the parameters that can be given by name."""
    predicate = filters_to_predicates((only,))[0]
    for path, x in iter_graph(node, graph=graph):
        if is_node(x) and callable(getattr(type(x), "set_view", None)) and predicate(path, x):
            every = inspect.signature(x.set_view).parameters
            named = {k: p for k, p in every.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}
            yield path, x, named


def _takes_all(parameters: Parameters) -> bool:
    """Whether there is a parameter `**kwargs`."""
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _parameter_text(parameter: inspect.Parameter) -> str:
    """A parameter as it is written in a signature, annotations in strings without quotes."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        parameter = parameter.replace(annotation=parameter.empty)
        name, _, default = str(parameter).partition("=")
        return f"{name}: {annotation}" + (f" = {default}" if default else "")
    return str(parameter)


def _descriptions(doc: str) -> dict[str, list[str]]:
    """The lines that a docstring has about each parameter, from its section `Args`."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", doc, re.MULTILINE)
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in section.group(1).splitlines() if section else ():
        entry = re.match(r"    \*{0,2}(\w+)(?: \([^)]*\))?:\s*(.*)", line)
        if entry:
            lines = found.setdefault(entry.group(1), [])
            line = entry.group(2)
        if line.strip():
            lines.append(line.strip())
    return found
