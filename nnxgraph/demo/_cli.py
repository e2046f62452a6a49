"""The command line: everything that can be wrong is found before anything is written."""

import argparse
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import _checkpoint as checkpoint
from ._data import Corpus, load_corpus
from ._errors import InputError, reason
from ._run import INTERRUPTED, Plan, run
from ._settings import PRESETS, Settings, make_settings

BAD_INPUT = 2
PROGRAM = "python -m nnxgraph.demo"

MOST_STEPS = 2**31 - 1  # the optimizer counts in 32 bits
LARGEST_SEED = 2**32 - 1


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the program as any other bad input does."""
        raise InputError("command line", message, f"options as `{PROGRAM} --help` lists them")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options as the user gave them; None for those left out."""
    parser = Parser(
        prog=PROGRAM,
        description="Train a character-level transformer on real text, and compare it with a trigram.",
        epilog="Exit codes: 0 the transformer is better than the trigram, 1 it is not, 2 bad input,"
        " 130 stopped by Ctrl-C (the run is saved).",
        allow_abbrev=False,
    )
    small = PRESETS["small"].steps
    parser.add_argument("--steps", metavar="N", help=f"steps of training (small: {small})")
    parser.add_argument("--preset", metavar="|".join(PRESETS), help="size and recipe (small)")
    parser.add_argument("--seed", metavar="N", help="of weights, dropout and order of the text (0)")
    parser.add_argument("--plain", action="store_true", help="no colours and no bar, for logs")
    parser.add_argument("--out", metavar="DIR", help="a new folder for checkpoint and metrics")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in this folder")
    parser.add_argument("--data", metavar="PATH", help="a UTF-8 text file, or a folder of them")
    return parser.parse_args(argv)


def whole_number(option: str, text: str | None, least: int, most: int) -> int | None:
    """A number that the user gave, within bounds."""
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
    if number is None or not least <= number <= most:
        raise InputError(
            f"{option} {text}", "not a number of that kind", f"a whole number, {least} to {most}"
        )
    return number


def given_settings(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for."""
    preset = "small" if options.preset is None else options.preset
    if preset not in PRESETS:
        raise InputError(f"--preset {preset}", "no such preset", " or ".join(PRESETS))
    steps = whole_number("--steps", options.steps, 1, MOST_STEPS)
    return make_settings(preset, steps, whole_number("--seed", options.seed, 0, LARGEST_SEED))


def data_path(options: argparse.Namespace) -> Path | None:
    """Where the text is, spelt so that it can be found from any folder."""
    return None if options.data is None else Path(options.data).absolute()


def plan_of(options: argparse.Namespace) -> Plan:
    """What to do, with everything read that can be wrong."""
    if options.resume is not None:
        return plan_to_resume(options, Path(options.resume).absolute())
    settings, data = given_settings(options), data_path(options)
    folder = out_folder(options.out)
    corpus = load_corpus(data, settings.length)
    return Plan(settings, data, corpus, make_folder(folder), None, options.plain)


def out_folder(out: str | None) -> Path | None:
    """The folder of a new run: one that is not there yet, or an old run, which it replaces."""
    if out is None:
        return None
    folder = Path(out).absolute()
    if folder.exists() and not checkpoint.is_run(folder):
        found = "it exists and is not a run of this program"
        raise InputError(f"--out {out}", found, "a folder that does not exist yet")
    return folder


def make_folder(folder: Path | None) -> Path:
    """Makes the folder of a new run, where everything else is in order."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="nnxgraph-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}", reason(error), "a place where a folder can be made") from None
    return folder


def plan_to_resume(options: argparse.Namespace, folder: Path) -> Plan:
    """A plan with the settings of the run in a folder, which the options may repeat but not change."""
    if options.out is not None:
        raise InputError(f"--out {options.out}", "a resumed run stays where it is", "--resume alone")
    about = checkpoint.load_about(folder)
    try:
        settings, stored = Settings(**about["settings"]), about["data"]
    except (KeyError, TypeError):
        raise checkpoint.unusable(folder, "its settings cannot be read") from None
    check_same_settings(options, settings)
    data = data_path(options) or (None if stored is None else Path(stored))
    corpus = load_corpus(data, settings.length)
    check_same_text(folder, corpus, about)
    return Plan(settings, data, corpus, folder, about, options.plain)


def check_same_settings(options: argparse.Namespace, settings: Settings) -> None:
    """That options given beside --resume are those that the run was started with."""
    for name in ("preset", "steps", "seed"):
        given, had = getattr(options, name), getattr(settings, name)
        if given is not None and given != str(had):
            found = f"the run was started with --{name} {had}"
            raise InputError(f"--{name} {given}", found, f"--resume without --{name}")


def check_same_text(folder: Path, corpus: Corpus, about: dict[str, object]) -> None:
    """That the text is the one that the run was started with."""
    if corpus.digest != about.get("digest"):
        found = f"the text of {corpus.name} is not the one that the run was started with"
        raise InputError(f"--resume {folder}", found, "the same text; say where it is with --data")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        argv: The command line, without the name of the program; None means that of the process.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # whatever text the model learns, it can be shown
    try:
        return run(plan_of(parse(argv)))
    except InputError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
