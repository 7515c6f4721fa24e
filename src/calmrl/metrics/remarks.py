"""What a reader of the numbers must know before using them, in sentences."""

from collections.abc import Sequence

from calmrl.imputers.calibration import coverage_fault
from calmrl.metrics.measures import Measurement

FEW = 50  # queries of a direction, below which one of them is more than 2 points of recall
LEVEL = "95"  # of intervals, in percent


def remarks(rows: Sequence[Measurement]) -> list[str]:
    """Warnings about measurements: imputation worse than the mean, intervals that do not cover, too few queries.

    Examples
    --------
    >>> remarks([{"task": "text->image", "metric": "nmse", "value": 1.2, "n": 50}])
    ['imputing is worse than the column means for text->image (normalised error 1.20): do not use these imputed vectors']
    """
    return [*_worse_than_mean(rows), *_intervals(rows), *_few(rows)]


def _worse_than_mean(rows: Sequence[Measurement]) -> list[str]:
    worse = [f"{row['task']} ({row['value']:.2f})" for row in rows if row["metric"] == "nmse" and row["value"] > 1]
    if not worse:
        return []
    first = worse[0].replace("(", "(normalised error ", 1)
    return [
        f"imputing is worse than the column means for {', '.join([first, *worse[1:]])}: do not use these imputed vectors"
    ]


def _intervals(rows: Sequence[Measurement]) -> list[str]:
    sentences = []
    for row in rows:
        if (row["metric"], row["task"]) != ("coverage", LEVEL):
            continue
        fault = coverage_fault(row["value"])
        if fault:
            sentences.append(
                f"{LEVEL} % intervals of imputed values hold {row['value']:.0f} % of the true values: they are {fault}"
            )
    return sentences


def _few(rows: Sequence[Measurement]) -> list[str]:
    few = {row["task"]: row["n"] for row in rows if row["metric"] == "R@1" and "->" in row["task"] and row["n"] < FEW}
    if not few:
        return []
    least = min(few.values())
    listed = ", ".join(f"{task} ({n})" for task, n in few.items())
    return [f"few queries: {listed}; with {least}, one hit more or less moves R@1 by {100 / least:.0f} points"]
