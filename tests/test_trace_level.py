"""Attributes and metadata are changed where the change can be handed back, or not at all."""

import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import _origins
from nnxgraph.errors import CapturedChangeError, CaptureError, TraceChangeError, TraceWriteError

RAW = {
    "jit": lambda f, x: jax.jit(f)(x),
    "grad": lambda f, x: jax.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: jax.vmap(f)(x),
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "eval_shape": lambda f, x: jax.eval_shape(f, x),
    "scan": lambda f, x: jax.lax.scan(lambda c, y: (f(c), y), x, None, length=2),
}
OURS = {
    "jit": lambda f, x: nnx.jit(f)(x),
    "grad": lambda f, x: nnx.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: nnx.vmap(f)(x),
    "remat": lambda f, x: nnx.remat(f)(x),
    "cond": lambda f, x: nnx.cond(True, f, lambda x: x, x),
}
UNCACHED = [name for name in OURS if name not in ("jit", "cond")]
REPLAYED = {
    "cond": lambda f, x: nnx.cond(False, f, lambda x: x, x),
    "cond of equal branches": lambda f, x: nnx.cond(True, f, f, x),
    "switch": lambda f, x: nnx.switch(0, [lambda x: x, f], x),
    "scan": lambda f, x: nnx.scan(lambda c, y: (f(c), y))(x, jnp.ones((0, 2))),
    "while_loop": lambda f, x: nnx.while_loop(lambda x: x.sum() < 0, f, x),
    "while_loop's condition": lambda f, x: nnx.while_loop(lambda x: f(x).sum() < 0, lambda x: x, x),
    "fori_loop": lambda f, x: nnx.fori_loop(0, 0, lambda i, x: f(x), x),
    "a cond in a jit": lambda f, x: nnx.jit(lambda x: nnx.cond(x.sum() < 0, f, lambda x: x, x))(x),
}


class Net(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))
        self.sown = nnx.Intermediate(jnp.zeros(2), tag="sown")
        self.array = jnp.zeros(2)
        self.calls = 0
        self.items = nnx.List([1])
        self.table = nnx.Dict(a=1)


def ones():
    return jnp.ones(2, jnp.float32)


def changed(model, change):
    """A function that changes the model, and gives its argument back."""

    def f(x):
        change(model, x)
        return x

    return f


CHANGES = {
    "a static attribute": lambda m, x: setattr(m, "calls", 1),
    "a new attribute": lambda m, x: setattr(m, "last", x),
    "a deleted attribute": lambda m, x: delattr(m, "calls"),
    "a marked attribute": lambda m, x: setattr(m, "calls", nnx.static(1)),
    "metadata": lambda m, x: m.w.set_metadata(tag="a"),
    "metadata as an attribute": lambda m, x: setattr(m.w, "tag", "a"),
    "an element": lambda m, x: m.items.__setitem__(0, 2),
    "a new element": lambda m, x: m.items.append(2),
    "a deleted element": lambda m, x: m.items.pop(),
    "an entry": lambda m, x: m.table.__setitem__("a", 2),
    "a deleted entry": lambda m, x: m.table.pop("a"),
    "the mode": lambda m, x: m.set_attributes(calls=2),
    "an array by update": lambda m, x: nnx.update(m, {"array": jnp.broadcast_to(x, (2,))}),
    "metadata by update": lambda m, x: nnx.update(m, {"w": nnx.Param(m.w[...], tag="a")}),
    "a Variable by pop": lambda m, x: nnx.pop(m, "sown"),
    "an attribute by a lifted function": lambda m, x: nnx.jit(lambda m: setattr(m, "calls", 2))(m),
    "an array by a lifted function": lambda m, x: nnx.jit(lambda m, x: setattr(m, "array", x))(m, x),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", RAW)
def test_a_change_under_a_raw_transform_is_refused_and_leaves_all_as_it_was(name, change):
    model = Net()
    before = nnx.split(model)
    with pytest.raises((TraceChangeError, TraceWriteError), match="a raw JAX transform"):
        RAW[name](changed(model, CHANGES[change]), ones())
    assert nnx.split(model) == before


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_captured_object_in_a_cached_function_reaches_it(change):
    model, plain = Net(), Net()
    nnx.jit(changed(model, CHANGES[change]))(ones())
    changed(plain, CHANGES[change])(ones())
    assert nnx.graphdef(model) == nnx.graphdef(plain)
    assert all(map(jnp.array_equal, jax.tree.leaves(model), jax.tree.leaves(plain)))
    assert not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(model))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_captured_object_that_is_out_of_reach_is_refused(change):
    model = Net()
    hidden = weakref.ref(model)
    before = nnx.split(model)
    with pytest.raises((CapturedChangeError, CaptureError)):
        nnx.jit(lambda x: CHANGES[change](hidden(), x))(ones())
    assert nnx.split(model) == before


@pytest.mark.parametrize("name", UNCACHED)
def test_a_static_change_of_a_captured_object_stays_where_the_function_runs_at_each_call(name):
    model = Net()
    OURS[name](changed(model, lambda m, x: setattr(m, "calls", m.calls + 1)), ones())
    assert model.calls == 1


@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.parametrize("change", CHANGES)
def test_a_function_that_may_run_any_number_of_times_changes_no_captured_object(name, change):
    model = Net()
    before = nnx.split(model)
    with pytest.raises(CapturedChangeError, match="however often it runs"):
        REPLAYED[name](changed(model, CHANGES[change]), ones())
    assert nnx.split(model) == before


