"""What the benchmarks measure on, and how."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

import nnxgraph as nnx

SIZES = (73, 703, 3000)  # leaves of a model with its optimizer


class Net(nnx.Module):
    """Linear layers with batch normalisations between; as many as make up a number of leaves."""

    def __init__(self, leaves: int, *, rngs: nnx.Rngs):
        norms = 2 if leaves % 3 == 0 else 1
        params = (leaves - 2 - 2 * norms) // 3  # adam keeps two more of each, and two counts
        linears, odd = divmod(params - 2 * norms, 2)
        self.norms = [nnx.BatchNorm(2, rngs=rngs) for _ in range(norms)]
        self.layers = [nnx.Linear(2, 2, rngs=rngs) for _ in range(linears)]
        self.head = nnx.Linear(2, 2, use_bias=False, rngs=rngs) if odd else None


def model_and_optimizer(leaves: int) -> tuple[Net, Any]:
    """A model and its optimizer with this many leaves in all."""
    model = Net(leaves, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    found = len(jax.tree.leaves(nnx.state((model, optimizer))))
    if found != leaves:
        raise ValueError(f"the benchmark's model has {found} leaves, not {leaves}")
    return model, optimizer


def interleaved_minima(
    subjects: Mapping[str, Callable[[], Any]], rounds: int = 15, target: float = 0.01
) -> dict[str, float]:
    """Seconds a call, the best of several rounds; all subjects take turns, so noise hits them alike."""
    counts = {}
    for name, call in subjects.items():
        call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, int(target / (time.perf_counter() - start)))
    best = dict.fromkeys(subjects, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in subjects.items():
                start = time.perf_counter()
                for _ in range(counts[name]):
                    call()
                best[name] = min(best[name], (time.perf_counter() - start) / counts[name])
    finally:
        gc.enable()
    return best
