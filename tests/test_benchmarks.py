"""The benchmarks: when a gate is missed, and that all subjects of one do the same work. No times."""

import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import nnxgraph as nnx
from tests.benchmarks import __main__ as program
from tests.benchmarks import bench_dispatch, bench_state, bench_step, bench_trace
from tests.benchmarks._subjects import model_and_optimizer
from tests.benchmarks._table import (
    EQUINOX,
    FLAX,
    OURS,
    RAW,
    Figure,
    Result,
    Seconds,
    best_of_runs,
    exit_code,
    interleaved_minima,
    machine_facts,
    tables,
)

CALL = Figure("a call", "work", "base", {8: 2.0})
READY = Figure("a result", "work", "base", {8: 3.0}, blocked=True)
OTHER = Figure("another call", "other", "base", {8: 2.0})
SUBJECTS = {(OURS, "work"): int, (OURS, "other"): int, (FLAX, "work"): int, (RAW, "base"): int}

of_sizes = pytest.mark.parametrize("leaves", [24, 25, 28])  # two norms; a head; no head


def runs(*ratios):
    """A clock that shows these times of `work`, a run each, where the base takes one second."""
    ratios, asked = iter(ratios), []

    def measure(subjects):
        asked.append(set(subjects))
        ratio = next(ratios)
        times = {"work": Seconds(ratio, ratio + 2), "other": Seconds(1.0, 1.0), "base": Seconds(1.0, 2.0)}
        return {subject: times[subject[1]] for subject in subjects}

    return measure, asked


def measured(figures, *ratios):
    """The results of these runs, and which subjects each of them asked for."""
    measure, asked = runs(*ratios)
    return best_of_runs(figures, 8, SUBJECTS, measure), asked


def test_gate_that_holds_is_measured_once():
    results, asked = measured([CALL], 1.5)
    assert (str(results[0]), exit_code(results), len(asked)) == ("1.50 <= 2", 0, 1)


def test_gate_that_is_missed_in_three_runs_gives_exit_code_1():
    results, asked = measured([CALL], 3.0, 2.5, 2.75)
    assert (str(results[0]), exit_code(results), len(asked)) == ("2.50 > 2", 1, 3)


def test_best_of_three_runs_counts():
    results, asked = measured([CALL], 3.0, 2.5, 2.0)
    assert (str(results[0]), exit_code(results), len(asked)) == ("2.00 <= 2", 0, 3)


def test_only_what_missed_is_measured_again_and_without_the_other_libraries():
    _, asked = measured([CALL, OTHER], 3.0, 1.0)
    assert asked == [set(SUBJECTS), {(OURS, "work"), (RAW, "base")}]


def test_blocked_figure_waits_for_the_result():
    results, _ = measured([READY], 3.0)
    assert (results[0].ratios[OURS], results[0].base) == (2.5, 2.0)


def test_other_libraries_have_no_gate():
    results, _ = measured([CALL], 1.0)
    results[0].ratios[FLAX] = 100.0
    assert exit_code(results) == 0


def test_figure_that_is_not_measured_counts_as_missed_and_is_not_tried_again():
    results, asked = measured([CALL, Figure("later", "unknown", "base", {8: 2.0})], 1.0)
    assert (str(results[1]), exit_code(results), len(asked)) == ("not measured", 1, 1)


def test_benchmark_runs_in_a_process_of_its_own():
    assert program.apart(os.getpid) != os.getpid()


def test_nothing_measured_is_a_failure():
    assert exit_code([]) == 1


def test_tables_show_targets_and_other_libraries():
    small = Figure("a call", "work", "base", {8: 2.0, 80: 1.75})
    deep = Figure("a trace", "work", "base", {5: 1.0})
    results = [
        Result(small, 8, {OURS: 1.5, FLAX: 8.04, EQUINOX: 4.0}, 24e-6),
        Result(small, 80, {OURS: 1.8, FLAX: 112.4}, 240e-6),
        Result(deep, 5, {OURS: 0.5}, 1.0),
    ]
    assert tables(results) == "\n".join(
        [
            "================  =========  ===========  ===========  =========  =======",
            "ratio to raw JAX  8 leaves   80 leaves    raw JAX, us  Flax NNX   Equinox",
            "================  =========  ===========  ===========  =========  =======",
            "a call            1.50 <= 2  1.80 > 1.75  24 / 240     8.0 / 112  4.0 / -",
            "================  =========  ===========  ===========  =========  =======",
            "",
            "================  =========  ===========",
            "ratio to raw JAX  5 leaves   raw JAX, us",
            "================  =========  ===========",
            "a trace           0.50 <= 1  1000000",
            "================  =========  ===========",
        ]
    )


