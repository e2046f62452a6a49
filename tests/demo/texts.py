"""Text for the tests of the demo."""

import random
from pathlib import Path

WORDS = ("the", "model", "reads", "a", "window", "of", "text", "and", "says", "what", "comes", "next\n")


def words(count: int, seed: int = 0) -> str:
    """So many words in an order of their own."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def write_folder(folder: Path, files: int = 12) -> Path:
    """A folder of short text files, the held-out one among them longer than any window."""
    folder.mkdir()
    for i in range(files):
        (folder / f"{i:02d}.txt").write_text(words(60, seed=i), encoding="utf-8")
    return folder
