"""The rows that are looked at to choose and to place landmarks: a random sample, in memory, the same in every process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calmrl._support.distributed import gather_objects, world
from calmrl.imputers.gaussian.row_sources import Source

RARE = 500  # a modality that fewer rows have is sampled whole


@dataclass(frozen=True)
class Rows:
    """Some rows: values per modality (NaN where missing), mask, and the group and relevance of each row."""

    z: list[Tensor]  # (n, d_m)
    present: Tensor  # (n, k)
    groups: np.ndarray  # (n,) int64, rows with the same number belong together
    relevant: np.ndarray | None = None  # (n,) int64, rows with the same number count for each other; -1: with no other

    def __len__(self) -> int:
        return len(self.present)

    def take(self, index: Tensor) -> Rows:
        """Some of the rows."""
        at = index.cpu().numpy()
        relevant = None if self.relevant is None else self.relevant[at]
        return Rows([z[index] for z in self.z], self.present[index], self.groups[at], relevant)

    def of(self, m: int) -> Tensor:
        """The values of the rows that have modality m, (n_m, d_m)."""
        return self.z[m][self.present[:, m]]


def sample(source: Source, groups: np.ndarray | None, most: int, seed: int, relevant: np.ndarray | None = None) -> Rows:
    """About `most` random rows of all processes, and all rows of modalities that few rows have.

    `groups` numbers the rows of this process; None puts every row in a group of its own. `relevant` numbers them, too.
    """
    generator = torch.Generator().manual_seed(seed)
    rate = min(1.0, most / max(1, source.rows))
    rare = (source.count <= RARE).cpu()
    parts: list[list[Tensor]] = [[] for _ in source.names]
    masks, numbers, places, start = [], [], [], 0
    for views in source.chunks():
        keep = torch.rand(len(views), generator=generator) < rate if rate < 1 else torch.ones(len(views)).bool()
        keep |= (views.present.cpu() & rare).any(1)
        index = keep.nonzero()[:, 0]
        taken = views.take(index)
        masks.append(taken.present)
        places.append(index.numpy() + start)
        numbers.append(places[-1] if groups is None else groups[places[-1]])
        start += len(views)
        for m, values in enumerate(taken.rows(0, len(index))):
            if values is None:
                values = torch.full((len(index), source.widths[m]), float("nan"), device=source.device)
            parts[m].append(values.detach().to(source.dtype))
    values = None if relevant is None else relevant[np.concatenate(places)]
    mine = Rows([torch.cat(part) for part in parts], torch.cat(masks), np.concatenate(numbers), values)
    return _over_processes(mine, source.device, groups is None)


def _over_processes(mine: Rows, device: torch.device, own_groups: bool) -> Rows:
    """The samples of all processes one after the other; without groups, rows of different processes stay apart."""
    if world()[0] == 1:
        return mine
    gathered = gather_objects(mine)
    numbers, offset = [], 0
    for rows in gathered:
        numbers.append(rows.groups + offset)
        offset += int(rows.groups.max(initial=-1)) + 1 if own_groups else 0
    return Rows(
        [torch.cat([rows.z[m].to(device) for rows in gathered]) for m in range(len(mine.z))],
        torch.cat([rows.present.to(device) for rows in gathered]),
        np.concatenate(numbers),
        None if mine.relevant is None else np.concatenate([rows.relevant for rows in gathered]),
    )


def folds_of(rows: Rows, folds: int, seed: int) -> np.ndarray:
    """The fold of each row, (n,): groups stay together, and each missing pattern is spread over the folds.

    Groups are drawn in random order, rows of one pattern after the other, and each goes to the fold that has fewest
    rows of that pattern, then fewest rows.
    """
    random = np.random.default_rng(seed)
    _, pattern = np.unique(rows.present.cpu().numpy(), axis=0, return_inverse=True)
    _, first, inverse = np.unique(rows.groups, return_index=True, return_inverse=True)
    size = np.bincount(inverse)
    order = random.permutation(len(first))
    order = order[np.lexsort((np.arange(len(order)), pattern[first][order]))]
    order = order[np.argsort(-size[order], kind="stable")]
    filled = np.zeros((int(pattern.max(initial=0)) + 1, folds))
    home = np.zeros(len(first), dtype=np.int64)
    for group in order:
        mine = pattern[first[group]]
        home[group] = min(range(folds), key=lambda fold: (filled[mine, fold], filled[:, fold].sum(), fold))
        filled[mine, home[group]] += size[group]
    return home[inverse]
