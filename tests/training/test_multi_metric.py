"""MultiMetric: which metric gets which keyword, and what is refused."""

import copy
import pickle

import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import MetricArgumentError, MetricNameError, MetricValueError
from nnxgraph.training.metrics import Accuracy, Average, Metric, MetricState, Welford

LOGITS = jnp.array([[0.0, 1.0], [1.0, 0.0]])
LABELS = jnp.array([1, 1])


class Largest(Metric):
    """A metric of a user: keywords by signature."""

    def __init__(self):
        self.seen = MetricState(jnp.array(-jnp.inf))

    def reset(self):
        self.seen[...] = jnp.full_like(self.seen[...], -jnp.inf)

    def update(self, *, logits, scale=1.0):
        self.seen[...] = jnp.maximum(self.seen[...], scale * logits.max())

    def compute(self):
        return self.seen[...]


class Takes(Metric):
    """A metric that takes all keywords and remembers their names."""

    def __init__(self):
        self.names = None

    def reset(self):
        self.names = None

    def update(self, *, labels, **others):
        self.names = sorted(others)

    def compute(self):
        return self.names


def computed(metrics):
    return {name: float(x) for name, x in metrics.compute().items()}


def test_each_metric_picks_its_keywords():
    metrics = nnx.MultiMetric(accuracy=Accuracy(), loss=Average(), largest=Largest())
    metrics.update(logits=LOGITS, labels=LABELS, values=jnp.array([1.0, 3.0]), scale=2.0)
    assert computed(metrics) == {"accuracy": 0.5, "loss": 2.0, "largest": 2.0}


def test_metrics_of_one_array_go_by_their_own_name():
    metrics = nnx.MultiMetric(loss=Average(), score=Average(), spread=Welford("loss"))
    metrics.update(loss=jnp.array([1.0, 3.0]), score=jnp.array(5.0))
    found = metrics.compute()
    assert (found["loss"], found["score"], found["spread"].standard_deviation) == (2, 5, 1)


def test_argname_goes_before_the_own_name():
    metrics = nnx.MultiMetric(loss=Average("total"), total=Average("loss"))
    metrics.update(loss=1.0, total=2.0)
    assert computed(metrics) == {"loss": 2.0, "total": 1.0}


def test_weights_and_masks_go_to_all_that_take_them():
    metrics = nnx.MultiMetric(accuracy=Accuracy(), loss=Average(), largest=Largest())
    mask = jnp.array([True, False])
    metrics.update(logits=LOGITS, labels=LABELS, loss=jnp.array([1.0, 3.0]), mask=mask)
    assert computed(metrics) == {"accuracy": 1.0, "loss": 1.0, "largest": 1.0}


def test_metrics_may_be_nested():
    metrics = nnx.MultiMetric(train=nnx.MultiMetric(loss=Average()), accuracy=Accuracy())
    metrics.update(loss=2.0, logits=LOGITS, labels=LABELS)
    found = metrics.compute()
    assert (found["train"]["loss"], found["accuracy"]) == (2.0, 0.5)


def test_a_metric_of_any_keyword_gets_all():
    metrics = nnx.MultiMetric(loss=Average(), names=Takes())
    metrics.update(loss=2.0, labels=LABELS, other=1, weights=2)
    assert metrics.compute()["names"] == ["loss", "other", "weights"]


def test_reset_resets_all():
    metrics = nnx.MultiMetric(loss=Average(), score=Average())
    metrics.update(loss=1.0, score=2.0)
    metrics.reset()
    metrics.update(loss=3.0, score=4.0)
    assert computed(metrics) == {"loss": 3.0, "score": 4.0}
    assert metrics.loss.count[...] == 1


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"loss": 1.0}, ["'logits' for accuracy (Accuracy) is missing", "'labels' for accuracy (Accuracy)"]),
        ({"logits": LOGITS, "labels": LABELS}, ["'values' (or 'loss') for loss (Average) is missing"]),
        (
            {"logits": LOGITS, "labels": LABELS, "loss": 1.0, "label": 1},
            ["'label' is taken by no metric", "Did you mean 'labels'", "Nothing was changed"],
        ),
    ],
)
def test_missing_and_unknown_keywords_are_named(given, texts):
    metrics = nnx.MultiMetric(accuracy=Accuracy(), loss=Average())
    with pytest.raises(MetricArgumentError) as caught:
        metrics.update(**given)
    for text in texts:
        assert text in str(caught.value)


def test_no_metric_takes_no_keyword():
    nnx.MultiMetric().update()
    with pytest.raises(MetricArgumentError, match="none, as there is no metric"):
        nnx.MultiMetric().update(loss=1.0)


def test_after_an_error_no_metric_is_changed():
    metrics = nnx.MultiMetric(loss=Average(), accuracy=Accuracy())
    metrics.update(loss=1.0, logits=LOGITS, labels=LABELS)
    before = nnx.state(metrics)
    with pytest.raises(MetricValueError):
        metrics.update(loss=2.0, logits=LOGITS, labels=LABELS[:1])
    assert nnx.state(metrics) == before


@pytest.mark.parametrize("name", ["reset", "update", "compute", "split", "__init__", "_metrics"])
def test_a_name_that_would_hide_a_method_is_refused(name):
    with pytest.raises(MetricNameError, match=rf"MultiMetric\({name}=...\): found the name of a method"):
        nnx.MultiMetric(**{name: Average()})


@pytest.mark.parametrize(("value", "text"), [(Average, "the class Average"), (0.5, "0.5")])
def test_what_is_no_metric_is_refused(value, text):
    with pytest.raises(MetricNameError, match=f"found {text}. Expected metrics") as caught:
        nnx.MultiMetric(loss=value)
    assert "Write MultiMetric(loss=nnx.metrics.Average())" in str(caught.value)


def test_in_a_jitted_step_in_one_trace():
    traces = []

    @nnx.jit
    def step(metrics, loss):
        traces.append(1)
        metrics.update(loss=loss, logits=LOGITS, labels=LABELS)

    metrics = nnx.MultiMetric(loss=Average(), accuracy=Accuracy())
    for loss in (1.0, 2.0):
        step(metrics, loss)
    metrics.reset()
    step(metrics, 3.0)
    assert computed(metrics) == {"loss": 3.0, "accuracy": 0.5}
    assert len(traces) == 1


@pytest.mark.parametrize("twin", [nnx.clone, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_goes_on_alone(twin):
    metrics = nnx.MultiMetric(loss=Average(), accuracy=Accuracy(0.5))
    metrics.update(loss=1.0, logits=LOGITS[:, 0], labels=LABELS)
    other = twin(metrics)
    metrics.reset()
    other.update(loss=3.0, logits=LOGITS[:, 0], labels=LABELS)
    assert other.compute()["loss"] == 2.0
