"""Average, Accuracy and Welford against NumPy; their state under jit, vmap, scan and split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import MetricArgumentError, MetricValueError

RNG = np.random.default_rng(0)
BATCHES = [RNG.normal(size=shape) for shape in [(4, 3), (4, 3), (2, 3), (1, 3)]]  # the last ones are short
ALL = np.concatenate(BATCHES)

one_argument = pytest.mark.parametrize("metric", [nnx.metrics.Average, nnx.metrics.Welford])


def filled(metric, batches=BATCHES, **options):
    for batch in batches:
        metric.update(values=jnp.asarray(batch, jnp.float32), **options)
    return metric


def mean(metric):
    """The mean that a metric computes."""
    found = metric.compute()
    return found.mean if isinstance(found, nnx.metrics.Statistics) else found


@one_argument
def test_mean_is_over_all_values(metric):
    np.testing.assert_allclose(mean(filled(metric())), ALL.mean(), rtol=1e-5)


def test_spread_is_over_all_values():
    found = filled(nnx.metrics.Welford()).compute()
    np.testing.assert_allclose(found.standard_deviation, ALL.std(), rtol=1e-5)
    np.testing.assert_allclose(found.standard_error_of_mean, ALL.std() / np.sqrt(ALL.size), rtol=1e-5)


def test_spread_far_from_zero_does_not_cancel():
    welford = filled(nnx.metrics.Welford(), [batch + 1e4 for batch in BATCHES])
    np.testing.assert_allclose(welford.compute().standard_deviation, ALL.std(), rtol=1e-3)


# name: weights and mask for values of shape (4, 3)
SELECTIONS = {
    "weights": (RNG.uniform(size=(4, 3)), None),
    "weights of rows": (RNG.uniform(size=(4, 1)), None),
    "weights of columns": (RNG.uniform(size=3), None),
    "one weight": (2, None),
    "whole weights": (np.arange(12).reshape(4, 3), None),
    "mask": (None, RNG.uniform(size=(4, 3)) > 0.5),
    "mask of rows": (None, np.array([[True], [False], [True], [True]])),
    "mask of integers": (None, np.array([1, 0, 1])),
    "both": (RNG.uniform(size=(4, 1)), np.array([True, False, True])),
}


@one_argument
@pytest.mark.parametrize(("weights", "mask"), SELECTIONS.values(), ids=SELECTIONS.keys())
def test_weights_and_masks_broadcast(metric, weights, mask):
    full = np.ones((4, 3)) * (1 if weights is None else weights) * (1 if mask is None else mask)
    found = filled(metric(), BATCHES[:2], weights=weights, mask=mask)
    both, twice = np.concatenate(BATCHES[:2]), np.concatenate([full, full])
    expected = np.average(both, weights=twice)
    np.testing.assert_allclose(mean(found), expected, rtol=1e-5)
    if metric is nnx.metrics.Welford:
        spread = np.sqrt(np.average((both - expected) ** 2, weights=twice))
        np.testing.assert_allclose(found.compute().standard_deviation, spread, rtol=1e-5)


def test_means_of_batches_are_weighted_by_their_sizes():
    average = nnx.metrics.Average("loss")
    for batch in BATCHES:
        average.update(loss=batch.mean(dtype=np.float32), weights=batch.size)
    np.testing.assert_allclose(average.compute(), ALL.mean(), rtol=1e-5)


@one_argument
def test_a_masked_nan_does_not_count(metric):
    found = metric()
    found.update(values=jnp.array([1.0, jnp.nan]), mask=jnp.array([True, False]))
    found.update(values=jnp.array([3.0, jnp.inf]), weights=jnp.array([1, 0]))
    assert mean(found) == 2


@one_argument
def test_mean_of_nothing_is_nan(metric):
    found = metric()
    assert jnp.isnan(jnp.stack(jax.tree.leaves(found.compute()))).all()
    found.update(values=jnp.ones(2), mask=jnp.zeros(2, bool))
    assert jnp.isnan(mean(found))
    found.update(values=jnp.ones(2))
    assert mean(found) == 1


@one_argument
@pytest.mark.parametrize("values", [3, True, np.arange(3), jnp.ones(2, jnp.bfloat16), nnx.Param(jnp.ones(2))])
def test_values_of_any_type(metric, values):
    found = metric()
    found.update(values=values)
    expected = np.mean(np.asarray(getattr(values, "value", values), np.float32))
    np.testing.assert_allclose(mean(found), expected)
    assert mean(found).dtype == jnp.float32


@one_argument
def test_reset_forgets_and_keeps_the_shape(metric):
    metrics = nnx.vmap(lambda seed: metric(), axis_size=3)(jnp.arange(3))
    nnx.vmap(lambda m, x: m.update(values=x))(metrics, jnp.arange(6.0).reshape(3, 2))
    np.testing.assert_allclose(nnx.vmap(mean)(metrics), [0.5, 2.5, 4.5])
    metrics.reset()
    states = nnx.to_flat_state(nnx.state(metrics)).leaves
    assert all(x.shape == (3,) and (x[...] == 0).all() for x in states)


@one_argument
def test_under_jit_in_one_trace(metric):
    traces = []

    @nnx.jit
    def step(m, x):
        traces.append(1)
        m.update(values=x)

    found = metric()
    for batch in BATCHES[:2]:
        step(found, jnp.asarray(batch, jnp.float32))
    found.reset()
    step(found, jnp.asarray(BATCHES[0], jnp.float32))
    np.testing.assert_allclose(mean(found), BATCHES[0].mean(), rtol=1e-5)
    assert len(traces) == 1


@one_argument
def test_under_scan(metric):
    def step(m, x):
        m.update(values=x)
        return m, mean(m)

    found = metric()
    x = jnp.asarray(ALL[:9].reshape(3, 9), jnp.float32)  # (steps, values)
    _, means = nnx.scan(step)(found, x)
    np.testing.assert_allclose(means[-1], ALL[:9].mean(), rtol=1e-5)
    np.testing.assert_allclose(mean(found), ALL[:9].mean(), rtol=1e-5)


def test_split_is_that_of_the_graph():
    average = filled(nnx.metrics.Average())
    graphdef, state = average.split(nnx.metrics.MetricState)
    assert list(state) == ["total", "count"]
    assert nnx.merge(graphdef, state).compute() == average.compute()


LOGITS = RNG.normal(size=(5, 7, 4))
LABELS = RNG.integers(0, 4, size=(5, 7))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int8])
def test_accuracy_is_the_share_of_right_labels(dtype):
    accuracy = nnx.metrics.Accuracy()
    accuracy.update(logits=jnp.asarray(LOGITS), labels=jnp.asarray(LABELS, dtype))
    np.testing.assert_allclose(accuracy.compute(), (LOGITS.argmax(-1) == LABELS).mean(), rtol=1e-6)


def test_accuracy_takes_weights_and_a_mask():
    accuracy = nnx.metrics.Accuracy()
    mask = LABELS > 0
    weights = RNG.uniform(size=(5, 1))
    accuracy.update(logits=jnp.asarray(LOGITS), labels=jnp.asarray(LABELS), mask=mask, weights=weights)
    expected = np.average(LOGITS.argmax(-1) == LABELS, weights=mask * weights)
    np.testing.assert_allclose(accuracy.compute(), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [bool, jnp.int32])
def test_accuracy_with_a_threshold_has_two_classes(dtype):
    accuracy = nnx.metrics.Accuracy(threshold=0.2)
    labels = LABELS > 1
    accuracy.update(logits=jnp.asarray(LOGITS[..., 0]), labels=jnp.asarray(labels, dtype))
    np.testing.assert_allclose(accuracy.compute(), ((LOGITS[..., 0] > 0.2) == labels).mean(), rtol=1e-6)


def update(metric, **kwargs):
    return lambda: metric.update(**kwargs)


WRONG = {
    "no values": (
        update(nnx.metrics.Average("loss"), weights=2),
        MetricArgumentError,
        ["Average.update", "'loss' is missing", "Expected 'loss', 'weights', 'mask'"],
    ),
    "misspelt weights": (
        update(nnx.metrics.Welford(), values=1.0, weight=2),
        MetricArgumentError,
        ["'weight' is taken by no metric", "Did you mean 'weights'"],
    ),
    "weights of rows without an axis": (
        update(nnx.metrics.Average(), values=jnp.ones((4, 3)), weights=jnp.ones(4)),
        MetricValueError,
        ["weights float32[4] for values float32[4,3]", "broadcasts to (4, 3)", "Write weights[:, None]"],
    ),
    "a mask that is larger": (
        update(nnx.metrics.Average(), values=1.0, mask=jnp.ones(4, bool)),
        MetricValueError,
        ["mask bool[4] for values", "broadcasts to ()"],
    ),
    "labels that are one-hot": (
        update(nnx.metrics.Accuracy(), logits=jnp.ones((2, 3)), labels=jnp.ones((2, 3))),
        MetricValueError,
        ["Accuracy.update: found logits float32[2,3] and labels float32[2,3]", "labels.shape + (classes,)"],
    ),
    "labels that are real": (
        update(nnx.metrics.Accuracy(), logits=jnp.ones((2, 3)), labels=jnp.ones(2)),
        MetricValueError,
        ["labels float32[2]", "Expected integers", "labels.argmax(-1)"],
    ),
    "no classes": (
        update(nnx.metrics.Accuracy(), logits=jnp.ones(()), labels=jnp.ones((), int)),
        MetricValueError,
        ["logits float32[]"],
    ),
    "classes beside a threshold": (
        update(nnx.metrics.Accuracy(0.5), logits=jnp.ones((2, 3)), labels=jnp.ones(2, int)),
        MetricValueError,
        ["logits of shape the shape of the labels"],
    ),
}


@pytest.mark.parametrize(("call", "error", "texts"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_refused(call, error, texts):
    with pytest.raises(error) as caught:
        call()
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("method", ["reset", "update", "compute"])
def test_a_metric_defines_its_methods(method):
    with pytest.raises(NotImplementedError, match=f"Metric does not define {method}"):
        getattr(nnx.Metric(), method)()
