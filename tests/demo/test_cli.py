"""What a user can get wrong: one line, exit code 2, nothing written."""

import pytest

from nnxgraph.demo import _checkpoint as checkpoint
from nnxgraph.demo import main

SETTINGS = {"preset": "tiny", "steps": 30}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with text of each bad kind; no temporary folder is made elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "good.txt").write_text("some text, again and again. " * 100)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 1000)
    (tmp_path / "short.txt").write_text("a few words")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "letter.txt").write_text("dear friend")
    (tmp_path / "old").mkdir()
    about = {"step": 0, "settings": SETTINGS, "data": None, "digest": "x"}
    checkpoint.save(tmp_path / "old", {}, about)
    return tmp_path


def contents(folder):
    return {f: f.read_bytes() if f.is_file() else None for f in folder.rglob("*")}


BAD = {
    "--data missing.txt": "no such file",
    "--data empty.txt": "the text is empty",
    "--data nothing": "the text is empty",
    "--data latin.txt": "not UTF-8 text, at byte 3",
    "--data mixed": "picture.png: not UTF-8 text",
    "--data short.txt": "11 characters are too few",
    "--data good.txt --out things": "it exists and is not a run",
    "--data good.txt --out good.txt": "it exists and is not a run",
    "--data good.txt --out good.txt/below": "not a directory",
    "--steps 0": "--steps 0: not a number of that kind. Expected a whole number, 1 to",
    "--steps -3": "--steps -3",
    "--steps=1.5": "--steps 1.5",
    "--steps many": "--steps many",
    "--steps 99999999999999999999": "Expected a whole number, 1 to 2147483647",
    "--steps": "expected one argument",
    "--seed -1": "--seed -1",
    "--seed x": "Expected a whole number, 0 to 4294967295",
    "--preset huge": "no such preset. Expected small or tiny",
    "--color": "unrecognized arguments: --color",
    "--ste 5": "unrecognized arguments",
    "--resume missing": "no such folder",
    "--resume things": "it has no checkpoint.json",
    "--resume good.txt": "no such folder",
    "--resume old --out new": "a resumed run stays where it is",
    "--resume old --steps 40": "the run was started with --steps 30",
    "--resume old --preset small": "the run was started with --preset tiny",
    "--resume old --seed 1": "the run was started with --seed 0",
    "--resume old --data good.txt": "is not the one that the run was started with",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_exit_code_2(line, place, capsys):
    before = contents(place)
    assert main([*line.split(), "--plain"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("python -m nnxgraph.demo: ")
    assert "Expected" in error
    assert BAD[line] in error
    assert contents(place) == before


def test_bad_number_is_found_before_the_text_is_read(place, capsys):
    assert main(["--data", "missing.txt", "--steps", "0"]) == 2
    assert "--steps 0" in capsys.readouterr().err


def test_settings_that_cannot_be_read_are_named(place, capsys):
    checkpoint.save(place / "old", {}, {"step": 0, "settings": {"speed": 3}, "data": None})
    assert main(["--resume", "old"]) == 2
    assert "its settings cannot be read" in capsys.readouterr().err


def test_help_lists_each_option(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    out = capsys.readouterr().out
    for option in ("steps", "preset", "seed", "plain", "out", "resume", "data"):
        assert f"--{option}" in out
