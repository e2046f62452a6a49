"""Ratios to raw JAX: measured side by side, held against their targets, shown in tables.

A subject is a function without arguments, known by its library and by the work it does. All subjects of one
run take turns, so noise hits them alike. A figure is the time of a work over that of a base in raw JAX.
"""

import gc
import importlib.metadata
import itertools
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax

RAW, OURS, FLAX, EQUINOX = "raw JAX", "nnxgraph", "Flax NNX", "Equinox"
RUNS = 3  # a figure is the best of so many

Subject = tuple[str, str]  # library and work


class Seconds(NamedTuple):
    """How long a call took, at best."""

    returned: float  # until it returned
    ready: float  # until the array that it returned was computed


@dataclass(frozen=True)
class Figure:
    """A ratio, and the most that it may be for each number of leaves."""

    name: str
    work: str
    base: str
    targets: Mapping[int, float]
    blocked: bool = False  # whether to wait for the result

    def ratio(self, seconds: Mapping[Subject, Seconds], library: str) -> float | None:
        """The ratio in one run, if it was measured there."""
        ours, base = seconds.get((library, self.work)), seconds.get((RAW, self.base))
        if ours is None or base is None:
            return None
        return ours.ready / base.ready if self.blocked else ours.returned / base.returned


@dataclass
class Result:
    """A figure at one number of leaves, as the best of its runs."""

    figure: Figure
    leaves: int
    ratios: dict[str, float] = field(default_factory=dict)  # by library
    base: float = float("inf")  # seconds of raw JAX

    @property
    def target(self) -> float:
        """The gate."""
        return self.figure.targets[self.leaves]

    @property
    def held(self) -> bool:
        """Whether it was measured, and the gate held."""
        return self.ratios.get(OURS, float("inf")) <= self.target

    def add(self, seconds: Mapping[Subject, Seconds]) -> None:
        """Take in one run."""
        for library in dict.fromkeys(library for library, _ in seconds):
            ratio = self.figure.ratio(seconds, library)
            if library != RAW and ratio is not None:
                self.ratios[library] = min(ratio, self.ratios.get(library, ratio))
        base = seconds.get((RAW, self.figure.base))
        if base is not None:
            self.base = min(self.base, base.ready if self.figure.blocked else base.returned)

    def __str__(self) -> str:
        if OURS not in self.ratios:
            return "not measured"
        return f"{self.ratios[OURS]:.2f} {'<=' if self.held else '>'} {self.target:g}"


def interleaved_minima(
    subjects: Mapping[Subject, Callable[[], Any]], rounds: int = 12, round_seconds: float = 0.02
) -> dict[Subject, Seconds]:
    """The best call of several rounds, in each of which every subject has its turn."""
    turns, best = {}, dict.fromkeys(subjects, Seconds(float("inf"), float("inf")))
    for subject, call in subjects.items():
        timed(call)  # compiles
        turns[subject] = min(1000, max(1, int(round_seconds / timed(call).ready)))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for subject, call in subjects.items():
                calls = [timed(call) for _ in range(turns[subject])]
                best[subject] = Seconds(*map(min, zip(*calls, best[subject], strict=True)))
    finally:
        gc.enable()
    return best


def timed(call: Callable[[], Any]) -> Seconds:
    """The time of one call; nothing of it is left running."""
    start = time.perf_counter()
    result = call()
    returned = time.perf_counter()
    if isinstance(result, jax.Array):
        result.block_until_ready()
    return Seconds(returned - start, time.perf_counter() - start)


def best_of_runs(
    figures: Sequence[Figure],
    leaves: int,
    subjects: Mapping[Subject, Callable[[], Any]],
    measure: Callable[[Any], Mapping[Subject, Seconds]] = interleaved_minima,
) -> list[Result]:
    """The figures at one number of leaves; those whose gate was missed are measured again."""
    results = [Result(figure, leaves) for figure in figures]
    wanted = dict(subjects)
    for _ in range(RUNS):
        seconds = measure(wanted)
        for result in results:
            result.add(seconds)
        missed = [r.figure for r in results if r.ratios and not r.held]
        again = {(OURS, f.work) for f in missed} | {(RAW, f.base) for f in missed}
        wanted = {subject: call for subject, call in subjects.items() if subject in again}
        if not missed:
            break
    return results


def exit_code(results: Collection[Result]) -> int:
    """1 if a gate was missed, or nothing was measured."""
    return 0 if results and all(result.held for result in results) else 1


def tables(results: Sequence[Result]) -> str:
    """The figures as reStructuredText, in one table for all that are measured at the same sizes."""
    by_figure = {result.figure.name: result.figure for result in results}
    groups: dict[tuple[int, ...], list[list[Result]]] = {}
    for name in by_figure:
        own = [result for result in results if result.figure.name == name]
        groups.setdefault(tuple(result.leaves for result in own), []).append(own)
    return "\n\n".join(_table_of(sizes, rows) for sizes, rows in groups.items())


def _table_of(sizes: Sequence[int], rows: Sequence[Sequence[Result]]) -> str:
    """One table: a figure a row, a size a column, and all sizes in one column for each other library."""
    others = dict.fromkeys(name for row in rows for result in row for name in result.ratios if name != OURS)
    lines = [["ratio to raw JAX", *(f"{n} leaves" for n in sizes), "raw JAX, us", *others]]
    for row in rows:
        raw = " / ".join(f"{result.base * 1e6:.0f}" for result in row)
        there = [_cell([result.ratios.get(name) for result in row]) for name in others]
        lines.append([row[0].figure.name, *map(str, row), raw, *there])
    return simple_table(lines, head=True)


def _cell(ratios: Sequence[float | None]) -> str:
    """The ratios of another library."""
    texts = ["-" if r is None else f"{r:.{0 if r >= 10 else 1}f}" for r in ratios]
    return " / ".join(texts) if any(ratios) else ""


def simple_table(lines: Sequence[Sequence[str]], head: bool = False) -> str:
    """A table in reStructuredText, where the first line may be its head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([rule, *(itertools.chain(texts[:1], [rule], texts[1:]) if head else texts), rule])


def machine_facts() -> str:
    """What the figures are measured on, as a table in reStructuredText."""
    versions = [(name, _version(name)) for name in ("jax", "jaxlib", "optax", "flax", "equinox")]
    facts = [("processor", _processor()), ("cores", str(_cores()))]
    facts += [("device", jax.devices()[0].device_kind), ("Python", platform.python_version())]
    return simple_table(facts + [(name, version) for name, version in versions if version])


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(name: str) -> str | None:
    """The version of a package, if it is installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
