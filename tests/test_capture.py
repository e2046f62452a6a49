"""`capture`: what modules sow, perturb and return, by path, with nothing left in them."""

import functools
import threading

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    CaptureTraceError,
    NameTakenError,
    NoModuleError,
    NotAKindError,
    StateMismatchError,
)


class Double(nnx.Module):
    """Sows what it is given and perturbs what it returns."""

    def __call__(self, x):
        self.sow(nnx.Intermediate, "h", x)
        return self.perturb("p", 2 * x)


class Net(nnx.Module):
    """Two modules in a list, the first of them also under another name."""

    def __init__(self):
        self.w = nnx.Param(jnp.asarray(1.0))
        self.layers = [Double(), Double()]
        self.tied = self.layers[0]

    def __call__(self, x):
        x = x * self.w
        for layer in (*self.layers, self.tied):
            x = layer(x)
        self.sow(nnx.Intermediate, "out", x)
        return x

    def first(self, x):
        return self.layers[0](x)


ONE = jnp.asarray(1.0)
SOWN = {"layers": {0: {"h": (1.0, 4.0)}, 1: {"h": (2.0,)}}, "out": (8.0,)}


def plain(state, kind=nnx.Intermediate):
    """The values of one kind, as numbers."""
    only = nnx.filter_state(state, lambda path, v: type(v) is kind)
    return nnx.to_pure_dict(only, lambda v: jax.tree.map(float, v.get_value()))


def apply(model, x):
    return model(x)


FORMS = {
    "module": lambda net, x: nnx.capture(net, nnx.Intermediate)(x),
    "method": lambda net, x: nnx.capture(net.__call__, nnx.Intermediate)(x),
    "function": lambda net, x: nnx.capture(apply, nnx.Intermediate)(net, x),
    "keyword": lambda net, x: nnx.capture(apply, nnx.Intermediate)(x=x, model=net),
    "partial": lambda net, x: nnx.capture(functools.partial(apply, net), nnx.Intermediate)(x),
    "all kinds": lambda net, x: nnx.capture(net)(x),
}
INSIDE = {
    "nnx.jit": lambda net, x: nnx.jit(FORMS["module"])(net, x),
    "jax.jit": lambda net, x: jax.jit(FORMS["module"])(net, x),
    "nnx.remat": lambda net, x: nnx.remat(FORMS["module"])(net, x),
    "jax.checkpoint": lambda net, x: jax.checkpoint(FORMS["module"])(net, x),
    "nnx.grad": lambda net, x: nnx.value_and_grad(FORMS["module"], has_aux=True)(net, x)[0],
    "jax.grad": lambda net, x: jax.value_and_grad(FORMS["module"], has_aux=True)(net, x)[0],
    "grad in jit": lambda net, x: nnx.jit(INSIDE["nnx.grad"])(net, x),
}
AROUND = {
    "nnx.jit": lambda net, x: nnx.capture(nnx.jit(apply), nnx.Intermediate)(net, x),
    "nnx.jit method": lambda net, x: nnx.capture(nnx.jit(Net.__call__), nnx.Intermediate)(net, x),
    "nnx.remat": lambda net, x: nnx.capture(nnx.remat(apply), nnx.Intermediate)(net, x),
    "nnx.grad": lambda net, x: (8.0, nnx.capture(nnx.grad(apply), nnx.Intermediate)(net, x)[1]),
    "closure of grad": lambda net, x: (
        8.0,
        nnx.capture(lambda m, x: nnx.grad(lambda x: m(x))(x), nnx.Intermediate)(net, x)[1],
    ),
    "closure of remat": lambda net, x: nnx.capture(
        lambda m, x: nnx.remat(lambda x: m(x))(x), nnx.Intermediate
    )(net, x),
}  # fmt: skip
CALLS = {**{f"{k}": f for k, f in FORMS.items()}, **{f"in {k}": f for k, f in INSIDE.items()}}
CALLS |= {f"around {k}": f for k, f in AROUND.items()}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_sown_is_collected_by_path_and_leaves_nothing(name):
    net = Net()
    before = nnx.graphdef(net)
    for _ in range(2):
        y, state = CALLS[name](net, ONE)
        assert float(y) == 8.0
        assert plain(state) == SOWN
        assert nnx.graphdef(net) is before


def test_in2_a_forward_makes_no_state():
    net = Net()
    before = nnx.graphdef(net)
    net.layers[0].perturb("p", ONE)
    jax.eval_shape(lambda: nnx.capture(net)(ONE))
    assert nnx.graphdef(net) is before


