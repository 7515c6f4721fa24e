"""What the methods of a comparison are: a name -> training configs to try, equally many for all.

| name | is |
|---|---|
| `contrastive`, `vast`, `gram`, `triangle`, `pmrl` | the objective on observed modalities, heads from random weights |
| `NAME+latent` | the same with heads that start from a latent model of the features |
| `NAME+staged` | first the complete rows, then all of them, half of the steps each |
| `closed-form` | posterior means of the latent model: heads that start from it, and no step |
| `calmrl` | heads from the latent model, contrastive over all pairs, rows completed by a latent model; joint |
| `calmrl-paper` | as printed: staged, one modality hidden per complete row at first, PMRL with temperature 0.05 |
| `calmrl:IMPUTER` | `calmrl` with another imputer, for instance `calmrl:mvae` |
| `ideal` | `calmrl`'s recipe on the same rows with nothing hidden |

Trials try two learning rates (of the closed form: two strengths of the prior) with two forms of the features; those of
`calmrl` also whether completed rows take part in training (`weight` 0.5) or only at test (0).
"""

from __future__ import annotations

from typing import Any

from calmrl._support.registry import lookup
from calmrl.errors import InputError
from calmrl.imputers import IMPUTERS

Changes = dict[str, Any]  # dotted keys of a training config -> values

OBJECTIVES = ("contrastive", "vast", "gram", "triangle", "pmrl")
OURS = ("calmrl", "calmrl-paper", "closed-form")
ABOUT = {
    "contrastive": "InfoNCE over all pairs of modalities",
    "vast": "InfoNCE of text with each other modality",
    "gram": "InfoNCE over volumes",
    "triangle": "InfoNCE over areas of triangles",
    "pmrl": "leading singular value and anchors",
    "closed-form": "posterior means of the latent model, no gradient step",
    "calmrl": "rows completed by the latent model, then aligned; as recommended here",
    "calmrl-paper": "as printed: staged, PMRL at temperature 0.05",
    "ideal": "the recipe of calmrl with nothing missing",
}
RATE = "optimiser.learning_rate"
RATES = (3e-3, 1e-2)  # heads from random weights
LATENT_RATES = (3e-4, 1e-3)  # heads that start from the latent model
PRIORS = (300.0, 100.0)
FEATURES = ("whiten", "scale")
TEMPERATURE = {"pmrl": 0.5}  # of all others: 0.2
COMPLETION: Changes = {"imputer": {"method": "gaussian", "latent_dim": 64, "prior": 300.0, "max_iter": 15}}
COMPLETION |= {"update": "frozen", "refit": 12, "certainty": True}


def check_method(name: str) -> None:
    """An error if there is no such method."""
    base, parts = _parts(name)
    if base.startswith("calmrl:"):
        lookup(IMPUTERS, base.removeprefix("calmrl:"), "imputer")
    elif base not in ABOUT:
        lookup(ABOUT, base, "method")
    wrong = [part for part in parts if part not in ("latent", "staged")]
    if wrong or (parts and base not in OBJECTIVES):
        raise InputError(f'"{name}" is no method; +latent and +staged go with {", ".join(OBJECTIVES)}')


def about(name: str) -> str:
    """One line on a method."""
    base, parts = _parts(name)
    text = f"calmrl with {base.removeprefix('calmrl:')}" if base.startswith("calmrl:") else ABOUT[base]
    text += ", heads from the latent model" if "latent" in parts else ""
    return text + (", complete rows first" if "staged" in parts else "")


def is_ours(name: str) -> bool:
    return _parts(name)[0].partition(":")[0] in OURS


def is_ideal(name: str) -> bool:
    return _parts(name)[0] == "ideal"


def recipe(name: str, steps: int, trials: int) -> list[Changes]:
    """The trials of a method, each as changes to a training config; `standardize` is that of the features."""
    base, parts = _parts(name)
    joint: Changes = {"stages": [{"name": "joint", "steps": steps}]}
    halves: list[Changes] = [
        {"name": "warm-up", "steps": steps // 2, "complete_only": True},
        {"name": "continual", "steps": steps - steps // 2},
    ]
    latent: Changes = {"model.init": "latent", "model.latent_prior": 300.0, "model.latent_iterations": 8}
    if base == "closed-form":
        start = latent | {"method": "contrastive", "stages": []}
        return _trials(start, "model.latent_prior", PRIORS)[:trials]
    if base == "calmrl-paper":
        halves[0]["hide_one"] = True
        start = {"method": "calmrl", "objective": {"name": "pmrl", "temperature": 0.05}, "stages": halves}
        start |= {"calibration": {"imputer": {"method": "gaussian", "latent_dim": 64}}}
        return _trials(start, RATE, RATES, plain_first=True)[:trials]
    if base in OBJECTIVES:
        start = {"method": base, "objective": _objective(base)} | ({"stages": halves} if "staged" in parts else joint)
        start |= latent if "latent" in parts else {}
        if "latent" in parts:
            return _trials(start, RATE, LATENT_RATES)[:trials]
        return _trials(start, RATE, RATES, plain_first=True)[:trials]
    start = joint | latent | {"method": "calmrl", "objective": _objective("contrastive"), RATE: LATENT_RATES[0]}
    imputer = base.partition(":")[2]
    completion = COMPLETION
    if (
        imputer
    ):  # completed rows take part in every trial: they are what is compared; fitted at the start and at the end
        own = COMPLETION["imputer"] if imputer == "gaussian" else {"method": imputer}
        completion = COMPLETION | {"imputer": own, "refit": 10_000}
        return _trials(start | {"calibration": completion | {"weight": 0.5}}, RATE, LATENT_RATES)[:trials]
    return [
        start | {"standardize": "whiten", "calibration": completion | {"weight": 0.0}},
        start | {"standardize": "whiten", "calibration": completion | {"weight": 0.5}},
        start | {"standardize": "whiten", "calibration": completion | {"weight": 0.0}, RATE: LATENT_RATES[1]},
        start | {"standardize": "scale", "calibration": completion | {"weight": 0.0}},
    ][:trials]


def _trials(start: Changes, key: str, values: tuple[float, float], plain_first: bool = False) -> list[Changes]:
    """Both values of a key with both forms of the features; what promises most comes first."""
    forms = FEATURES[::-1] if plain_first else FEATURES
    return [start | {key: value, "standardize": form} for form in forms for value in values]


def _objective(name: str) -> Changes:
    """The objective from scratch: a temperature that does not saturate, and no smoothing."""
    temperature = TEMPERATURE.get(name, 0.2)
    if name == "pmrl":
        return {"name": name, "temperature": temperature}
    return {"name": name, "temperature": temperature, "learn_temperature": False, "label_smoothing": 0.0}


def _parts(name: str) -> tuple[str, list[str]]:
    """pmrl+latent+staged -> pmrl, [latent, staged]"""
    base, *parts = name.split("+")
    return base, parts
