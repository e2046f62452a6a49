"""`capture` around compiled functions and derivatives: what they sow arrives, and they serve each capture."""

import functools
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import StageError
from tests.test_capture import ONE, SOWN, Double, Net, apply, plain

SHARED = Net()
KINDS = (nnx.Intermediate, nnx.Perturbation)
ZEROS = {"layers": {0: {"p": 0.0}, 1: {"p": 0.0}}}


def of_shared(x):
    return SHARED(x)


def with_rule(f):
    """The function with a rule for derivatives, which is never asked for."""
    ruled = nnx.custom_vjp(f)
    ruled.defvjp(lambda *args: (f(*args), None), lambda residuals, g: None)
    return ruled


def first_of(derive):
    """The function by way of what returns its value first."""
    return lambda f: lambda *args: derive(f, *args)[0]


TRANSFORMS = {
    "jit": nnx.jit,
    "jit of jit": lambda f: nnx.jit(nnx.jit(f)),
    "jit of grad": lambda f: nnx.jit(nnx.grad(f, argnums=-1)),
    "grad of jit": lambda f: nnx.grad(nnx.jit(f), argnums=-1),
    "jit of grad of jit": lambda f: nnx.jit(nnx.grad(nnx.jit(f), argnums=-1)),
    "jit of remat": lambda f: nnx.jit(nnx.remat(f)),
    "jit_partial": nnx.jit_partial,
    "remat": nnx.remat,
    "checkify": nnx.checkify,
    "vjp": first_of(nnx.vjp),
    "linearize": first_of(nnx.linearize),
    "jacfwd": functools.partial(nnx.jacfwd, argnums=-1),
    "jacrev": functools.partial(nnx.jacrev, argnums=-1),
    "hessian": functools.partial(nnx.hessian, argnums=-1),
    "custom_vjp": with_rule,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_passed_modules_sow_and_perturb_arrives(name):
    net, transformed = Net(), TRANSFORMS[name](apply)
    before = nnx.graphdef(net)
    for _ in range(2):
        _, state = nnx.capture(lambda net, x: transformed(net, x), *KINDS)(net, ONE)
        assert plain(nnx.filter_state(state, nnx.Perturbation), nnx.Perturbation) == ZEROS
        assert plain(nnx.filter_state(state, lambda path, v: type(v) is nnx.Intermediate)) == SOWN
        assert nnx.graphdef(net) is before


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_captured_modules_sow_and_perturb_arrives(name):
    transformed = TRANSFORMS[name](of_shared)
    before = nnx.graphdef(SHARED)
    for _ in range(2):
        _, state = nnx.capture(lambda net, x: transformed(x), *KINDS)(SHARED, ONE)
        assert plain(nnx.filter_state(state, nnx.Perturbation), nnx.Perturbation) == ZEROS
        assert plain(nnx.filter_state(state, lambda path, v: type(v) is nnx.Intermediate)) == SOWN
        assert nnx.graphdef(SHARED) is before


# One trace, for every capture.


@pytest.mark.parametrize(
    "options", [{}, {"method_outputs": nnx.Cache}, {"init": {"layers": {0: {"p": ONE}}}}]
)
def test_jitted_function_over_captured_modules_is_traced_once(options):
    traces, net = [], Net()
    jitted = nnx.jit(lambda x: traces.append(1) or net(x))
    for _ in range(3):
        nnx.capture(lambda net, x: jitted(x), *KINDS, **options)(net, ONE)
    assert len(traces) == 1


def test_layers_in_turn_share_a_trace():
    traces = []
    jitted = nnx.jit(lambda layer, x: traces.append(1) or layer(x))

    class Deep(nnx.Module):
        def __init__(self):
            self.layers = [Double() for _ in range(3)]

        def __call__(self, x):
            for layer in self.layers:
                x = jitted(layer, x)
            return x

    for _ in range(2):
        _, state = nnx.capture(Deep(), nnx.Intermediate)(ONE)
        assert plain(state) == {"layers": {i: {"h": (2.0**i,)} for i in range(3)}}
    assert len(traces) == 1


def test_without_a_capture_the_program_is_the_plain_one():
    class Quiet(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x, capture_noop=True)
            return x + 1

    quiet = Quiet()
    jitted = nnx.jit(lambda x: quiet(x))
    expected = str(jax.make_jaxpr(lambda x: x + 1)(ONE))
    for _ in range(2):
        assert str(jitted.trace(ONE).jaxpr) == expected
        assert plain(nnx.capture(lambda m, x: jitted(x), nnx.Intermediate)(quiet, ONE)[1]) == {"h": (1.0,)}


def test_compiled_stage_records_as_it_was_traced():
    net, jitted = Net(), nnx.jit(apply)
    plain_stage, stages = jitted.lower(net, ONE).compile(), []

    def compiles(net, x):
        stages.append(jitted.lower(net, x).compile())
        return stages[0](net, x)

    for fn in (plain_stage, compiles):
        _, state = nnx.capture(lambda net, x, fn=fn: fn(net, x), nnx.Intermediate)(net, ONE)
        assert plain(state) == SOWN
    with pytest.raises(StageError, match="another structure"):
        stages[0](net, ONE)


# What is recorded goes on from what there is.


def test_repeated_calls_and_eager_ones_append_in_order():
    jitted = nnx.jit(apply)

    def thrice(layer, x):
        return layer(jitted(layer, jitted(layer, x)))

    for _ in range(2):
        assert plain(nnx.capture(thrice, nnx.Intermediate)(Double(), ONE)[1]) == {"h": (1.0, 2.0, 4.0)}


def test_values_are_reduced_across_the_edge_of_a_jitted_function():
    class Sum(nnx.Module):
        def __call__(self, x):
            return self.sow(nnx.Intermediate, "sum", x, jnp.add, lambda: jnp.asarray(0.0))

    jitted = nnx.jit(apply)

    def thrice(module, x):
        return [f(module, x) for f in (apply, jitted, apply)]

    assert plain(nnx.capture(thrice, nnx.Intermediate)(Sum(), ONE)[1]) == {"sum": 3.0}


def test_attributes_of_the_module_are_left_alone():
    net = Double()
    net(ONE)
    assert plain(nnx.capture(nnx.jit(apply), nnx.Intermediate)(net, 2 * ONE)[1])["h"] == (2.0,)
    assert [float(x) for x in net.h.get_value()] == [1.0]


def test_sowing_goes_on_from_initial_values():
    net, jitted = Net(), nnx.jit(apply)
    state = nnx.capture(jitted, nnx.Intermediate)(net, ONE)[1]
    assert plain(nnx.capture(jitted, nnx.Intermediate, init=state)(net, 2 * ONE)[1])["out"] == (8.0, 16.0)


def test_module_that_comes_in_during_the_call_is_found():
    class Lazy(nnx.Module):
        def __call__(self, x):
            self.inner = Double()
            return self.inner(x)

    lazy = Lazy()
    for transform in (nnx.jit, nnx.remat, lambda f: nnx.jit(nnx.remat(f))):
        _, state = nnx.capture(transform(apply), *KINDS)(lazy, ONE)
        assert plain(state["inner"], nnx.Intermediate) == {"h": (1.0,)}
        assert plain(state["inner"], nnx.Perturbation) == {"p": 0.0}
        assert vars(lazy.inner) == {}


def test_modules_that_the_capture_does_not_know_sow_and_perturb_as_outside():
    net, other = Double(), Double()
    jitted = nnx.jit(lambda net, x: net(x) + other(x))
    _, state = nnx.capture(jitted, *KINDS)(net, ONE)
    assert set(state) == {"h", "p"}
    assert list(vars(other)) == ["h"]


def test_nested_captures_and_jitted_functions():
    jitted = nnx.jit(apply)

    @nnx.jit
    def outer(net, x):
        y, _ = nnx.capture(jitted, nnx.Intermediate)(net.layers[0], x)
        net.sow(nnx.Cache, "kept", y)
        return jitted(net, y)

    for _ in range(2):
        _, state = nnx.capture(outer, nnx.Intermediate, nnx.Cache)(Net(), ONE)
        assert plain(state)["out"] == (16.0,)
        assert plain(state, nnx.Cache) == {"kept": (2.0,)}


# Perturbations.


@pytest.mark.parametrize("jit", [lambda f: f, nnx.jit, jax.jit])
@pytest.mark.parametrize("grad", [nnx.grad, jax.grad])
@pytest.mark.parametrize("transform", [nnx.jit, nnx.remat, lambda f: nnx.jit(nnx.remat(nnx.jit(f)))])
def test_gradients_with_respect_to_perturbations_in_transforms(jit, grad, transform):
    net, transformed = Net(), transform(apply)
    _, zeros = nnx.capture(transformed, nnx.Perturbation)(net, ONE)
    for kinds in ((), (nnx.Intermediate,)):
        loss = lambda p, kinds=kinds: nnx.capture(transformed, *kinds, init=p)(net, ONE)[0]
        grads = jit(grad(loss))(zeros)
        assert plain(grads, nnx.Perturbation) == {"layers": {0: {"p": 5.0}, 1: {"p": 2.0}}}


def test_initial_perturbations_are_arguments():
    traces, net = [], Net()
    jitted = nnx.jit(lambda net, x: traces.append(1) or net(x))
    for given in (1.0, 2.0, 3.0):
        init = {"layers": {0: {"p": jnp.asarray(given)}}}
        y, state = nnx.capture(jitted, nnx.Perturbation, init=init)(net, ONE)
        assert float(y) == 8.0 + 5.0 * given
        assert plain(state, nnx.Perturbation)["layers"][0] == {"p": given}
    assert len(traces) == 1


def test_nothing_is_recorded_of_a_call_that_fails():
    class Fails(Double):
        def __call__(self, x):
            super().__call__(x)
            raise ZeroDivisionError

    jitted = nnx.jit(apply)

    def tries(net, x):
        with pytest.raises(ZeroDivisionError):
            jitted(net, x)
        return x

    fails = Fails()
    assert not nnx.capture(tries, nnx.Intermediate)(fails, ONE)[1]
    assert vars(fails) == {}


def test_threads_capture_around_one_jitted_function():
    net, jitted, results = Double(), nnx.jit(apply), []

    def work(x):
        for _ in range(10):
            _, state = nnx.capture(jitted, nnx.Intermediate)(net, x)
            results.append(plain(state) == {"h": (float(x),)})

    threads = [threading.Thread(target=work, args=(i * ONE,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


@pytest.mark.parametrize("options", [{"graph": False}, {"graph_updates": False}])
def test_what_is_sown_arrives_in_every_mode(options):
    jitted = nnx.jit(apply, **options)
    _, state = nnx.capture(jitted, nnx.Intermediate)(Double(), ONE)
    assert plain(state) == {"h": (1.0,)}


def test_neither_tracers_nor_models_are_kept():
    net, jitted = Double(), nnx.jit(nnx.grad(nnx.jit(apply), argnums=1))
    with jax.checking_leaks():
        _, state = nnx.capture(jitted, *KINDS)(net, ONE)
    assert plain(state) == {"h": (1.0,)}
    model = weakref.ref(net)
    del net
    gc.collect()
    assert model() is None


def test_training_step_over_captured_objects_is_captured():
    net = Double()
    net.w = nnx.Param(ONE)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    rngs = nnx.Rngs(0)

    @nnx.jit
    def step(x):
        loss, grads = nnx.value_and_grad(lambda net: net(x * net.w))(net)
        metrics.update(loss=loss)
        net.w[...] -= 0.25 * grads["w"][...]
        return rngs.uniform(())

    draws = []
    for _ in range(2):
        draw, state = nnx.capture(lambda net, x: step(x), nnx.Intermediate)(net, ONE)
        draws.append(float(draw))
    assert plain(state) == {"h": (0.5,)}
    assert (float(net.w[...]), float(metrics.compute()["loss"]), draws[0] != draws[1]) == (0.0, 1.5, True)