@pytest.mark.parametrize("jit", [nnx.jit, jax.jit])
def test_jitted_forward_that_sows_is_traced_once(jit):
    traces = []

    @jit
    def forward(net, x):
        traces.append(1)
        return nnx.capture(net, nnx.Intermediate)(x)

    net = Net()
    for _ in range(3):
        forward(net, ONE)
    assert len(traces) == 1


def test_capture_around_a_jitted_function_is_traced_once():
    traces = []
    jitted = nnx.jit(lambda net, x: traces.append(1) or net(x))
    forward = nnx.capture(jitted, nnx.Intermediate)
    net = Net()
    for _ in range(3):
        assert plain(forward(net, ONE)[1]) == SOWN
    assert len(traces) == 1


@pytest.mark.parametrize("axes", [(None, 0), (nnx.StateAxes({...: None}), 0)])
def test_values_of_lanes_and_iterations_are_stacked(axes):
    net, xs = Net(), jnp.arange(3.0)
    forward = FORMS["module"]
    for lifted in (nnx.vmap(forward, in_axes=axes), nnx.scan(forward, in_axes=axes, out_axes=0)):
        y, state = lifted(net, xs)
        assert y.tolist() == [0.0, 8.0, 16.0]
        assert state["layers"][0]["h"][1].tolist() == [0.0, 4.0, 8.0]


