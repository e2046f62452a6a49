"""What layers have to compute: formulas in NumPy and float64, forward and backward.

They are written from the papers' formulas, not from the layers. A `_backward` function takes the cotangent of
the output, and returns that of each input.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

import nnxgraph as nnx

TOLERANCE = 1e-5

# For layers whose values are set afterwards: drawing a kernel compiles for every shape.
QUICK = {"kernel_init": nnx.initializers.zeros}


def draw(*shape, seed=0):
    """Normal numbers in float64 that float32 represents exactly, so that both sides see the same."""
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return values.astype(np.float32).astype(np.float64)


def to_float32(x):
    """The array as a layer gets it."""
    return jnp.asarray(x, jnp.float32)


def value(variable):
    """The value of a Variable as float64."""
    return np.asarray(variable[...], np.float64)


def randomize(layer, seed=1):
    """Gives every Param normal values, so that no bias is zero and no scale is one."""
    for i, (_, param) in enumerate(nnx.to_flat_state(nnx.variables(layer, nnx.Param))):
        fan_in = math.prod(param.shape[:-1]) or 1
        scale = 1 / math.sqrt(fan_in) if len(param.shape) > 1 else 1.0
        values = to_float32(draw(*param.shape, seed=seed + i) * scale)
        param.set_value(values.astype(param.dtype))
    return layer


def assert_close(ours, expected, tolerance=TOLERANCE):
    """The largest difference is small beside the largest entry."""
    ours = np.asarray(ours, np.float64)
    assert ours.shape == expected.shape
    assert np.isfinite(ours).all()
    bound = tolerance * np.abs(expected).max()
    worst = np.abs(ours - expected).max()
    assert worst <= bound, f"differs by {worst:.3g}, allowed {bound:.3g}"


def gradients(layer, cotangent, *inputs, **options):
    """Gradients of sum(layer(inputs) * cotangent): by Param, as a State, and by each input."""
    graphdef, params, rest = nnx.split(layer, nnx.Param, ...)

    def loss(params, *inputs):
        outputs = nnx.merge(graphdef, params, rest)(*inputs, **options)
        return jnp.sum(outputs * to_float32(cotangent))

    grads = jax.grad(loss, argnums=tuple(range(len(inputs) + 1)))
    return jax.jit(grads)(params, *map(to_float32, inputs))


# --- normalisation: m and v are over axes, of the entries with mask 1


def moments(x, axes, mask=None):
    """Mean and biased variance."""
    mask = np.ones_like(x) if mask is None else np.broadcast_to(mask, x.shape)
    n = mask.sum(axes, keepdims=True)
    mean = (x * mask).sum(axes, keepdims=True) / n
    return mean, ((x - mean) ** 2 * mask).sum(axes, keepdims=True) / n


def normalize(x, axes, scale, bias, epsilon, mask=None):
    """LayerNorm and BatchNorm."""
    mean, variance = moments(x, axes, mask)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def normalize_backward(x, axes, scale, epsilon, dy, mask=None):
    """Cotangents of x and of the normalised x̂; scale and bias follow from the latter."""
    mask = np.ones_like(x) if mask is None else np.broadcast_to(mask, x.shape)
    n = mask.sum(axes, keepdims=True)
    mean, variance = moments(x, axes, mask)
    sigma = np.sqrt(variance + epsilon)
    normal = (x - mean) / sigma
    d = dy * scale
    through_mean = d.sum(axes, keepdims=True)
    through_variance = (d * normal).sum(axes, keepdims=True)
    dx = (d - mask / n * (through_mean + normal * through_variance)) / sigma
    return dx, normal


def rms_normalize(x, scale, epsilon):
    """RMSNorm over the last axis."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def rms_normalize_backward(x, scale, epsilon, dy):
    """Cotangents of x and of the scale."""
    root = np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    normal = x / root
    d = dy * scale
    dx = (d - normal * (d * normal).mean(-1, keepdims=True)) / root
    return dx, (dy * normal).reshape(-1, x.shape[-1]).sum(0)


# --- convolution, as a sum over kernel taps of "select rows, then multiply by a matrix"


