"""Benchmarks: ratios to raw JAX, measured side by side in one run. `make bench` runs them all."""
