"""What a random order reaches: the level that retrieval numbers start from."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np


def chance(n: int, relevant: Sequence[Hashable] | None = None, ks: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """Percent of queries that find an own item among the first k of a random order, n items asking for each other.

    A query with r own items among n misses all of them with probability C(n - r, k) / C(n, k), so

        R@k = 100 mean over queries of 1 - prod over i < k of (n - r - i) / (n - i).

    Parameters
    ----------
    n : int
        Items; each is a query and a gallery item.
    relevant : sequence, optional
        One value per item; own items of a query are those with its value. Without it only the item itself.
    ks : sequence of int

    Examples
    --------
    >>> chance(200, ks=(1, 10))
    {'R@1': 0.5, 'R@10': 5.0}
    >>> chance(4, ["cat", "cat", "dog", "dog"], ks=(1,))
    {'R@1': 50.0}
    """
    sizes = Counter(range(n) if relevant is None else relevant)
    own = np.array([size for size in sizes.values() for _ in range(size)], dtype=float)
    levels = {}
    for k in ks:
        steps = np.arange(min(k, n))
        missed = np.prod(np.maximum(n - own[:, None] - steps, 0) / (n - steps), axis=1)
        levels[f"R@{k}"] = round(float(100 * (1 - missed.mean())), 9)
    return levels
