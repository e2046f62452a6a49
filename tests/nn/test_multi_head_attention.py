"""MultiHeadAttention: projections, heads, options; what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError, LayerOptionError, MissingKeyError
from tests.nn.reference import (
    QUICK,
    assert_close,
    attend,
    attend_backward,
    draw,
    gradients,
    normalize,
    normalize_backward,
    randomize,
    to_float32,
    value,
)


def make(heads=4, features=256, **options):
    options = {"rngs": nnx.Rngs(0)} | QUICK | options
    return randomize(nnx.MultiHeadAttention(heads, features, **options))


def project(x, layer):
    """One axis to heads."""
    bias = 0.0 if layer.bias is None else value(layer.bias)
    return np.einsum("...i,ihd->...hd", x, value(layer.kernel)) + bias


def project_backward(x, layer, d):
    """Cotangents of the input, the kernel and the bias."""
    dx = np.einsum("...hd,ihd->...i", d, value(layer.kernel))
    rows, drows = x.reshape(-1, x.shape[-1]), d.reshape(-1, *d.shape[-2:])
    return dx, np.einsum("ni,nhd->ihd", rows, drows), drows.sum(0)


def forward(layer, q, k, v, hidden=None):
    """The whole layer, and what its backward pass needs."""
    query, key, val = project(q, layer.query), project(k, layer.key), project(v, layer.value)
    if layer.normalize_qk:
        query = normalize(query, (-1,), value(layer.query_ln.scale), 0.0, 1e-6)
        key = normalize(key, (-1,), value(layer.key_ln.scale), 0.0, 1e-6)
    group = layer.num_heads // layer.num_kv_heads
    key, val = np.repeat(key, group, -2), np.repeat(val, group, -2)
    heads, weights = attend(query, key, val, hidden=hidden)
    bias = 0.0 if layer.out.bias is None else value(layer.out.bias)
    out = np.einsum("...hd,hdo->...o", heads, value(layer.out.kernel)) + bias
    return out, (query, key, val, heads, weights)


def backward(layer, q, k, v, residuals, dy):
    """Cotangents of the three inputs, and of Params by path."""
    query, key, val, heads, weights = residuals
    dheads = np.einsum("...o,hdo->...hd", dy, value(layer.out.kernel))
    flat = lambda a: a.reshape(-1, *a.shape[a.ndim - 2 :])
    params = {
        ("out", "kernel"): np.einsum("nhd,no->hdo", flat(heads), dy.reshape(-1, dy.shape[-1])),
        ("out", "bias"): dy.reshape(-1, dy.shape[-1]).sum(0),
    }
    d = dict(zip(("query", "key", "value"), attend_backward(query, key, val, weights, dheads), strict=False))
    group = layer.num_heads // layer.num_kv_heads
    for name in ("key", "value"):
        shape = d[name].shape
        d[name] = d[name].reshape(*shape[:-2], -1, group, shape[-1]).sum(-2)
    inputs = []
    for name, x in (("query", q), ("key", k), ("value", v)):
        linear = getattr(layer, name)
        if layer.normalize_qk and name != "value":
            norm, before = f"{name}_ln", project(x, linear)
            scale = value(getattr(layer, norm).scale)
            d[name], normal = normalize_backward(before, (-1,), scale, 1e-6, d_out := d[name])
            params[norm, "scale"] = (d_out * normal).reshape(-1, normal.shape[-1]).sum(0)
        dx, params[name, "kernel"], params[name, "bias"] = project_backward(x, linear, d[name])
        inputs.append(dx)
    return inputs, params


CASES = {
    "plain": {},
    "no bias": {"use_bias": False},
    "one head": {"num_heads": 1},
    "grouped": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1},
    "normalized": {"normalize_qk": True},
    "normalized, grouped": {"normalize_qk": True, "num_kv_heads": 2},
    "all widths differ": {"qkv_features": 128, "out_features": 320, "in_kv_features": 192},
}

cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())


@cases
def test_forward_and_gradients_are_those_of_the_formula(options):
    layer = make(options.get("num_heads", 4), **{n: o for n, o in options.items() if n != "num_heads"})
    q, k = draw(2, 5, 256, seed=1), draw(2, 7, layer.in_kv_features, seed=2)
    v = draw(2, 7, layer.in_kv_features, seed=3)
    hidden = ~np.tri(5, 7, k=3, dtype=bool)
    expected, residuals = forward(layer, q, k, v, hidden)
    assert_close(layer(*map(to_float32, (q, k, v)), mask=~hidden), expected)
    dy = draw(*expected.shape, seed=4)
    params, *inputs = gradients(layer, dy, q, k, v, mask=~hidden)
    dinputs, dparams = backward(layer, q, k, v, residuals, dy)
    for ours, d in zip(inputs, dinputs, strict=True):
        assert_close(ours, d)
    for path, ours in nnx.to_flat_state(params):
        if path == ("key", "bias") and not layer.normalize_qk:
            # A bias of keys moves all scores of a query alike: its gradient is zero but for rounding.
            assert np.abs(ours[...]).max() < 1e-5 * np.abs(dparams["value", "bias"]).max()
        else:
            assert_close(ours[...], dparams[path])


def test_keys_and_values_default_to_what_stands_before():
    layer = make()
    x, y = to_float32(draw(2, 5, 256)), to_float32(draw(2, 7, 256))
    assert jnp.array_equal(layer(x), layer(x, x, x))
    assert jnp.array_equal(layer(x, y), layer(x, y, y))


def test_is_causal_is_a_causal_mask():
    layer, x = make(), to_float32(draw(2, 6, 256))
    masked = layer(x, mask=nnx.make_causal_mask(x[..., 0]))
    assert_close(layer(x, is_causal=True), np.asarray(masked, np.float64), 1e-6)


def test_query_that_sees_nothing_gets_the_bias_of_out():
    layer, x = make(), to_float32(draw(2, 6, 256))
    y = layer(x, mask=jnp.zeros((6, 6), bool))
    assert_close(y, np.broadcast_to(value(layer.out.bias), y.shape), 1e-6)


def test_shapes_of_the_parameters():
    layer = make(4, 24, qkv_features=32, out_features=10, num_kv_heads=2, in_kv_features=20)
    shapes = {path: leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(layer))}
    assert shapes == {
        ("query", "kernel"): (24, 4, 8),
        ("query", "bias"): (4, 8),
        ("key", "kernel"): (20, 2, 8),
        ("key", "bias"): (2, 8),
        ("value", "kernel"): (20, 2, 8),
        ("value", "bias"): (2, 8),
        ("out", "kernel"): (4, 8, 10),
        ("out", "bias"): (10,),
    }


def test_initializers_see_matrices():
    layer = nnx.MultiHeadAttention(4, 256, rngs=nnx.Rngs(0))
    for linear in (layer.query, layer.key, layer.value, layer.out):
        assert float(linear.kernel[...].std() * 16) == pytest.approx(1, abs=0.02)


def test_out_has_initializers_of_its_own():
    ones = nnx.initializers.ones
    layer = nnx.MultiHeadAttention(2, 4, out_kernel_init=ones, out_bias_init=ones, rngs=nnx.Rngs(0), **QUICK)
    assert (layer.out.kernel[...] == 1).all()
    assert (layer.out.bias[...] == 1).all()
    assert not layer.query.kernel[...].any()


def test_metadata_is_that_of_the_params():
    names = ("kernel", "out_kernel", "bias", "out_bias", "query_ln_scale", "key_ln_scale")
    metadata = {f"{name}_metadata": {"tag": name} for name in names}
    layer = make(2, 4, normalize_qk=True, **metadata)
    tags = {path: leaf.tag for path, leaf in nnx.to_flat_state(nnx.state(layer))}
    for linear in ("query", "key", "value"):
        assert tags[linear, "kernel"] == "kernel"
        assert tags[linear, "bias"] == "bias"
    assert tags["out", "kernel"] == "out_kernel"
    assert tags["out", "bias"] == "out_bias"
    assert tags["query_ln", "scale"] == "query_ln_scale"
    assert tags["key_ln", "scale"] == "key_ln_scale"


@pytest.mark.parametrize(
    ("inputs", "param", "dtype", "result"),
    [
        ("bfloat16", "float32", None, "float32"),
        ("bfloat16", "bfloat16", None, "bfloat16"),
        ("float32", "float32", "bfloat16", "bfloat16"),
    ],
)
def test_dtype_of_the_result(inputs, param, dtype, result):
    layer = make(2, 4, param_dtype=param, dtype=dtype, normalize_qk=True)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(layer))} == {param}
    assert layer(jnp.ones((1, 3, 4), inputs)).dtype == result


def test_hooks_of_the_projections():
    calls = []

    def hook(name):
        def dot_general(*args, **options):
            calls.append(name)
            return jax.lax.dot_general(*args, **options)

        return dot_general

    layer = make(2, 4, qkv_dot_general=hook("qkv"), out_dot_general_cls=lambda: hook("out"))
    layer(jnp.ones((1, 3, 4)))
    assert calls == ["qkv", "qkv", "qkv", "out"]


def test_hooks_of_dtypes():
    calls = []

    def hook(name):
        def promote(args, **options):
            calls.append(name)
            return nnx.promote_dtype(args, **options)

        return promote

    promotes = {f"{name}_promote_dtype": hook(name) for name in ("qkv", "out", "ln")}
    make(2, 4, normalize_qk=True, **promotes)(jnp.ones((1, 3, 4)))
    assert calls == ["qkv", "qkv", "qkv", "ln", "ln", "out"]


def test_attention_function_is_given_what_is_set():
    seen = {}

    def attention(query, key, value, **options):
        seen.update(options)
        return query

    layer = make(2, 4, attention_fn=attention, dropout_rate=0.25, dtype=jnp.float16)
    layer(jnp.ones((1, 3, 4)), deterministic=True)
    assert seen == {
        "mask": None,
        "dropout_rng": None,
        "dropout_rate": 0.25,
        "broadcast_dropout": True,
        "deterministic": True,
        "dtype": jnp.float16,
        "precision": None,
        "module": None,
    }
    layer(jnp.ones((1, 3, 4)), deterministic=True, is_causal=True, input_positions=7, sow_weights=True)
    assert seen["is_causal"] is True
    assert seen["input_positions"] == 7
    assert seen["module"] is layer


def test_sown_weights():
    layer, x = make(), draw(2, 5, 256)
    layer(to_float32(x), sow_weights=True)
    (weights,) = nnx.pop(layer, nnx.Intermediate)["attention_weights"][...]
    assert_close(weights, forward(layer, x, x, x)[1][-1])


def test_dropout_follows_the_mode():
    layer, x = make(dropout_rate=0.5), to_float32(draw(2, 5, 256))
    assert not jnp.array_equal(layer(x), layer(x))
    assert jnp.array_equal(layer(x, deterministic=True), layer(x, deterministic=True))
    layer.eval()
    assert layer.deterministic is True
    assert jnp.array_equal(layer(x), layer(x, deterministic=True))
    layer.train()
    assert not jnp.array_equal(layer(x), layer(x))


def test_dropout_may_be_given_keys_at_the_call():
    layer, x = make(dropout_rate=0.5, keep_rngs=False), to_float32(draw(2, 5, 256))
    assert layer.rngs is None
    key = jax.random.key(0)
    assert jnp.array_equal(layer(x, rngs=key), layer(x, rngs=key))
    assert not jnp.array_equal(layer(x, rngs=nnx.Rngs(1)), layer(x, rngs=key))


def test_layer_without_dropout_keeps_no_stream():
    layer = make(2, 4, rngs=nnx.Rngs(params=0))
    assert layer.rngs is None
    assert layer(jnp.ones((1, 3, 4))).shape == (1, 3, 4)


def test_jit_gives_what_eager_gives():
    layer, x = make(num_kv_heads=2, normalize_qk=True), to_float32(draw(2, 5, 256))
    y = nnx.jit(lambda m, x: m(x, is_causal=True))(layer, x)
    assert_close(y, np.asarray(layer(x, is_causal=True), np.float64), 1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_heads": 3}, "num_heads = 3. Expected a divisor of qkv_features=8."),
        ({"qkv_features": 6}, "num_heads = 4. Expected a divisor of qkv_features=6."),
        ({"num_kv_heads": 3}, "num_kv_heads = 3. Expected a divisor of num_heads=4."),
        ({"num_heads": 0}, "num_heads = 0. Expected a whole number, 1 or more."),
        ({"out_features": 0}, "out_features = 0. Expected a whole number, 1 or more."),
        ({"dropout_rate": 2}, "dropout_rate = 2. Expected a number in [0, 1]."),
    ],
)
def test_options_that_are_refused(options, text):
    options = {"num_heads": 4, "in_features": 8, "rngs": nnx.Rngs(0)} | QUICK | options
    with pytest.raises(LayerOptionError) as error:
        nnx.MultiHeadAttention(**options)
    assert str(error.value) == "MultiHeadAttention: found " + text


def test_error_for_values_without_keys():
    x = jnp.ones((1, 3, 4))
    with pytest.raises(LayerInputError) as error:
        make(2, 4)(x, inputs_v=x)
    assert str(error.value) == (
        "MultiHeadAttention: found inputs_k = None, but inputs_v is given. Expected both or inputs_k "
        "alone. Write `layer(inputs_q, inputs_k, inputs_v)`."
    )


@pytest.mark.parametrize(
    ("argument", "option", "size"),
    [("inputs_q", "in_features", 4), ("inputs_k", "in_kv_features", 6), ("inputs_v", "in_kv_features", 6)],
)
def test_error_for_other_features(argument, option, size):
    inputs = {"inputs_q": jnp.ones((3, 4)), "inputs_k": jnp.ones((3, 6)), "inputs_v": jnp.ones((3, 6))}
    inputs[argument] = jnp.ones((3, 5))
    with pytest.raises(LayerInputError) as error:
        make(2, 4, in_kv_features=6)(**inputs)
    assert str(error.value) == (
        f"MultiHeadAttention: found {argument} = an array of shape (3, 5). Expected its last axis to be "
        f"{option}={size}. Make the layer with {option}=5, or pass it {size} features."
    )


def test_error_for_dropout_without_a_stream():
    layer = make(2, 4, dropout_rate=0.5, keep_rngs=False)
    with pytest.raises(MissingKeyError, match=r"^MultiHeadAttention: found no random stream"):
        layer(jnp.ones((1, 3, 4)))
