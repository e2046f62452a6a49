"""Walking over live graphs, finding what is shared, rebuilding."""

import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import CycleError


class Box(nnx.Module):
    """Holds what it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def param():
    return nnx.Param(jnp.ones(2, jnp.float32))


def ring():
    root = Box(w=param(), child=Box())
    root.child.up, root.child.w = root, root.w
    return root


def test_children_come_before_their_parents():
    root = Box(a=[param(), "x"], b=Box(w=param()))
    assert [path for path, _ in nnx.iter_graph(root)] == [
        ("a", 0), ("a", 1), ("a",), ("b", "w"), ("b",), (),
    ]  # fmt: skip


def test_objects_come_once_and_other_values_at_each_place():
    root = ring()
    root.same = root.child.same = "x"
    met = [path for path, _ in nnx.iter_graph(root)]
    assert met == [("w",), ("child", "same"), ("child",), ("same",), ()]


def test_graph_may_be_changed_while_it_is_walked():
    root = Box(a=Box(n=1), b=Box(n=2))
    for _, x in nnx.iter_graph(root):
        if isinstance(x, Box):
            x.seen = True
    assert root.seen
    assert root.a.seen


def test_children_of_an_object_are_objects():
    root = Box(a=Box(), b=[Box()], c=param(), d=nnx.List([Box()]), e=1)
    assert [key for key, _ in nnx.iter_children(root)] == ["a", ("b", 0), "d"]


def test_each_child_comes_once_and_none_is_the_object_itself():
    root = Box(a=[{"x": Box()}])
    root.b = root.a[0]["x"]
    root.up, root.method = root, root.__repr__
    assert list(nnx.iter_children(root)) == [(("a", 0, "x"), root.b)]
    assert [key for key, _ in nnx.iter_children({"a": root})] == ["a"]


def test_children_in_tree_mode_are_not_shared():
    root = Box(a=Box())
    root.b = root.a
    with pytest.raises(nnx.errors.SharedVariableError, match="iter_children"):
        nnx.iter_children(root, graph=False)


@pytest.mark.parametrize(
    "walk",
    [
        nnx.split,
        nnx.clone,
        lambda x: list(nnx.iter_graph(x)),
        lambda x: nnx.recursive_map(lambda p, v: v, x),
        lambda x: nnx.has_data(x.a),
        nnx.find_duplicates,
        lambda x: nnx.update(x, {}),
        lambda x: nnx.pop(x, nnx.Param),
    ],
)
@pytest.mark.parametrize("kind", ["list", "dict", "list of dict"])
def test_plain_container_that_contains_itself_is_refused(walk, kind):
    loop = {} if kind == "dict" else []
    if kind == "dict":
        loop["self"] = loop
    else:
        loop.append({"self": loop} if kind == "list of dict" else loop)
    with pytest.raises(CycleError, match="contains itself"):
        walk(Box(a=loop))


def test_plain_list_that_is_reached_again_through_an_object_is_no_cycle():
    root = Box(children=[Box(w=param())])
    root.children[0].siblings = root.children
    twin = nnx.clone(root)
    assert twin.children[0].siblings[0] is twin.children[0]
    assert len(list(nnx.iter_graph(root))) > 0
    assert nnx.recursive_map(lambda p, x: x, root).children[0].w is root.children[0].w


# find_duplicates.


def test_duplicates_are_listed_with_all_their_paths():
    root = ring()
    root.more = [root.w, {"again": root.child}]
    assert nnx.find_duplicates(root) == [
        [(), ("child", "up")],
        [("w",), ("child", "w"), ("more", 0)],
        [("child",), ("more", 1, "again")],
    ]


def test_what_lies_below_a_shared_object_is_not_listed_again():
    inner = Box(w=param())
    assert nnx.find_duplicates(Box(a=inner, b=inner)) == [[("a",), ("b",)]]


def test_duplicates_of_a_kind():
    root = ring()
    assert nnx.find_duplicates(root, only=nnx.Param) == [[("w",), ("child", "w")]]
    assert nnx.find_duplicates(root, only=Box) == [[(), ("child", "up")]]
    assert nnx.find_duplicates(Box(a=param(), b=param())) == []


def test_arrays_and_containers_have_no_identity():
    x, items = jnp.ones(1), [1]
    assert nnx.find_duplicates(Box(a=x, b=x, c=items, d=items)) == []


# recursive_map.


def test_map_replaces_objects_at_all_their_places():
    root = ring()
    new = param()
    mapped = nnx.recursive_map(lambda path, x: new if isinstance(x, nnx.Param) else x, root)
    assert mapped.w is mapped.child.w is new
    assert mapped.child.up is mapped
    assert root.w is not new


def test_map_calls_once_for_each_object_children_first():
    seen = []
    nnx.recursive_map(lambda path, x: seen.append(path) or x, ring())
    assert seen == [("w",), ("child",), ()]


def test_map_changes_containers_and_statics():
    root = Box(a=[1, (2, {"k": 3})], n=nnx.static(4))
    mapped = nnx.recursive_map(lambda path, x: x + 10 if isinstance(x, int) else x, root)
    assert (mapped.a, mapped.n) == ([11, (12, {"k": 13})], 14)
    assert root.a == [1, (2, {"k": 3})]


def test_map_keeps_marks():
    mapped = nnx.recursive_map(lambda path, x: x, Box(step=nnx.data(1)))
    mapped.step = 5
    assert nnx.state(mapped).step == 5