@pytest.mark.parametrize("name", UNCACHED)
def test_data_of_the_function_may_not_stay_on_a_captured_object(name):
    model = Net()
    for change in (lambda m, x: setattr(m, "last", x), lambda m, x: setattr(m, "last", [nnx.Param(1)])):
        with pytest.raises(CapturedChangeError, match="what is set holds data of the function"):
            OURS[name](changed(model, change), ones())
    assert not hasattr(model, "last")


def test_an_uncached_function_inside_a_cached_one_is_as_cached():
    model = Net()
    f = changed(model, CHANGES["a static attribute"])
    nnx.jit(lambda x: nnx.grad(lambda x: f(x).sum())(x))(ones())
    assert model.calls == 1
    hidden = weakref.ref(model)
    f = changed(hidden, lambda hidden, x: setattr(hidden(), "calls", 2))
    with pytest.raises(CapturedChangeError, match=r"inside nnx\.jit"):
        nnx.jit(lambda x: nnx.grad(lambda x: f(x).sum())(x))(ones())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["jit", "eval_shape"])
def test_what_is_passed_to_a_raw_transform_or_made_there_is_changed_there(name, change):
    def f(x, model):
        CHANGES[change](model, x)
        CHANGES[change](Net(), x)
        return x

    getattr(jax, name)(f)(ones(), Net()) if name == "jit" else jax.eval_shape(f, ones(), Net())


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_passed_to_a_lifted_function_is_changed(change):
    model, twin = Net(), Net()
    nnx.jit(lambda m, x: CHANGES[change](m, x))(model, ones())
    CHANGES[change](twin, ones())
    assert nnx.graphdef(model) is nnx.graphdef(twin)


def test_an_object_that_a_function_left_behind_can_still_be_changed():
    left = []
    nnx.grad(lambda x: (left.append(Net()), x.sum())[1])(ones())
    jax.make_jaxpr(lambda x: (left.append(Net()), x)[1])(ones())
    for model in left:
        model.calls = 5
        assert model.calls == 5


def test_the_error_says_where_the_object_stands():
    outer = nnx.Dict(block=[Net()])
    with pytest.raises(TraceChangeError) as caught:
        jax.jit(lambda x: setattr(outer.block[0], "calls", x))(ones())
    assert str(caught.value) == (
        "Cannot change attribute 'calls' of Net (at .block[0] of Dict) from another trace level: a raw JAX "
        "transform (jit, scan, cond, while_loop or checkpoint) is active here, and the Net was made outside "
        "of it, so the change would happen while JAX traces and not when the function runs. Expected: "
        "changes under the transforms of nnxgraph, which hand them back. Write nnx.jit, nnx.grad ... for "
        "jax.jit, jax.grad ..., and pass the object as an argument."
    )


def test_the_error_in_a_lifted_function_says_what_to_pass():
    model = Net()
    hidden = weakref.ref(model)
    with pytest.raises(CapturedChangeError) as caught:
        nnx.jit(lambda x: setattr(hidden(), "calls", 1))(ones())
    assert str(caught.value) == (
        "Cannot change attribute 'calls' of Net inside nnx.jit: the Net is no argument of the function, so "
        "the change would happen once, while the function is traced. Expected: objects that change are "
        "arguments. Write `nnx.jit(lambda model, x: ...)(model, x)`."
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_error_of_a_write_says_where_the_variable_stands_and_was_made():
    with nnx.set_origin_tracking(True):
        model = Net()
    with pytest.raises(TraceWriteError) as caught:
        jax.jit(lambda x: model.w.set_value(x))(ones())
    text = str(caught.value)
    assert text.startswith("Cannot write Param(float32[2]) (at .w of Net, made at ")
    assert f"test_trace_level.py:{Net.__init__.__code__.co_firstlineno + 1} in Net.__init__)" in text


def test_the_error_says_where_an_object_was_made():
    with nnx.set_origin_tracking(True):
        model = Net()
    with pytest.raises(TraceChangeError, match=r"of Net \(made at .*test_trace_level\.py:\d+ in test_the"):
        jax.jit(lambda x: setattr(model, "calls", 1))(ones())


@pytest.mark.parametrize(
    ("build", "place"),
    [
        (lambda v: nnx.Dict(a=v), ".a of Dict"),
        (lambda v: nnx.Dict(a=nnx.Dict(b=v)), ".a.b of Dict"),
        (lambda v: nnx.Dict(a=[{"b": (v,)}]), ".a[0].b[0] of Dict"),
        (lambda v: nnx.List([v]), "[0] of List"),
        (lambda v: [v], ""),
    ],
)
def test_the_place_of_a_variable_is_found_among_what_refers_to_it(build, place):
    v = nnx.Param(ones())
    holder = build(v)
    assert _origins.place_of(v) == place
    del holder


def test_the_place_in_a_cycle_is_found():
    a, b = nnx.Dict(), nnx.Dict()
    a.b, b.a = b, a
    a.v = nnx.Param(ones())
    assert _origins.place_of(a.v).endswith(".v of Dict")


def test_origins_are_noted_only_while_they_are_asked_for_and_die_with_their_object():
    gc.collect()
    known = len(_origins._origins)
    nnx.Param(1)
    assert len(_origins._origins) == known
    with nnx.set_origin_tracking(True):
        v = nnx.Param(1)
    assert _origins.origin_of(v).split(":")[0] == __file__
    after = nnx.Param(1)
    assert _origins.origin_of(after) is None
    del v
    gc.collect()
    assert len(_origins._origins) == known


def test_origins_of_what_a_layer_makes_are_the_line_that_made_the_layer():
    with nnx.set_origin_tracking(True):
        layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    assert " in test_origins_of_what_a_layer_makes" in _origins.origin_of(layer.kernel)
