"""What determines a run: two runs with equal settings on equal text are equal bit for bit."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """The size of the model, the recipe of its training, and how often it is looked at."""

    preset: str = "small"
    seed: int = 0
    steps: int = 1400

    # The model
    layers: int = 3
    width: int = 128
    heads: int = 4
    dropout: float = 0.02  # little: a run reads its text less than once

    # The recipe
    batch: int = 8  # windows in a step
    length: int = 128  # characters in a window
    learning_rate: float = 4e-3
    warmup: int = 50  # steps
    weight_decay: float = 0.1
    clip: float = 1.0  # of the norm of all gradients together

    # The looks at it
    report_every: int = 10  # steps
    validate_every: int = 100
    save_every: int = 100
    evaluation_batch: int = 64  # windows
    quick_batches: int = 2  # for the validation loss while training; at the end all are evaluated
    sample_length: int = 500  # characters


PRESETS = {
    "small": Settings(),
    "tiny": Settings(
        preset="tiny", steps=1200, layers=2, width=64, length=64, learning_rate=1e-2, sample_length=200
    ),
}


def make_settings(preset: str, steps: int | None, seed: int | None) -> Settings:
    """The settings of a preset, with those that the user gave."""
    given: dict[str, Any] = {"steps": steps, "seed": seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = dataclasses.replace(PRESETS[preset], **chosen)
    # The learning rate has to come down again, however short the run is.
    return dataclasses.replace(settings, warmup=min(settings.warmup, settings.steps // 2))
