"""List, Dict and Sequential: containers that are objects of the graph."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import EntryNotFoundError, StaticArrayError


def param(x=1.0):
    return nnx.Param(jnp.asarray(x, jnp.float32))


COPIES = {
    "merge": lambda m: nnx.merge(*nnx.split(m)),
    "clone": nnx.clone,
    "tree.map": lambda m: jax.tree.map(lambda x: x, m),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "deepcopy": copy.deepcopy,
}
each = pytest.mark.parametrize("way", COPIES)


class Stack(nnx.List):
    """A list with attributes and a constructor of its own."""

    def __init__(self, *, n):
        super().__init__([param(i) for i in range(n)])
        self.scale = param(5)
        self.name = "stack"
        self.step = nnx.data(0)


# List.


LIST_EDITS = {
    "append": lambda x: x.append(9),
    "extend": lambda x: x.extend([8, 9]),
    "insert": lambda x: x.insert(1, 9),
    "insert at the end": lambda x: x.insert(100, 9),
    "pop": lambda x: x.pop(),
    "pop first": lambda x: x.pop(0),
    "remove": lambda x: x.remove(2),
    "reverse": lambda x: x.reverse(),
    "clear": lambda x: x.clear(),
    "sort": lambda x: x.sort(key=lambda v: -v),
    "set": lambda x: x.__setitem__(-1, 9),
    "set slice": lambda x: x.__setitem__(slice(0, 2), [7, 8, 9]),
    "del": lambda x: x.__delitem__(0),
    "del slice": lambda x: x.__delitem__(slice(1, None)),
    "iadd": lambda x: x.__iadd__([9]),
    "imul": lambda x: x.__imul__(2),
    "set every other": lambda x: x.__setitem__(slice(None, None, 2), [7, 8]),
    "sort backwards": lambda x: x.sort(reverse=True),
}


@pytest.mark.parametrize("name", LIST_EDITS)
def test_list_is_changed_as_a_list(name):
    ours, plain = nnx.List([3, 1, 2]), [3, 1, 2]
    LIST_EDITS[name](ours)
    LIST_EDITS[name](plain)
    assert list(ours) == plain


LIST_READS = {
    "len": len,
    "index": lambda x: x.index(2),
    "index from": lambda x: x.index(1, 2),
    "count": lambda x: x.count(1),
    "contains": lambda x: (1 in x, 5 in x),
    "negative": lambda x: x[-1],
    "reversed": lambda x: list(reversed(x)),
    "slice": lambda x: list(x[::2]),
    "add": lambda x: list(x + [5]),  # noqa: RUF005  # what is tested
    "radd": lambda x: list([5] + x),  # noqa: RUF005  # what is tested
    "mul": lambda x: list(x * 2),
    "rmul": lambda x: list(2 * x),
    "copy": lambda x: list(x.copy()),
    "unpack": lambda x: [*x],
    "bool": lambda x: (bool(x), bool(x[:0])),
}


@pytest.mark.parametrize("name", LIST_READS)
def test_list_is_read_as_a_list(name):
    assert LIST_READS[name](nnx.List([3, 1, 2, 1])) == LIST_READS[name]([3, 1, 2, 1])


@pytest.mark.parametrize(
    "wrong", [lambda x: x[5], lambda x: x.pop(7), lambda x: x.index(9), lambda x: x.remove(9)]
)
def test_list_raises_as_a_list(wrong):
    with pytest.raises((IndexError, ValueError)) as ours:
        wrong(nnx.List([1]))
    with pytest.raises(type(ours.value)):
        wrong([1])


def test_variables_and_arrays_are_looked_up_by_identity():
    a, b, x = nnx.Param(jnp.ones(2)), nnx.Param(jnp.ones(2)), np.ones(2)
    items = nnx.List([a, b, x, a])
    assert (items.index(b), items.count(a), items.index(x)) == (1, 2, 2)
    assert b in items
    assert np.ones(2) not in items
    items.remove(b)
    assert items.count(b) == 0


@pytest.mark.parametrize(
    "part", [lambda x: x[:1], lambda x: x.__add__([1]), lambda x: x * 2, lambda x: x.copy()]
)
def test_parts_of_a_list_are_lists_that_share_elements(part):
    stack = Stack(n=2)
    found = part(stack)
    assert type(found) is nnx.List
    assert found[0] is stack[0]


@each
def test_list_with_attributes_survives_copies(way):
    twin = COPIES[way](Stack(n=2))
    assert type(twin) is Stack
    assert [float(v[...]) for v in twin] == [0.0, 1.0]
    assert (float(twin.scale[...]), twin.name, int(twin.step)) == (5.0, "stack", 0)
    twin.step = 3
    assert nnx.to_flat_state(nnx.state(twin)).paths == ((0,), (1,), ("scale",), ("step",))
    twin.append(param(7))
    assert nnx.state(twin)[2][...] == 7.0


def test_paths_of_elements_are_integers():
    items = nnx.List([nnx.relu, param(), [param()]])
    assert nnx.to_flat_state(nnx.state(items)).paths == ((1,), (2, 0))
    nnx.update(items, {"1": 4.0})
    assert items[1][...] == 4.0


def test_list_keeps_its_identity_where_a_plain_list_has_none():
    class Net(nnx.Module):
        def __init__(self):
            self.a = nnx.List([param()])
            self.b = self.a
            self.c = [param()]
            self.d = self.c

    twin = nnx.clone(Net())
    assert twin.a is twin.b
    assert twin.c is not twin.d
    assert twin.c[0] is twin.d[0]


def test_list_may_contain_itself():
    items = nnx.List([param()])
    items.append(items)
    twin = nnx.clone(items)
    assert twin[1] is twin
    assert len(jax.tree.leaves(items)) == 1


# Dict.


DICT_EDITS = {
    "set": lambda d: d.__setitem__("c", 3),
    "del": lambda d: d.__delitem__("a"),
    "pop": lambda d: d.pop("a"),
    "pop missing": lambda d: d.pop("z", None),
    "popitem": lambda d: (d.pop("a"), d.pop("b")),
    "update": lambda d: d.update({"a": 5, 7: 8}, c=1),
    "setdefault": lambda d: (d.setdefault("a", 9), d.setdefault("c", 9)),
    "clear": lambda d: d.clear(),
    "ior": lambda d: d.__ior__({"a": 5, 3: 4}),
    "ior of pairs": lambda d: d.__ior__([("c", 1)]),
}


@pytest.mark.parametrize("name", DICT_EDITS)
def test_dict_is_changed_as_a_dict(name):
    ours, plain = nnx.Dict(a=1, b=2), {"a": 1, "b": 2}
    DICT_EDITS[name](ours)
    DICT_EDITS[name](plain)
    assert dict(ours) == plain
    assert list(ours) == list(plain)


@pytest.mark.parametrize("make", [lambda: nnx.Dict({"a": 1}, b=2), lambda: nnx.Dict([("a", 1), ("b", 2)])])
def test_dict_is_read_as_a_dict(make):
    d = make()
    assert (list(d), list(d.values()), list(d.items()), len(d)) == (
        ["a", "b"],
        [1, 2],
        [("a", 1), ("b", 2)],
        2,
    )
    assert "a" in d
    assert d.get("z", 3) == 3
    with pytest.raises(KeyError):
        d["z"]


def test_list_stays_itself_when_it_is_changed_in_place():
    items = same = nnx.List([1])
    items *= 2
    items += [3]
    assert items is same
    with pytest.raises(TypeError):
        nnx.List([1, "a"]).sort()


DICT_READS = {
    "or": lambda d: dict(d | {"b": 3, 7: 8}),
    "ror": lambda d: dict({"b": 3, 7: 8} | d),
    "reversed": lambda d: list(reversed(d)),
    "copy": lambda d: dict(d.copy()),
    "fromkeys": lambda d: dict(type(d).fromkeys(["x", 1], 0)),
    "in": lambda d: ("a" in d, 1 in d, 5 in d),
    "keys": lambda d: (list(d.keys()), list(d.values()), list(d.items())),
    "get": lambda d: (d.get(1), d.get(9), d.get(9, 8)),
    "bool": lambda d: (bool(d), len(d)),
    "unpack": lambda d: {**d},
}


@pytest.mark.parametrize("name", DICT_READS)
def test_dict_with_keys_of_several_types_is_read_as_a_dict(name):
    assert DICT_READS[name](nnx.Dict({"b": 1, 1: 2, "a": 3})) == DICT_READS[name]({"b": 1, 1: 2, "a": 3})


def test_dict_joins_only_mappings():
    with pytest.raises(TypeError):
        nnx.Dict() | 3


def test_dict_entries_may_have_the_names_of_methods():
    d = nnx.Dict()
    d["items"], d.update = param(), 1
    assert (d["update"], list(d)) == (1, ["items", "update"])
    assert callable(d.update)
    assert list(nnx.clone(d)) == ["items", "update"]
    del d.update
    with pytest.raises(EntryNotFoundError):
        del d.update


def test_string_keys_are_attributes():
    d = nnx.Dict(alpha=1)
    d.beta = 2
    assert (d["beta"], d.alpha) == (2, 1)
    del d.beta
    assert list(d) == ["alpha"]
    with pytest.raises(
        EntryNotFoundError, match=r"Dict has no entry 'alhpa'; it has 'alpha'\. Did you mean 'alpha'\?"
    ):
        d.alhpa  # noqa: B018  # what is tested


@each
@pytest.mark.parametrize("keys", [("b", "a"), (2, "a", 1), (True, "x"), (("t", 1), (1, "t")), (None, 1.5)])
def test_keys_of_all_kinds_keep_their_order_and_types(way, keys):
    d = nnx.Dict({key: param(i) for i, key in enumerate(keys)})
    twin = COPIES[way](d)
    assert [(type(k), k) for k in twin] == [(type(k), k) for k in keys]
    assert [float(v[...]) for v in twin.values()] == list(range(len(keys)))
    assert nnx.graphdef(twin) is nnx.graphdef(d)


def test_keys_that_are_equal_but_of_other_types_make_other_graphs():
    graphs = [nnx.graphdef(nnx.Dict({key: param()})) for key in (1, True, 1.0, "1")]
    assert len(set(graphs)) == 4


@each
def test_entries_take_marks(way):
    d = COPIES[way](nnx.Dict({"step": nnx.data(0), 3: nnx.data(1.5)}, sizes=nnx.static([1])))
    assert set(nnx.state(d)) == {"step", 3}
    d.step = 4
    assert nnx.state(d).step == 4
    with pytest.raises(StaticArrayError, match=r"Dict\.sizes"):
        d["sizes"] = jnp.ones(1)


def test_generic_aliases_make_plain_containers():
    assert list(nnx.Dict[int](a=1)) == ["a"]
    assert nnx.graphdef(nnx.Dict[int](a=1)) is nnx.graphdef(nnx.Dict(a=1))
    assert list(nnx.List[int]([1])) == [1]


def test_containers_are_equal_by_identity():
    d, items = nnx.Dict(a=1), nnx.List([1])
    assert len({d, nnx.Dict(a=1), items, nnx.List([1]), d, items}) == 4
    assert d != nnx.Dict(a=1)


# Sequential.


def test_sequential_hands_streams_to_layers_that_take_them():
    seen = []

    def layer(x, *, rngs=None):
        seen.append(rngs)
        return x

    rngs = nnx.Rngs(0)
    assert nnx.Sequential(layer, abs, np.sin, nnx.Sequential(layer))(0.0, rngs=rngs) == 0.0
    assert seen == [rngs, rngs]


def test_sequential_passes_its_arguments_to_the_first_layer():
    assert nnx.Sequential(lambda x, *, y: x - y, abs)(1, y=3) == 2
    assert nnx.Sequential()(1, 2) == (1, 2)


def test_sequential_of_a_list_object():
    assert nnx.Sequential(nnx.List([lambda x: x + 1]))(1) == 2
