"""Classes of others as objects of the graph, or as containers in it."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import errors


class Ensemble:
    def __init__(self, members, kind):
        self.members = members
        self.kind = kind


class Pair:
    __slots__ = ("left", "right")

    def __init__(self, left, right):
        self.left = left
        self.right = right


class Scaled:
    def __init__(self, array, unit):
        self.array = array
        self.unit = unit


nnx.register_graph_node_type(Ensemble)
nnx.register_graph_node_type(
    Pair,
    attributes=lambda x: {"left": x.left, "right": x.right},
    assign=lambda x, values: (setattr(x, "left", values["left"]), setattr(x, "right", values["right"])),
)
nnx.register_container_type(
    Scaled,
    open=lambda x: ([("array", x.array)], x.unit),
    close=lambda unit, children: Scaled(*children, unit),
)


def foreign():
    w = nnx.Param(jnp.ones(2))
    return Ensemble([w, Pair(w, Scaled(nnx.BatchStat(jnp.zeros(1)), {"m": 1}))], "mean")


def test_foreign_objects_split_and_merge():
    graph = foreign()
    graphdef, state = nnx.split(graph)
    assert nnx.to_flat_state(state).paths == (("members", 0), ("members", 1, "right", "array"))
    twin = nnx.merge(graphdef, state)
    assert type(twin) is Ensemble
    assert twin is not graph
    assert twin.kind == "mean"
    assert twin.members[1].left is twin.members[0]
    assert twin.members[1].right.unit == {"m": 1}
    assert twin.members[1].right.unit is not graph.members[1].right.unit
    assert nnx.graphdef(twin) is graphdef


def test_foreign_objects_are_shared_and_may_form_cycles():
    graph = foreign()
    model = nnx.Dict(a=graph, b=graph)
    graph.owner = model
    twin = nnx.clone(model)
    assert twin.a is twin.b
    assert twin.a.owner is twin
    assert nnx.find_duplicates(model)[0] == [(), ("a", "owner")]


def test_a_lifted_function_changes_foreign_objects_in_place():
    graph = foreign()
    pair = graph.members[1]

    @nnx.jit
    def step(graph, x):
        graph.members[0] += x
        graph.kind = "sum"
        graph.members.append(nnx.Param(x))

    step(graph, 1.0)
    assert pair.left[...].tolist() == [2.0, 2.0]
    assert graph.kind == "sum"
    assert len(graph.members) == 3
    assert graph.members[1] is pair


def test_foreign_objects_are_jax_pytrees_unless_they_opt_out():
    class Hidden:
        pass

    nnx.register_graph_node_type(Hidden, pytree=False)
    doubled = jax.tree.map(lambda x: x * 2, Ensemble([jnp.ones(2)], "mean"))
    assert doubled.members[0].tolist() == [2.0, 2.0]
    assert doubled.kind == "mean"
    assert jax.tree.leaves(Hidden()) != []


def test_subclasses_of_a_foreign_class_are_objects_too():
    class Weighted(Ensemble):
        pass

    graph = Weighted([nnx.Param(jnp.ones(1))], "mean")
    assert type(nnx.clone(graph)) is Weighted


def test_a_class_that_jax_knows_may_become_an_object():
    class Known:
        pass

    jax.tree_util.register_pytree_node(Known, lambda x: ((), None), lambda a, c: Known())
    nnx.register_graph_node_type(Known)
    known = Known()
    known.w = nnx.Param(jnp.ones(1))
    assert nnx.clone([known, known])[0].w is not known.w


def test_a_container_is_a_jax_pytree():
    doubled = jax.jit(lambda x: jax.tree.map(lambda a: a * 2, x))(Scaled(jnp.ones(2), "m"))
    assert doubled.array.tolist() == [2.0, 2.0]
    assert doubled.unit == "m"


TEXT = (
    "{}: {} is {}. Expected a class that neither the graph nor JAX knows, whose objects have a __dict__. "
    "Write `attributes=` and `assign=` for one that keeps its values elsewhere."
)


@pytest.mark.parametrize("cls", [nnx.Linear, nnx.Param, list, jax.Array, Ensemble])
def test_a_class_is_registered_once(cls):
    with pytest.raises(errors.RegistrationError) as caught:
        nnx.register_graph_node_type(cls)
    name = "register_graph_node_type"
    assert str(caught.value) == TEXT.format(name, cls.__name__, "known to the graph already")


def test_a_class_with_slots_needs_to_say_where_its_values_are():
    class Slotted:
        __slots__ = ("a",)

    with pytest.raises(errors.RegistrationError) as caught:
        nnx.register_graph_node_type(Slotted)
    found = "a class without a __dict__"
    assert str(caught.value) == TEXT.format("register_graph_node_type", "Slotted", found)


def test_a_container_is_registered_once():
    with pytest.raises(errors.RegistrationError) as caught:
        nnx.register_container_type(Scaled, open=lambda x: ((), None), close=lambda s, c: None)
    assert str(caught.value) == (
        "register_container_type: Scaled is registered with JAX already. Expected a class that neither the "
        "graph nor JAX knows. Leave the call out: values of a registered class are walked through as they "
        "are."
    )
    with pytest.raises(errors.RegistrationError, match="list is known to the graph already"):
        nnx.register_container_type(list, open=lambda x: ((), None), close=lambda s, c: None)
