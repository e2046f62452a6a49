"""What is shown: a table of parameters, the progress, the text and the result at the end."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import nnxgraph as nnx

EMPTY = "-"


def shown(loss: float | None) -> str:
    """A loss, or a sign that there is none yet."""
    return EMPTY if loss is None else f"{loss:.4f}"


def duration(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def parameter_table(model: nnx.Module, style: box.Box) -> Table:
    """A row for each Param: its path, its shape, how many numbers it holds."""
    table = Table("parameter", "shape", "numbers", box=style, title="The model", title_justify="left")
    table.columns[2].justify = "right"
    shared = {paths[0]: paths[1:] for paths in nnx.find_duplicates(model, only=nnx.Param)}
    total = 0
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        also = ["and " + ".".join(map(str, other)) for other in shared.get(path, ())]
        size = int(np.prod(variable.shape))
        name = "\n".join([".".join(map(str, path)), *also])
        table.add_row(name, "×".join(map(str, variable.shape)), f"{size:,}")
        total += size
    table.add_section()
    table.add_row("together", "", f"{total:,}")
    return table


class Report:
    """Shows a run: with colours and a live bar on a terminal, else a line now and then.

    Args:
        plain: Whether to print lines without colours wherever it runs.
    """

    def __init__(self, plain: bool) -> None:
        live = sys.stdout.isatty() and not plain
        self.console = Console(color_system="auto" if live else None, highlight=False, soft_wrap=True)
        self.live = live
        self.progress: Progress | None = None
        self.task = TaskID(0)
        self.validation: float | None = None

    def say(self, text: str) -> None:
        """Prints a line."""
        self.console.print(Text(text))

    def show_parameters(self, model: nnx.Module) -> None:
        """Prints the table of parameters."""
        style = box.ROUNDED if self.live else box.ASCII
        self.console.print(parameter_table(model, style), soft_wrap=False)

    @contextlib.contextmanager
    def training(self, step: int, steps: int, tokens_per_step: int) -> Iterator[None]:
        """The time in which steps are made, from one step on."""
        self.steps, self.tokens_per_step = steps, tokens_per_step
        self.first, self.start, self.last = step, time.monotonic(), (step, time.monotonic())
        if not self.live:
            self.say(f"step {step:,}/{steps:,}  compiling")
            yield
            return
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,}/{task.total:,}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("validation {task.fields[validation]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        ]
        fields: dict[str, Any] = {"loss": EMPTY, "validation": EMPTY, "speed": EMPTY}
        with Progress(*columns, console=self.console) as self.progress:
            self.task = self.progress.add_task("compiling", total=steps, completed=step, **fields)
            yield
        self.progress = None

    def made_step(self, step: int) -> None:
        """Moves the bar on."""
        if self.progress is not None:
            self.progress.update(self.task, completed=step, description="training")

    def measured(self, step: int, loss: float, validation: float | None) -> float:
        """Shows losses; returns the speed since the last time, in tokens a second."""
        now = time.monotonic()
        speed = (step - self.last[0]) * self.tokens_per_step / max(now - self.last[1], 1e-9)
        self.last = (step, now)
        self.validation = self.validation if validation is None else validation
        texts: dict[str, Any] = {
            "loss": shown(loss),
            "validation": shown(self.validation),
            "speed": f"{speed:,.0f}",
        }
        if self.progress is not None:
            self.progress.update(self.task, **texts)
        elif validation is not None:
            left = (now - self.start) / (step - self.first) * (self.steps - step)
            self.say(
                f"step {step:,}/{self.steps:,}  loss {texts['loss']}  validation {texts['validation']}"
                f"  {texts['speed']} tokens/s  ETA {duration(left)}"
            )
        return speed

    def show_sample(self, prompt: str, text: str) -> None:
        """Prints text that the model wrote, after the one it was given."""
        written = Text.assemble((prompt, "dim"), (text, "bold"))
        if self.live:
            title = "Held-out text, and how the model goes on"
            self.console.print(Panel(written, title=title, title_align="left"), soft_wrap=False)
        else:
            self.say(f"Held-out text:\n{prompt}\nHow the model goes on:\n{text}")

    def show_result(self, transformer: float, trigram: float, characters: int) -> None:
        """Prints both losses side by side, and which is lower."""
        lower = transformer < trigram
        self.say(f"Validation loss on the same {characters:,} held-out characters, in nats a character:")
        self.say(f"  transformer {transformer:.4f}")
        self.say(f"  trigram     {trigram:.4f}")
        verdict = "lower" if lower else "NOT lower"
        style = "bold green" if lower else "bold red"
        self.console.print(Text(f"The transformer is {verdict} than the trigram.", style))
