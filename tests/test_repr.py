"""The texts of objects: exactly for typical ones, by laws for all, and whatever is wrong with their parts."""

import functools
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import nnxgraph as nnx
from nnxgraph._repr import array_text, bytes_text, value_text
from tests.strategies import GRAPHS, is_object, reachable

LAW = settings(max_examples=60)


class Box(nnx.Module):
    """A module with the attributes that it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def zeros(*shape):
    return jnp.zeros(shape, jnp.float32)


class Broken:
    """Nothing about it can be shown."""

    def __repr__(self):
        raise ValueError("no text")


class BrokenAttributes(nnx.Module):
    """A module whose attributes cannot be looked up."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    @property
    def size(self):
        raise RuntimeError("no size")


class Fails(nnx.Module):
    """A module whose `__init__` fails half way; what there was is kept by the test."""

    def __init__(self, kept):
        kept.append(self)
        self.w = nnx.Param(zeros(2))
        raise ValueError("stop")


class Named(nnx.Module):
    """A module with a text of its own."""

    def __init__(self):
        self.w = nnx.Param(zeros(3))

    def __repr__(self):
        return f"named {super().__repr__()}"


class Hooked(nnx.Param):
    """A Variable that may not be read."""

    def on_get_value(self, value):
        raise RuntimeError("read")


def typical(name):
    """An object that a user would print, by name."""
    linear = nnx.Linear(1, 2, kernel_init=nnx.initializers.zeros_init(), rngs=nnx.Rngs(0))
    embed = nnx.Param(zeros(512, 128), sharding_names=("vocab", None))
    shared = Box(embed=embed, norm=nnx.BatchStat(zeros(2)), head=Box(kernel=embed))
    root = Box(child=Box())
    root.child.parent = root.child.me = root
    methods = Box(w=nnx.Param(zeros(9)))
    methods.start, methods.head = methods.eval, Box(f=Box(v=nnx.Param(zeros(9))).eval)
    return {
        "linear": linear,
        "shared": shared,
        "cycle": root,
        "layers": Box(layers=[Box(w=nnx.Param(zeros(2))), jnp.tanh, {"a": Box(), "b": zeros(9)}], n=3),
        "marks": Box(step=nnx.data(0), sizes=nnx.static([1, 2]), deterministic=True, act=jnp.tanh),
        "state": nnx.state(shared),
        "flat state": nnx.to_flat_state(nnx.state(shared)),
        "graphdef": nnx.graphdef(shared),
        "graph state": nnx.unpack(Box(w=nnx.Param(zeros(9)))),
        "rngs": nnx.Rngs(0),
        "metric": nnx.metrics.Average(),
        "abstract": nnx.eval_shape(lambda: Box(w=nnx.Param(zeros(2)))),
        "list": nnx.List([1, "a", nnx.Param(1.0)]),
        "dict": nnx.Dict({"a": nnx.Param(zeros(9)), 1: None}),
        "variable": nnx.Param(zeros(2), tag="a", table=jnp.arange(100)),
        "pytree in a variable": nnx.Variable({"a": zeros(2), "b": [1, zeros(100)]}),
        "static values": Box(
            numbers=list(range(1000)), act=functools.partial(jnp.sum, axis=1), sizes={1: (2,)}
        ),
        "method": methods,
    }[name]


