"""Training: the optimizer over optax, and metrics."""

from . import metrics as metrics
from ._metrics import Metric as Metric
from ._multi_metric import MultiMetric as MultiMetric
from ._optax import OptArray as OptArray
from ._optax import OptState as OptState
from ._optax import OptVariable as OptVariable
from ._optimizer import ModelAndOptimizer as ModelAndOptimizer
from ._optimizer import Optimizer as Optimizer

__all__ = [
    "Metric",
    "ModelAndOptimizer",
    "MultiMetric",
    "OptArray",
    "OptState",
    "OptVariable",
    "Optimizer",
    "metrics",
]
