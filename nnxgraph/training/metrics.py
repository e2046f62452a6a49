"""Metrics, as `nnx.metrics`: running summaries of what a training or evaluation loop computes."""

from .._pytree import Pytree as Pytree
from .._variable import Variable as Variable
from ._metrics import Accuracy as Accuracy
from ._metrics import Average as Average
from ._metrics import Metric as Metric
from ._metrics import MetricState as MetricState
from ._metrics import Statistics as Statistics
from ._metrics import Welford as Welford
from ._multi_metric import MultiMetric as MultiMetric

__all__ = [
    "Accuracy",
    "Average",
    "Metric",
    "MetricState",
    "MultiMetric",
    "Pytree",
    "Statistics",
    "Variable",
    "Welford",
]