TEXTS = {
    "linear": """
Linear( # Param: 4 (16 B)
  in_features=1, out_features=2, use_bias=True, dtype=None, param_dtype=float32, precision=None,
  dot_general=dot_general, promote_dtype=promote_dtype, preferred_element_type=None,
  kernel=Param(Array([[0., 0.]], dtype=float32)),  # 2 (8 B)
  bias=Param(Array([0., 0.], dtype=float32))  # 2 (8 B)
)
""",
    "shared": """
Box( # Param: 65,536 (262.1 KB), BatchStat: 2 (8 B), Total: 65,538 (262.2 KB)
  embed=Param(float32[512,128], sharding_names=('vocab', None)),  # 65,536 (262.1 KB)
  norm=BatchStat(Array([0., 0.], dtype=float32)),  # 2 (8 B)
  head=Box(
    kernel=Param(...)  # shared with .embed
  )
)
""",
    "cycle": """
Box(
  child=Box(
    parent=Box(...),  # cycle to the root
    me=Box(...)  # cycle to the root
  )
)
""",
    "layers": """
Box( # Param: 2 (8 B), arrays: 9 (36 B), Total: 11 (44 B)
  layers=[
    Box( # Param: 2 (8 B)
      w=Param(Array([0., 0.], dtype=float32))  # 2 (8 B)
    ),
    tanh,
    {'a': Box(), 'b': float32[9]}
  ],
  n=3
)
""",
    "marks": """
Box(
  step=0,  # data
  sizes=[1, 2],  # static
  deterministic=True, act=tanh
)
""",
    "state": """
State({ # Param: 65,536 (262.1 KB), BatchStat: 2 (8 B), Total: 65,538 (262.2 KB)
  'embed': Param(float32[512,128], sharding_names=('vocab', None)),  # 65,536 (262.1 KB)
  'norm': BatchStat(Array([0., 0.], dtype=float32))  # 2 (8 B)
})
""",
    "flat state": """
FlatState({ # Param: 65,536 (262.1 KB), BatchStat: 2 (8 B), Total: 65,538 (262.2 KB)
  ('embed',): Param(float32[512,128], sharding_names=('vocab', None)),  # 65,536 (262.1 KB)
  ('norm',): BatchStat(Array([0., 0.], dtype=float32))  # 2 (8 B)
})
""",
    "graphdef": """
GraphDef( # 4 objects, 2 leaves
  Box(
    embed=Param(sharding_names=('vocab', None)),
    norm=BatchStat(),
    head=Box(
      kernel=Param(...)  # shared with .embed
    )
  )
)
""",
    "graph state": """
GraphState( # Param: 9 (36 B)
  graphdef=GraphDef( # 2 objects, 1 leaf
    Box(
      w=Param()
    )
  ),
  state=State({ # Param: 9 (36 B)
    'w': Param(float32[9])  # 9 (36 B)
  })
)
""",
    "rngs": """
Rngs( # RngKey: 1 (8 B), RngCount: 1 (4 B), Total: 2 (12 B)
  default=RngStream( # RngKey: 1 (8 B), RngCount: 1 (4 B), Total: 2 (12 B)
    tag='default',
    key=RngKey(key<fry>[], tag='default'),  # 1 (8 B)
    count=RngCount(Array(0, dtype=uint32), tag='default')  # 1 (4 B)
  )
)
""",
    "metric": """
Average( # MetricState: 2 (8 B)
  total=MetricState(Array(0., dtype=float32)),  # 1 (4 B)
  count=MetricState(Array(0., dtype=float32)),  # 1 (4 B)
  argname='values'
)
""",
    "abstract": """
Box( # Param: 2 (8 B)
  w=Param(float32[2] abstract)  # 2 (8 B)
)
""",
    "list": """
List([
  1, 'a',
  Param(1.0)
])
""",
    "dict": """
Dict({ # Param: 9 (36 B)
  'a': Param(float32[9]),  # 9 (36 B)
  1: None
})
""",
    "variable": """
Param( # 2 (8 B)
  value=Array([0., 0.], dtype=float32),
  tag='a',
  table=int32[100]
)
""",
    "pytree in a variable": """
Variable( # 102 (408 B)
  value={'a': Array([0., 0.], dtype=float32), 'b': [1, float32[100]]}
)
""",
    "static values": """
Box(
  numbers=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, ... and 979 more],
  act=partial(func=sum, keywords={'axis': 1}), sizes={1: (2,)}
)
""",
    "method": """
Box( # Param: 18 (72 B)
  w=Param(float32[9]),  # 9 (36 B)
  start=Module.eval(__self__=Box(...)),  # cycle to the root
  head=Box( # Param: 9 (36 B)
    f=Module.eval(
      __self__=Box( # Param: 9 (36 B)
        v=Param(float32[9])  # 9 (36 B)
      )
    )
  )
)
""",
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_typical_object(name):
    assert repr(typical(name)) == TEXTS[name].strip()


def test_text_of_an_optimizer():
    optax = pytest.importorskip("optax")
    optimizer = nnx.Optimizer(Box(w=nnx.Param(zeros(4, 4))), optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    lines = repr(optimizer).splitlines()
    assert lines[0] == "Optimizer( # OptState: 1 (4 B), OptVariable: 16 (64 B), Total: 17 (68 B)"
    assert "        'w': OptVariable(float32[4,4])  # 16 (64 B)" in lines
    assert lines[2].startswith("  tx=GradientTransformationExtraArgs(init=chain.<locals>.init_fn, ")


# Bounds.


def test_long_list_is_cut_with_a_count():
    text = repr(Box(layers=[Box(w=nnx.Param(zeros(2))) for _ in range(100)]))
    assert text.startswith("Box( # Param: 200 (800 B)")
    assert "    ... and 68 more\n" in text
    assert text.count("Param(Array") == 32


def test_deep_chain_is_cut_with_its_counts():
    deep = Box(w=nnx.Param(zeros(2)))
    for _ in range(5000):
        deep = Box(below=deep)
    assert "below=Box(...)  # Param: 2 (8 B)\n" in repr(deep)


def test_large_model_shows_every_level_it_has_room_for():
    model = Box(blocks=[Box(layers=[Box(w=nnx.Param(zeros(2)), n=i) for i in range(30)]) for _ in range(30)])
    lines = repr(model).splitlines()
    assert 300 < len(lines) <= 450
    assert lines.count("      layers=[") + sum("layers=[...]" in line for line in lines) == 30


def test_nested_static_values_that_share_take_no_time():
    value = [1]
    for _ in range(100):
        value = [value, value]
    assert len(repr(Box(value=value))) < 5000


def test_many_kinds_are_cut():
    kinds = [type(f"Kind{i}", (nnx.Variable,), {"__slots__": ()}) for i in range(12)]
    first = repr(nnx.List([kind(zeros(1)) for kind in kinds])).splitlines()[0]
    assert first.endswith("Kind7: 1 (4 B), ... and 4 more, Total: 12 (48 B)")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * 500, "'" + "x" * 76 + "'..."),
        (b"ab", "b'ab'"),
        (jnp.float32, "float32"),
        (jnp.dtype("int8"), "int8"),
        (jax.nn.relu, "relu"),
        (nnx.Param, "Param"),
        (np.float32(1.5), "float32(1.5)"),
        (np.arange(2, dtype=np.int32), "array([0, 1], dtype=int32)"),
        (np.array([object()]), "object[1]"),
        (jnp.ones((2,), jnp.bfloat16), "Array([1, 1], dtype=bfloat16)"),
        (zeros(0), "float32[0]"),
        (zeros(3, 3), "float32[3,3]"),
        (jax.ShapeDtypeStruct((2,), jnp.int32), "int32[2] abstract"),
        (jax.random.key(0), "key<fry>[]"),
        (jax.new_ref(jnp.zeros(2, jnp.float32)), "Ref(float32[2])"),
        (object(), "<object>"),
        (threading.Lock(), "<unlocked _thread.lock object>"),
        (Broken(), "<ValueError in repr>"),
    ],
)
def test_text_of_a_value(value, expected):
    assert value_text(value) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 KB"), (3_400_000, "3.4 MB"), (5 * 10**15, "5,000.0 TB")],
)
def test_bytes_are_for_people(count, expected):
    assert bytes_text(count) == expected


