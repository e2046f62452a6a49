"""Every test runs on eight CPU devices, under the strictest promotion rules that JAX has."""

import os

# XLA reads its flags once, when the first backend starts: before anything imports jax.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()

import sys
from collections.abc import Iterator

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("dev", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


def pytest_report_header() -> str:
    """Say on what the tests run, since they run on several versions."""
    return f"nnxgraph tests: Python {sys.version.split()[0]}, JAX {jax.__version__}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give a test marked `relaxed`, with its fixtures, the standard rules that optax needs."""
    if item.get_closest_marker("relaxed") is None:
        return (yield)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return (yield)
