"""Baselines that learn each pair of modalities by itself, and how their pairs become one vector per modality.

Modality a has a block of numbers for every other modality b; a and b meet in block (a, b) and nowhere else. One more number,
which no other modality has, makes the vector one of unit length:

    v^a = [block_ab, block_ac, ..., rest_a] / sqrt(k - 1),    v^a . v^b = block_ab . block_ba / (k - 1).

So the cosine of two modalities is the similarity of their pair over k - 1, and the vector of several modalities, the sum of
theirs, ranks by the sum of the similarities of all pairs (late fusion).

Where no rows have both a and b, there is a chain of modalities between them. The two neighbours in it with the most rows are
compared; what lies before and after them is translated link by link.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from itertools import combinations, pairwise, permutations

import numpy as np
import torch
from torch import Tensor

from calmrl.aligner.features import RANK
from calmrl.baselines.base import Baseline, chain

Routes = dict[tuple[int, int], list[int]]


def routes(together: np.ndarray) -> Routes:
    """(a, b) -> the modalities that a goes through until it meets b: the last of routes[a, b] and of routes[b, a] are compared.

    Examples
    --------
    >>> routes(np.array([[9, 0, 5], [0, 9, 4], [5, 4, 9]]))[1, 0]
    [1, 2]
    """
    return _routes(tuple(map(tuple, together.tolist())))


@lru_cache(maxsize=8)  # every block of every embedding asks again
def _routes(counts: tuple[tuple[int, ...], ...]) -> Routes:
    together, found = np.array(counts), {}
    for a, b in combinations(range(len(together)), 2):
        path = chain(together, a, b)
        links = [int(together[m, n]) for m, n in pairwise(path)]
        strongest = links.index(max(links))
        found[a, b], found[b, a] = path[: strongest + 1], path[:strongest:-1]
    return {pair: found[pair] for pair in permutations(range(len(together)), 2)}


class Pairwise(Baseline):
    """A baseline that has a block of numbers per pair of modalities."""

    @abstractmethod
    def _block(self, a: int, b: int, f: Tensor) -> Tensor:
        """(n, r) of features of modality a, to be compared with b; no row is longer than one."""

    @abstractmethod
    def _block_width(self, a: int, b: int) -> int:
        """r, the same for (b, a)."""

    @property
    def width_(self) -> int:
        """Width of the embedding: that of all blocks, and a number per modality."""
        k = len(self.names_)
        return sum(self._block_width(a, b) for a, b in combinations(range(k), 2)) + k

    def _vectors(self, m: int, f: Tensor) -> Tensor:
        k = len(self.names_)
        blocks = []
        for a, b in combinations(range(k), 2):
            if m in (a, b):
                blocks.append(self._block(m, b if m == a else a, f))
            else:
                blocks.append(f.new_zeros(len(f), self._block_width(a, b)))
        vectors = torch.cat(blocks, dim=1) / (k - 1) ** 0.5
        rest = f.new_zeros(len(f), k)
        left = 1 - vectors.square().sum(1)
        rest[:, m] = torch.where(left > RANK, left.clamp(min=RANK).sqrt(), 0.0)  # less is rounding
        return torch.cat([vectors, rest], dim=1)
