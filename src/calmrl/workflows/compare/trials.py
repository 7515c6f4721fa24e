"""All trials of one job: trained side by side, by successive halving, and the one that validation rows prefer.

Every trial may make the same number of steps. After a quarter of them the better half of the trials goes on, after half of
them the better half of those; each trial counts with its best validation score so far, and keeps the weights that had
it. A trial without a better score for some validations stops. This is the same for every method that makes steps.
A method without steps has all its trials measured. No test row is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from calmrl.config.schema.train import TrainConfig
from calmrl.training.loop import Trainer
from calmrl.training.method import Changes
from calmrl.training.step import Step
from calmrl.training.validate import encode_all, retrieval_scores
from calmrl.workflows.build import build_step, build_trainer
from calmrl.workflows.compare.rows import ComparedRows

RUNGS = (0.25, 0.5)  # shares of the steps after which the better half of the trials goes on


@dataclass
class Trial:
    """One trial: what it changes, its rows, and its training as far as it has come."""

    changes: Changes
    rows: ComparedRows
    step: Step
    trainer: Trainer
    metric: str
    records: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(config: TrainConfig, changes: Changes, rows: ComparedRows, model: Any) -> Trial:
        """A trial before its first step, from the model that it starts from."""
        records: list[dict[str, Any]] = []
        step = build_step(config, rows.data, model)
        trainer = build_trainer(config, rows.data, step, None, listen=records.append, latent_scores=False)
        return Trial(changes, rows, step, trainer, config.validation.metric, records)

    @property
    def steps(self) -> int:
        """Made so far."""
        return self.trainer.position.step

    def score(self) -> float:
        """The best validation score so far; of a model without steps, its own."""
        if self.trainer.position.best is None:
            z, present = encode_all(self.step.model, self.rows.data.validation)
            return retrieval_scores(z, present, self.trainer.relevant)[self.metric]
        return self.trainer.position.best

    def curve(self) -> list[dict[str, float]]:
        """Loss and validation score by step."""
        names = {"step": "step", "loss": "loss", self.metric: "val"}
        return [
            {names[key]: value for key, value in record.items() if key in names}
            for record in self.records
            if record["kind"] in ("train", "validation")
        ]


def train_and_choose(start: Sequence[Callable[[], Trial]], steps: int, halve: bool) -> tuple[list[Trial], int]:
    """(all trials, the number of the best); ties go to the earlier one.

    The best has its best weights, and is ready to be measured. `halve=False` trains every trial to the end.
    """
    trials = [make() for make in start]
    left = list(range(len(trials)))
    for share in RUNGS if halve else ():
        for number in left:
            trials[number].trainer.run(until=max(1, round(share * steps)))
        left = sorted(_ranked(trials, left)[: -(-len(left) // 2)])
    for number in left:
        trials[number].trainer.run()
    best = _ranked(trials, left)[0]
    trials[best].trainer.take_best()
    trials[best].step.eval()
    return trials, best


def _ranked(trials: Sequence[Trial], numbers: Sequence[int]) -> list[int]:
    """From the best score to the worst."""
    scores = {number: trials[number].score() for number in numbers}
    return sorted(numbers, key=lambda number: -scores[number])
