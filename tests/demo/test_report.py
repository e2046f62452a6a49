import pytest

import nnxgraph as nnx
from nnxgraph.demo import _report as report
from nnxgraph.demo._model import Transformer
from nnxgraph.demo._settings import PRESETS


@pytest.fixture
def plain(capsys):
    return report.Report(plain=True)


def test_table_has_each_parameter_once_with_all_its_paths(plain, capsys):
    model = Transformer(PRESETS["tiny"], 11, rngs=nnx.Rngs(0))
    plain.show_parameters(model)
    out = capsys.readouterr().out
    total = sum(v.size for _, v in nnx.to_flat_state(nnx.state(model, nnx.Param)))
    assert out.count("embed.embedding") == 1
    assert "= head.embedding" in out
    assert "blocks.widen.kernel" in out
    assert f"{total:,}" in out
    assert out.isascii() or set(out) - set(map(chr, range(128))) == {"×"}


def test_line_of_losses(plain, capsys, monkeypatch):
    clock = iter([100.0, 110.0, 110.0])
    monkeypatch.setattr(report.time, "monotonic", lambda: next(clock))
    with plain.training(step=15, steps=100, tokens=64) as view:
        view.made_step(20)  # compiling does not count
        speed = view.measured(30, loss=1.23456, validation=2.0)
    assert speed == 64.0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "step 30/100  loss 1.2346  validation 2.0000  64 tokens/s  ETA 1:10"


def test_step_without_a_validation_loss_is_no_line(plain, capsys):
    with plain.training(step=0, steps=100, tokens=64) as view:
        capsys.readouterr()
        view.made_step(10)
        view.measured(10, loss=1.0, validation=None)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("transformer", "verdict"), [(1.5, " lower"), (2.0, "NOT lower")])
def test_result_has_both_losses_and_the_verdict(plain, capsys, transformer, verdict):
    plain.show_result(transformer, 1.9, 12345)
    *_, ours, trigram, last = capsys.readouterr().out.splitlines()
    assert ours.split() == ["transformer", f"{transformer:.4f}"]
    assert trigram.split() == ["trigram", "1.9000"]
    assert f"is{verdict}" in last.replace("is NOT", "isNOT")


def test_text_is_printed_as_it_is(plain, capsys):
    text = "[bold]x[/bold] \x1b[0m" + "y" * 300
    plain.say(text)
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out
    assert "y" * 300 in out


def test_bar_shows_losses_speed_and_time_left(monkeypatch, capsys):
    monkeypatch.setattr(report.sys.stdout, "isatty", lambda: True)
    live = report.Report(plain=False)
    live.console = report.Console(force_terminal=True, width=150, color_system=None)
    with live.training(step=0, steps=100, tokens=64) as view:
        view.made_step(10)
        view.measured(10, loss=1.5, validation=1.75)
    out = capsys.readouterr().out
    for part in ("training", "10/100", "loss 1.5000", "validation 1.7500", "tokens/s", "ETA"):
        assert part in out
