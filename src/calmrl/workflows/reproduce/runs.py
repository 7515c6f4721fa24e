"""The training runs behind the tables, as changes to the shipped configs of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calmrl.config import TrainConfig, load
from calmrl.config.loading import load_values

RETRIEVAL, CLASSIFICATION = "paper-vast", "paper-classification"
WARM_UP = "vast150k"
IMAGEBIND = "features/imagebind"
LEARNT = {"anchor": "text", "temperature": 0.07, "learn_temperature": True, "label_smoothing": 0.1}  # as in their code
PRINTED = {"name": "pmrl", "temperature": 0.05, "anchor_temperature": 0.1}
OBJECTIVES = {
    "vast": {"name": "vast", **{key: value for key, value in LEARNT.items() if key != "anchor"}},
    "gram": {"name": "gram", **LEARNT},
    "triangle": {"name": "triangle", **LEARNT},
    "pmrl": PRINTED,
    "calmrl": PRINTED,
}
PAIRS = {"both": ("msrvtt", "audiocaps"), "at": ("audiocaps",), "vt": ("msrvtt",)}
GENERATIVE = ("mvae", "mopoe", "smil", "knowledge_bridger")
SWEPT = {"tau": "objective.temperature", "tau2": "objective.anchor_temperature", "alpha": "matching_weight"}
SWEEPS = {"tau": (0.05, 0.1, 0.2, 1.0), "tau2": (0.05, 0.1, 0.2, 1.0), "alpha": (0.0, 0.1, 0.5, 1.0)}
OWN = {"tau": 0.05, "tau2": 0.1, "alpha": 0.1}  # of the run that all others are compared with


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes
    ----------
    name : str
        Also that of its folder.
    method : str
        A key of OBJECTIVES.
    pairs : tuple of str or None
        Collections of the second stage; () without that stage, None without any step.
    config : str
        The shipped config that it changes.
    sound : bool
        Whether the films of the second stage keep their sound, which stands for complete modalities.
    changes : dict
        Dotted keys of the config -> values.
    """

    name: str
    method: str
    pairs: tuple[str, ...] | None
    config: str = RETRIEVAL
    sound: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def collections(self) -> tuple[str, ...]:
        """The public collections that it trains on."""
        if self.config == CLASSIFICATION or self.pairs is None:
            return ()
        return (WARM_UP, *self.pairs)


def swept_name(parameter: str, value: float) -> str:
    """The run of a value of τ, τ′ or α."""
    return "calmrl-both" if value == OWN[parameter] else f"calmrl-both-{parameter}-{value:g}"


def _all() -> list[Run]:
    runs = [Run("vast-start", "vast", None)]
    runs += [Run(f"{method}-complete", method, ()) for method in ("gram", "triangle", "pmrl")]
    runs += [Run(f"{method}-{name}", method, pairs) for name, pairs in PAIRS.items() for method in OBJECTIVES]
    runs += [Run("pmrl-ideal", "pmrl", ("msrvtt",), sound=True)]
    imputer = "calibration.imputer"
    runs += [
        Run(f"calmrl-both-{name}", "calmrl", PAIRS["both"], changes={imputer: {"method": name}}) for name in GENERATIVE
    ]
    runs += [
        Run(swept_name(name, value), "calmrl", PAIRS["both"], changes={SWEPT[name]: value})
        for name, values in SWEEPS.items()
        for value in values
        if value != OWN[name]
    ]
    runs += [Run(f"{method}-classes", method, ("vggsound", "ucf101"), CLASSIFICATION) for method in OBJECTIVES]
    return runs


RUNS = {run.name: run for run in _all()}


def config_of(run: Run, root: Path, changes: Sequence[str] = ()) -> TrainConfig:
    """The training config of a run on the data in `root`; `changes` are key=value and come last."""
    shipped = load(run.config, kind="train")
    values = shipped.model_dump(mode="json")
    values |= {"objective": dict(OBJECTIVES[run.method]), "root": str(root)}
    if run.method == "calmrl":
        values["method"] = "calmrl-paper"
    else:
        values |= {"method": run.method, "calibration": None}
    if run.config == RETRIEVAL:
        values["fused_weight"] = 1.0 if run.method == "vast" else 0.0
        values["sources"] = {name: media_source(name, run) for name in (run.collections or (WARM_UP,))}
    else:
        values["root"] = str(root / IMAGEBIND)
    values["stages"] = _stages(values["stages"], run)
    values["validation"] |= {"every": 0}
    for key, value in run.changes.items():
        _put(values, key.split("."), value)
    config = load_values(values, changes, name=run.name)
    assert isinstance(config, TrainConfig)
    return config


def media_source(name: str, run: Run | None = None) -> dict[str, Any]:
    """The source of a public collection in its own folder; without a run, to be tested with all that it has.

    Pairs train without the sound of films.
    """
    collection: dict[str, Any] = {"name": name, "root": name}
    if run is not None and name == "msrvtt" and not run.sound:
        collection["media"] = {"vision": name}
    return {"collection": collection, "allow_missing": True}


def _stages(shipped: list[dict[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Those of the shipped config that the run has; the model at the end counts, and only calmrl hides modalities."""
    first, second = shipped
    if run.pairs is None:
        return []
    first = first | {"hide_one": run.method == "calmrl"}
    second = second | {"sources": list(run.pairs), "fresh_best": True}
    return [first, second] if run.pairs else [first]


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a dotted key."""
    *sections, key = path
    for section in sections:
        values = values[section]
    values[key] = value
