"""Shuffled batches from features that do not fit into memory.

Rows are cut into blocks of neighbours. An epoch draws a new order of the blocks, gives each process an equal stretch of
it, reads `pool_blocks` blocks at a time (in sequence, fast on any disk) and shuffles the rows of that pool. Reading and
putting together batches happen in threads, ahead of the training step.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch

from calmrl.convention import check
from calmrl.data.loaders.background import ahead
from calmrl.data.loaders.epochs import Epochs
from calmrl.errors import InputError

Batch = dict[str, Any]  # "z": name -> (n, d) tensor, "present": (n, k) bool tensor, "index": (n,) row numbers
Pool = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]  # z, present, index


class Batches(Epochs):
    """Iterate over one epoch: dicts with `z`, `present` and `index`; the next loop is the next epoch.

    - Every row comes exactly once per epoch and in one process only. All processes make the same number of steps; the
      last batch may be smaller, or larger by one row. `drop_last=True` leaves out incomplete batches instead; `dropped`
      is the number of rows this costs per epoch.
    - Values of missing modalities are 0 in the batch: a linear layer over NaN has NaN gradients even if masked.
    - `state_dict` and `load_state_dict` continue in the middle of an epoch with the very same batches.
    - `waited` is the time in seconds this epoch's loop has waited for data so far.
    """

    def __init__(
        self,
        z: Mapping[str, np.ndarray],
        present: np.ndarray,
        batch_size: int,
        *,
        rows: np.ndarray | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        dtype: torch.dtype | None = torch.float32,
        block_rows: int = 256,
        pool_blocks: int = 64,
        prefetch: int = 4,
    ) -> None:
        """`rows` (row numbers or a bool mask) picks some rows; `dtype=None` keeps the stored one."""
        check(z, present, values=False, empty_rows=True)
        if not 0 <= rank < world:
            raise InputError(f"rank must lie between 0 and world - 1; got rank {rank} of {world}")
        if min(batch_size, block_rows, pool_blocks, prefetch) < 1:
            raise InputError("batch_size, block_rows, pool_blocks and prefetch must be at least 1")
        self.z, self.present = dict(z), present
        self.batch_size, self.seed, self.shuffle, self.dtype = batch_size, seed, shuffle, dtype
        self.rank, self.world = rank, world
        self.block_rows, self.pool_blocks, self.prefetch = block_rows, pool_blocks, prefetch
        self.rows = _row_numbers(rows, len(present))
        empty = self.rows[~present[self.rows].any(axis=1)]
        if len(empty):
            raise InputError(
                f"{len(empty)} rows have no modality at all (first: row {empty[0]}); leave them out with rows="
            )
        share = len(self.rows) // world  # every process has this many rows or one more
        self.steps = share // batch_size if drop_last else -(-share // batch_size)
        if self.steps == 0:
            raise InputError(
                f"{len(self.rows)} rows are too few for {world} process(es) with batch_size {batch_size}"
                f"{' and drop_last=True' if drop_last else ''}"
            )
        self.dropped = len(self.rows) - self.steps * batch_size * world if drop_last else 0
        self.drop_last = drop_last

    def _fixed(self) -> dict[str, int]:
        """All that the order of the rows depends on."""
        return {
            "seed": self.seed,
            "rows": len(self.rows),
            "checksum of the row numbers": zlib.crc32(self.rows.astype(np.int64).tobytes()),
            "batch_size": self.batch_size,
            "world": self.world,
            "shuffle": int(self.shuffle),
            "drop_last": int(self.drop_last),
            "block_rows": self.block_rows,
            "pool_blocks": self.pool_blocks,
        }

    def _blocks(self, epoch: int) -> list[np.ndarray]:
        """The row numbers of this process, block by block, in the order of this epoch."""
        n = len(self.rows)
        starts = np.arange(0, n, self.block_rows)
        if self.shuffle:
            starts = np.random.default_rng([self.seed, epoch]).permutation(starts)
        sizes = np.minimum(self.block_rows, n - starts)
        ends = np.cumsum(sizes)
        first, last = (self.rank * n) // self.world, ((self.rank + 1) * n) // self.world
        mine = []
        for start, size, end in zip(starts, sizes, ends, strict=True):
            low, high = max(first, end - size), min(last, end)  # the part of this block in my stretch first:last
            if low < high:
                offset = start - (end - size)
                mine.append(self.rows[low + offset : high + offset])
        return mine

    def _pools(self, epoch: int, skip: int) -> Generator[Pool, None, None]:
        """Pools of shuffled rows, without the first `skip` rows of the epoch.

        The values lie in three buffers that take turns, so a pool is overwritten by the third after it. With new arrays
        for every pool the process would grow: the allocator does not give all of the old ones back.
        """
        blocks = self._blocks(epoch)
        most = min(self.pool_blocks * self.block_rows, sum(len(block) for block in blocks))
        buffers = [
            {name: np.empty((most, z.shape[1]), z.dtype.newbyteorder("=")) for name, z in self.z.items()}
            for _ in range(3)
        ]
        for number, first in enumerate(range(0, len(blocks), self.pool_blocks)):
            chosen = blocks[first : first + self.pool_blocks]
            size = sum(len(block) for block in chosen)
            if skip >= size:
                skip -= size
                continue
            place = np.arange(size)  # where each row goes
            if self.shuffle:
                place = np.random.default_rng([self.seed, epoch, self.rank, number]).permutation(size)
            index = np.empty(size, dtype=np.int64)
            index[place] = np.concatenate(chosen)
            z = {name: buffer[:size] for name, buffer in buffers[number % 3].items()}
            for name, out in z.items():
                _read(self.z[name], chosen, place, out)
            yield {name: out[skip:] for name, out in z.items()}, self.present[index[skip:]], index[skip:]
            skip = 0

    def _batches(self, epoch: int, step: int) -> Generator[Batch, None, None]:
        """Cut the pools into batches; a batch may begin in one pool and end in the next.

        Rows are copied out of a pool before the next is asked for: one pool is in use here, one waits and one is being
        read, hence three buffers.
        """
        if step >= self.steps:
            return
        n = len(self.rows)
        mine = ((self.rank + 1) * n) // self.world - (self.rank * n) // self.world
        with closing(ahead(self._pools(epoch, step * self.batch_size), 1)) as pools:
            pool, at = next(pools), 0
            for number in range(step, self.steps):
                size = self.batch_size
                if number == self.steps - 1 and not self.drop_last:
                    size = mine - number * self.batch_size
                z = {
                    name: torch.empty((size, array.shape[1]), dtype=self.dtype or torch.from_numpy(array).dtype)
                    for name, array in pool[0].items()
                }
                present, index = torch.empty((size, len(z)), dtype=torch.bool), torch.empty(size, dtype=torch.int64)
                filled = 0
                while filled < size:
                    if at == len(pool[2]):
                        pool, at = next(pools), 0
                    count = min(size - filled, len(pool[2]) - at)
                    here, there = slice(filled, filled + count), slice(at, at + count)
                    for name, array in pool[0].items():
                        z[name][here] = torch.from_numpy(array[there])
                    present[here], index[here] = torch.from_numpy(pool[1][there]), torch.from_numpy(pool[2][there])
                    filled, at = filled + count, at + count
                for j, values in enumerate(z.values()):
                    values.masked_fill_(~present[:, j, None], 0.0)
                yield {"z": z, "present": present, "index": index}


def _row_numbers(rows: np.ndarray | None, n: int) -> np.ndarray:
    if rows is None:
        return np.arange(n)
    rows = np.asarray(rows)
    if rows.dtype == bool:
        if rows.shape != (n,):
            raise InputError(f"rows is a mask of shape {rows.shape} but there are {n} rows")
        return np.flatnonzero(rows)
    numbers = np.unique(rows)
    if len(numbers) != len(rows):
        raise InputError(f"rows names {len(rows) - len(numbers)} rows more than once; name every row once")
    if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < n:
        raise InputError(f"rows must lie between 0 and {n - 1}; got {numbers[0]} to {numbers[-1]}")
    return numbers


def _read(array: np.ndarray, blocks: list[np.ndarray], place: np.ndarray, out: np.ndarray) -> None:
    """Read the rows of the blocks (sorted row numbers each), the i-th of them to out[place[i]].

    A memory-mapped file is read, not mapped: mapped pages would count as memory of the process, more with each pool.
    """
    plain = not (isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.flags.c_contiguous)
    at = 0
    for run in (run for block in blocks for run in ([block] if plain else _runs(block))):
        out[place[at : at + len(run)]] = array[run] if plain else _span(array, run)
        at += len(run)


def _span(array: Any, run: np.ndarray) -> np.ndarray:
    """The rows `run` of a memory-mapped array, read from its file in one go."""
    first, width, count = int(run[0]), array.shape[1], int(run[-1] - run[0]) + 1
    start = array.offset + first * width * array.itemsize
    span = np.fromfile(str(array.filename), array.dtype, count * width, offset=start)
    if len(span) < count * width:
        raise InputError(f"{array.filename} ends before row {first + count}; it was cut off while in use")
    return span.reshape(count, width)[run - first]


def _runs(block: np.ndarray) -> list[np.ndarray]:
    """Stretches of a block to read in one go: small gaps are read over, large ones skipped."""
    return np.split(block, np.flatnonzero(np.diff(block) > 8) + 1)
