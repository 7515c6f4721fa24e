"""What all loaders share: one loop is one epoch, made ahead in a thread, and it can go on in the middle."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from calmrl.data.loaders.background import ahead
from calmrl.errors import InputError


class Epochs(ABC):
    """Iterates over batches. A subclass sets `steps` and `prefetch`, and has `_batches` and `_fixed`."""

    steps: int
    prefetch: int
    epoch = 0
    step = 0
    waited = 0.0  # seconds that this epoch's loop has waited for data

    def __len__(self) -> int:
        """Steps per epoch."""
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rest of the current epoch."""
        self.waited = 0.0
        with closing(ahead(self._batches(self.epoch, self.step), self.prefetch)) as batches:
            while True:
                start = time.perf_counter()
                batch = next(batches, None)
                self.waited += time.perf_counter() - start
                if batch is None:
                    break
                self.step += 1
                yield batch
        self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Where we are: the batches handed out so far do not come again."""
        return {"epoch": self.epoch, "step": self.step} | self._fixed()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from `state`; all that the batches depend on must be the same."""
        for key, value in self._fixed().items():
            if state.get(key) != value:
                raise InputError(self._differs(key, state.get(key), value))
        self.epoch, self.step = int(state["epoch"]), int(state["step"])

    def _differs(self, key: str, saved: Any, own: int) -> str:
        return f"the saved position has {key} {saved} but this loader has {own}; use the same"

    @abstractmethod
    def _batches(self, epoch: int, step: int) -> Generator[dict[str, Any], None, None]:
        """The batches of an epoch from this step on; none if there are no more."""

    @abstractmethod
    def _fixed(self) -> dict[str, int]:
        """All that the batches depend on."""
