"""Metrics: running summaries of what a training or evaluation loop computes.

A metric is an object with state in `MetricState` Variables: `update` takes a batch, `compute` gives the
summary of all batches since the last `reset`. Being objects of the graph, metrics go through `nnx.jit`,
`nnx.vmap` and `nnx.scan` as models do.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._filters import Filter
from .._pytree import Pytree
from .._repr import short
from .._typing import Array
from .._variable import Variable
from .._variable_names import register_variable_name
from ..errors import MetricArgumentError, MetricValueError
from ..graph._functional import split


@register_variable_name("MetricState")
class MetricState(Variable[Any]):
    """What a metric keeps from one update to the next.

    Example:
        >>> nnx.metrics.Average().count
        MetricState( # 1 (4 B)
          value=Array(0., dtype=float32)
        )
    """

    __slots__ = ()


class Keywords(NamedTuple):
    """The keyword arguments of a metric's `update`."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    any_other: bool = False


class Metric(Pytree):
    """Base of metrics: `reset`, `update`, `compute`.

    Example:
        >>> class Largest(nnx.Metric):
        ...     def __init__(self):
        ...         self.value = nnx.metrics.MetricState(jnp.array(-jnp.inf))
        ...     def reset(self):
        ...         self.value[...] = jnp.full_like(self.value[...], -jnp.inf)
        ...     def update(self, *, values):
        ...         self.value[...] = jnp.maximum(self.value[...], values.max())
        ...     def compute(self):
        ...         return self.value[...]
        >>> largest = Largest()
        >>> largest.update(values=jnp.arange(3.0))
        >>> float(largest.compute())
        2.0
    """

    def reset(self) -> None:
        """Forget everything."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    def update(self, **kwargs: Any) -> None:
        """Take a batch into account."""
        raise NotImplementedError(f"{type(self).__name__} does not define update")

    def compute(self) -> Any:
        """The summary of all batches since the last reset."""
        raise NotImplementedError(f"{type(self).__name__} does not define compute")

    def split(self, *filters: Filter) -> Any:
        """The GraphDef and the States of the metric; the same as `nnx.split(metric, *filters)`."""
        return split(self, *filters)

    def _keywords(self) -> Keywords:
        """What `update` takes; by default read off its signature."""
        parameters = list(inspect.signature(self.update).parameters.values())
        named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        required = tuple(p.name for p in named if p.default is p.empty)
        optional = tuple(p.name for p in named if p.default is not p.empty)
        return Keywords(required, optional, any(p.kind is p.VAR_KEYWORD for p in parameters))

    def _sources(self, name: str, given: Iterable[str]) -> dict[str, str]:
        """Which of the keywords given to a MultiMetric goes to which keyword of `update`.

        The MultiMetric calls this metric `name`.
        """
        known = self._keywords()
        taken = (k for k in given if known.any_other or k in known.required or k in known.optional)
        return {k: k for k in taken}

    def _missing(self, name: str, sources: Mapping[str, str]) -> list[str]:
        """The keywords that `update` needs and that the sources of this metric, `name`, do not have."""
        return [repr(k) for k in self._keywords().required if k not in sources]


def _zero(*states: MetricState) -> None:
    """Set states to zero, whatever shape they have by now."""
    for state in states:
        state.set_value(jnp.zeros_like(state.get_value()))


def _scalar_state() -> MetricState:
    """One number, zero."""
    return MetricState(jnp.zeros((), jnp.float32))


class _OneArgument(Metric):
    """A metric of one array, under a keyword that its user chooses, with weights and a mask."""

    argname: str

    def _keywords(self) -> Keywords:
        return Keywords((self.argname,), ("weights", "mask"))

    def _sources(self, name: str, given: Iterable[str]) -> dict[str, str]:
        found = super()._sources(name, given)
        return found if self.argname in found or name not in given else {**found, self.argname: name}

    def _missing(self, name: str, sources: Mapping[str, str]) -> list[str]:
        found = super()._missing(name, sources)
        return [f"{self.argname!r} (or {name!r})"] if found and name != self.argname else found

    def _only(self, kwargs: Mapping[str, Any]) -> Any:
        """The one argument."""
        if kwargs.keys() != {self.argname}:
            missing = () if self.argname in kwargs else (repr(self.argname),)
            unknown = tuple(repr(k) for k in kwargs if k != self.argname)
            known = (self.argname, "weights", "mask")
            raise MetricArgumentError(type(self).__name__, missing, unknown, known)
        return kwargs[self.argname]


class _Mean(Metric):
    """The state of a weighted mean."""

    total: MetricState
    count: MetricState

    def __init__(self) -> None:
        self.total = _scalar_state()
        self.count = _scalar_state()

    def reset(self) -> None:
        """Forget all values; the shapes of the state stay."""
        _zero(self.total, self.count)

    def compute(self) -> Array:
        """The mean, float32; nan if no value counted."""
        mean: Array = self.total.get_value() / self.count.get_value()
        return mean

    def _add(self, values: Any, weights: Any, mask: Any) -> None:
        """Add values to the mean."""
        values, weights = _weighted(type(self).__name__, values, weights, mask)
        self.total.set_value(self.total.get_value() + (values * weights).sum())
        self.count.set_value(self.count.get_value() + weights.sum())


class Average(_OneArgument, _Mean):
    """The weighted mean of all values seen since the last reset.

    Give weights where batches differ in size: the mean of the means of batches is wrong if the last one is
    short, `average.update(values=batch_mean, weights=batch_size)` is right.

    Args:
        argname: The keyword under which `update` takes the values.

    Example:
        >>> average = nnx.metrics.Average('loss')
        >>> average.update(loss=jnp.array([1.0, 2.0, 9.0]), mask=jnp.array([True, True, False]))
        >>> average.update(loss=jnp.array(3.0), weights=2)
        >>> float(average.compute())
        2.25
    """

    def __init__(self, argname: str = "values"):
        super().__init__()
        self.argname = argname

    def update(self, *, weights: Any = None, mask: Any = None, **kwargs: Any) -> None:
        """Take values into account.

        Args:
            weights: How much each value counts, of a shape that broadcasts to that of the values.
            mask: False where a value does not count at all, of a shape that broadcasts likewise.
            **kwargs: The values, (...), under the keyword `argname`.

        Raises:
            MetricArgumentError: If the values are missing, or there is another keyword.
            MetricValueError: If the shape of the weights or of the mask does not fit.
        """
        self._add(self._only(kwargs), weights, mask)


class Accuracy(_Mean):
    """The share of labels that are predicted right.

    Args:
        threshold: If given, the classes are two, and the second is predicted where a logit is above.

    Example:
        >>> accuracy = nnx.metrics.Accuracy()
        >>> accuracy.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2]]), labels=jnp.array([1, 1]))
        >>> float(accuracy.compute())
        0.5
    """

    def __init__(self, threshold: float | None = None):
        super().__init__()
        self.threshold = threshold

    def update(  # type: ignore[override]  # each metric says which keywords it takes
        self, *, logits: Any, labels: Any, weights: Any = None, mask: Any = None
    ) -> None:
        """Take predictions into account.

        Args:
            logits: (..., classes), or (...) with a threshold.
            labels: Integers, (...); with a threshold also booleans.
            weights: How much each label counts, of a shape that broadcasts to that of the labels.
            mask: False where a label does not count at all, of a shape that broadcasts likewise.

        Raises:
            MetricValueError: If the shapes or the types do not fit.
        """
        logits, labels = jnp.asarray(logits), jnp.asarray(labels)
        self._check(logits, labels)
        if self.threshold is None:
            predicted = logits.argmax(axis=-1)  # (..., classes) -> (...)
            right = predicted == labels.astype(predicted.dtype)
        else:
            right = (logits > self.threshold) == labels.astype(bool)
        self._add(right, weights, mask)

    def _check(self, logits: Array, labels: Array) -> None:
        """Refuse logits and labels that do not fit each other."""
        shape = logits.shape[:-1] if self.threshold is None else logits.shape
        expected = "labels.shape + (classes,)" if self.threshold is None else "the shape of the labels"
        if logits.ndim == 0 and self.threshold is None or shape != labels.shape:
            found = f"logits {short(logits)} and labels {short(labels)}"
            raise MetricValueError("Accuracy", found, f"logits of shape {expected}")
        whole = jnp.issubdtype(labels.dtype, jnp.integer)
        if not whole and not (labels.dtype == bool and self.threshold is not None):
            instead = "Write labels.argmax(-1) for labels that are one-hot."
            raise MetricValueError("Accuracy", f"labels {short(labels)}", "integers", instead)


class Statistics(NamedTuple):
    """What `Welford` computes.

    Attributes:
        mean: The mean.
        standard_error_of_mean: The standard deviation over the square root of the count.
        standard_deviation: The square root of the mean squared distance from the mean.

    Example:
        >>> welford = nnx.metrics.Welford()
        >>> welford.update(values=jnp.array([1.0, 3.0]))
        >>> float(welford.compute().standard_deviation)
        1.0
    """

    mean: Any
    standard_error_of_mean: Any
    standard_deviation: Any


class Welford(_OneArgument):
    """Mean and spread of all values seen since the last reset, in one pass and without cancellation.

    Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.

    Args:
        argname: The keyword under which `update` takes the values.

    Example:
        >>> welford = nnx.metrics.Welford('loss')
        >>> welford.update(loss=jnp.array([1.0, 3.0]))
        >>> float(welford.compute().mean)
        2.0
    """

    def __init__(self, argname: str = "values"):
        self.argname = argname
        self.count = _scalar_state()
        self.mean = _scalar_state()
        self.m2 = _scalar_state()  # the sum of squared distances from the mean

    def reset(self) -> None:
        """Forget all values; the shapes of the state stay."""
        _zero(self.count, self.mean, self.m2)

    def update(self, *, weights: Any = None, mask: Any = None, **kwargs: Any) -> None:
        """Take values into account.

        Args:
            weights: How many times each value counts, of a shape that broadcasts to that of the values.
            mask: False where a value does not count at all, of a shape that broadcasts likewise.
            **kwargs: The values, (...), under the keyword `argname`.

        Raises:
            MetricArgumentError: If the values are missing, or there is another keyword.
            MetricValueError: If the shape of the weights or of the mask does not fit.
        """
        values, weights = _weighted(type(self).__name__, self._only(kwargs), weights, mask)
        count, mean = self.count.get_value(), self.mean.get_value()
        batch_count = weights.sum()
        batch_mean = (values * weights).sum() / jnp.where(batch_count > 0, batch_count, 1)
        batch_m2 = (weights * (values - batch_mean) ** 2).sum()
        total = count + batch_count
        share = batch_count / jnp.where(total > 0, total, 1)  # of the batch in all values
        distance = batch_mean - mean
        self.mean.set_value(mean + distance * share)
        self.m2.set_value(self.m2.get_value() + batch_m2 + distance**2 * count * share)
        self.count.set_value(total)

    def compute(self) -> Statistics:
        """The statistics, float32; nan if no value counted."""
        count = self.count.get_value()
        deviation = jnp.sqrt(self.m2.get_value() / count)
        mean = jnp.where(count > 0, self.mean.get_value(), jnp.nan)
        return Statistics(mean, deviation / jnp.sqrt(count), deviation)


def _weighted(metric: str, values: Any, weights: Any, mask: Any) -> tuple[Array, Array]:
    """Values and their weights, in float32 and of one shape; a value of weight zero is zero, also for nan."""
    values = jnp.asarray(values)
    given = {"weights": weights, "mask": mask}
    factor = jnp.ones(values.shape, jnp.float32)
    for name, x in given.items():
        if x is not None:
            factor = factor * _fitted(metric, name, jnp.asarray(x), values)
    return jnp.where(factor != 0, values.astype(jnp.float32), 0), factor


def _fitted(metric: str, name: str, x: Array, values: Array) -> Array:
    """Weights or a mask in the shape of the values."""
    if name == "mask":
        x = x.astype(bool)
    try:
        fits = np.broadcast_shapes(x.shape, values.shape) == values.shape
    except ValueError:
        fits = False
    if not fits:
        found = f"{name} {short(x)} for values {short(values)}"
        instead = ""
        if x.shape == values.shape[: x.ndim]:
            index = ", ".join([":"] * x.ndim + ["None"] * (values.ndim - x.ndim))
            instead = f"Write {name}[{index}]."
        raise MetricValueError(metric, found, f"a shape that broadcasts to {values.shape}", instead)
    return jnp.broadcast_to(x, values.shape).astype(jnp.float32)