# Whatever is wrong with what is shown.


def test_value_that_cannot_be_shown_says_so():
    assert repr(Box(bad=Broken(), n=1)) == "Box(\n  bad=<ValueError in repr>, n=1\n)"


def test_attributes_are_not_looked_up():
    broken = BrokenAttributes()
    broken.w = nnx.Param(zeros(9))
    assert repr(broken).splitlines()[0] == "BrokenAttributes( # Param: 9 (36 B)"


def test_object_whose_init_failed_shows_what_there_is():
    kept = []
    with pytest.raises(ValueError, match="stop"):
        Fails(kept)
    assert repr(kept[0]).splitlines()[0] == "Fails( # Param: 2 (8 B)"


def test_variable_without_slots_says_so():
    empty = object.__new__(nnx.Param)
    assert repr(empty) == "<AttributeError in repr of Param>"
    assert repr(Box(w=empty)) == "Box(\n  w=<AttributeError in repr of Param>\n)"


def test_list_that_contains_itself_is_marked():
    items = [zeros(9)]
    items.append(items)
    assert "    [...]  # cycle to .items\n" in repr(Box(items=items))
    plain = [1]
    plain.append(plain)
    assert repr(Box(items=plain)) == "Box(\n  items=[1, [...]]\n)"


def test_deleted_array_is_marked():
    x = zeros(3)
    w = nnx.Param(x)
    x.delete()
    assert "value=float32[3] deleted\n" in repr(w)


