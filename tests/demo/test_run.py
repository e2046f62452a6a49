"""Whole runs, on the tiny preset: what they leave, and that a stopped one goes on as if it had not been."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnxgraph.demo import _run, main
from nnxgraph.demo._model import Transformer
from tests.demo.texts import write_folder
from tests.source import ROOT

# With `--dist loadgroup` one worker makes the runs, which these tests share.
pytestmark = [pytest.mark.relaxed, pytest.mark.slow, pytest.mark.xdist_group("runs_of_the_demo")]

STEPS, STOPPED = 25, 13


@dataclasses.dataclass
class Result:
    """What a run left."""

    code: int
    folder: Path
    traces: int = 0

    def arrays(self):
        name = self.about()["arrays"]
        with np.load(self.folder / name) as stored:
            return {path: stored[path] for path in stored.files}

    def about(self):
        return json.loads((self.folder / "checkpoint.json").read_text())

    def rows(self):
        """The rows of the metrics file, but for the speed."""
        with (self.folder / "metrics.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    write_folder(place / "text")
    return place


def options_of(place, folder):
    """A run that is the same in each test, in a folder of its own."""
    text = ["--data", place / "text", "--preset", "tiny", "--steps", STEPS, "--seed", 5]
    return [*map(str, text), "--out", str(folder)]


def run_here(place, name):
    """Runs the program in this process, and counts how often the model is traced."""
    traces = 0
    call = Transformer.__call__

    def counted(self, tokens):
        nonlocal traces
        traces += 1
        return call(self, tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "__call__", counted)
        code = main(["--plain", *options_of(place, place / name)])
    return Result(code, place / name, traces)


@pytest.fixture(scope="module")
def whole(place):
    """A run from its first step to its last."""
    return run_here(place, "whole")


def press_at(step):
    """What makes batches, and presses Ctrl-C while it makes that of one step."""
    make = _run.training_batch

    def pressed(tokens, seed, asked, batch, length):
        if asked == step:
            signal.raise_signal(signal.SIGINT)
        return make(tokens, seed, asked, batch, length)

    return pressed


@pytest.fixture(scope="module")
def stopped(place, whole):
    """The same run, stopped by Ctrl-C in a step that ends no report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_run, "training_batch", press_at(STOPPED - 1))
        return run_here(place, "stopped")


def run_in_new_process(*options):
    """Runs the program as users do."""
    command = [sys.executable, "-m", "nnxgraph.demo", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)


def test_whole_run_leaves_checkpoint_and_metrics(whole):
    names = {file.name for file in whole.folder.iterdir()}
    assert names == {"checkpoint.json", f"checkpoint-{STEPS:08d}.npz", "metrics.csv"}
    assert whole.about()["step"] == whole.arrays()["optimizer/step"] == STEPS
    assert whole.code == 1  # so short a run is no better than counting


def test_step_is_traced_once(whole, stopped):
    assert whole.traces == 3  # the train step, the evaluation step, the sample
    assert stopped.traces == 0  # another model of the same shape


def test_metrics_file_has_a_row_for_each_report(whole):
    rows = whole.rows()
    assert [row["step"] for row in rows] == ["10", "20", str(STEPS)]
    losses = [float(row["loss"]) for row in rows]
    assert losses[0] > losses[1] > losses[2] > 0
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert [bool(row["validation_loss"]) for row in rows] == [False, False, True]


def test_ctrl_c_saves_the_step_and_exits_130(stopped):
    assert stopped.code == 130
    assert stopped.about()["step"] == stopped.arrays()["optimizer/step"] == STOPPED
    assert [row["step"] for row in stopped.rows()] == ["10"]


def test_resumed_run_is_the_uninterrupted_one_bit_for_bit(whole, stopped):
    assert whole.arrays()["model/blocks/dropout/rngs/count"].tolist() == [2 * STEPS] * 2  # dropout is on
    done = run_in_new_process("--plain", "--resume", str(stopped.folder))
    assert done.returncode == whole.code, done.stderr
    expected, found = whole.arrays(), stopped.arrays()
    assert expected.keys() == found.keys()
    assert [p for p in expected if expected[p].tobytes() != found[p].tobytes()] == []
    assert stopped.rows() == whole.rows()
    assert stopped.about() == whole.about()
    assert "\x1b" not in done.stdout
    for part in (
        "embed.embedding",
        f"Training from step {STOPPED} to {STEPS}",
        f"step {STEPS}/{STEPS}  loss",
        "how the model goes on",
        "transformer ",
        "trigram ",
        "The transformer's loss is NOT lower than the trigram's.",
    ):
        assert part in done.stdout


def test_new_run_replaces_an_old_one_in_its_folder(place, monkeypatch, capsys):
    # Ctrl-C before the first step: there is a run to go on with, even so.
    make = _run.held_out_windows
    monkeypatch.setattr(_run, "held_out_windows", lambda *a: signal.raise_signal(signal.SIGINT) or make(*a))
    first = run_here(place, "again")
    (first.folder / "metrics.csv").write_text("left by the old run")
    second = run_here(place, "again")
    assert "which this one replaces" in capsys.readouterr().out
    assert (first.code, second.code) == (130, 130)
    assert second.about()["step"] == 0
    assert second.rows() == []


@pytest.mark.parametrize(("transformer", "code"), [(1.5, 0), (1.9, 1), (2.5, 1), (float("nan"), 1)])
def test_exit_code_says_whether_the_transformer_is_lower(transformer, code):
    assert _run.verdict(transformer, 1.9) == code
