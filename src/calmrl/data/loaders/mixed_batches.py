"""Batches from several sources: which rows come when is decided in row numbers, and is the same for any number of processes.

An epoch draws from every source its rows `weight` times, in an order of its own; a batch of all processes is cut out of
it, and process r of w takes its rows r, r + w, ... Neighbouring rows are read close together: blocks of rows are shuffled,
then the rows of `POOL` blocks among themselves.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch

from calmrl.data.loaders.epochs import Epochs
from calmrl.errors import InputError

BLOCK, POOL = 256, 64
COMPOSITIONS = ("mixed", "source", "pattern")
Batch = dict[str, Any]


class Mixture(Epochs):
    """Iterate over one epoch: dicts with `z`, `present` and `index`; the next loop is the next epoch.

    - `composition`: "mixed" batches hold rows of all sources and patterns, "source" batches those of one source,
      "pattern" batches those of one source that have the same modalities.
    - `hide_one`: every row with two or more modalities loses one, drawn anew each epoch.
    - `complete_only`: only rows that have every modality; `left_out` says how many others there are.
    - `batch_size` counts the rows of all processes together; batches of an epoch differ by at most one row.
    - `state_dict` and `load_state_dict` continue in the middle of an epoch with the very same batches.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        batch_size: int,
        *,
        seed: int = 0,
        composition: str = "mixed",
        hide_one: bool = False,
        complete_only: bool = False,
        rank: int = 0,
        world: int = 1,
        prefetch: int = 4,
    ) -> None:
        if composition not in COMPOSITIONS:
            raise InputError(f"batches must be one of {', '.join(COMPOSITIONS)}; got {composition!r}")
        if batch_size < 2 * world:
            raise InputError(
                f"batch_size {batch_size} leaves {world} processes less than two rows each; make it larger"
            )
        self.sources, self.batch_size, self.seed = list(sources), batch_size, seed
        self.composition, self.hide_one, self.complete_only = composition, hide_one, complete_only
        self.rank, self.world, self.prefetch = rank, world, prefetch
        self.usable = [
            np.flatnonzero(source.present.all(axis=1)) if complete_only else np.arange(len(source))
            for source in self.sources
        ]
        self.left_out = sum(map(len, self.sources)) - sum(map(len, self.usable))
        self.offsets = np.cumsum([0, *map(len, self.sources)])
        if sum(map(len, self.usable)) < 2 * world:
            raise InputError(
                f"only {sum(map(len, self.usable))} {'complete ' if complete_only else ''}training rows; "
                f"{world} process(es) need at least {2 * world}"
            )
        self.fixed = self._what_matters()
        self.steps = len(self.plan(0))  # the same in every epoch, up to rounding of the weights
        if self.steps == 0:
            raise InputError("the weights of the sources are so small that an epoch has no rows; make them larger")

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of every batch of an epoch, all processes together, numbered over all sources one after another."""
        rng = np.random.default_rng([self.seed, 1, epoch])
        orders = [self.offsets[s] + self._order(s, epoch) for s in range(len(self.sources))]
        if self.composition == "mixed":
            turn = rng.permutation(np.repeat(np.arange(len(orders)), [len(order) for order in orders]))
            joined = np.empty(len(turn), dtype=np.int64)
            for s, order in enumerate(orders):
                joined[turn == s] = order
            orders = [joined]
        if self.composition == "pattern":
            orders = [part for s, order in enumerate(orders) for part in self._by_pattern(s, order)]
        small = [len(order) for order in orders if 0 < len(order) < self.world]
        if small:
            raise InputError(
                f"batches {self.composition}: an epoch has one of only {small[0]} row(s), fewer than the {self.world} "
                'processes; take batches "mixed", or larger weights'
            )
        batches = [batch for order in orders if len(order) for batch in _cut(order, self.batch_size)]
        if self.composition == "mixed":  # already in random order, and neighbours on disk are close together
            return batches
        return [batches[i] for i in rng.permutation(len(batches))]

    def describe(self, index: Any) -> list[str]:
        """Row numbers as "source:id"."""
        index = np.asarray(index)
        home = np.searchsorted(self.offsets, index, side="right") - 1
        return [
            f"{self.sources[s].name}:{self.sources[s].ids[i - self.offsets[s]]}"
            for s, i in zip(home, index, strict=True)
        ]

    def _fixed(self) -> dict[str, int]:
        return self.fixed

    def _differs(self, key: str, saved: Any, own: int) -> str:
        return f"the checkpoint was written with another {key}; resume with the data and settings it started with"

    def _what_matters(self) -> dict[str, int]:
        """The rows and all settings; not the number of processes."""
        digest = 0
        for source in self.sources:
            digest = zlib.crc32(np.ascontiguousarray(source.present).tobytes(), digest)
            digest = zlib.crc32("\n".join(map(str, source.ids)).encode(), digest)
        weights = "/".join(str(source.weight) for source in self.sources)
        how = f"{self.composition} {self.hide_one} {self.complete_only}"
        return {
            "set of training rows": digest,
            "weights of the sources": zlib.crc32(weights.encode()),
            "composition of batches": zlib.crc32(how.encode()),
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def _order(self, s: int, epoch: int) -> np.ndarray:
        """The rows of source s in this epoch: a stretch of permutation after permutation of its rows."""
        rows, weight = self.usable[s], self.sources[s].weight
        first, last = (round(e * len(rows) * weight) for e in (epoch, epoch + 1))
        parts = []
        for turn in range(first // max(1, len(rows)), -(-last // max(1, len(rows)))):
            order = _shuffled(rows, np.random.default_rng([self.seed, 0, s, turn]))
            low, high = max(first - turn * len(rows), 0), min(last - turn * len(rows), len(rows))
            parts.append(order[low:high])
        return np.concatenate(parts) if parts else rows[:0]

    def _by_pattern(self, s: int, order: np.ndarray) -> list[np.ndarray]:
        present = self.sources[s].present[order - self.offsets[s]]
        _, kind = np.unique(present, axis=0, return_inverse=True)
        return [order[kind.reshape(-1) == k] for k in range(int(kind.max(initial=-1)) + 1)]

    def _batches(self, epoch: int, step: int) -> Generator[Batch, None, None]:
        for number, rows in enumerate(self.plan(epoch)):
            if number >= step:
                yield self._batch(rows, epoch, number)

    def _batch(self, rows: np.ndarray, epoch: int, number: int) -> Batch:
        home = np.searchsorted(self.offsets, rows, side="right") - 1
        local = rows - self.offsets[home]
        present = np.stack([self.sources[s].present[i] for s, i in zip(home, local, strict=True)])
        if self.hide_one:
            present = _without_one(present, np.random.default_rng([self.seed, 2, epoch, number]))
        mine = slice(self.rank, None, self.world)
        home, local, present, rows = home[mine], local[mine], present[mine], rows[mine]
        parts = []
        for s in dict.fromkeys(home.tolist()):
            at = np.flatnonzero(home == s)
            parts.append((at, self.sources[s].fetch(local[at], present[at], epoch)))
        return {
            "z": self.sources[0].join(parts, present),
            "present": torch.from_numpy(np.ascontiguousarray(present)),
            "index": torch.from_numpy(rows),
        }


def _cut(order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """As few batches as possible, all of nearly the same size."""
    return np.array_split(order, -(-len(order) // batch_size))


def _shuffled(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Blocks in random order, then the rows of each pool of blocks."""
    blocks = np.array_split(rows, max(1, -(-len(rows) // BLOCK)))
    blocks = [blocks[b] for b in rng.permutation(len(blocks))]
    pools = [np.concatenate(blocks[i : i + POOL]) for i in range(0, len(blocks), POOL)]
    return np.concatenate([rng.permutation(pool) for pool in pools])


def _without_one(present: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every row with several modalities loses one of them."""
    draw = np.where(present, rng.random(present.shape), -1.0)
    left = present.copy()
    several = present.sum(axis=1) > 1
    left[several, draw[several].argmax(axis=1)] = False
    return left
