"""The CSV file of losses, a row for each report."""

import csv
from pathlib import Path

NAME = "metrics.csv"
COLUMNS = ("step", "loss", "accuracy", "validation_loss", "tokens_per_second")


def rows_until(file: Path, step: int) -> list[dict[str, str]]:
    """The whole rows that a run left, up to a step; it may have gone on after its last checkpoint."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if None not in row.values()]
    return [row for row in rows if row["step"].isdecimal() and int(row["step"]) <= step]


class MetricsFile:
    """Appends rows to the file in a folder, each at once on disk.

    Args:
        folder: The folder of the run.
        step: Where the run stands: rows of later steps are dropped, they will be written again.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.file = folder / NAME
        kept = rows_until(self.file, step) if step else []
        aside = self.file.with_suffix(".tmp")
        with aside.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(kept)
        aside.replace(self.file)

    def write(self, row: dict[str, object]) -> None:
        """Appends one row."""
        with self.file.open("a", newline="", encoding="utf-8") as stream:
            csv.DictWriter(stream, COLUMNS).writerow(row)
