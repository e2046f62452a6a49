"""A model with something of each kind, what a function sees of it, and changes that it must see.

`observe` is the function that is compiled: it says all that Python can see of an object while it is traced,
and writes some of its Variables. A mutation is a function of the model, applied outside of any transform.
"""

import copy
import dataclasses
import functools
import gc
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import nnxgraph as nnx
from tests.transforms.subjects import Empty, f32


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Config:
    width: Any
    names: Any
    table: Any


@dataclasses.dataclass(frozen=True)
class Fixed:
    width: Any
    names: Any


@jax.tree_util.register_pytree_with_keys_class
class Box:
    """A pytree of the user, which changes in place."""

    def __init__(self, child, aux):
        self.child = child
        self.aux = aux

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("child"), self.child),), self.aux

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children, aux)


class Block(nnx.Module):
    def __init__(self, w):
        self.w = nnx.Param(f32(w))
        self.gain = 1


class OtherBlock(Block):
    """The same attributes under another class."""


def act(x, y=1.0, *, z=1.0):
    return x + y + z


def other_act(x, y=1.0, *, z=1.0):
    return x - y * z


def function(f=act):
    """A copy of a function, for a mutation to change."""
    twin = types.FunctionType(f.__code__, globals(), f.__name__, f.__defaults__)
    twin.__kwdefaults__ = dict(f.__kwdefaults__)
    return twin


def closing(k, table):
    return lambda x: x * k + len(table)


def doubled(variable, value):
    return value * 2.0


def tripled(variable, value):
    return value * 3.0


class Model(nnx.Module):
    """Something of each kind."""

    def __init__(self, start=0.0):
        self.w = nnx.Param(jnp.arange(2.0) + start)
        self.n = nnx.Variable(f32(start), note="a")
        self.number = 1
        self.word = "a"
        self.nothing = None
        self.array = f32(start + 3.0)
        self.host = np.asarray([1.0, 2.0], np.float32)
        self.items = [nnx.Param(f32(start + 1.0)), nnx.Param(f32(start + 2.0)), 5, f32(start + 6.0)]
        self.table = {"a": nnx.Param(f32(start + 1.0)), "b": nnx.Param(f32(start + 2.0)), "c": f32(start)}
        self.pair = Pair(f32(start + 1.0), [1, {"k": nnx.Param(f32(start + 7.0))}])
        self.config = Config(1, ["x"], {"k": [1]})
        self.fixed = Fixed(1, ["x"])
        self.tags = {"a", "b"}
        self.space = types.SimpleNamespace(k=1)
        self.blocks = nnx.List([Block(start + 1.0), Block(start + 2.0)])
        self.named = nnx.Dict(a=Block(start + 3.0), b=1)
        self.child = Empty(inner=Empty(block=Block(start + 4.0)), up=self)
        self.shared = self.child.inner.block.w
        self.box = Box(f32(start + 1.0), "aux")
        self.rngs = nnx.Rngs(params=0)
        self.function = function()
        self.closing = closing(2.0, [1])
        self.partial = functools.partial(act, y=2.0)
        self.hooked = nnx.Param(f32(start + 1.0), on_get_value=doubled)
        self.tree = nnx.Variable({"a": f32(start + 1.0)})

    @property
    def block(self):
        """A module two levels below."""
        return self.child.inner.block

    @functools.cached_property
    def total(self):
        """Kept in the instance when first read."""
        return self.number * 2


class OtherModel(Model):
    """The same attributes under another class."""


def observe(x, *others, k=1.0):
    """All that is seen of an object, after some of its Variables were written."""
    seen: dict[int, tuple[int, Any]] = {}
    texts: list[str] = []
    arrays: list[Any] = []
    _look((x, *others), "", seen, texts, arrays)
    variables = [v for _, v in seen.values() if isinstance(v, nnx.Variable) and _is_number(v)]
    values = [v.get_raw_value() for v in variables]
    for v, value in zip(variables[:-1], values[1:], strict=True):  # each gets what the next one has
        v.set_raw_value(value)
    variables[-1].set_raw_value(values[0] * 0.5 + k)
    return Empty(text="\n".join(texts), arrays=arrays)