def test_own_text_of_a_module_is_used_and_cut():
    named = Named()
    assert repr(named).startswith("named Named( # Param: 3 (12 B)\n")
    assert "  m=named Named( # Param: 3 (12 B) w=Param(" in repr(Box(m=named))


def test_own_texts_that_show_each_other_end():
    class Talks(nnx.Module):
        def __repr__(self):
            return f"talks {vars(self)}"

    a, b = Talks(), Talks()
    a.other, b.other = b, a
    assert "talks" in repr(Box(a=a, b=b))


def test_array_that_is_not_ready_is_not_waited_for(monkeypatch):
    x = zeros(2)
    monkeypatch.setattr(type(x), "is_ready", lambda self: False)
    assert array_text(x) == "float32[2]"
    monkeypatch.undo()
    assert array_text(x) == "Array([0., 0.], dtype=float32)"


def test_large_array_is_not_read(monkeypatch):
    box = Box(w=nnx.Param(zeros(512)), x=zeros(512))
    monkeypatch.setattr(np, "asarray", None)
    assert "w=Param(float32[512])" in repr(box)


# Frames and hooks.


def traced_texts(transform, x):
    """The text of a Variable that is passed, and of one that is not, under a transform."""
    outside, texts = nnx.Param(zeros(2)), []

    def f(v):
        texts.extend([repr(v), repr(outside)])
        return (v[...] ** 2).sum()

    transform(f)(nnx.Param(x))
    return texts


@pytest.mark.parametrize(
    ("transform", "shape"), [(nnx.jit, (2,)), (nnx.vmap, (3, 2)), (nnx.grad, (2,)), (jax.jit, (2,))]
)
def test_text_under_a_transform(transform, shape):
    inside, outside = traced_texts(transform, zeros(*shape))
    assert "  value=float32[2] traced\n" in inside
    value = "float32[2] traced" if transform is nnx.jit else "Array([0., 0.], dtype=float32)"
    assert (
        outside == f"Param( # 2 (8 B)\n  value={value}\n)"
    )  # what a compiled function reaches is an argument


def test_printing_captures_nothing_and_traces_nothing_anew():
    holder, texts = threading.local(), []  # no place where jit would look for what a function reaches
    holder.value = nnx.Param(zeros(2))

    @nnx.jit
    def f(x):
        texts.append(repr(holder.value))
        return x

    for n in range(3):
        holder.value[...] = zeros(2) + n
        f(zeros(2))
    assert texts == ["Param( # 2 (8 B)\n  value=Array([0., 0.], dtype=float32)\n)"]


def test_text_of_a_variable_that_outlived_its_transform():
    kept = []

    @nnx.jit
    def f(x):
        kept.append(nnx.Param(x))
        return x

    f(zeros(2))
    assert "value=float32[2] traced" in repr(kept[0])
    nnx.jit(lambda x: kept.append(repr(kept[0])) or x)(zeros(3))
    assert "value=float32[2] traced" in kept[1]


def test_printing_runs_no_hooks():
    assert "value=float32[9]" in repr(Hooked.from_metadata(zeros(9), {}))


# Laws.


@LAW
@given(graph=GRAPHS)
def test_text_of_any_graph_is_bounded_and_names_its_classes(graph):
    text = repr(graph)
    assert " in repr" not in text
    assert text.count("\n") <= 500
    assert max(map(len, text.split("\n"))) < 700
    assert all(f"{type(x).__name__}(" in text for x in reachable(graph).values() if is_object(x))


@LAW
@given(graph=GRAPHS)
def test_text_of_a_copy_is_the_same(graph):
    assert repr(pickle.loads(pickle.dumps(graph))) == repr(graph)


@LAW
@given(graph=GRAPHS)
def test_texts_of_the_parts_are_bounded(graph):
    for part in (*nnx.split(graph), nnx.to_flat_state(nnx.state(graph)), nnx.unpack(graph)):
        assert " in repr" not in repr(part)
        assert repr(part).count("\n") <= 500
