"""A run, from the parameter table to the verdict."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from . import _checkpoint as checkpoint
from ._baseline import TrigramModel
from ._data import Corpus, Tokens, held_out_windows, training_batch
from ._errors import InputError, reason
from ._interrupt import Interrupt
from ._metrics import MetricsFile
from ._report import Bar, Lines, Report
from ._sample import generate
from ._settings import Settings
from ._train import Trainer

DONE, NOT_LOWER, INTERRUPTED = 0, 1, 130

PROMPT_SHOWN = 100  # characters of the text that the sample goes on with


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the command line asks for, checked: nothing was written yet."""

    settings: Settings
    data: Path | None
    corpus: Corpus
    folder: Path
    resumed: dict[str, Any] | None  # what the checkpoint says about itself
    plain: bool

    @property
    def about(self) -> dict[str, Any]:
        """What a checkpoint has to say, beside the step."""
        data = None if self.data is None else str(self.data)
        settings = dataclasses.asdict(self.settings)
        return {"settings": settings, "data": data, "digest": self.corpus.digest}


class Run:
    """A plan being carried out."""

    def __init__(self, plan: Plan, report: Report, interrupt: Interrupt) -> None:
        self.plan, self.settings, self.corpus = plan, plan.settings, plan.corpus
        self.report, self.interrupt = report, interrupt
        self.trainer = Trainer(plan.settings, plan.corpus.vocabulary)
        if plan.resumed is not None:
            checkpoint.restore(plan.folder, plan.resumed, self.trainer.objects)
        self.step = self.trainer.step
        length, batch = self.settings.length, self.settings.evaluation_batch
        self.windows = held_out_windows(self.corpus.validation, length, batch)  # (N, T + 1)

    def start(self) -> None:
        """Makes the folder a run, before the first step costs any time."""
        try:
            self.metrics_file = MetricsFile(self.plan.folder, self.step)
            self.save()
        except OSError as error:
            raise InputError(str(self.plan.folder), reason(error), "a folder to write to") from None

    def save(self) -> None:
        """Stores the state between two steps."""
        about = {"step": self.step, **self.plan.about}
        checkpoint.save(self.plan.folder, self.trainer.objects, about)

    def train(self) -> None:
        """Makes the steps that are left, or those until Ctrl-C."""
        settings = self.settings
        if self.step == settings.steps:
            return
        tokens = settings.batch * settings.length
        with self.report.training(self.step, settings.steps, tokens) as view:
            while self.step < settings.steps and not self.interrupt.requested:
                self.trainer.train(self.batch(self.step))
                self.step += 1
                view.made_step(self.step)
                if self.due(settings.report_every):
                    self.measure(view)
                if self.due(settings.save_every) or self.interrupt.requested:
                    self.save()

    def batch(self, step: int) -> Tokens:
        """The windows of a step, (B, T + 1)."""
        settings = self.settings
        return training_batch(self.corpus.train, settings.seed, step, settings.batch, settings.length)

    def due(self, every: int) -> bool:
        """Whether something that happens every so many steps, and at the last, happens now."""
        return self.step % every == 0 or self.step == self.settings.steps

    def measure(self, view: Lines | Bar) -> None:
        """Shows and writes the losses since the last time."""
        measured = self.trainer.take_metrics()
        loss = None
        if self.due(self.settings.validate_every):
            loss = self.trainer.validation_loss(self.quick_windows())
        speed = view.measured(self.step, measured["loss"], loss)
        validation = "" if loss is None else loss
        self.metrics_file.write(
            {
                "step": self.step,
                **measured,
                "validation_loss": validation,
                "tokens_per_second": round(speed),
            }
        )

    def quick_windows(self) -> Tokens:
        """Some held-out windows, spread over the whole text; always the same."""
        wanted = self.settings.quick_batches * self.settings.evaluation_batch
        return self.windows[:: max(1, len(self.windows) // wanted)][:wanted]

    def finish(self) -> int:
        """Evaluates on all held-out windows, shows a sample, and gives the exit code."""
        self.report.say("Evaluating on all held-out text ...")
        transformer = self.trainer.validation_loss(self.windows)
        trigram = self.trigram_loss()
        self.report.show_sample(*self.sample())
        self.report.say(f"Checkpoint and metrics are in {self.plan.folder}")
        characters = self.windows.shape[0] * self.settings.length
        self.report.show_result(transformer, trigram, characters)
        return verdict(transformer, trigram)

    def trigram_loss(self) -> float:
        """The loss of the trigram model on the characters that the windows ask for."""
        characters = self.windows.shape[0] * self.settings.length
        trigram = TrigramModel(self.corpus.train, self.corpus.vocabulary)
        return trigram.loss(self.corpus.validation[: characters + 1])

    def sample(self) -> tuple[str, str]:
        """The end of some held-out text, and how the model goes on."""
        window = self.corpus.validation[: self.settings.length]  # (T,)
        key = jax.random.fold_in(jax.random.key(self.settings.seed), self.step)
        keys = jax.random.split(key, self.settings.sample_length)  # (N,)
        model = self.trainer.model
        model.eval()
        written = generate(model, jnp.asarray(window), keys)  # (N,)
        model.train()
        return self.corpus.decode(window[-PROMPT_SHOWN:]), self.corpus.decode(written)


def verdict(transformer: float, trigram: float) -> int:
    """The exit code for two losses; a loss that is no number is not lower."""
    return DONE if transformer < trigram else NOT_LOWER


def run(plan: Plan) -> int:
    """Carries a plan out and gives the exit code."""
    report = Report(plan.plain)
    sizes = f"{len(plan.corpus.train):,} to train on, {len(plan.corpus.validation):,} held out"
    report.say(f"Text: {plan.corpus.name}. Characters: {sizes}, {plan.corpus.vocabulary:,} different.")
    if plan.resumed is None and checkpoint.is_run(plan.folder):
        report.say("The folder holds a run, which this one replaces.")
    report.say(f"Folder of the run: {plan.folder}")
    with Interrupt() as interrupt:
        current = Run(plan, report, interrupt)
        current.start()
        report.show_parameters(current.trainer.model)
        current.train()
    if interrupt.requested:
        report.say(f"Stopped after step {current.step:,}. Go on with: --resume {plan.folder}")
        return INTERRUPTED
    return current.finish()
