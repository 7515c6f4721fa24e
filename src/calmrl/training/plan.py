"""What a training run is made of, where it stands, and what came out."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any


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

    def _ask(self, number: int, frame: FrameType | None) -> None:
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
    before = {number: signal.signal(number, flag._ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
