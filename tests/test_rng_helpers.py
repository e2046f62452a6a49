"""Random streams for the time of a call: split, forked, broadcast, restored; and given new keys."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    LaneShapeError,
    ReseedError,
    SharedVariableError,
    SplitStreamError,
    SqueezeError,
)


def data(key):
    return tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())


def held(*streams):
    """What streams hold: their keys and counts."""
    return [(data(s.key[...]), np.asarray(s.count[...]).tolist()) for s in streams]


class Noisy(nnx.Module):
    """Draws from a stream of its own."""

    def __init__(self, rngs):
        self.rngs = rngs.fork()

    @nnx.split_rngs(splits=2)
    def lanes(self, rngs):
        return self.rngs.default.key.shape, rngs.default.key.shape

    @nnx.fork_rngs
    def draw(self):
        """What it draws."""
        return self.rngs.normal(())

    def __call__(self):
        return self.rngs.normal(())


REPLACING = {
    "split_rngs": lambda x=None, **k: nnx.split_rngs(*([] if x is None else [x]), splits=3, **k),
    "fork_rngs": lambda x=None, **k: nnx.fork_rngs(*([] if x is None else [x]), **k),
    "with_rngs": lambda x=None, **k: nnx.with_rngs(*([] if x is None else [x]), split=3, **k),
}
each_helper = pytest.mark.parametrize("helper", REPLACING.values(), ids=REPLACING)


@each_helper
def test_streams_come_back_and_go_on_behind_the_one_key_that_was_drawn(helper):
    rngs, plain = nnx.Rngs(0, noise=1), nnx.Rngs(0, noise=1)
    with helper(rngs) as backups:
        assert held(*rngs.values()) != held(*plain.values())
        inside = [data(k) for s in rngs.values() for k in jnp.atleast_1d(s.key[...])]
    for stream in plain.values():
        stream()
    assert held(*rngs.values()) == held(*plain.values())
    after = data(rngs())
    assert after not in inside
    backups.restore()
    nnx.restore_rngs(backups)
    assert data(rngs()) != after


@each_helper
def test_function_context_manager_and_decorator_do_the_same(helper):
    def key(rngs):
        return data(rngs.default.key[...])

    backups = helper(rngs := nnx.Rngs(0))
    plain = key(rngs)
    backups.restore()
    with helper(rngs := nnx.Rngs(0)):
        assert key(rngs) == plain
    assert helper()(key)(nnx.Rngs(0)) == helper(key)(nnx.Rngs(0)) == plain
    assert helper()(key)(rngs=nnx.Rngs(0)) == plain
    assert helper()(lambda pair: key(pair["a"][0]))({"a": [nnx.Rngs(0)]}) == plain


@each_helper
def test_decorated_function_keeps_name_doc_and_signature(helper):
    def draw(rngs, *, scale=1.0):
        """What it draws."""

    decorated = helper(draw)
    assert (decorated.__name__, decorated.__doc__) == ("draw", "What it draws.")
    assert inspect.signature(decorated) == inspect.signature(draw)
    assert decorated.__wrapped__ is draw


@each_helper
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_exception_restores_the_streams(helper, kind):
    rngs, plain = nnx.Rngs(0), nnx.Rngs(0)
    plain()

    @helper()
    def fail(rngs):
        raise kind

    with pytest.raises(kind):
        fail(rngs)
    assert held(rngs.default) == held(plain.default)


@each_helper
def test_nothing_is_changed_if_one_stream_cannot_be_replaced(helper):
    rngs = nnx.Rngs(0)
    rngs.other = nnx.Rngs(1).split(2).default
    before = held(*rngs.values())
    with pytest.raises(SplitStreamError):
        helper(rngs)
    assert held(*rngs.values()) == before


@each_helper
def test_stream_in_two_arguments_is_replaced_once(helper):
    rngs = nnx.Rngs(0)

    @helper()
    def shapes(a, b):
        return a.default.key.shape, b["again"].default is a.default

    shape, same = shapes(rngs, {"again": rngs})
    assert same
    assert shape in ((), (3,))
    assert int(rngs.default.count[...]) == 1


@each_helper
def test_shared_streams_are_refused_in_tree_mode(helper):
    rngs = nnx.Rngs(0)
    decorated = helper(lambda a, b: None, graph=False)
    with pytest.raises(SharedVariableError, match=r"one object at \.?args\[0\] and at \.?args\[1\]\[0\]"):
        decorated(rngs, [rngs])
    decorated(rngs, nnx.Rngs(1))
    with nnx.set_graph_mode(False), pytest.raises(SharedVariableError):
        helper([rngs, rngs])
    helper([rngs, rngs], graph=True).restore()


SHARED = nnx.StateAxes({nnx.RngState: None, ...: None})


def test_methods_are_decorated_in_the_class_body_and_bound():
    model, plain = Noisy(nnx.Rngs(0)), Noisy(nnx.Rngs(0))
    assert model.lanes(nnx.Rngs(1)) == ((2,), (2,))
    assert model.draw.__doc__ == "What it draws."
    model.draw()
    bound = nnx.fork_rngs(plain.__call__)
    bound()
    bound()
    assert held(model.rngs.default) == held(plain.rngs.default)


def test_callable_object_is_an_object():
    model = Noisy(nnx.Rngs(0))
    with nnx.split_rngs(model, splits=2):
        assert model.rngs.default.key.shape == (2,)


@pytest.mark.parametrize(
    "lift",
    [
        lambda f: f,
        nnx.jit,
        lambda f: lambda rngs: nnx.scan(f, in_axes=None, out_axes=0, length=1)(rngs)[0],
        lambda f: lambda rngs: nnx.vmap(f, in_axes=SHARED, out_axes=0, axis_size=1)(rngs)[0],
        nnx.remat,
    ],
    ids=["plain", "jit", "scan", "vmap", "remat"],
)
def test_split_streams_inside_a_transform(lift):
    def draw(rngs):
        with nnx.split_rngs(rngs, splits=3):
            inner = nnx.vmap(lambda rngs: rngs.normal(()))(rngs)
        return jnp.append(inner, nnx.fork_rngs(lambda rngs: rngs.normal(()))(rngs))

    ours, plain = nnx.Rngs(0), nnx.Rngs(0)
    np.testing.assert_allclose(lift(draw)(ours), draw(plain), rtol=1e-6)
    assert held(ours.default) == held(plain.default)
    assert int(ours.default.count[...]) == 2


def test_decorated_vmap_with_axes_by_filter_draws_per_lane():
    model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(nnx.StateAxes({nnx.RngState: 0, ...: None}), 0))
    def apply(model, x):
        return model(x)

    first, second = (apply(model, jnp.ones((3, 16))) for _ in range(2))
    assert len({tuple(row) for row in [*first.tolist(), *second.tolist()]}) == 6
    assert model.rngs.key.shape == ()


def test_lp3_constructor_under_vmap_makes_layers_that_differ():
    make = nnx.vmap(axis_size=3, in_axes=0, out_axes=0)(lambda r: nnx.Linear(4, 4, rngs=r))
    layers = nnx.split_rngs(splits=3)(make)(nnx.Rngs(0))
    assert layers.kernel.shape == (3, 4, 4)
    assert len({tuple(k) for k in layers.kernel.reshape((3, 16)).tolist()}) == 3


@pytest.mark.parametrize("split", ["method", "function"])
def test_rn2_keys_of_two_splits_are_distinct(split):
    rngs = nnx.Rngs(0)
    keys = []
    for _ in range(2):
        if split == "method":
            keys += [data(k) for k in rngs.split(3).default.key[...]]
        else:
            with nnx.split_rngs(rngs, splits=3):
                keys += [data(k) for k in rngs.default.key[...]]
    assert len({*keys, data(rngs())}) == 7


def shapes(rngs):
    return {name: stream.key.shape for name, stream in rngs.items()}


@pytest.mark.parametrize(
    ("helper", "options", "expected"),
    [
        (nnx.split_rngs, {"splits": {"a": 2, "b": (3, 4)}}, {"a": (2,), "b": (3, 4), "c": ()}),
        (nnx.split_rngs, {"splits": (2, 3), "only": ["a", "c"]}, {"a": (2, 3), "b": (), "c": (2, 3)}),
        (nnx.split_rngs, {"splits": 1, "squeeze": True}, {"a": (), "b": (), "c": ()}),
        (nnx.fork_rngs, {"split": {nnx.PathContains("a"): 2}}, {"a": (2,), "b": (), "c": ()}),
        (nnx.with_rngs, {"split": {"a": 2}, "broadcast": {"b": 5}}, {"a": (2,), "b": (5,), "c": ()}),
        (nnx.with_rngs, {"split": 2, "broadcast": {"b": 5}, "fork": "c"}, {"a": (2,), "b": (5,), "c": ()}),
        (nnx.with_rngs, {"broadcast": (2, 2), "only": "b"}, {"a": (), "b": (2, 2), "c": ()}),
        (nnx.with_rngs, {}, {"a": (), "b": (), "c": ()}),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_filters_say_which_streams_get_which_lanes(helper, options, expected):
    rngs = nnx.Rngs(a=0, b=1, c=2)
    with helper(rngs, **options):
        assert shapes(rngs) == expected
    assert shapes(rngs) == dict.fromkeys("abc", ())


def test_with_rngs_splits_broadcasts_forks_and_leaves_alone():
    rngs, plain = nnx.Rngs(a=0, b=1, c=2, d=3), nnx.Rngs(a=0, b=1, c=2, d=3)
    a, b, c = (data(plain[name]()) for name in "abc")
    with nnx.with_rngs(rngs, split={"a": 2}, broadcast={"b": 2}, fork="c"):
        keys = {name: [data(k) for k in jnp.atleast_1d(s.key[...])] for name, s in rngs.items()}
    halves = jax.random.split(jax.random.wrap_key_data(jnp.asarray(a, jnp.uint32)), 2)
    assert keys["a"] == [data(k) for k in halves]
    assert keys["b"] == [b, b]
    assert keys["c"] == [c]
    assert keys["d"] == [data(jax.random.key(3))]
    assert held(*rngs.values()) == held(*plain.values())


def test_with_rngs_decorates_a_vmap():
    @nnx.with_rngs(split={"dropout": 3}, broadcast={"params": 3})
    @nnx.vmap
    def draw(rngs):
        return rngs.params.normal(()), rngs.dropout.normal(())

    params, dropout = draw(nnx.Rngs(params=0, dropout=1))
    assert len(set(params.tolist())) == 1
    assert len(set(dropout.tolist())) == 3


# reseed


def test_reseed_starts_a_stream_anew():
    rngs = nnx.Rngs(params=0, dropout=1)
    rngs.dropout()
    rngs.params()
    nnx.reseed(rngs, dropout=42)
    assert held(rngs.dropout) == held(nnx.Rngs(dropout=42).dropout)
    assert int(rngs.params.count[...]) == 1
    nnx.reseed(rngs, dropout=jax.random.key(1), params=jax.random.PRNGKey(0))
    assert held(*rngs.values()) == held(*nnx.Rngs(params=0, dropout=1).values())


def test_reseeded_layers_repeat_themselves_and_differ_from_each_other():
    rngs = nnx.Rngs(dropout=0)
    model = nnx.List([nnx.Dropout(0.5, rngs=rngs) for _ in range(3)])

    def masks():
        nnx.reseed(model, dropout=7)
        return [layer(jnp.ones(32)).tolist() for layer in model]

    first = masks()
    assert first == masks()
    assert len({tuple(mask) for mask in first}) == 3
    assert data(model[0].rngs.key[...]) == data(jax.random.key(7))


def test_reseed_matches_the_shape_of_split_streams():
    rngs = nnx.Rngs(a=0).split((2, 3))
    nnx.reseed(rngs, a=5, policy="match_shape")
    assert data(rngs.a.key[...]) == data(jax.random.split(jax.random.key(5), (2, 3)))
    assert rngs.a.count[...].tolist() == [[0] * 3] * 2
    nnx.reseed(rngs, a=5, policy=lambda path, key, shape: jnp.broadcast_to(key, shape[:1]))
    assert rngs.a.key.shape == rngs.a.count.shape == (2,)


def test_reseed_inside_jit():
    rngs = nnx.Rngs(0)

    @nnx.jit
    def draw(rngs, seed):
        nnx.reseed(rngs, default=seed)
        return rngs()

    assert data(draw(rngs, jax.random.key(3))) == data(nnx.Rngs(3)())
    assert int(rngs.default.count[...]) == 1


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: nnx.split_rngs(splits="ab"),
            LaneShapeError,
            "split_rngs: found 'ab' for the lanes of a random stream.",
        ),
        (lambda: nnx.fork_rngs(split={"a": 1.5}), LaneShapeError, "fork_rngs: found 1.5"),
        (lambda: nnx.with_rngs(broadcast=(2, -1)), LaneShapeError, "with_rngs: found (2, -1)"),
        (lambda: nnx.split_rngs(splits=2, squeeze=True), SqueezeError, "squeeze=True with splits=2"),
        (
            lambda: nnx.reseed(nnx.Rngs(a=0), b=1),
            ReseedError,
            "reseed: found no stream 'b'; there is 'a'. Expected the tag of a stream of the object.",
        ),
        (
            lambda: nnx.reseed(nnx.Rngs(a=0).split(2), a=1),
            ReseedError,
            "reseed: found the stream 'a' split into (2,). Expected streams with one key. Write "
            "policy='match_shape'. Nothing was changed.",
        ),
        (
            lambda: nnx.reseed(nnx.Rngs(a=0), policy="other", a=1),
            ReseedError,
            "reseed: found policy='other'. Expected 'scalars_only', 'match_shape' or a function.",
        ),
        (
            lambda: nnx.reseed([r := nnx.Rngs(0), r], graph=False, default=1),
            SharedVariableError,
            "reseed: found one object at [0] and at [1]",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
