"""What users of such toolkits ask of transforms, each by its name in the list of wishes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import TraceWriteError
from tests.transforms.subjects import Empty, f32

XS = jax.random.normal(jax.random.key(0), (4, 3))


class Renderer(nnx.Module):
    """A method that is compiled and only reads."""

    def __init__(self):
        self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    @nnx.jit
    def render(self, x):
        return self.layer(x)


def test_tr1_compiled_method_that_reads_is_legal_under_raw_transforms():
    m = Renderer()
    expected = XS @ m.layer.kernel[...] + m.layer.bias[...][None]
    np.testing.assert_allclose(jax.vmap(m.render)(XS), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(m.render)(XS), expected, rtol=1e-5)
    slope = jax.grad(lambda x: m.render(x).sum())(XS[0])
    np.testing.assert_allclose(slope, m.layer.kernel[...].sum(1), rtol=1e-5)


def test_tr1_captured_module_that_is_read_by_a_compiled_function_is_legal_under_raw_transforms():
    m = Renderer()
    expected = XS @ m.layer.kernel[...] + m.layer.bias[...][None]
    f = nnx.jit(lambda x: m.layer(x))
    np.testing.assert_allclose(jax.vmap(f)(XS), expected, rtol=1e-5)
    _, out = jax.lax.scan(lambda i, x: (i, f(x)), 0, XS)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.parametrize("transform", [nnx.grad, nnx.jacrev, nnx.jacfwd])
def test_derivative_by_a_module_that_is_a_keyword_only_argument(transform):
    m = Empty(w=nnx.Param(f32(2.0)))
    slope = transform(lambda *, m, x: (m.w[...] ** 2 * x).sum())(m=m, x=XS)
    np.testing.assert_allclose(slope["w"][...], 4.0 * XS.sum(), rtol=1e-5)


def test_second_derivative_by_a_module_that_is_a_keyword_only_argument():
    m = Empty(w=nnx.Param(f32(2.0)))
    curvature = nnx.hessian(lambda *, m, x: (m.w[...] ** 2 * x).sum())(m=m, x=XS)
    np.testing.assert_allclose(curvature["w"]["w"][...], 2.0 * XS.sum(), rtol=1e-5)


def test_vmap_takes_an_extra_keyword_argument():
    m = Empty(w=nnx.Param(f32(2.0)))
    f = nnx.vmap(lambda m, x, *, s: m.w[...] * x * s, in_axes=(None, 0))
    np.testing.assert_allclose(f(m, XS, s=jnp.arange(4.0)), 2.0 * XS * jnp.arange(4.0)[:, None], rtol=1e-6)


def test_dropout_in_vmap_warns_that_lanes_agree_and_split_streams_differ():
    drop, x = nnx.Dropout(0.5, rngs=nnx.Rngs(0)), jnp.ones((3, 16))
    with pytest.warns(nnx.errors.SharedStreamWarning, match="split_rngs"):
        same = nnx.vmap(nnx.Dropout.__call__, in_axes=(None, 0))(drop, x)
    assert len({tuple(row) for row in same.tolist()}) == 1
    lanes = nnx.StateAxes({nnx.RngState: 0, ...: None})
    apply = nnx.split_rngs(splits=3)(nnx.vmap(nnx.Dropout.__call__, in_axes=(lanes, 0)))
    assert len({tuple(row) for row in apply(drop, x).tolist()}) == 3


class Quantised(nnx.Module):
    """A scale, and a statistic that the forward rule records."""

    def __init__(self):
        self.scale = nnx.Param(f32(2.0))
        self.stats = nnx.BatchStat(f32(0.0))

    def loss(self, custom_vjp, x):
        def fwd(x):
            self.stats[...] = x.max()
            return 2.0 * x, None

        @custom_vjp
        def double(x):
            return 2.0 * x

        double.defvjp(fwd, lambda _, g: (3.0 * g,))
        return (self.scale[...] * double(x)).sum()


def test_ad7_statistics_in_a_raw_custom_vjp_are_refused_in_words_and_change_nothing():
    m = Quantised()
    with pytest.raises(TraceWriteError) as caught:
        nnx.grad(lambda m, x: m.loss(jax.custom_vjp, x), argnums=1)(m, XS)
    text = str(caught.value)
    assert "BatchStat(float32[]) (at .stats of Quantised)" in text
    assert "a raw JAX transform (custom_vjp or custom_jvp) is active here inside nnx.grad" in text
    assert "Expected: writes under the transforms of nnxgraph" in text
    assert float(m.stats[...]) == 0.0


def test_ad7_statistics_in_our_custom_vjp_are_recorded_where_the_rule_runs():
    m = Quantised()
    slope = nnx.grad(lambda m, x: m.loss(nnx.custom_vjp, x), argnums=1)(m, XS)
    np.testing.assert_allclose(slope, jnp.full((4, 3), 6.0), rtol=1e-6)
    assert float(m.stats[...]) == float(XS.max())
