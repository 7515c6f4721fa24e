"""Which recall to expect on new items, from what held-out rows found.

Every fold is judged with the candidate that the *other* folds chose, so that the choice does not flatter itself. Two
things differ between a fold and new items, and both are corrected:

- the gallery. A query that a of g - 1 others beat is a hit at k in a random gallery of n <= g with the hypergeometric
  probability P(at most k - 1 of those a are among the n - 1 others drawn). Beyond g recall is continued as a power of n, with
  the slope between g / 2 and g. Where several items count as found, they are drawn like all others (`RelevantRanks`), so
  that larger galleries hold more of them and recall may rise with n; then the misses are continued as a power of n;
- the training rows. A fold learns from 2/3 of the rows. The gain from 1/3 to 2/3 of them, in the logit of the mean
  reciprocal rank, is continued by the law c - A / rows, under which every further row helps less.

The interval is for the recall that n new queries measure in a gallery of n: the middle 90 % of a beta-binomial
distribution. Its beta part has the variance of a share over the held-out queries plus that of half of each correction.
Galleries differ by more than their queries do, for instance where one of them holds a hub; how much more, `dispersion`
reads off the folds, and both samples, the held-out and the new one, are taken to vary so much more.

Where several items count as found, two more things make recall vary. Queries of one class or caption look for the same items
and fail together, so that there are fewer independent ones than queries. And the continuation beyond g amplifies the
noise of the two recalls it starts from, although it hardly changes recall. With psi_i the derivative of the estimate by
the share of query i (`Evidence.influence`), the variance over the held-out queries is then

    sum over groups of (sum over the queries i of a group of psi_i)^2 / queries^2,

where a group is the queries of one fold that have the same relevant items; the new sample is taken to vary as much more than
independent queries as this does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import betabinom
from scipy.stats import t as student

from calmrl.aligner.crossvalidation import FoldDirection, Outcome, RelevantRanks, at_most
from calmrl.metrics.retrieve import chance_level

KS = (1, 10)
LEVEL = 0.9
UNLIKE = 0.7  # standard deviation between collections of the logit of R@1, where one collection cannot say it


@dataclass(frozen=True)
class Evidence:
    """What held-out rows found in one direction, all folds together."""

    ranks: np.ndarray  # (n,) float64, from 1
    gallery: np.ndarray  # (n,) int64, the size of the gallery of each query
    own: RelevantRanks | None = None  # where several items count for some query

    @staticmethod
    def of(directions: list[FoldDirection]) -> Evidence:
        """All folds of one direction together."""
        sizes = [np.full(len(one.ranks), one.gallery) for one in directions]
        own = None
        if any(one.own is not None for one in directions):
            own = RelevantRanks.join([_own(one) for one in directions])
        return Evidence(np.concatenate([one.ranks for one in directions]), np.concatenate(sizes), own)

    def recall(self, k: int, n: int) -> float:
        """Expected share of hits at k in galleries of n, continued beyond the smallest gallery that was seen."""
        seen = int(self.gallery.min())
        if n <= seen:
            return float(self._hits(k, n).mean())
        half = max(2, seen // 2)
        now, before = float(self._hits(k, seen).mean()), float(self._hits(k, half).mean())
        if now <= 0 or seen <= half:
            return now
        if now > before:
            slope = math.log(max(1 - now, 1e-9) / (1 - before)) / math.log(seen / half)
            return 1 - (1 - now) * (n / seen) ** slope
        slope = math.log(now / before) / math.log(seen / half)
        return now * (n / seen) ** slope

    def influence(self, k: int, n: int) -> np.ndarray:
        """(queries,) psi: how far each query moves `recall(k, n)`, times the number of queries; the mean is 0."""
        seen = int(self.gallery.min())
        last = self._hits(k, min(n, seen))
        now, half = float(last.mean()), max(2, seen // 2)
        if n <= seen or now <= 0 or seen <= half:
            return last - now
        first = self._hits(k, half)
        before, value = float(first.mean()), self.recall(k, n)
        power = math.log(n / seen) / math.log(seen / half)  # recall (or the misses) is now^(1 + power) / before^power
        if now > before:
            now, before, value = max(1 - now, 1e-9), 1 - before, 1 - value
        by_last, by_first = (1 + power) * value / now, power * value / before
        return by_last * (last - last.mean()) - by_first * (first - first.mean())

    def inflation(self, k: int, n: int) -> tuple[float, float]:
        """(variance of `recall(k, n)` over independent queries, how much larger it is as queries of a group agree)."""
        psi = self.influence(k, n)
        alone = float((psi**2).mean()) / len(psi)
        if self.own is None or alone == 0:
            return alone, 1.0
        _, group = np.unique(self.own.group, return_inverse=True)
        sums = np.bincount(group, weights=psi)
        together = float((sums**2).sum()) / len(psi) ** 2 * len(sums) / max(1, len(sums) - 1)
        return alone, max(1.0, together / alone)

    def _hits(self, k: int, n: int) -> np.ndarray:
        """(queries,) probability of a hit at k in a random gallery of n; halves of ties lie between whole ranks."""
        if self.own is not None:
            return self.own.hits(k, n, self.gallery)
        return at_most(k - 1, self.gallery - 1, self.ranks - 1, n - 1)


def _own(direction: FoldDirection) -> RelevantRanks:
    """The ranks of a direction, also of one in which every query has a single item."""
    if direction.own is not None:
        return direction.own
    n = len(direction.ranks)
    return RelevantRanks(direction.ranks[:, None] - 1, np.ones(n, dtype=np.int64), np.arange(n))


def learning_gain(fewer: list[Outcome], more: list[Outcome], seen: float, rows: float) -> float:
    """What more training rows add to the logit of recall.

    `more` learned from `seen` times as many rows as `fewer`, and the final fit from `rows` times as many as `more`.
    """
    small, large = (_reciprocal(outcomes) for outcomes in (fewer, more))
    if not (0 < small < 1 and 0 < large < 1):
        return 0.0
    if seen <= 1 or rows <= 1:
        return 0.0
    gain = max(0.0, _logit(large) - _logit(small))
    return gain * (1 - 1 / rows) / (seen - 1)


def _reciprocal(outcomes: list[Outcome]) -> float:
    ranks = [one.ranks for outcome in outcomes for one in outcome.values()]
    return float((1 / np.concatenate(ranks)).mean()) if ranks else 0.0


def dispersion(outcomes: list[Outcome]) -> float:
    """How much more R@1 varies between folds than the number of queries explains; at least 1, over all directions."""
    ratios = []
    for key in {key for one in outcomes for key in one}:
        hits = [(one[key].ranks < 1.5).astype(float) for one in outcomes if key in one]
        share, sizes = float(np.concatenate(hits).mean()), np.array([len(part) for part in hits])
        if len(hits) > 1 and 0 < share < 1:
            means = np.array([part.mean() for part in hits])
            ratios.append(float((sizes * (means - share) ** 2).sum()) / (share * (1 - share) * (len(hits) - 1)))
    return max(1.0, float(np.mean(ratios))) if ratios else 1.0


def expectation(evidence: Evidence, gain: float, more: float, n: int | None) -> dict[str, float]:
    """{"R@1", "R@10", "low", "high", "n"} in percent, for galleries of n; by default as large as those that were seen.

    `gain` is what `learning_gain` gives, `more` what `dispersion` gives. Where several items count for some query, "own" is how
    many of the n count for a query on average.
    """
    seen = int(np.median(evidence.gallery))
    n = seen if n is None else n
    recalls = {f"R@{k}": 100 * _moved(_clipped(evidence.recall(k, n), len(evidence.ranks)), gain) for k in KS}
    recalls["R@10"] = max(recalls["R@1"], recalls["R@10"]) if n > 10 else 100.0
    raw = _clipped(evidence.recall(1, n), len(evidence.ranks))
    p = _moved(raw, gain)
    spread = _spread(evidence, raw, p, more, n) + (0.5 * gain * p * (1 - p)) ** 2
    if n > evidence.gallery.min():
        near = _moved(_clipped(evidence.recall(1, int(evidence.gallery.min())), len(evidence.ranks)), gain)
        spread += (0.5 * (near - p)) ** 2
    size = max(1.0, p * (1 - p) / spread - 1)
    hits = betabinom.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2], n, p * size, (1 - p) * size)
    row = {**recalls, "low": 100 * float(hits[0]) / n, "high": 100 * float(hits[1]) / n, "n": n}
    return row if evidence.own is None else {**row, "own": evidence.own.mean_count(n, evidence.gallery)}


def expectation_elsewhere(evidence: Sequence[Evidence], n: int | None) -> dict[str, float]:
    """As `expectation`, for a collection of which no pairs are known, from what others found that were not learned from.

    Collections differ by more than their queries do: the interval is that of one more collection, by the t-distribution of the
    logit of R@1 over collections, and of n queries in it.
    """
    n = int(np.median([np.median(one.gallery) for one in evidence])) if n is None else n
    row: dict[str, float] = {}
    for k in KS:
        logits = np.array([_logit(_clipped(one.recall(k, n), len(one.ranks))) for one in evidence])
        row[f"R@{k}"] = 100 * _moved(0.5, float(logits.mean()))
        if k == 1:
            p, many = _moved(0.5, float(logits.mean())), len(logits)
            between = float(logits.std(ddof=1)) if many > 1 else UNLIKE
            error = math.sqrt(between**2 * (1 + 1 / many) + 1 / (n * p * (1 - p)))
            reach = float(student.ppf((1 + LEVEL) / 2, max(1, many - 1))) * error
            row |= {"low": 100 * _moved(p, -reach), "high": 100 * _moved(p, reach)}
    row["R@10"] = max(row["R@1"], row["R@10"]) if n > 10 else 100.0
    return {**{key: row[key] for key in ("R@1", "R@10", "low", "high")}, "n": n, "collections": len(evidence)}


HELD_OUT = (
    "expected on new items, by cross-validation (R@1 with its 90 % interval, R@10, and what a random order reaches, in a "
    "gallery of n):"
)
QUOTED = (
    "no pairs show these; what the base reached, on average, on collections that it had not seen (with the 90 % interval of "
    "one more collection):"
)


def expected_lines(expected: Mapping[str, Mapping[str, float]]) -> list[str]:
    """`Aligner.expected_` as a table for people: what was held out, and then what a base is quoted for."""
    width = max(map(len, expected), default=0)
    lines = []
    for heading, quoted in ((HELD_OUT, False), (QUOTED, True)):
        rows = {direction: e for direction, e in expected.items() if ("collections" in e) is quoted}
        lines += [heading] if rows else []
        for direction, e in rows.items():
            interval = f"({e['low']:.0f} to {e['high']:.0f})"
            first, ten = (f"chance {chance_level(k, int(e['n']), e.get('own', 1.0)):4.1f}" for k in KS)
            row = f"  {direction:<{width}}  R@1 {e['R@1']:5.1f} {interval:<11} {first}  R@10 {e['R@10']:5.1f} {ten}  n {e['n']}"
            lines.append(row + (f"  collections {e['collections']}" if quoted else ""))
    return lines


def _spread(evidence: Evidence, raw: float, p: float, more: float, n: int) -> float:
    """Variance from the choice of held-out and of new items, beyond that of n independent new queries."""
    if evidence.own is None:
        return p * (1 - p) * (more / len(evidence.ranks) + (more - 1) / n)
    alone, together = evidence.inflation(1, n)
    more = max(more, together)
    moved = p * (1 - p) / (raw * (1 - raw))  # what the gain makes of a small difference
    alone = max(moved**2 * alone, p * (1 - p) / len(evidence.ranks))  # also where all queries hit, or none
    return more * alone + p * (1 - p) * (more - 1) / n


def _clipped(share: float, n: int) -> float:
    """Away from 0 and 1 by half a query."""
    return min(max(share, 0.5 / (n + 1)), 1 - 0.5 / (n + 1))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _moved(p: float, gain: float) -> float:
    return 1 / (1 + math.exp(-_logit(p) - gain))
