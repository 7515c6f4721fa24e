"""How sure a number is: intervals over seeds, paired tests, and correction for having made several."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from calmrl.errors import InputError

DRAW_ENTRIES = 1 << 22  # counts of a bootstrap held at once


class Interval(NamedTuple):
    """mean ± half; `half` is None where one value says nothing about the spread."""

    mean: float
    half: float | None
    n: int


class PairedDifference(NamedTuple):
    """A difference with its interval and the two-sided p-value of "no difference"; None where there is no telling."""

    difference: float
    low: float | None
    high: float | None
    p: float | None


def mean_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """Mean ± t s / sqrt(n), with s the standard deviation and t the quantile of Student's distribution, n - 1 degrees.

    It covers the mean over all seeds with probability `level` if values are normal and independent over seeds. It says
    nothing about other data: the test items are the same for every seed.

    Examples
    --------
    >>> interval = mean_interval([1.0, 2.0, 3.0])
    >>> interval[0]
    2.0
    """
    x = _finite(values, "values")
    n = len(x)
    if n == 1:
        return Interval(float(x[0]), None, 1)
    return Interval(float(x.mean()), float(stdtrit(n - 1, (1 + level) / 2) * x.std(ddof=1) / np.sqrt(n)), n)


def paired_t(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> PairedDifference:
    """Student's paired test: value i of both sides comes from the same seed. Interval of 95 %.

    Examples
    --------
    >>> round(paired_t([3.0, 4.0, 6.0], [1.0, 2.0, 3.0]).difference, 2)
    2.33
    """
    a, b = _finite(ours, "ours"), _finite(theirs, "theirs")
    if len(a) != len(b):
        raise InputError(f"ours has {len(a)} values but theirs has {len(b)}; a paired test needs one of each per seed")
    mean, half, n = mean_interval(a - b)
    if half is None:
        return PairedDifference(mean, None, None, None)
    rounding = 1e-12 * max(np.abs(a).max(), np.abs(b).max())
    if (spread := float((a - b).std(ddof=1))) <= rounding:  # all differences are the same
        return PairedDifference(mean, mean, mean, 1.0 if abs(mean) <= rounding else 0.0)
    return PairedDifference(mean, mean - half, mean + half, float(2 * stdtr(n - 1, -abs(mean) * np.sqrt(n) / spread)))


def paired_bootstrap(
    ours: np.ndarray, theirs: np.ndarray, draws: int = 10_000, seed: int = 0, *, groups: Sequence[Any] | None = None
) -> PairedDifference:
    """Difference of means over (seed, query) with both redrawn: are other seeds and other queries likely to agree?

    `ours` and `theirs` are (seeds, queries), or (queries,) for one seed: what each query scored, such as the "hits" that
    `retrieval(..., per_query=True)` adds, in the same order on both sides. Each draw takes as many seeds and as many
    queries, with replacement; the interval holds the middle 95 % of the redrawn differences, and

        p = 2 (1 + min(#{difference <= 0}, #{difference >= 0})) / (draws + 1), at most 1.

    With one seed only queries are redrawn, and with two or three seeds the spread between seeds is underestimated.
    `groups` names what is redrawn as a whole, one name per query: the item, when it asks in several directions or has
    several captions. Its queries succeed and fail together, and drawing them apart would make everything look surer.

    Examples
    --------
    >>> import numpy as np
    >>> ours, theirs = np.ones((3, 20)), np.zeros((3, 20))
    >>> paired_bootstrap(ours, theirs, draws=100).difference
    1.0
    """
    return paired_bootstraps([(ours, theirs)], draws, seed, groups=groups)[0]


def paired_bootstraps(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    draws: int = 10_000,
    seed: int = 0,
    *,
    groups: Sequence[Any] | None = None,
) -> list[PairedDifference]:
    """`paired_bootstrap` of several (ours, theirs) with the same seeds and queries, which are redrawn once for all of them."""
    gains = [_gain(*pair) for pair in pairs]
    if len(shapes := {gain.shape for gain in gains}) != 1:
        raise InputError(
            f"pairs has the shapes {sorted(shapes)}; pass at least one, all with the same seeds and queries"
        )
    seeds, queries = gains[0].shape
    names = range(queries) if groups is None else list(groups)
    if len(names) != queries:
        raise InputError(f"groups has {len(names)} names but there are {queries} queries; pass one per query")
    place = {name: g for g, name in enumerate(dict.fromkeys(names))}
    home = np.array([place[name] for name in names])
    size = np.bincount(home)  # queries per group
    n_groups = len(size)
    totals = [np.stack([np.bincount(home, weights=one) for one in gain]) for gain in gains]  # (seeds, groups) each
    random = np.random.default_rng(seed)
    redrawn: list[list[np.ndarray]] = [[] for _ in gains]
    step = max(1, DRAW_ENTRIES // n_groups)
    for start in range(0, draws, step):
        now = min(step, draws - start)
        of_seeds = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=now)  # (now, seeds)
        of_groups = random.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=now)
        drawn_queries = seeds * (of_groups @ size)
        for own, total in zip(redrawn, totals, strict=True):
            own.append(((of_seeds @ total) * of_groups).sum(1) / drawn_queries)
    return [_difference(gain, np.concatenate(own)) for gain, own in zip(gains, redrawn, strict=True)]


def _gain(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """(seeds, queries) ours - theirs."""
    a, b = (np.atleast_2d(np.asarray(side, dtype=np.float64)) for side in (ours, theirs))
    if a.shape != b.shape or a.ndim != 2 or not a.size:
        raise InputError(f"ours has shape {np.shape(ours)} and theirs {np.shape(theirs)}; pass (seeds, queries) twice")
    gain = a - b
    if not np.isfinite(gain).all():
        raise InputError("ours or theirs holds NaN or an infinite value; every query of every seed needs a score")
    return gain


def _difference(gain: np.ndarray, drawn: np.ndarray) -> PairedDifference:
    tiny = 1e-12 * max(1.0, np.abs(gain).max())  # differences that are zero but for rounding are on both sides
    p = 2 * (1 + min((drawn <= tiny).sum(), (drawn >= -tiny).sum())) / (len(drawn) + 1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return PairedDifference(float(gain.mean()), float(low), float(high), float(min(1.0, p)))


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's correction: with the p-values in rising order, the j-th of m becomes max over i <= j of (m - i + 1) p_i.

    Calling everything below 0.05 a difference is then wrong anywhere at all with probability 0.05 at most. None stays
    None and does not count.

    Examples
    --------
    >>> {name: round(p, 3) for name, p in holm({"a": 0.01, "b": 0.04}).items()}
    {'a': 0.02, 'b': 0.04}
    """
    ordered = sorted((p, name) for name, p in p_values.items() if p is not None)
    corrected: dict[str, float | None] = dict.fromkeys(p_values)
    reached = 0.0
    for done, (p, name) in enumerate(ordered):
        reached = max(reached, min(1.0, (len(ordered) - done) * p))
        corrected[name] = reached
    return corrected


def against_best(
    values: Mapping[str, Mapping[int, float]], baselines: Sequence[str], *, higher: bool = True
) -> tuple[str | None, dict[str, PairedDifference]]:
    """(the best baseline, method -> paired comparison with it, p corrected by Holm over the methods).

    `values` maps method -> seed -> value. The best of `baselines` is the one with the best mean. Only seeds that both
    sides have are compared; a method that shares none with it is not in the result. Methods that are baselines
    themselves are not compared. Differences are ours minus theirs, also where lower is better (`higher=False`).

    Examples
    --------
    >>> best, tests = against_best({"a": {0: 1.0, 1: 2.0}, "b": {0: 2.0, 1: 3.5}}, baselines=["a"])
    >>> best, list(tests)
    ('a', ['b'])
    """
    means = {name: float(np.mean(list(values[name].values()))) for name in baselines if values.get(name)}
    if not means:
        return None, {}
    best = (max if higher else min)(means, key=lambda name: means[name])
    tests = {}
    for method, mine in values.items():
        shared = sorted(set(mine) & set(values[best]))
        if method not in baselines and shared:
            tests[method] = paired_t([mine[s] for s in shared], [values[best][s] for s in shared])
    corrected = holm({method: test.p for method, test in tests.items()})
    return best, {method: test._replace(p=corrected[method]) for method, test in tests.items()}


def _finite(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise InputError(f"{name} must be a list of finite numbers, at least one; got {values!r}")
    return x