LOST = {
    "jax.jit": lambda m, x: jax.jit(apply)(m, x),
    "jax.jit closure": lambda m, x: jax.jit(lambda x: m(x))(x),
    "jax.grad": lambda m, x: jax.grad(apply)(m, x),
    "jax.grad closure": lambda m, x: jax.grad(lambda x: m(x))(x),
    "jax.vmap": lambda m, x: jax.vmap(lambda x: m(x))(x[None]),
    "lax.scan": lambda m, x: jax.lax.scan(lambda c, x: (c, m(x)), 0, x[None]),
    "nnx.grad in jax.jit": lambda m, x: jax.jit(nnx.grad(apply))(m, x),
    "nnx.jit in jax.jit": lambda m, x: jax.jit(nnx.jit(apply))(m, x),
    "closure of nnx.remat in jax.jit": lambda m, x: jax.jit(nnx.remat(lambda x: m(x)))(x),
    "closure of nnx.jit in nnx.vmap": lambda m, x: nnx.vmap(nnx.jit(lambda x: m(x)))(x[None]),
    "closure of nnx.vmap in nnx.jit": lambda m, x: nnx.jit(nnx.vmap(lambda x: m(x)))(x[None]),
    "closure of nnx.cond in nnx.jit": lambda m, x: nnx.jit(
        lambda x: nnx.cond(True, lambda x: m(x), jnp.sin, x)
    )(x),
    "jax.jit in nnx.grad": lambda m, x: nnx.grad(lambda x: jax.jit(lambda x: m(x))(x))(x),
    "nnx.vmap closure": lambda m, x: nnx.vmap(lambda x: m(x))(x[None]),
    "nnx.scan closure": lambda m, x: nnx.scan(lambda x: m(x), in_axes=0, out_axes=0)(x[None]),
    "nnx.cond closure": lambda m, x: nnx.cond(True, lambda x: m(x), lambda x: x, x),
    "nnx.fori_loop closure": lambda m, x: nnx.fori_loop(0, 2, lambda i, x: m(x), x),
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("kinds", [(nnx.Intermediate,), ()])
def test_values_that_could_not_leave_a_transform_are_refused(name, kinds):
    net = Net()
    before = nnx.graphdef(net)
    with pytest.raises(CaptureTraceError, match=r"Double\.sow: nnx.capture stands around"):
        nnx.capture(LOST[name], *kinds)(net, ONE)
    assert nnx.graphdef(net) is before


@pytest.mark.parametrize("init", [None, {"layers": {0: {"p": 1.0}}}])
@pytest.mark.parametrize("transform", [lambda f: nnx.vmap(f, in_axes=(None, 0)), jax.jit])
def test_perturbations_of_copies_whose_original_is_not_known_are_refused(init, transform):
    kinds = (nnx.Perturbation,) if init is None else (nnx.Intermediate,)
    perturbs = transform(lambda net, x: net.perturb("p", x))
    with pytest.raises(CaptureTraceError, match=r"Double\.perturb: nnx.capture stands around"):
        nnx.capture(lambda net, x: perturbs(net.layers[0], x[None]), *kinds, init=init)(Net(), ONE)


@pytest.mark.parametrize(
    "grad",
    [jax.grad, nnx.grad, lambda f: jax.jit(jax.grad(f)), lambda f: lambda p: nnx.jit(nnx.grad(f))(p)],
)
@pytest.mark.parametrize("kinds", [(), (nnx.Intermediate,), (nnx.Perturbation,), (nnx.Param,)])
def test_gradients_with_respect_to_perturbations(grad, kinds):
    _, zeros = nnx.capture(Net(), nnx.Perturbation)(ONE)
    assert plain(zeros, nnx.Perturbation) == {"layers": {0: {"p": 0.0}, 1: {"p": 0.0}}}
    grads = grad(lambda p: nnx.capture(Net(), *kinds, init=p)(ONE)[0])(zeros)
    assert plain(grads, nnx.Perturbation) == {"layers": {0: {"p": 5.0}, 1: {"p": 2.0}}}


@pytest.mark.parametrize("spell", [int, str])
def test_initial_values_are_added(spell):
    init = {"layers": {spell(0): {"p": jnp.asarray(3.0)}}}
    y, state = nnx.capture(Net(), nnx.Perturbation, init=init)(ONE)
    assert float(y) == ((2 + 3) * 2) * 2 + 3
    assert plain(state, nnx.Perturbation) == {"layers": {0: {"p": 3.0}, 1: {"p": 0.0}}}


def test_sowing_goes_on_from_initial_values():
    net = Double()
    state = nnx.capture(net, nnx.Intermediate)(ONE)[1]
    assert plain(nnx.capture(net, nnx.Intermediate, init=state)(2 * ONE)[1]) == {"h": (1.0, 2.0)}


def test_initial_values_stand_at_modules():
    with pytest.raises(StateMismatchError, match=r"\.laeyrs\[0\]\.p is not in the object") as caught:
        nnx.capture(Net(), init={"laeyrs": {0: {"p": 1.0}}})(ONE)
    assert "modules" in str(caught.value)


def test_perturbation_of_the_module_is_used_and_recorded():
    net = Double()
    net.p = nnx.Perturbation(jnp.asarray(3.0))
    assert float(net.perturb("p", ONE)) == 4.0
    y, state = nnx.capture(net, nnx.Perturbation)(ONE)
    assert (float(y), plain(state, nnx.Perturbation)) == (5.0, {"p": 3.0})
    assert float(nnx.capture(net, init={"p": 1.0})(ONE)[0]) == 3.0


def test_pytrees_are_perturbed_and_variables_are_sown_by_value():
    class Pair(nnx.Module):
        def __call__(self, w):
            self.sow(nnx.Intermediate, "w", {"a": w})
            return self.perturb("pair", (ONE, {"x": 2 * ONE}))

    w = nnx.Param(ONE)
    y, state = nnx.capture(Pair())(w)
    assert float(y[1]["x"]) == 2.0
    assert state["pair"][1]["x"] == 0.0
    w.set_value(jnp.asarray(5.0))
    assert state["w"][0]["a"] == 1.0


# Which capture, which module.


def test_sow_of_a_kind_that_no_capture_wants_is_dropped():
    net = Net()
    _, state = nnx.capture(net, nnx.Perturbation)(ONE)
    assert set(nnx.to_flat_state(state).paths) == {("layers", 0, "p"), ("layers", 1, "p")}
    assert not nnx.state(net, nnx.Intermediate)


def test_innermost_capture_that_wants_a_kind_takes_it():
    class Outer(nnx.Module):
        def __init__(self):
            self.net = Net()

        def __call__(self, x):
            y, sown = nnx.capture(self.net.first, nnx.Intermediate)(x)
            self.sow(nnx.Intermediate, "inner", sown["layers"][0]["h"])
            self.sow(nnx.Cache, "kept", y)
            return nnx.capture(self.net, nnx.Cache)(y)[0]

    outer = Outer()
    y, state = nnx.capture(outer, nnx.Intermediate, nnx.Cache)(ONE)
    assert float(y) == 16.0
    assert nnx.to_flat_state(state).paths[:2] == (("inner",), ("kept",))
    assert plain(state["net"]) == {"layers": {0: {"h": (2.0, 8.0)}, 1: {"h": (4.0,)}}, "out": (16.0,)}
    assert not nnx.state(outer, nnx.Intermediate)


def test_other_modules_sow_as_outside():
    net, other = Double(), Double()

    def both(net, x):
        return net(x) + other(x)

    _, state = nnx.capture(both, nnx.Intermediate)(net, ONE)
    assert len(other.h.get_value()) == 1
    assert set(state) == {"h", "p"}


def test_module_that_comes_in_during_the_call_is_found():
    class Lazy(nnx.Module):
        def __call__(self, x):
            self.inner = Double()
            return self.inner(x)

    lazy = Lazy()
    assert plain(nnx.capture(lazy, nnx.Intermediate)(ONE)[1]) == {"inner": {"h": (1.0,)}}
    assert list(vars(lazy.inner)) == []


def test_module_is_found_in_a_container():
    _, state = nnx.capture(lambda ms, x: ms[1](x), nnx.Intermediate)([1, Double()], ONE)
    assert plain(state) == {1: {"h": (1.0,)}}


@pytest.mark.parametrize("fn", [lambda x: x, jnp.sin, nnx.jit(lambda x: x)])
def test_function_without_a_module_is_refused(fn):
    with pytest.raises(NoModuleError):
        nnx.capture(fn, nnx.Intermediate)(ONE)


@pytest.mark.parametrize("kind", ["h", Double, nnx.PathContains("h"), ...])
def test_kinds_are_classes_of_variables(kind):
    with pytest.raises(NotAKindError):
        nnx.capture(Net(), kind)
    with pytest.raises(NotAKindError):
        nnx.capture(Net(), method_outputs=kind)


def test_two_kinds_under_one_name_are_refused():
    class Both(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x)
            self.sow(nnx.Cache, "h", x)

    with pytest.raises(NameTakenError, match=r"Both\.sow: attribute 'h' is a Intermediate"):
        nnx.capture(Both())(ONE)


@pytest.mark.parametrize("name", ["w", "train", "layers", "__call__"])
def test_sowing_over_something_else_is_refused(name):
    net = Net()
    for call in (net.sow, nnx.capture(net.sow, nnx.Intermediate)):
        with pytest.raises(NameTakenError):
            call(nnx.Intermediate, name, ONE)


def test_existing_record_is_left_alone():
    net = Double()
    net(ONE)
    assert plain(nnx.capture(net, nnx.Intermediate)(2 * ONE)[1])["h"] == (2.0,)
    assert [float(x) for x in net.h.get_value()] == [1.0]


def test_nothing_is_left_after_an_exception():
    class Fails(Double):
        def __call__(self, x):
            super().__call__(x)
            if x > 0:
                raise ZeroDivisionError
            return x

    net = Fails()
    with pytest.raises(ZeroDivisionError):
        nnx.capture(net, nnx.Intermediate, method_outputs=nnx.Intermediate)(ONE)
    assert vars(net) == {}
    net.sow(nnx.Intermediate, "h", ONE)
    assert isinstance(net.h, nnx.Intermediate)
    assert Fails.__call__.__qualname__.endswith("Fails.__call__")
    assert not hasattr(Fails.__call__, "__wrapped__")


def test_capture_is_of_one_thread():
    net, done = Double(), []

    def elsewhere():
        done.append(net.sow(nnx.Intermediate, "elsewhere", ONE))

    def fn(net):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return net(ONE)

    _, state = nnx.capture(fn, nnx.Intermediate)(net)
    assert done == [True]
    assert plain(state)["h"] == (1.0,)


# capture_noop.


def test_capture_noop_records_only_under_a_capture():
    class Quiet(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x, capture_noop=True)
            return self.perturb("p", x, capture_noop=True)

    quiet = Quiet()
    quiet.p = nnx.Perturbation(ONE)
    assert float(quiet(ONE)) == 1.0
    assert list(vars(quiet)) == ["p"]
    y, state = nnx.capture(quiet, nnx.Intermediate)(ONE)
    assert (float(y), plain(state)) == (2.0, {"h": (1.0,)})
    assert list(vars(quiet)) == ["p"]


def test_trace_without_a_capture_is_not_used_under_one():
    class Quiet(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x, capture_noop=True)
            return x

    traces = []
    jitted = nnx.jit(lambda m, x: traces.append(1) or m(x) * x)
    quiet = Quiet()
    for _ in range(2):
        jitted(quiet, ONE)
        assert vars(quiet) == {}
        assert plain(nnx.capture(jitted, nnx.Intermediate)(quiet, ONE)[1]) == {"h": (1.0,)}
        assert vars(quiet) == {}
    assert len(traces) == 2
