"""What the methods of a comparison are: a name -> training configs to try, equally many for all.

| name | is |
|---|---|
| `contrastive`, `vast`, `gram`, `triangle`, `pmrl` | the objective on observed modalities, heads from random weights |
| `NAME+latent` | the same with heads that start from a latent model of the features |
| `NAME+staged` | first the complete rows, then all of them, half of the steps each |
| `closed-form` | posterior means of the latent model: heads that start from it, and no step |
| `calmrl` | completed rows, contrastive over all pairs, heads from the latent model, trained jointly |
| `calmrl-paper` | as printed: staged, one modality hidden per complete row at first, PMRL with temperature 0.05 |
| `calmrl:IMPUTER` | `calmrl` with another imputer, for instance `calmrl:mvae` |
| `ideal` | `calmrl`'s recipe on the same rows with nothing hidden |

A trial differs in what matters most for the method: its learning rate, its temperature, or the strength of the prior.
"""

from __future__ import annotations

from typing import Any

from calmrl.errors import InputError
from calmrl.imputers import IMPUTERS
from calmrl.registry import lookup

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
RATES = (3e-4, 1e-3, 3e-3)
LATENT_RATES = (3e-5, 1e-4, 3e-4)
PRIORS = (100.0, 300.0, 1000.0)
TEMPERATURES = (0.05, 0.2, 0.5)


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
    """The trials of a method, each as changes to a training config."""
    base, parts = _parts(name)
    joint: Changes = {"stages": [{"name": "joint", "steps": steps}]}
    halves: list[Changes] = [
        {"name": "warm-up", "steps": steps // 2, "complete_only": True},
        {"name": "continual", "steps": steps - steps // 2},
    ]
    found: list[Changes]
    if base == "closed-form":
        start: Changes = {"method": "contrastive", "model.init": "latent", "stages": []}
        found = [start | {"model.latent_prior": prior} for prior in PRIORS]
    elif base == "calmrl-paper":
        halves[0]["hide_one"] = True
        start = {"method": "calmrl", "objective": {"name": "pmrl"}, "stages": halves}
        found = [start | {"optimiser.learning_rate": rate} for rate in RATES]
    elif base in OBJECTIVES:
        start = {"method": base} | ({"stages": halves} if "staged" in parts else joint)
        start |= {"model.init": "latent"} if "latent" in parts else {}
        rates = LATENT_RATES if "latent" in parts else RATES
        found = [start | {"optimiser.learning_rate": rate} for rate in rates]
        if base == "pmrl":
            found = [
                one | {"objective": {"name": "pmrl", "temperature": temperature}}
                for one, temperature in zip(found, TEMPERATURES[::-1], strict=True)
            ]
    else:
        method = base.partition(":")[2] or "gaussian"
        start = joint | {"method": "calmrl", "objective": {"name": "contrastive"}, "model.init": "latent"}
        start |= {"calibration": {"imputer": {"method": method} | ({"latent_dim": 32} if method == "gaussian" else {})}}
        found = [start | {"optimiser.learning_rate": rate} for rate in LATENT_RATES]
    return found[:trials]


def _parts(name: str) -> tuple[str, list[str]]:
    """pmrl+latent+staged -> pmrl, [latent, staged]"""
    base, *parts = name.split("+")
    return base, parts
