"""The methods one can train and compare. METHODS is the one table: name -> recipe.

A recipe is a list of changes to a training config, dotted key -> value. The first is what `calmrl train method=NAME`
does by default; `calmrl compare` tries several and chooses on validation rows.

| name | is |
|---|---|
| `contrastive`, `vast`, `gram`, `triangle`, `pmrl` | the objective on observed modalities, heads from random weights |
| `NAME+latent` | the same with heads that start from a latent model of the features |
| `NAME+staged` | first the complete rows, then all of them, half of the steps each |
| `closed-form` | posterior means of the latent model: heads that start from it, and no step |
| `calmrl` | the aligner: one space in closed form, chosen by cross-validation, refined where that helps |
| `calibrated` | heads from the latent model, contrastive over all pairs, rows imputed by a latent model; joint |
| `calibrated:IMPUTER` | `calibrated` with another imputer, for instance `calibrated:mvae` |
| `calmrl-paper` | as printed: staged, one modality hidden per complete row at first, PMRL with temperature 0.05 |
| `calmrl-start` | `calmrl-paper` that imputes from the representations at the start of the stage |
| `ideal` | `calmrl` on the same rows with nothing hidden; a row of comparisons only |
"""

from dataclasses import dataclass, replace
from typing import Any

from calmrl._support.registry import Registry, lookup
from calmrl.errors import InputError
from calmrl.imputers.registry import IMPUTERS

Changes = dict[str, Any]  # dotted keys of a training config -> values

RATE = "optimiser.learning_rate"
FEATURES = "model.standardize"
WEIGHT = "calibration.weight"
RATES = (3e-3, 1e-2)  # heads from random weights
LATENT_RATES = (3e-4, 1e-3)  # heads that start from the latent model
LATENT_START: Changes = {"model.init": "latent", "model.latent_prior": 300.0, "model.latent_iterations": 8}
GAUSSIAN = {"method": "gaussian", "latent_dim": 64, "prior": 300.0, "max_iter": 15}
CALIBRATION: Changes = {
    "calibration.imputer": GAUSSIAN,
    "calibration.update": "frozen",
    "calibration.refit": 12,
    "calibration.certainty": True,
}