def test_machine_facts_name_the_versions():
    lines = [line.split() for line in machine_facts().splitlines()]
    assert ["jax", jax.__version__] in lines
    assert {"cores", "Python"} <= {line[0] for line in lines}


def test_subjects_take_turns():
    calls = []
    found = interleaved_minima(
        {(OURS, "a"): lambda: calls.append("a"), (RAW, "b"): lambda: calls.append("b")}, 3, 0.0
    )
    assert "".join(calls[4:]) == "ababab"
    assert all(0 < seconds.returned <= seconds.ready < 1 for seconds in found.values())


def test_program_runs_all_benchmarks_even_if_one_fails(monkeypatch, capsys):
    def fail(leaves):
        raise RuntimeError("on purpose")

    easy = Figure("easy", "work", "base", {8: float("inf")})
    subjects = {(OURS, "work"): int, (RAW, "base"): int}
    bad = SimpleNamespace(FIGURES=(CALL,), subjects=fail)
    good = SimpleNamespace(FIGURES=(easy,), subjects=lambda leaves: subjects)
    monkeypatch.setattr(program, "BENCHMARKS", {"bad": bad, "good": good})
    monkeypatch.setattr(program, "apart", lambda function, *args: function(*args))
    assert program.main([]) == 1
    shown = capsys.readouterr()
    assert "on purpose" in shown.err
    assert "0 of 1 gates missed" in shown.out
    assert program.main(["good"]) == 0


@of_sizes
@pytest.mark.relaxed
def test_no_ops_return_nothing(leaves):
    assert {call() for call in bench_dispatch.subjects(leaves).values()} == {None}


@pytest.mark.relaxed
def test_counter_writes_one_variable():
    node = model_and_optimizer(24)
    before = jax.tree.leaves(nnx.state(node))
    nnx.jit(bench_dispatch.count)(*node)
    same = map(np.array_equal, before, jax.tree.leaves(nnx.state(node)))
    assert sum(same) == 24 - 1


@of_sizes
@pytest.mark.relaxed
def test_operations_on_state_give_the_arrays_that_raw_jit_gives(leaves):
    subjects = bench_state.subjects(leaves)
    expected = jax.tree.leaves(subjects.pop((RAW, "R1"))())
    assert len(expected) == leaves
    for (library, work), call in subjects.items():
        found = call()
        if library == OURS and work != "update":
            arrays = jax.tree.leaves(nnx.state(found) if work in ("merge", "clone") else found)
            assert all(map(np.array_equal, arrays, expected)), work
            assert len(arrays) == leaves


@of_sizes
@pytest.mark.relaxed
def test_train_steps_give_equal_losses(leaves):
    subjects = bench_step.subjects(leaves, width=4)
    losses = {subject: [float(call()) for _ in range(4)] for subject, call in subjects.items()}
    expected = losses[RAW, "step"]
    assert expected[-1] < expected[0]
    for (library, work), found in losses.items():
        if library in (RAW, OURS):
            np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=work)


@of_sizes
@pytest.mark.relaxed
def test_lowered_train_steps_multiply_alike(leaves):
    texts = [call().as_text() for call in bench_trace.subjects(leaves, width=4).values()]
    counts = [text.count("stablehlo.dot_general") for text in texts]
    assert counts[0] > 0
    assert set(counts) == {counts[0]}


@pytest.mark.parametrize("benchmark", [bench_dispatch, bench_state, bench_trace])
@pytest.mark.relaxed
def test_figures_have_their_subjects(benchmark):
    needed = {pair for f in benchmark.FIGURES for pair in ((OURS, f.work), (RAW, f.base))}
    assert needed <= set(benchmark.subjects(24))
