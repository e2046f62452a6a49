"""`MultiMetric`: several metrics under one update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .._repr import short
from .._variable import Variable
from ..errors import MetricArgumentError, MetricNameError
from ..graph._traverse import iter_graph
from ._metrics import Keywords, Metric


class MultiMetric(Metric):
    """Several metrics that are updated, computed and reset together.

    `update` hands each metric the keyword arguments that it takes. A metric of one array, such as
    `Average()`, takes its `argname`, else the keyword that is its name here.

    Args:
        **metrics: The metrics by name.

    Raises:
        MetricNameError: If a name would hide a method, or a value is no metric.

    Example:
        >>> metrics = nnx.MultiMetric(loss=nnx.metrics.Average(), score=nnx.metrics.Average())
        >>> metrics.update(loss=jnp.array([1.0, 3.0]), score=jnp.array(0.5))
        >>> {name: float(x) for name, x in metrics.compute().items()}
        {'loss': 2.0, 'score': 0.5}
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **metrics: Any):
        for name, metric in metrics.items():
            if hasattr(type(self), name):
                raise MetricNameError(name, "the name of a method", f"MultiMetric({name}_=...)")
            if not isinstance(metric, Metric):
                raise MetricNameError(name, short(metric), f"MultiMetric({name}=nnx.metrics.Average())")
        for name, metric in metrics.items():
            setattr(self, name, metric)

    def _metrics(self) -> dict[str, Metric]:
        """The metrics by name."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Metric)}

    def reset(self) -> None:
        """Reset every metric."""
        for metric in self._metrics().values():
            metric.reset()

    def update(self, **updates: Any) -> None:
        """Hand each metric the keyword arguments that it takes; after an error none is changed.

        Args:
            **updates: The arguments of all metrics.

        Raises:
            MetricArgumentError: If a metric misses an argument, or no metric takes one.
        """
        sources = {name: m._sources(name, updates) for name, m in self._metrics().items()}
        self._check(sources, updates)
        states = [x for _, x in iter_graph(self) if isinstance(x, Variable)]
        before = [(state, state.get_raw_value()) for state in states]
        try:
            for name, metric in self._metrics().items():
                metric.update(**{k: updates[source] for k, source in sources[name].items()})
        except BaseException:
            for state, value in before:
                state.set_raw_value(value)
            raise

    def compute(self) -> dict[str, Any]:
        """What each metric computes, by name."""
        return {name: metric.compute() for name, metric in self._metrics().items()}

    def _keywords(self) -> Keywords:
        return Keywords((), (), True)

    def _sources(self, name: str, given: Iterable[str]) -> dict[str, str]:
        below = [m._sources(own_name, given) for own_name, m in self._metrics().items()]
        return {source: source for sources in below for source in sources.values()}

    def _check(self, sources: Mapping[str, Mapping[str, str]], given: Iterable[str]) -> None:
        """Refuse missing and unknown keywords, naming the metrics."""
        metrics = self._metrics()
        missing = tuple(
            f"{keyword} for {name} ({type(metric).__name__})"
            for name, metric in metrics.items()
            for keyword in metric._missing(name, sources[name])
        )
        taken = {source for below in sources.values() for source in below.values()}
        unknown = tuple(repr(keyword) for keyword in given if keyword not in taken)
        if missing or unknown:
            known = (k for m in metrics.values() for k in (*m._keywords().required, *m._keywords().optional))
            raise MetricArgumentError(type(self).__name__, missing, unknown, tuple(dict.fromkeys(known)))
