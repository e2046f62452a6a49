"""What split, state, update, merge and clone cost, as ratios to a raw `jax.jit` that returns its leaves."""

import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[2]))

import nnxgraph as nnx  # the tree that this file stands in
from tests.benchmarks._subjects import SIZES, interleaved_minima, model_and_optimizer  # likewise


def measure(leaves: int) -> dict[str, float]:
    """Seconds a call of each operation, and of R1: a jitted no-op that returns the same arrays."""
    node = model_and_optimizer(leaves)
    graphdef, state = nnx.split(node)
    arrays = jax.tree.leaves(state)
    raw = jax.jit(lambda arrays: arrays, keep_unused=True)
    over_state = jax.jit(lambda graphdef, state: (graphdef, state), static_argnums=0, keep_unused=True)
    return interleaved_minima(
        {
            "R1": lambda: raw(arrays),
            "split": lambda: nnx.split(node),
            "state": lambda: nnx.state(node),
            "update": lambda: nnx.update(node, state),
            "merge": lambda: nnx.merge(graphdef, state),
            "clone": lambda: nnx.clone(node),
            "jit over State": lambda: over_state(graphdef, state),
        }
    )


def main() -> None:
    """Print one line a size."""
    for leaves in SIZES:
        seconds = measure(leaves)
        base = seconds.pop("R1")
        ratios = "  ".join(f"{name} {value / base:.2f}" for name, value in seconds.items())
        print(f"{leaves:5d} leaves  R1 {base * 1e6:7.0f} us  {ratios}", flush=True)


if __name__ == "__main__":
    main()
