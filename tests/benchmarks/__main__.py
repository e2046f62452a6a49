"""Run the benchmarks, all or by name: `python -m tests.benchmarks step state`."""

import argparse
import multiprocessing
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from . import bench_dispatch, bench_state, bench_step, bench_trace
from ._table import Result, best_of_runs, exit_code, machine_facts, tables

BENCHMARKS = {
    "dispatch": bench_dispatch,
    "step": bench_step,
    "state": bench_state,
    "trace": bench_trace,
}


def main(argv: list[str] | None = None) -> int:
    """Measure, print the tables, and tell whether a gate was missed or a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--leaves", type=int, nargs="+", metavar="N", help="at these sizes only")
    given = parser.parse_args(argv)
    if unknown := set(given.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {min(unknown)}")
    print(machine_facts(), flush=True)
    results, failed = [], False
    for name in given.names or BENCHMARKS:
        for leaves in sizes(name, given.leaves):
            try:
                found = apart(run, name, leaves)
            except Exception:
                traceback.print_exc()
                failed = True
                continue
            print(f"{name}, {leaves} leaves: {', '.join(map(str, found))}", file=sys.stderr, flush=True)
            results += found
    missed = sum(not result.held for result in results)
    print(f"\n{tables(results)}\n\n{missed} of {len(results)} gates missed", flush=True)
    return 1 if failed else exit_code(results)


def sizes(name: str, chosen: list[int] | None) -> list[int]:
    """At which numbers of leaves a benchmark is run."""
    return [size for size in BENCHMARKS[name].FIGURES[0].targets if chosen is None or size in chosen]


def run(name: str, leaves: int) -> list[Result]:
    """The results of one benchmark at one size."""
    return best_of_runs(BENCHMARKS[name].FIGURES, leaves, BENCHMARKS[name].subjects(leaves))


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function in a process of its own: what ran before leaves no arrays and caches there."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


if __name__ == "__main__":
    sys.exit(main())
