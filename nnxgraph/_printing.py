"""The pretty printer: objects as a tree of bounded size.

A class says with `@opened.register` what stands between its brackets; `__repr__ = tree_text` does the rest:

* every object of the graph is shown once, where it is met first; after that stands its path;
* each Variable is counted once, where it is shown, so the counts of parts add up to those of the whole;
* levels are opened from the top down until the text is long enough; what is left stays closed;
* values without data (static attributes) stay on one line, cut to its length.

The tree is made without recursion, so long chains of objects are no matter.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from ._repr import array_size, cut, is_sized_array, path_text, repr_of, size_text, value_text
from ._trees import one_level
from ._typing import Key, Missing, Path

MOST_LINES = 400
MOST_PARTS = 32  # of one object or container
MOST_LEVELS = 16
MOST_KINDS = 8  # in the comment on one object
WIDTH = 96  # of what is kept on one line, without the indentation

_LEAVES = frozenset({bool, int, float, complex, str, bytes, type(None), type, types.FunctionType})

Size = tuple[int, int]  # elements, bytes


@dataclasses.dataclass(slots=True)
class Opened:
    """How a value is shown: parts between brackets.

    An `identity` that is met again is one value at two places. Of objects of the graph (`is_object`), the
    second is shown by the path of the first. `tall` puts each part on a line of its own. A Variable has a
    `kind`, under which the arrays of its part `value` are counted. `comment` replaces the counts, `notes` are
    comments on parts; `text` says that the user's own `__repr__` is shown instead.
    """

    begin: str
    end: str
    pairs: Iterable[tuple[Key, Any]]
    identity: Hashable
    is_mapping: bool = False
    is_object: bool = False
    tall: bool = False
    kind: str = ""
    comment: str = ""
    notes: Mapping[Key, str] | None = None
    text: bool = False


@functools.singledispatch
def opened(x: Any) -> Opened | None:
    """How a value is shown; None if it has no parts to show."""
    t = type(x)
    if t is list or t is tuple:
        begin, end = "[]" if t is list else ("(", ",)" if len(x) == 1 else ")")
        return Opened(begin, end, enumerate(x), id(x))
    if t is dict:
        return Opened("{", "}", list(x.items()), id(x), is_mapping=True)
    if t is set or t is frozenset:
        begin, end = ("{", "}") if x and t is set else (f"{t.__name__}(", ")")
        return Opened(begin, end, enumerate(sorted(x, key=value_text)), id(x))
    if t is types.MethodType:
        return Opened(f"{value_text(x.__func__)}(", ")", [("__self__", x.__self__)], id(x))
    if t is functools.partial:
        parts = [("func", x.func), ("args", x.args), ("keywords", x.keywords)]
        return Opened("partial(", ")", [(key, part) for key, part in parts if part], id(x))
    return _open_other(x)


def _open_other(x: Any) -> Opened | None:
    """How a registered pytree, a named tuple or a dataclass is shown."""
    name = type(x).__name__
    names = getattr(type(x), "_fields", None)
    if names is not None and isinstance(x, tuple):
        return Opened(f"{name}(", ")", list(zip(names, x, strict=False)), id(x))
    level = one_level(x)
    if level is not None:
        pairs = list(zip(level[1], level[0], strict=True))
        begin, end = ("({", "})") if isinstance(x, Mapping) else ("(", ")")
        return Opened(name + begin, end, pairs, id(x), is_mapping=isinstance(x, Mapping))
    if not has_own_repr(type(x)) and dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = [(f.name, getattr(x, f.name, None)) for f in dataclasses.fields(x) if f.repr]
        return Opened(f"{name}(", ")", fields, id(x))
    return None


def has_own_repr(cls: type) -> bool:
    """Whether a class has a `__repr__` that its user wrote."""
    if repr_of(cls) in (tree_text, repr_of(object)):
        return False
    options: Any = getattr(cls, "__dataclass_params__", None)
    return options is None or not options.repr


def tree_text(x: Any) -> str:
    """The text of an object; never raises, never waits for a device, and never captures a Variable."""
    try:
        return _Tree(x).text()
    except Exception as error:  # a printer that fails would hide the error one is looking for
        return f"<{type(error).__name__} in repr of {type(x).__name__}>"


class _Node:
    """A value with its place in the tree."""

    __slots__ = (
        *("children", "counts", "first", "has_data", "hidden", "is_open"),
        *("is_cycle", "key", "opened", "parent", "rows", "text", "value"),
    )

    def __init__(self, parent: _Node | None, key: Key, value: Any, how: Opened | None):
        self.parent = parent
        self.key = key
        self.value = value  # keeps it alive, so that ids stay unique
        self.opened = how
        self.first: _Node | None = None  # where the same object was met before
        self.children: list[_Node] = []
        self.hidden = 0  # parts beyond those shown
        self.counts: dict[str, Size] = {}
        self.has_data = is_sized_array(value) or (how is not None and how.is_object)
        self.is_open = True  # whether parts are still to come
        self.is_cycle = False
        self.rows: list[list[_Node]] = []  # of parts, if they are shown
        self.text: str | None = None  # on one line, if it fits

    def count(self, key: Key, kind: str, size: Size) -> None:
        """Add to what is counted here, from the part with a key; metadata of Variables does not count."""
        if self.opened is not None and self.opened.kind and key != "value":
            return
        before = self.counts.get(kind, (0, 0))
        self.counts[kind] = (before[0] + size[0], before[1] + size[1])

    def path(self) -> Path:
        """The keys from the root to here."""
        keys: list[Key] = []
        node: _Node | None = self
        while node is not None and node.parent is not None:
            keys.extend(() if isinstance(node.key, Missing) else (node.key,))
            node = node.parent
        return tuple(reversed(keys))

    def label(self) -> str:
        """What stands before the value."""
        how = self.parent.opened if self.parent is not None else None
        if how is None:
            return ""
        if how.is_mapping:
            return f"{value_text(self.key)}: "
        if type(self.key) is int or isinstance(self.key, Missing):
            return ""
        return f"{cut(self.key)}=" if isinstance(self.key, str) else f"[{value_text(self.key)}]="

    def comment(self) -> str:
        """What is said of the value behind it."""
        how = self.parent.opened if self.parent is not None else None
        note = how.notes.get(self.key, "") if how is not None and how.notes is not None else ""
        return "; ".join(filter(None, (note, self.said())))

    def said(self) -> str:
        """What is said of an object: where it is shown, or how much is in it."""
        how = self.opened
        if self.first is not None:
            where = path_text(self.first.path()) or "the root"
            return cut(f"{'cycle to' if self.is_cycle else 'shared with'} {where}")
        if how is None or how.comment:
            return how.comment if how else ""
        if how.kind:
            return size_text(*self.counts[how.kind]) if how.kind in self.counts else ""
        if how.tall:
            return counts_text(self.counts)
        only = self.children[0] if len(self.children) == 1 and not self.hidden else self
        return only.said() if only.first is not None else ""


def counts_text(counts: Mapping[str, Size]) -> str:
    """Elements and bytes by kind, with their total: `Param: 9 (36 B)`."""
    texts = [f"{cut(kind)}: {size_text(*size)}" for kind, size in counts.items()]
    if len(texts) > MOST_KINDS:
        texts[MOST_KINDS:] = [f"... and {len(texts) - MOST_KINDS:,} more"]
    if len(counts) > 1:
        elements, size = map(sum, zip(*counts.values(), strict=True))
        texts.append(f"Total: {size_text(elements, size)}")
    return ", ".join(texts)


class _Tree:
    """All that is shown of an object."""

    def __init__(self, root: Any):
        self._seen: dict[Hashable, _Node] = {}
        self.root = _Node(None, None, root, opened.dispatch(type(root))(root))
        self._walk()
        self._expand()

    def text(self) -> str:
        """The text of the tree."""
        return "\n".join(_lines(self.root, "", ""))

    def _walk(self) -> None:
        """Make the nodes of all parts, and count what they hold."""
        open_nodes = [(self.root, self._parts(self.root))]
        while open_nodes:
            node, rest = open_nodes[-1]
            pair = next(rest, None)
            if pair is None:
                open_nodes.pop()
                _close(node)
            elif (child := self._add(node, *pair)) is not None:
                open_nodes.append((child, self._parts(child)))

    def _parts(self, node: _Node) -> Iterator[tuple[Key, Any]]:
        """The parts of a node that is met for the first time."""
        assert node.opened is not None
        self._seen[node.opened.identity] = node
        return iter(node.opened.pairs)

    def _add(self, parent: _Node, key: Key, value: Any) -> _Node | None:
        """Make the node of a part; returned if it has parts of its own to be walked."""
        is_shown = len(parent.children) < MOST_PARTS
        if not is_shown and type(value) in _LEAVES:
            parent.hidden += 1
            return None
        node = _Node(parent, key, value, _safely_opened(value))
        parent.has_data |= node.has_data
        if is_shown:
            parent.children.append(node)
        else:
            parent.hidden += 1
        if node.opened is None:
            if node.has_data:
                parent.count(key, "arrays", array_size(value))
            return None
        first = self._seen.get(node.opened.identity)
        if first is None:
            return node
        _repeat(node, first)
        return None

    def _expand(self) -> None:
        """Choose what is shown in full, from the top down."""
        room = MOST_LINES
        todo = deque([(self.root, 0)])
        while todo:
            node, level = todo.popleft()
            for child in node.children:
                child.text = _flat(child, WIDTH)
            rows = _rows(node)
            if len(rows) + 2 <= room and level <= MOST_LEVELS:
                node.rows = rows
                room -= len(rows) + 2
                todo.extend((child, level + 1) for child in node.children if child.text is None)


def _safely_opened(value: Any) -> Opened | None:
    """How a value is shown; None for one without parts, also if asking it fails."""
    if type(value) in _LEAVES or is_sized_array(value):
        return None
    try:
        return opened.dispatch(type(value))(value)
    except Exception:  # the user's own code; value_text says what is wrong with it
        return None


def _close(node: _Node) -> None:
    """Hand what was found in a node to the one above."""
    node.is_open = False
    how = node.opened
    if how is not None and how.kind and "arrays" in node.counts:
        node.counts = {how.kind: node.counts["arrays"]}
    if node.parent is not None:
        node.parent.has_data |= node.has_data
        for kind, size in node.counts.items():
            node.parent.count(node.key, kind, size)


def _repeat(node: _Node, first: _Node) -> None:
    """Make a node refer to the place where the same object was met before; plain values are shown again."""
    node.is_cycle = first.is_open
    if first.is_open or first.has_data:
        node.first = first
        assert node.parent is not None
        node.parent.has_data |= first.has_data
    else:
        node.children, node.hidden = first.children, first.hidden


def _flat(node: _Node, room: int) -> str | None:
    """A value on one line of about `room` characters; None if it has data and does not fit."""
    how = node.opened
    if how is None or how.text:
        return value_text(node.value)
    if node.first is not None or (room <= 0 and node.children and not node.has_data):
        return f"{how.begin}...{how.end}"
    if node.has_data and (room <= 0 or node.hidden or (how.tall and node.children)):
        return None
    room -= len(how.begin) + len(how.end) + 20 * bool(node.hidden)  # "... and 1,000 more"
    texts: list[str] = []
    total = len(node.children) + node.hidden
    for child in node.children:
        blocked = node.has_data and child.comment() not in ("", node.said())
        text = None if blocked else _flat(child, room)
        if text is None:
            return None
        label = "" if how.kind and not texts else child.label()
        room -= len(label) + len(text) + 2
        if room < 0 and node.has_data:
            return None
        if room < 0 and texts:
            break
        texts.append(label + text)
    if len(texts) < total:
        texts.append(f"... and {total - len(texts):,} more")
    return how.begin + ", ".join(texts) + how.end


def _rows(node: _Node) -> list[list[_Node]]:
    """The parts of a node by the lines on which they begin: short values without data share a line."""
    rows: list[list[_Node]] = []
    width = 0
    for child in node.children:
        size = len(child.label()) + len(child.text or "") + 2
        alone = child.has_data or child.text is None or bool(child.comment())
        if alone or width < size:
            rows.append([])
            width = WIDTH
        rows[-1].append(child)
        width = 0 if alone else width - size
    return rows


def _lines(node: _Node, indent: str, comma: str) -> Iterator[str]:
    """The lines of a value that stands at an indentation, with a comma behind it."""
    how, comment = node.opened, node.comment()
    if not node.rows or how is None:
        yield f"{indent}{_closed(node)}{comma}" + (f"  # {comment}" if comment else "")
        return
    yield f"{indent}{node.label()}{how.begin}" + (f" # {comment}" if comment else "")
    for row in node.rows:
        behind = "," if row is not node.rows[-1] or node.hidden else ""
        if len(row) == 1:
            yield from _lines(row[0], indent + "  ", behind)
        else:
            yield indent + "  " + ", ".join(map(_closed, row)) + behind
    if node.hidden:
        yield f"{indent}  ... and {node.hidden:,} more"
    yield f"{indent}{how.end}{comma}"


def _closed(node: _Node) -> str:
    """A value on one line, its label before it."""
    how = node.opened
    dots = "..." if node.children else ""
    closed = f"{how.begin}{dots}{how.end}" if how is not None else ""
    return node.label() + (closed if node.text is None else node.text)
