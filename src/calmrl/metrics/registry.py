"""METRICS: every number that is measured, with its unit, which way is better, and the function that computes it.

A measure costs its function and its line here:

    METRICS["spread"] = Metric("spread", "0 to 2", "lower", "geometry", "mine:spread", "mean distance to the centroid")

`calmrl compare` and `calmrl evaluate` then compute it, and the report and the tables show it. The function gets what it
names of `z`, `present` (the test rows in the shared space), `align` (the calibration, or None), `labelled` (gives all
rows with their labels, or None), `seed` and, in a comparison, `embed` and `training` (see `fused_rows`); it returns rows made
by `calmrl.metrics.measures.row`. Nothing here imports
torch.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calmrl._support.registry import Registry

HOME = "calmrl.metrics.model_rows"
GROUPS = {
    "retrieval": "every modality finds every other one; always measured",
    "imputation": "error and coverage of imputed vectors",
    "shift": "anchor shift before and after imputing",
    "geometry": "where the modalities lie in the shared space",
    "pool": "retrieval in one pool of items that lack different modalities",
    "fused": "retrieval by queries of several modalities, fused in three ways",
    "classification": "classifiers on the representations, also with a modality taken away",
    "examples": "a map and nearest neighbours for the report",
}
CHANCE = "what a random order of the items reaches"
# measure metrics of other groups in a setting of their own
OF_GROUPS: dict[str, str] = {"pool": f"{HOME}:pool_rows", "fused": f"{HOME}:fused_rows"}


@dataclass(frozen=True)
class Metric:
    """What a number means. Several metrics may share a function; one `by_hand` is computed only by calling it."""

    label: str
    unit: str  # "%", or the scale, such as "0 to 2"
    better: Literal["higher", "lower", "neither"]
    group: str = ""
    function: str | Callable[..., Any] = ""
    about: str = ""
    decimals: int = 3
    by_hand: bool = False

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.about

    @property
    def axis(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def sign(self) -> int:
        """1 where higher is better, -1 where lower is, 0 where neither."""
        return {"higher": 1, "lower": -1, "neither": 0}[self.better]


_RANKS, _ERRORS, _COVERAGE, _SHIFTS, _CLASSES = (
    f"{HOME}:{name}_rows" for name in ("retrieval", "imputation", "coverage", "shift", "classification")
)
_GAP, _ALIGNMENT, _UNIFORMITY = (f"calmrl.metrics.measures:{n}" for n in ("modality_gap", "alignment", "uniformity"))


def _recall(k: int) -> Metric:
    about = f"share of queries with an item of their own among the first {k}"
    return Metric(f"R@{k}", "%", "higher", "retrieval", _RANKS, about, 1)


METRICS: Registry[Metric] = Registry(
    "metric",
    {
        **{f"R@{k}": _recall(k) for k in (1, 5, 10)},
        "MedR": Metric("median rank", "", "lower", "retrieval", _RANKS, "rank of the first item of their own", 1),
        "MRR": Metric("mean reciprocal rank", "%", "higher", "retrieval", _RANKS, "mean of 1 / rank, in percent", 1),
        **{
            f"chance R@{k}": Metric(f"R@{k} by chance", "%", "neither", "retrieval", _RANKS, CHANCE, 1)
            for k in (1, 5, 10)
        },
        "nmse": Metric("normalised error", "1 = the mean", "lower", "imputation", _ERRORS, "relative to the mean"),
        "mse": Metric("mean squared error", "", "lower", "imputation", _ERRORS, "of imputed against real vectors"),
        "mse_random": Metric(
            "mean squared error of a random other item", "", "neither", "imputation", _ERRORS, "to compare mse with"
        ),
        "coverage": Metric("coverage", "%", "neither", "imputation", _COVERAGE, "values inside their interval", 1),
        "anchor_shift": Metric(
            "anchor shift |u − u'|", "0 to 2", "lower", "shift", _SHIFTS, "how far missing modalities move anchors"
        ),
        "anchor_shift_low": Metric("lower bound of the anchor shift", "", "neither", "shift", _SHIFTS, "of each item"),
        "anchor_shift_high": Metric("upper bound of the anchor shift", "", "neither", "shift", _SHIFTS, "of each item"),
        "modality_gap": Metric(
            "modality gap", "distance of the centres", "neither", "geometry", _GAP, "of the mean unit vectors"
        ),
        "modality_separability": Metric(
            "modality separability", "%", "neither", "geometry", _GAP, "modalities that a classifier names", 1, True
        ),
        "alignment": Metric("alignment", "0 to 4", "neither", "geometry", _ALIGNMENT, "of own pairs, squared", 3, True),
        "uniformity": Metric(
            "uniformity", "lower: more spread out", "neither", "geometry", _UNIFORMITY, "how evenly vectors are spread"
        ),
        "accuracy": Metric("accuracy", "%", "higher", "classification", _CLASSES, "test rows named rightly", 1),
        "macro-F1": Metric("macro-F1", "%", "higher", "classification", _CLASSES, "F1, averaged over the classes", 1),
        "seconds": Metric("seconds", "", "lower", about="time of a run", decimals=1),
    },
)


def describe(name: str) -> Metric:
    """The entry of METRICS. R@k is described for any k; of a metric that nobody described, neither way is better."""
    if name in METRICS:
        return METRICS[name]
    return _recall(int(name[2:])) if re.fullmatch(r"R@[1-9]\d*", name) else Metric(name, "", "neither")


def names_of(group: str) -> list[str]:
    """The metrics of a group."""
    return [name for name, metric in METRICS.items() if metric.group == group]


def measures() -> list[str]:
    """What the config key `measures` may list: all groups that are not measured anyway."""
    groups = [*GROUPS, *(metric.group for metric in METRICS.values() if metric.group)]
    return [group for group in dict.fromkeys(groups) if group != "retrieval"]


def functions_of(groups: Sequence[str]) -> list[Callable[..., Any]]:
    """The functions that compute these groups, each once, in the order of `measures()`; retrieval first."""
    entries: dict[str | Callable[..., Any], None] = {}
    for group in ["retrieval", *measures()]:
        if group in groups:
            of_metrics = [m.function for m in METRICS.values() if m.group == group and m.function and not m.by_hand]
            entries |= dict.fromkeys([*of_metrics, *([OF_GROUPS[group]] if group in OF_GROUPS else [])])
    functions: Registry[Callable[..., Any]] = Registry("measure", {str(entry): entry for entry in entries})
    return list(functions.values())