def _is_number(variable):
    """Whether the value of a Variable is one float32."""
    value = variable.get_raw_value()
    return getattr(value, "shape", None) == () and value.dtype == jnp.float32


def seen_of(x):
    """What is seen of an object, without a write: a text, and numbers."""
    texts: list[str] = []
    arrays: list[Any] = []
    _look(x, "", {}, texts, arrays)
    return "\n".join(texts), [np.asarray(a).tolist() for a in arrays]


def _look(x, path, seen, texts, arrays):
    """Add what is seen of a value at a path."""
    if isinstance(x, (nnx.Variable, nnx.Pytree)):
        number, _ = seen.setdefault(id(x), (len(seen), x))
        texts.append(f"{path}: {type(x).__name__} {number}")
        if number < len(seen) - 1 or f"entered {number}" in texts:
            return
        texts.append(f"entered {number}")
    for name, part in _parts(x, texts, arrays, path):
        _look(part, f"{path}.{name}", seen, texts, arrays)


def _parts(x, texts, arrays, path):
    """Names and parts of a value; what has none is noted."""
    if isinstance(x, nnx.Variable):
        metadata = sorted(x.get_metadata().items())
        texts.append(f"{path}: {[(k, getattr(m, '__name__', m)) for k, m in metadata]}")
        return [("value", x.get_value())]
    if isinstance(x, nnx.List):
        return [*enumerate(x), *vars(x).items()]
    if isinstance(x, nnx.Pytree):
        return [(k, v) for k, v in (x if isinstance(x, nnx.Dict) else vars(x)).items() if k != "total"]
    if isinstance(x, (list, tuple, dict, Box, types.MethodType)):
        texts.append(f"{path}: {type(x).__name__} {getattr(x, 'aux', '')}")
        if isinstance(x, (Box, types.MethodType)):
            return [("child", x.child if isinstance(x, Box) else x.__self__)]
        return list(x.items() if isinstance(x, dict) else enumerate(x))
    if isinstance(x, (jax.Array, np.ndarray, np.generic)):
        texts.append(f"{path}: {x.dtype}{x.shape}")
        arrays.append(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
    elif isinstance(x, (types.FunctionType, functools.partial)):
        texts.append(f"{path}: {type(x).__name__} gives {x(2.0)} {vars(x)}")
    elif dataclasses.is_dataclass(x):
        texts.append(f"{path}: {x} {vars(x)}")
    else:
        texts.append(f"{path}: {type(x).__name__} {sorted(x) if isinstance(x, set) else x}")
    return []


def _set(name, make):
    """A mutation that assigns an attribute, dotted, of the model."""
    *above, last = name.split(".")

    def mutate(m):
        setattr(functools.reduce(getattr, above, m), last, make())

    return mutate


def _anew(m, name):
    """An attribute is deleted and another object made, perhaps at the address of the old one."""
    old = copy.copy(getattr(m, name))
    delattr(m, name)
    gc.collect()
    setattr(m, name, old)


def _reorder(m):
    m.table.update(a=m.table.pop("a"))


def _rename(m):
    entries = [("z" if k == "a" else k, v) for k, v in m.table.items()]
    m.table.clear()
    m.table.update(entries)


def _swap(m):
    m.items[0], m.items[1] = m.items[1], m.items[0]


def _new_dict(m):
    m.__dict__ = dict(m.__dict__, word="b")


def _move(m):
    m.table["moved"] = m.w
    del m.w


def _cell(m):
    m.closing.__closure__[0].cell_contents = 3.0


def _equal_variable(m):
    m.n = nnx.Variable(m.n[...] + 1.0, note="a")


def _unshare(m):
    m.shared = nnx.Param(m.shared[...] + 0.0)


def _set_item(name, key, make):
    """A mutation that assigns an entry of what stands in an attribute, dotted."""

    def mutate(m):
        functools.reduce(getattr, name.split("."), m)[key] = make(m)

    return mutate


def _metadata(**metadata):
    return lambda m: m.n.set_metadata(**metadata)


ATTRIBUTES = {
    "attribute added": lambda m: setattr(m, "added", 1),
    "attribute removed": lambda m: delattr(m, "word"),
    "Variable added": lambda m: setattr(m, "added", nnx.Param(f32(9.0))),
    "Variable removed": lambda m: delattr(m, "w"),
    "Variable moved": _move,
    "attribute deleted and added": lambda m: _anew(m, "number"),
    "1 to 1.0": _set("number", lambda: 1.0),
    "1 to True": _set("number", lambda: True),
    "1 to 2": _set("number", lambda: 2),
    "1 to numpy": _set("number", lambda: np.float32(1)),
    "string": _set("word", lambda: "b"),
    "None to array": _set("nothing", lambda: f32(1.0)),
    "None to Variable": _set("nothing", lambda: nnx.Param(f32(1.0))),
    "None to module": _set("nothing", lambda: Block(1.0)),
    "array to None": _set("array", lambda: None),
    "array to number": _set("array", lambda: 3.0),
    "array": _set("array", lambda: f32(4.0)),
    "array of another shape": _set("array", lambda: jnp.ones(3)),
    "array of another dtype": _set("array", lambda: jnp.asarray(1, jnp.int32)),
    "array to Variable": _set("array", lambda: nnx.Variable(f32(4.0))),
    "array to weak type": _set("array", lambda: jnp.asarray(4.0)),
    "class": lambda m: setattr(m, "__class__", OtherModel),
    "class of a submodule": lambda m: setattr(m.block, "__class__", OtherBlock),
    "direct write": lambda m: vars(m).update(word="b"),
    "direct write of a Variable": lambda m: vars(m).update(w=nnx.Param(f32(9.0))),
    "direct write of an attribute below": lambda m: vars(m.block).update(gain=2),
    "new __dict__": _new_dict,
    "equal __dict__": lambda m: setattr(m, "__dict__", dict(m.__dict__)),
    "attribute of a submodule's submodule": _set("child.inner.block.gain", lambda: 2),
    "Variable of a submodule's submodule": _set("child.inner.block.w", lambda: nnx.Param(f32(8.0))),
    "attribute added below": _set("child.inner.added", lambda: f32(1.0)),
    "submodule replaced by an equal one": _set("child.inner.block", lambda: Block(8.0)),
    "submodule replaced by its copy": lambda m: _anew(m, "named"),
    "submodule to None": _set("child", lambda: None),
    "cycle cut": _set("child.up", lambda: None),
    "cycle to another object": lambda m: setattr(m.child, "up", m.child),
    "cached property read": lambda m: m.total,
}  # fmt: skip

VARIABLES = {
    "value": lambda m: m.w.set_value(m.w[...] + 1.0),
    "Variable replaced by an equal one": _equal_variable,
    "Variable replaced by one of another kind": _set("n", lambda: nnx.BatchStat(f32(1.0), note="a")),
    "Variable shared": lambda m: setattr(m, "n", m.hooked),
    "Variable unshared": _unshare,
    "Variable shared with another": lambda m: setattr(m, "shared", m.table["a"]),
    "Variables swapped": lambda m: vars(m).update(w=m.n, n=m.w),
    "metadata changed": _metadata(note="b"),
    "metadata added": _metadata(other=1),
    "metadata of another type": _metadata(note=None),
    "metadata removed": lambda m: m.n.del_metadata("note"),
    "metadata by attribute": lambda m: setattr(m.n, "note", "b"),
    "metadata below": lambda m: m.block.w.set_metadata(note=1),
    "hook": lambda m: m.hooked.set_metadata(on_get_value=tripled),
    "hook added": _metadata(on_get_value=doubled),
    "hook removed": lambda m: m.hooked.del_metadata("on_get_value"),
    "shape": lambda m: m.w.set_value(jnp.arange(3.0)),
    "dtype": lambda m: m.w.set_value(jnp.arange(2, dtype=jnp.int32)),
    "weak type": lambda m: m.n.set_value(jnp.asarray(1.0)),
    "array to pytree": lambda m: m.w.set_value({"x": jnp.ones(2), "y": [jnp.ones(3)]}),
    "pytree to array": lambda m: m.tree.set_value(f32(5.0)),
    "pytree in place": lambda m: m.tree.get_raw_value().update(b=f32(5.0)),
    "pytree of other structure": lambda m: m.tree.set_value({"b": f32(1.0)}),
    "raw value": lambda m: m.w.set_raw_value(jnp.ones(4)),
    "numpy value": lambda m: m.w.set_raw_value(np.asarray([5.0, 6.0], np.float32)),
    "stream added": lambda m: setattr(m.rngs, "dropout", nnx.RngStream(1, tag="dropout")),
    "stream advanced": lambda m: m.rngs.params(),
    "stream reseeded": lambda m: nnx.reseed(m, params=7),
    "tag of a stream": _set("rngs.params.tag", lambda: "other"),
}

CONTAINERS = {
    "list append": lambda m: m.items.append(nnx.Param(f32(9.0))),
    "list append of a number": lambda m: m.items.append(1),
    "list pop": lambda m: m.items.pop(0),
    "list clear": lambda m: m.items.clear(),
    "list reverse": lambda m: m.items.reverse(),
    "list swap": _swap,
    "list slice": lambda m: m.items.__setitem__(slice(0, 2), [nnx.Param(f32(9.0)), nnx.Param(f32(8.0))]),
    "list slice of another length": lambda m: m.items.__setitem__(slice(0, 2), [1]),
    "list replaced by its copy": lambda m: setattr(m, "items", list(m.items)),
    "list made anew": lambda m: _anew(m, "items"),
    "list to tuple": lambda m: setattr(m, "items", tuple(m.items)),
    "list entry 5 to 5.0": _set_item("items", 2, lambda m: 5.0),
    "list entry array": _set_item("items", 3, lambda m: f32(9.0)),
    "list entry shared": _set_item("items", 0, lambda m: m.items[1]),
    "list shared": lambda m: setattr(m, "nothing", m.items),
    "list gets the model": lambda m: m.items.append(m),
    "dict key added": _set_item("table", "z", lambda m: 1),
    "dict key removed": lambda m: m.table.pop("a"),
    "dict key renamed": _rename,
    "dict order": _reorder,
    "dict entry array": _set_item("table", "c", lambda m: f32(9.0)),
    "dict entry": _set_item("table", "a", lambda m: nnx.Param(f32(9.0))),
    "dict key of another type": lambda m: m.table.update({1: m.table.pop("b")}),
    "dict replaced by its copy": lambda m: setattr(m, "table", dict(m.table)),
    "dict made anew": lambda m: _anew(m, "table"),
    "namedtuple replaced": lambda m: setattr(m, "pair", m.pair._replace(left=f32(9.0))),
    "tuple of another type": lambda m: setattr(m, "pair", tuple(m.pair)),
    "list in a tuple": lambda m: m.pair.right.append(2),
    "dict in a list in a tuple": lambda m: m.pair.right[1].update(k=nnx.Param(f32(9.0))),
    "static in a list in a tuple": lambda m: m.pair.right.__setitem__(0, True),
    "nnx.List append": lambda m: m.blocks.append(Block(9.0)),
    "nnx.List append of a number": lambda m: m.blocks.append(1),
    "nnx.List entry": _set_item("blocks", 0, lambda m: Block(9.0)),
    "nnx.List reverse": lambda m: m.blocks.reverse(),
    "nnx.List pop": lambda m: m.blocks.pop(),
    "nnx.List attribute": _set("blocks.note", lambda: 1),
    "nnx.List entry's attribute": lambda m: setattr(m.blocks[1], "gain", 2),
    "nnx.Dict entry added": _set_item("named", "z", lambda m: Block(9.0)),
    "nnx.Dict entry removed": lambda m: m.named.pop("a"),
    "nnx.Dict entry of another type": _set_item("named", "b", lambda m: True),
    "nnx.Dict entry by attribute": _set("named.b", lambda: 2),
    "pytree of the user: data": _set("box.child", lambda: f32(9.0)),
    "pytree of the user: data to Variable": _set("box.child", lambda: nnx.Param(f32(9.0))),
    "pytree of the user: static": _set("box.aux", lambda: "other"),
    "pytree of the user replaced": _set("box", lambda: Box(f32(9.0), "aux")),
}  # fmt: skip

STATICS = {
    "dataclass field": _set("config.width", lambda: 2),
    "dataclass field 1 to True": _set("config.width", lambda: True),
    "list in a dataclass": lambda m: m.config.names.append("y"),
    "list in a dataclass, same length": lambda m: m.config.names.__setitem__(0, "y"),
    "list in a dataclass replaced": _set("config.names", lambda: ["y"]),
    "dict in a dataclass": lambda m: m.config.table.update(k=[2]),
    "list in a dict in a dataclass": lambda m: m.config.table["k"].append(2),
    "dict in a dataclass, key": lambda m: m.config.table.update(z=1),
    "beside the fields of a dataclass": _set("config.beside", lambda: 1),
    "list in a frozen dataclass": lambda m: m.fixed.names.append("y"),
    "frozen dataclass": lambda m: object.__setattr__(m.fixed, "width", 2),
    "dataclass replaced by an equal one": _set("config", lambda: Config(1, ["x"], {"k": [1]})),
    "dataclass replaced": _set("config", lambda: Config(3, ["x"], {"k": [1]})),
    "dataclass to dataclass": _set("config", lambda: Fixed(1, ["x"])),
    "set": lambda m: m.tags.add("c"),
    "set, same length": lambda m: (m.tags.remove("a"), m.tags.add("c")),
    "namespace": _set("space.k", lambda: 2),
    "namespace, new attribute": _set("space.z", lambda: 2),
    "function's code": lambda m: setattr(m.function, "__code__", other_act.__code__),
    "function's defaults": lambda m: setattr(m.function, "__defaults__", (5.0,)),
    "function's keyword defaults": lambda m: setattr(m.function, "__kwdefaults__", {"z": 5.0}),
    "function's keyword default": lambda m: m.function.__kwdefaults__.update(z=5.0),
    "function's attribute": _set("function.note", lambda: 1),
    "function's closure cell": _cell,
    "list in a closure": lambda m: m.closing.__closure__[1].cell_contents.append(2),
    "function replaced by an equal one": lambda m: vars(m).update(function=function()),
    "function replaced": lambda m: vars(m).update(function=function(other_act)),
    "partial's keywords": lambda m: m.partial.keywords.update(y=7.0),
    "partial's other keyword": lambda m: m.partial.keywords.update(z=7.0),
    "partial replaced": lambda m: vars(m).update(partial=functools.partial(act, y=3.0)),
    "partial with data": lambda m: vars(m).update(partial=m.block.__repr__),
    "numpy array in place": lambda m: m.host.__setitem__(0, 9.0),
    "numpy array replaced": _set("host", lambda: np.asarray([1.0, 2.0, 3.0], np.float32)),
}  # fmt: skip

MUTATIONS = ATTRIBUTES | VARIABLES | CONTAINERS | STATICS
