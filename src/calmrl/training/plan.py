"""What a training run is made of (its options and stages), where it stands, how it is stopped, and what came out."""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal


@dataclass(frozen=True)
class TrainerOptions:
    """How a `Trainer` trains, whatever the stages.

    - `batch_size` counts the rows of all processes in one forward pass; `accumulate` of those make one update.
    - `learning_rate` to `decay` are those of AdamW, see `make_optimiser`. The rate rises over the first `warmup_ratio` of a
      stage and falls linearly; `clip` is the largest gradient norm; `ema` the decay of a moving average of the weights.
    - `metric` ("MRR", "R@1", "R@5", "R@10" or "recall", their mean) on validation rows picks the best checkpoint;
      `patience` validations without a better one end the stage.
    - `validate_every` and `checkpoint_every` count updates; None is once per epoch; 0 is only at the end of a stage. `keep`
      checkpoints stay beside the best.
    - `refit` is for a frozen imputer: it is fitted to the representations before every so many epochs.
    - `latent_scores=False` measures retrieval alone on validation rows, not what a latent model does; it changes no step.
    - `cpu` trains on the CPU even where there is another device.

    Examples
    --------
    >>> TrainerOptions(batch_size=128, learning_rate=3e-4).metric
    'MRR'
    """

    seed: int = 0
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 1e-3
    encoder_learning_rate: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    betas: Sequence[float] = (0.9, 0.98)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    decay: Literal["matrices", "names"] = "matrices"
    warmup_ratio: float = 0.1
    clip: float | None = 1.0
    ema: float | None = None
    precision: str = "fp32"
    metric: str = "MRR"
    validate_every: int | None = None
    patience: int | None = None
    checkpoint_every: int | None = None
    keep: int = 2
    log_every: int = 10
    refit: int = 1
    latent_scores: bool = True
    trackers: Sequence[str] = ()
    cpu: bool = False


@dataclass(frozen=True)
class Stage:
    """One pass of training with its own data and schedule. Give `epochs` or `steps`."""

    name: str
    sources: Sequence[Any]
    epochs: float | None = None
    steps: int | None = None
    composition: str = "mixed"
    hide_one: bool = False
    complete_only: bool = False
    incomplete_only: bool = False
    fresh_best: bool = False  # the best model is looked for in this stage only
    rate: float = 1.0  # multiplies the learning rates


@dataclass
class Position:
    """Where a run is; all of it is in a checkpoint."""

    stage: int = 0
    step: int = 0  # updates in all stages together
    stage_step: int = 0
    best: float | None = None
    best_step: int = 0
    since_best: int = 0
    seconds: float = 0.0
    latent_seconds: float = 0.0
    batches: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came out of a run. Times do not include validation and checkpoints."""

    steps: int
    best: float | None
    best_step: int
    seconds: float
    latent_seconds: float
    stopped_early: bool


def due(step: int, every: int | None, epoch: int, last: bool) -> bool:
    """Whether something that happens every so many steps (None: every epoch; 0: at the end) happens at this one."""
    every = epoch if every is None else every
    return last or (every > 0 and step % every == 0)


class Interrupted(Exception):
    """Training was asked to stop, and has saved where it was."""


class StopFlag:
    """Whether someone asked to stop."""

    raised = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.raised and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.raised = True


@contextmanager
def listening() -> Iterator[StopFlag]:
    """Catch SIGINT and SIGTERM for the time of the block (in the main thread); a second Ctrl-C stops at once."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, flag.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
