"""Shuffled batches of decoded media, ready for a model of raw media."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

import numpy as np
import torch

from calmrl.data.loaders.epochs import Epochs
from calmrl.data.loaders.media_rows import MediaRows
from calmrl.errors import InputError


class MediaBatches(Epochs):
    """Iterate over one epoch: dicts with `z`, `present` and `index`; the next loop is the next epoch.

    `z` holds, for each modality, the rows of the batch that have it; `index` numbers rows of the manifest. As with
    `Batches`: every row comes once per epoch and in one process only, all processes make the same
    number of steps, and `state_dict` and `load_state_dict` continue in the middle of an epoch with the very same batches.
    Decoding happens in threads, ahead of the training step; `waited` is the time in seconds that the loop has waited.
    """

    def __init__(
        self,
        rows: MediaRows,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        prefetch: int = 2,
    ) -> None:
        if not 0 <= rank < world:
            raise InputError(f"rank must lie between 0 and world - 1; got rank {rank} of {world}")
        if min(batch_size, prefetch) < 1:
            raise InputError("batch_size and prefetch must be at least 1")
        self.rows, self.batch_size, self.seed, self.shuffle, self.drop_last = rows, batch_size, seed, shuffle, drop_last
        self.rank, self.world, self.prefetch = rank, world, prefetch
        share = len(rows) // world  # every process has this many rows or one more
        self.steps = share // batch_size if drop_last else -(-share // batch_size)
        if self.steps == 0:
            raise InputError(f"{len(rows)} rows are too few for {world} process(es) with batch_size {batch_size}")
        self.dropped = len(rows) - self.steps * batch_size * world if drop_last else 0

    def _fixed(self) -> dict[str, int]:
        """All that the batches depend on."""
        rows = self.rows
        how = [rows.seed, rows.frames, rows.transform.size, rows.slices, rows.training, sorted(rows.tokens.items())]
        present = np.ascontiguousarray(rows.present).tobytes()
        return {
            "seed": self.seed,
            "rows": len(rows),
            "checksum of ids": zlib.crc32("\n".join(map(str, rows.ids)).encode()),
            "checksum of what is present": zlib.crc32(present),
            "checksum of the decoding": zlib.crc32(str(how).encode()),
            "batch_size": self.batch_size,
            "world": self.world,
            "shuffle": int(self.shuffle),
            "drop_last": int(self.drop_last),
        }

    def _batches(self, epoch: int, step: int) -> Generator[dict[str, Any], None, None]:
        n = len(self.rows)
        order = np.random.default_rng([self.seed, epoch]).permutation(n) if self.shuffle else np.arange(n)
        mine = order[(self.rank * n) // self.world : ((self.rank + 1) * n) // self.world]
        for number in range(step, self.steps):
            last = number == self.steps - 1 and not self.drop_last
            wanted = mine[number * self.batch_size : None if last else (number + 1) * self.batch_size]
            present = self.rows.present[wanted]
            yield {
                "z": self.rows.fetch(wanted, present, epoch),
                "present": torch.from_numpy(present),
                "index": torch.from_numpy(self.rows.rows[wanted]),
            }
