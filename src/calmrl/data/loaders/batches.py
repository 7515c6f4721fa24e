"""Shuffled batches for a training loop: which rows come when is the same for any number of processes.

An epoch draws from every source its rows `weight` times, in an order of its own; a batch of all processes is cut out of
it, and process r of w takes its rows r, r + w, ... Neighbouring rows are read close together: blocks of rows are shuffled,
then the rows of `POOL` blocks among themselves.
"""

import time
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from calmrl._support.text import plural
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.loaders.feature_rows import FeatureRows
from calmrl.errors import InputError

T = TypeVar("T")
END: Any = object()


def ahead(items: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """The same items in the same order, up to `depth` of them made before they are asked for.

    An error in the thread is raised here, in its place. Leaving the loop early ends the thread.
    """
    with ThreadPoolExecutor(1, "calmrl-loader") as pool:
        waiting = deque(pool.submit(next, items, END) for _ in range(depth))
        try:
            while (item := waiting.popleft().result()) is not END:
                waiting.append(pool.submit(next, items, END))
                yield item
        finally:
            pool.shutdown(cancel_futures=True)
            items.close()


BLOCK, POOL = 256, 64
COMPOSITIONS = ("mixed", "source", "pattern")


class RowSource(Protocol):
    """What `Batches` reads from; `FeatureRows` and `MediaRows` are two such."""

    name: str
    names: tuple[str, ...]  # of the modalities
    present: np.ndarray  # (n, k) bool
    ids: np.ndarray  # (n,)
    weight: float  # how often a row comes per epoch

    def __len__(self) -> int: ...

    def settings(self) -> str:
        """What the values depend on besides the rows, as text."""

    def fetch(self, wanted: np.ndarray, present: np.ndarray, epoch: int) -> dict[str, Any]:
        """Modality -> values of these rows, where `present` (wanted, k) is True."""

    @staticmethod
    def join(parts: Sequence[tuple[np.ndarray, dict[str, Any]]], present: np.ndarray) -> dict[str, Any]:
        """(places in the batch, what `fetch` gave for them) of several sources -> the rows of the batch in order."""


class Batches:
    """Iterate over one epoch of shuffled batches; the next loop is the next epoch.

    A batch is a dict: `z` (modality -> values; 0 where a feature is missing, and of media only the rows that have the
    modality), `present` (n, k), and `index` (n,), which numbers the rows of all sources one after another. Every row
    comes `weight` times per epoch, by default once, and in one process only. All processes make the same number of
    steps, and batches differ by at most one row: none is dropped. A thread reads ahead of the loop, unless all rows are
    arrays in memory.

    Parameters
    ----------
    sources : FeatureSet, FeatureRows, MediaRows, or a sequence of these
        The rows; a feature set stands for all its rows.
    batch_size : int
        Rows per batch, of all processes together.
    seed : int
        Of the order and of what `hide_one` hides.
    composition : {"mixed", "source", "pattern"}
        Batches hold rows of all sources and patterns, of one source, or of one source with the same modalities.
    hide_one : bool
        Hide one modality of every row that has two or more, drawn anew each epoch.
    complete_only, incomplete_only : bool
        Take only rows that have every modality, or only rows that lack one; `left_out` is the number of others.
    rank, world : int
        This process and the number of processes.
    prefetch : int
        Number of batches that the thread reads ahead.

    Attributes
    ----------
    waited : float
        Seconds for which this epoch's loop has waited for data.

    Examples
    --------
    >>> from calmrl.data import Batches
    >>> from calmrl.datasets import load_dataset
    >>> batches = Batches(load_dataset("digits"), batch_size=128)
    >>> for batch in batches:
    ...     z, present = batch["z"], batch["present"]
    >>> state = batches.state_dict()  # load_state_dict continues with the very same batches
    """

    def __init__(
        self,
        sources: FeatureSet | RowSource | Sequence[FeatureSet | RowSource],
        batch_size: int,
        *,
        seed: int = 0,
        composition: str = "mixed",
        hide_one: bool = False,
        complete_only: bool = False,
        incomplete_only: bool = False,
        rank: int = 0,
        world: int = 1,
        prefetch: int = 4,
    ) -> None:
        if composition not in COMPOSITIONS:
            raise InputError(f"batches must be one of {', '.join(COMPOSITIONS)}; got {composition!r}")
        if not 0 <= rank < world:
            raise InputError(f"rank must lie between 0 and world - 1; got rank {rank} of {world}")
        if prefetch < 1:
            raise InputError(f"prefetch must be at least 1; got {prefetch}")
        if batch_size < 2 * world:
            raise InputError(f"batch_size {batch_size} gives {world} processes fewer than two rows each; enlarge it")
        self.sources: list[RowSource] = [
            _all_rows(source) if isinstance(source, FeatureSet) else source
            for source in (sources if isinstance(sources, Sequence) else [sources])
        ]
        self.batch_size, self.seed, self.composition = batch_size, seed, composition
        if complete_only and incomplete_only:
            raise InputError("complete_only and incomplete_only leave no row; set one of them")
        self.hide_one, self.complete_only, self.incomplete_only = hide_one, complete_only, incomplete_only
        self.rank, self.world, self.prefetch = rank, world, prefetch
        self.epoch = self.step = 0
        self.waited = 0.0
        self.eligible = [
            np.flatnonzero(source.present.all(axis=1) == complete_only)
            if complete_only or incomplete_only
            else np.arange(len(source))
            for source in self.sources
        ]
        self.present = np.concatenate([source.present for source in self.sources])
        total = sum(map(len, self.eligible))
        self.left_out = len(self.present) - total
        self.offsets = np.cumsum([0, *map(len, self.sources)])
        if total < 2 * world:
            raise InputError(
                f"only {total} {'complete ' * complete_only}{'incomplete ' * incomplete_only}training rows; "
                f"{world} process(es) need at least {2 * world}"
            )
        self._fingerprint = self._make_fingerprint()
        self.steps = len(self.plan(0))  # the same in every epoch, up to rounding of the weights
        if self.steps == 0:
            raise InputError("the weights of the sources are so small that an epoch has no rows; make them larger")

    def __len__(self) -> int:
        """Steps per epoch."""
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rest of the current epoch."""
        self.waited = 0.0
        made = self._batches(self.epoch, self.step)
        with closing(made if all(map(_in_memory, self.sources)) else ahead(made, self.prefetch)) as batches:
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
        """The position; batches handed out so far do not come again."""
        return {"epoch": self.epoch, "step": self.step} | self._fingerprint

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from `state`; rows and settings must be the same, the number of processes may differ."""
        for key, value in self._fingerprint.items():
            if state.get(key) != value:
                raise InputError(
                    f"this position was saved with another {key}; continue with the same data and settings"
                )
        self.epoch, self.step = int(state["epoch"]), int(state["step"])

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
            orders = [part for order in orders for part in self._by_pattern(order)]
        small = [len(order) for order in orders if 0 < len(order) < self.world]
        if small:
            raise InputError(
                f"batches {self.composition}: an epoch has one of only {small[0]} row(s), fewer than the {self.world} "
                'processes; take batches "mixed", or larger weights'
            )
        cut = [np.array_split(order, -(-len(order) // self.batch_size)) for order in orders if len(order)]
        batches = [batch for part in cut for batch in part]  # as few as possible, all of nearly the same size
        if self.composition == "mixed":  # already in random order, and neighbours on disk are close together
            return batches
        return [batches[i] for i in rng.permutation(len(batches))]

    def describe(self, index: Any) -> list[str]:
        """Row numbers as "source:id"."""
        index = np.asarray(index)
        owner = np.searchsorted(self.offsets, index, side="right") - 1
        return [
            f"{self.sources[s].name}:{self.sources[s].ids[i - self.offsets[s]]}"
            for s, i in zip(owner, index, strict=True)
        ]

    def _make_fingerprint(self) -> dict[str, int]:
        """The rows and all settings; not the number of processes."""
        digest = 0
        for source in self.sources:
            digest = zlib.crc32(np.ascontiguousarray(source.present).tobytes(), digest)
            digest = zlib.crc32("\n".join(map(str, source.ids)).encode(), digest)
            digest = zlib.crc32(source.settings().encode(), digest)
        weights = "/".join(str(source.weight) for source in self.sources)
        composition = f"{self.composition} {self.hide_one} {self.complete_only}{' incomplete' * self.incomplete_only}"
        return {
            "set of training rows": digest,
            "weights of the sources": zlib.crc32(weights.encode()),
            "composition of batches": zlib.crc32(composition.encode()),
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def _order(self, s: int, epoch: int) -> np.ndarray:
        """The rows of source s in this epoch: a stretch of permutation after permutation of its rows."""
        rows, weight = self.eligible[s], self.sources[s].weight
        first, last = (round(e * len(rows) * weight) for e in (epoch, epoch + 1))
        parts = []
        for turn in range(first // max(1, len(rows)), -(-last // max(1, len(rows)))):
            order = _shuffled(rows, np.random.default_rng([self.seed, 0, s, turn]))
            low, high = max(first - turn * len(rows), 0), min(last - turn * len(rows), len(rows))
            parts.append(order[low:high])
        return np.concatenate(parts) if parts else rows[:0]

    def _by_pattern(self, order: np.ndarray) -> list[np.ndarray]:
        patterns, number = np.unique(self.present[order], axis=0, return_inverse=True)
        return [order[number.reshape(-1) == p] for p in range(len(patterns))]

    def _batches(self, epoch: int, step: int) -> Generator[dict[str, Any], None, None]:
        for number, rows in enumerate(self.plan(epoch)):
            if number >= step:
                yield self._batch(rows, epoch, number)

    def _batch(self, rows: np.ndarray, epoch: int, number: int) -> dict[str, Any]:
        owner = np.searchsorted(self.offsets, rows, side="right") - 1
        local = rows - self.offsets[owner]
        present = self.present[rows]
        if self.hide_one:
            present = _without_one(present, np.random.default_rng([self.seed, 2, epoch, number]))
        mine = slice(self.rank, None, self.world)
        owner, local, present, rows = owner[mine], local[mine], present[mine], rows[mine]
        parts = []
        for s in dict.fromkeys(owner.tolist()):
            places = np.flatnonzero(owner == s)
            parts.append((places, self.sources[s].fetch(local[places], present[places], epoch)))
        return {
            "z": self.sources[0].join(parts, present),
            "present": torch.from_numpy(np.ascontiguousarray(present)),
            "index": torch.from_numpy(rows),
        }


def _all_rows(features: FeatureSet) -> FeatureRows:
    rows = FeatureRows.of(features)
    if rows.unusable:
        empty = np.flatnonzero(~features.present.any(axis=1))
        raise InputError(
            f"{plural(len(empty), 'row has', 'rows have')} no modality at all (first: row {empty[0]}); leave such rows out "
            "with FeatureRows.of(features), whose `unusable` counts them"
        )
    return rows


def _in_memory(source: RowSource) -> bool:
    """Whether to take rows costs less than to wake a thread for them: no file is read."""
    return isinstance(source, FeatureRows) and all(type(array) is np.ndarray for array in source.z.values())


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
