"""Which text, how it becomes tokens, and which of them a step sees.

Letters of the shapes: B windows in a batch, T characters that a window asks for.
"""

import dataclasses
import hashlib
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ._errors import InputError, reason

Tokens = npt.NDArray[np.int32]

# Stands for every character that the training text does not have.
UNKNOWN, UNKNOWN_CHARACTER = 0, "\N{REPLACEMENT CHARACTER}"

# One file of ten, or the last tenth of a text that is fewer files, is held out.
HELD_OUT = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """A text in two parts, as tokens: token i is character `alphabet[i]`."""

    name: str
    alphabet: str
    train: Tokens
    validation: Tokens
    digest: str

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return len(self.alphabet)

    def decode(self, tokens: npt.ArrayLike) -> str:
        """The text that tokens stand for."""
        return "".join(self.alphabet[token] for token in np.asarray(tokens))


def standard_library() -> list[Path]:
    """The top-level modules of Python's own standard library: real text, on every machine."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def files_of(path: Path | None) -> list[Path]:
    """The files that make up the text, in an order that does not depend on the machine."""
    if path is None:
        return standard_library()
    if not path.is_dir():
        return [path]
    below = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    visible = [r for r in below if not any(part.startswith(".") for part in r.parts)]
    return [below[relative] for relative in sorted(visible, key=lambda r: r.as_posix())]


def read(file: Path) -> str:
    """The text of one file."""
    expected = "a UTF-8 text file or a folder of them"
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        found = f"not UTF-8 text, at byte {error.start}"
        raise InputError(f"--data {file}", found, expected) from None
    except OSError as error:
        raise InputError(f"--data {file}", reason(error), expected) from None


def split_texts(texts: list[str]) -> tuple[str, str]:
    """The text to train on and the text that is held out."""
    if len(texts) >= HELD_OUT:
        held_out = texts[HELD_OUT - 1 :: HELD_OUT]
        return "".join(t for i, t in enumerate(texts) if (i + 1) % HELD_OUT), "".join(held_out)
    text = "".join(texts)
    cut = len(text) - len(text) // HELD_OUT
    return text[:cut], text[cut:]


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def encode(text: str, known: npt.NDArray[np.uint32]) -> Tokens:
    """Characters to tokens, given the sorted characters that have one."""
    points = code_points(text)
    places = np.minimum(np.searchsorted(known, points), len(known) - 1)
    return np.where(known[places] == points, places + 1, UNKNOWN).astype(np.int32)


def load_corpus(path: Path | None, length: int) -> Corpus:
    """The text at a path, or the standard library, with at least one window in each part."""
    given = "--data" if path is None else f"--data {path}"
    texts = [read(file) for file in files_of(path)]
    size = sum(map(len, texts))
    training, held_out = split_texts(texts)
    if min(len(training), len(held_out)) <= length:
        found = f"{size:,} characters are too few" if size else "the text is empty"
        at_least = f"UTF-8 text of some {HELD_OUT * (length + 1):,} characters at least"
        raise InputError(given, found, at_least)
    known = np.unique(code_points(training))
    return Corpus(
        name="the standard library of Python" if path is None else str(path),
        alphabet=UNKNOWN_CHARACTER + "".join(map(chr, known)),
        train=encode(training, known),
        validation=encode(held_out, known),
        digest=hashlib.sha256(f"{training}\0{held_out}".encode()).hexdigest(),
    )


def cut(tokens: Tokens, starts: npt.NDArray[np.int64], length: int) -> Tokens:
    """Pieces of one length, (N, length), from N places."""
    pieces: Tokens = tokens[starts[:, None] + np.arange(length)]  # (N, length)
    return pieces


def training_batch(tokens: Tokens, seed: int, step: int, batch: int, length: int) -> Tokens:
    """The windows of one step, (B, T + 1): a function of seed and step alone, so runs can resume."""
    starts = np.random.default_rng((seed, step)).integers(0, len(tokens) - length, batch)  # (B,)
    return cut(tokens, starts, length + 1)  # (B, T + 1)


def held_out_windows(tokens: Tokens, length: int, batch: int) -> Tokens:
    """The windows to evaluate on, whole batches of them: each character is asked for once."""
    count = (len(tokens) - 1) // length
    count -= count % min(batch, count)
    starts = length * np.arange(count)  # (N,)
    return cut(tokens, starts, length + 1)  # (N, T + 1)
