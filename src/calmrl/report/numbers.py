"""Means with what is needed to judge them: the interval over seeds, the number of seeds, the number of items."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from calmrl.metrics.registry import describe
from calmrl.metrics.significance import mean_interval


def decimals(metric: str, values: Iterable[float]) -> int:
    """So many that the largest of the values shows three digits, for metrics that are not percentages."""
    least = describe(metric).decimals
    largest = max((abs(value) for value in values), default=0.0)
    return max(least, 2 - math.floor(math.log10(largest))) if least > 1 and largest > 0 else least


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, half the width of its 95 % interval (None for one seed), and the items behind every value."""

    mean: float
    half: float | None
    seeds: int
    fewest: int
    most: int
    values: tuple[float, ...]

    @property
    def low(self) -> float | None:
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.half is None else self.mean + self.half

    @property
    def items(self) -> str:
        """250, or 240 to 250 when the seeds differ."""
        return f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"

    def text(self, decimals: int) -> str:
        """27.3 ± 0.8; a single seed has no ±."""
        return fixed(self.mean, decimals) + ("" if self.half is None else f" ± {fixed(self.half, decimals)}")


def estimate(values: Sequence[float], items: Iterable[int]) -> Estimate:
    """The mean of one value per seed, each measured on so many items."""
    array, sizes = np.asarray(values, dtype=float), list(items)
    mean, half = float(array.mean()), mean_interval(array).half
    return Estimate(mean, half, len(array), min(sizes), max(sizes), tuple(array.tolist()))


def fixed(value: float, decimals: int) -> str:
    """A number with fixed decimals and a proper minus sign; never -0."""
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def plural(count: int, word: str) -> str:
    """1 seed, 3 seeds."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