@dataclass(frozen=True)
class Method:
    """A way to train, as changes to a training config.

    Parameters
    ----------
    about : one line for people
    objective : a name of LOSSES
    recipe : changes that every trial shares
    trials : changes of each trial, the most promising first
    calibrated : whether missing representations are imputed before the objective
    staged : complete rows first, then all rows
    hide_one : hides one modality of every complete row in the first stage
    steps : False makes no step at all
    latent : whether it uses a latent model anywhere
    ours : whether this project proposes it, as opposed to a baseline
    ideal : whether it sees the rows with nothing hidden
    """

    about: str
    objective: str
    recipe: Changes
    trials: tuple[Changes, ...]
    calibrated: bool = False
    staged: bool = False
    hide_one: bool = False
    steps: bool = True
    latent: bool = False
    ours: bool = False
    ideal: bool = False

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.about

    def stages(self, unit: str, total: int) -> list[Changes]:
        """The stages of a training of `total` units, "steps" or "epochs"."""
        if not self.steps:
            return []
        if not self.staged:
            return [{"name": "joint", unit: total}]
        first = {"name": "warm-up", unit: total // 2, "complete_only": True}
        first |= {"hide_one": True} if self.hide_one else {}
        return [first, {"name": "continual", unit: total - total // 2}]

    @property
    def model(self) -> str:
        """The kind of model that it trains, a name of MODELS; objectives train any."""
        return self.recipe.get("model.kind", "heads")

    def configs(self, count: int) -> list[Changes]:
        """The changes of the first `count` trials, everything spelled out."""
        return [self.recipe | trial for trial in self.trials[:count]]


def _grid(key: str, values: tuple[float, float], *, plain_first: bool = False) -> tuple[Changes, ...]:
    """Both values of a key with both forms of the features."""
    forms = ("scale", "whiten") if plain_first else ("whiten", "scale")
    return tuple({key: value, FEATURES: form} for form in forms for value in values)


def _objective(name: str) -> Changes:
    """The objective from scratch: a temperature that does not saturate, and no smoothing."""
    if name == "pmrl":
        return {"objective": {"name": name, "temperature": 0.5}}
    return {"objective": {"name": name, "temperature": 0.2, "learn_temperature": False, "label_smoothing": 0.0}}


def _baseline(objective: str, about: str) -> Method:
    return Method(about, objective, _objective(objective), _grid(RATE, RATES, plain_first=True))


_CALMRL = Method(
    "recommended: the aligner, one space in closed form, chosen by cross-validation",
    "contrastive",
    {"model.kind": "aligner"},
    ({FEATURES: None},),
    steps=False,
    latent=True,
    ours=True,
)

_CALIBRATED = Method(
    "heads from the latent model, rows imputed by it, then aligned",
    "contrastive",
    LATENT_START | CALIBRATION | _objective("contrastive"),
    (
        {FEATURES: "whiten", WEIGHT: 0.0, RATE: LATENT_RATES[0]},
        {FEATURES: "whiten", WEIGHT: 0.5, RATE: LATENT_RATES[0]},
        {FEATURES: "whiten", WEIGHT: 0.0, RATE: LATENT_RATES[1]},
        {FEATURES: "scale", WEIGHT: 0.0, RATE: LATENT_RATES[0]},
    ),
    calibrated=True,
    latent=True,
    ours=True,
)

_PAPER = Method(
    "as printed: staged, PMRL at temperature 0.05; needs encoders that are aligned already",
    "pmrl",
    {
        "objective": {"name": "pmrl", "temperature": 0.05},
        "calibration.imputer": {"method": "gaussian", "latent_dim": 64},
    },
    _grid(RATE, RATES, plain_first=True),
    calibrated=True,
    staged=True,
    hide_one=True,
    ours=True,
)

METHODS: Registry[Method] = Registry(
    "method",
    {
        "calmrl": _CALMRL,
        "calibrated": _CALIBRATED,
        "calmrl-paper": _PAPER,
        "calmrl-start": replace(
            _PAPER,
            about="calmrl-paper, but imputing from the representations at the start of the stage",
            recipe=_PAPER.recipe | {"calibration.impute_from": "start"},
        ),
        "closed-form": Method(
            "posterior means of the latent model, no gradient step",
            "contrastive",
            LATENT_START,
            _grid("model.latent_prior", (300.0, 100.0)),
            steps=False,
            latent=True,
            ours=True,
        ),
        "contrastive": _baseline("contrastive", "InfoNCE over all pairs of modalities"),
        "vast": _baseline("vast", "InfoNCE of text with each other modality"),
        "gram": _baseline("gram", "InfoNCE over volumes"),
        "triangle": _baseline("triangle", "InfoNCE over areas of triangles"),
        "pmrl": _baseline("pmrl", "leading singular value and anchors"),
        "ideal": replace(_CALMRL, about="the recipe of calmrl with nothing missing", ours=False, ideal=True),
    },
)


def find_method(name: str) -> Method:
    """The method of a name such as `pmrl`, `pmrl+latent`, `gram+staged` or `calibrated:mvae`."""
    base, *suffixes = name.split("+")
    base, _, imputer = base.partition(":")
    method = METHODS[base]
    if imputer:
        if base != "calibrated":
            raise InputError(f'"{name}" is no method; an imputer goes with calibrated, as in calibrated:mvae')
        method = _with_imputer(method, imputer)
    baseline = not (method.ours or method.ideal)
    if set(suffixes) - {"latent", "staged"} or (suffixes and not baseline):
        possible = ", ".join(key for key, value in METHODS.items() if not (value.ours or value.ideal))
        raise InputError(f'"{name}" is no method; +latent and +staged go with {possible}')
    if "latent" in suffixes:
        method = replace(
            method,
            about=f"{method.about}, heads from the latent model",
            recipe=method.recipe | LATENT_START,
            trials=_grid(RATE, LATENT_RATES),
            latent=True,
        )
    if "staged" in suffixes:
        method = replace(method, about=f"{method.about}, complete rows first", staged=True)
    return method


def continual(method: Method, steps: int) -> tuple[Method, list[Changes]]:
    """(the method from heads that are aligned already, its stages): complete rows first, then only incomplete ones.

    Heads start from a latent model of the complete rows, for every method alike, and what counts is the model at the end.
    """
    first, last = replace(method, staged=True).stages("steps", steps)
    aligned = replace(
        method,
        recipe=method.recipe | LATENT_START | {"model.latent_rows": "complete", "validation.every": 0},
        trials=_grid(RATE, LATENT_RATES),
    )
    return aligned, [first, last | {"incomplete_only": True, "fresh_best": True}]


def _with_imputer(method: Method, imputer: str) -> Method:
    """Imputed rows take part in every trial: they are what is compared. Fitted at the start and at the end."""
    lookup(IMPUTERS, imputer, "imputer")
    section = GAUSSIAN if imputer == "gaussian" else {"method": imputer}
    more = {"calibration.imputer": section, "calibration.refit": 10_000, WEIGHT: 0.5}
    about, recipe = f"calibrated with {imputer}", method.recipe | more
    return replace(method, about=about, recipe=recipe, trials=_grid(RATE, LATENT_RATES))
