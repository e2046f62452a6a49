"""What is shown: a table of parameters, the progress, the text and the result at the end."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import nnxgraph as nnx

NOT_YET = "-"


def loss_text(loss: float | None) -> str:
    """A loss, or a sign that there is none yet."""
    return NOT_YET if loss is None else f"{loss:.4f}"


def duration_text(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def parameter_table(model: nnx.Module, style: box.Box) -> Table:
    """A row for each Param: its paths, its shape, how many numbers it holds."""
    table = Table(box=style, title="Parameters", title_justify="left")
    table.add_column("path")
    table.add_column("shape")
    table.add_column("numbers", justify="right")
    others = {first: rest for first, *rest in nnx.find_duplicates(model, only=nnx.Param)}
    total = 0
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        names = [".".join(map(str, p)) for p in (path, *others.get(path, ()))]
        size = math.prod(variable.shape)
        table.add_row("\n= ".join(names), "×".join(map(str, variable.shape)), f"{size:,}")
        total += size
    table.add_section()
    table.add_row("together", "", f"{total:,}")
    return table


class Speed:
    """How fast steps are made once the first one, which compiles, is done."""

    def __init__(self, steps: int, tokens: int) -> None:
        self.steps, self.tokens = steps, tokens
        self.first: tuple[int, float] | None = None

    def made_step(self, step: int) -> None:
        """Starts the clock after the first step."""
        if self.first is None:
            self.first = self.last = (step, time.monotonic())

    def since_last(self, step: int) -> float:
        """Tokens a second since the last time this was asked."""
        (before, then), self.last = self.last, (step, time.monotonic())
        return (step - before) * self.tokens / max(self.last[1] - then, 1e-9)

    def seconds_left(self, step: int) -> float:
        """The time for the steps that are left, at the speed so far."""
        before, then = self.first or self.last
        return (time.monotonic() - then) / max(step - before, 1) * (self.steps - step)


class Lines:
    """Shows training as a line for each validation loss."""

    def __init__(self, say: Callable[[str], None], step: int, steps: int, tokens: int) -> None:
        self.say, self.steps = say, steps
        self.speed = Speed(steps, tokens)
        say(f"Training from step {step:,} to {steps:,}; compiling comes first.")

    def made_step(self, step: int) -> None:
        """Shows nothing: one step is no news."""
        self.speed.made_step(step)

    def measured(self, step: int, loss: float, validation: float | None) -> float:
        """Shows losses; returns the speed since the last time, in tokens a second."""
        speed = self.speed.since_last(step)
        if validation is not None:
            left = duration_text(self.speed.seconds_left(step))
            losses = f"loss {loss_text(loss)}  validation {loss_text(validation)}"
            self.say(f"step {step:,}/{self.steps:,}  {losses}  {speed:,.0f} tokens/s  ETA {left}")
        return speed


class Bar:
    """Shows training as a live bar."""

    def __init__(self, progress: Progress, step: int, steps: int, tokens: int) -> None:
        self.progress = progress
        self.speed = Speed(steps, tokens)
        self.task = progress.add_task(
            "compiling", total=steps, completed=step, loss=NOT_YET, validation=NOT_YET, speed=NOT_YET
        )

    @staticmethod
    def columns() -> list[TextColumn | BarColumn | TimeRemainingColumn]:
        """What stands in the line of the bar."""
        return [
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,}/{task.total:,}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("validation {task.fields[validation]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        ]

    def made_step(self, step: int) -> None:
        """Moves the bar on."""
        self.speed.made_step(step)
        self.progress.update(self.task, completed=step, description="training")

    def measured(self, step: int, loss: float, validation: float | None) -> float:
        """Shows losses; returns the speed since the last time, in tokens a second."""
        speed = self.speed.since_last(step)
        fields = {"loss": loss_text(loss), "speed": f"{speed:,.0f}"}
        if validation is not None:
            fields["validation"] = loss_text(validation)
        self.progress.update(self.task, **fields)  # type: ignore[arg-type]  # fields have any name
        return speed


class Report:
    """Shows a run: with colours and a live bar on a terminal, else as lines.

    Args:
        plain: Whether to print lines without colours wherever it runs.
    """

    def __init__(self, plain: bool) -> None:
        self.live = sys.stdout.isatty() and not plain
        system = "auto" if self.live else None
        self.console = Console(color_system=system, highlight=False)  # type: ignore[arg-type]  # "auto" is one of its literals

    def say(self, text: str, style: str = "") -> None:
        """Prints text as it is, however long its lines."""
        self.console.print(Text(text, style), soft_wrap=True)

    def show_parameters(self, model: nnx.Module) -> None:
        """Prints the table of parameters."""
        self.console.print(parameter_table(model, box.ROUNDED if self.live else box.ASCII))

    @contextlib.contextmanager
    def training(self, step: int, steps: int, tokens: int) -> Iterator[Lines | Bar]:
        """The time in which steps of so many tokens are made, from one step to the last."""
        if not self.live:
            yield Lines(self.say, step, steps, tokens)
            return
        with Progress(*Bar.columns(), console=self.console) as progress:
            yield Bar(progress, step, steps, tokens)

    def show_sample(self, prompt: str, written: str) -> None:
        """Prints text that the model wrote, after the one it was given."""
        title = "Held-out text, and how the model goes on"
        if self.live:
            text = Text.assemble((prompt, "dim"), (written, "bold"))
            self.console.print(Panel(text, title=title, title_align="left"))
        else:
            self.say(f"{title}:\n{prompt}|{written}")

    def show_result(self, transformer: float, trigram: float, characters: int) -> None:
        """Prints both losses side by side, and which is lower."""
        self.say(f"Validation loss on the same {characters:,} held-out characters, in nats a character:")
        self.say(f"  transformer  {loss_text(transformer)}")
        self.say(f"  trigram      {loss_text(trigram)}")
        lower = transformer < trigram
        verdict = "lower" if lower else "NOT lower"
        style = "bold green" if lower else "bold red"
        self.say(f"The transformer's loss is {verdict} than the trigram's.", style)