def source_rows(n, size, stride, dilation, input_dilation, padding):
    """For each tap, a matrix (out, n) of zeros and ones: which input entry each output sees."""
    dilated = (n - 1) * input_dilation + 1
    reach = (size - 1) * dilation
    source = np.full(dilated, -1)
    source[::input_dilation] = np.arange(n)
    if padding in ("CIRCULAR", "REFLECT"):
        mode = {"CIRCULAR": "wrap", "REFLECT": "reflect"}[padding]
        source = np.pad(source, (reach // 2, reach - reach // 2), mode=mode)
    else:
        if padding == "SAME":
            total = max((-(-dilated // stride) - 1) * stride + reach + 1 - dilated, 0)
            padding = (total // 2, total - total // 2)
        padding = {"VALID": (0, 0), "CAUSAL": (reach, 0)}.get(padding, padding)
        before, after = padding
        source = np.pad(source, (max(before, 0), max(after, 0)), constant_values=-1)
        source = source[max(-before, 0) : len(source) - max(-after, 0)]
    outputs = (len(source) - reach - 1) // stride + 1
    select = (source[:, None] == np.arange(n)).astype(float)
    rows = np.arange(outputs) * stride
    return [select[rows + tap * dilation] for tap in range(size)]


def each_tap(kernel_shape, spatial, rows):
    """Yields each tap with the matrix of every spatial axis."""
    for tap in np.ndindex(*kernel_shape[:spatial]):
        yield tap, [rows[axis][t] for axis, t in enumerate(tap)]


def select(x, matrices, transpose=False):
    """Applies a matrix along each spatial axis, which are those after the first."""
    for axis, matrix in enumerate(matrices, start=1):
        matrix = matrix.T if transpose else matrix
        x = np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)
    return x


def full_kernel(kernel, groups):
    """The kernel of an ungrouped convolution that does the same: zero between groups."""
    *size, inputs, outputs = kernel.shape
    full = np.zeros((*size, inputs * groups, outputs))
    for g in range(groups):
        columns = slice(g * outputs // groups, (g + 1) * outputs // groups)
        full[..., g * inputs : (g + 1) * inputs, columns] = kernel[..., columns]
    return full


def convolve(x, kernel, rows):
    """x (batch, *spatial, in), kernel (*size, in, out)."""
    spatial = len(rows)
    return sum(select(x, m) @ kernel[tap] for tap, m in each_tap(kernel.shape, spatial, rows))


def convolve_backward(x, kernel, rows, dy):
    """Cotangents of x and of the kernel."""
    dx, dkernel = np.zeros_like(x), np.zeros_like(kernel)
    for tap, matrices in each_tap(kernel.shape, len(rows), rows):
        dx += select(dy @ kernel[tap].T, matrices, transpose=True)
        patch = select(x, matrices)
        dkernel[tap] = patch.reshape(-1, patch.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])
    return dx, dkernel


# --- attention: q (..., L, H, D), k and v (..., S, H, D), with as many heads; hidden is 1 where masked


def attend(q, k, v, bias=0.0, hidden=None):
    """Outputs and weights; rows that are all hidden are zero."""
    scores = np.einsum("...lhd,...shd->...hls", q, k) / math.sqrt(q.shape[-1]) + bias
    if hidden is not None:
        scores = np.where(np.broadcast_to(hidden, scores.shape), -np.inf, scores)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return np.einsum("...hls,...shd->...lhd", weights, v), weights


def attend_backward(q, k, v, weights, dy):
    """Cotangents of q, k, v and of the scores (which is that of a bias)."""
    dv = np.einsum("...hls,...lhd->...shd", weights, dy)
    dweights = np.einsum("...lhd,...shd->...hls", dy, v)
    inner = (dweights * weights).sum(-1, keepdims=True)
    dscores = weights * (dweights - inner)
    scale = math.sqrt(q.shape[-1])
    dq = np.einsum("...hls,...shd->...lhd", dscores, k) / scale
    dk = np.einsum("...hls,...lhd->...shd", dscores, q) / scale
    return dq, dk, dv, dscores
