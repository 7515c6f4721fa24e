"""What a method is: changes to a training config, and facts about it that comparisons and reports need."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

Changes = dict[str, Any]  # dotted keys of a training config -> values


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
    hubs : how scores are corrected for hubs when it is measured, None or "csls"
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
    hubs: str | None = None

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


def grid(axes: Mapping[str, Iterable[Any]]) -> tuple[Changes, ...]:
    """Every combination of the values of some keys; the last key changes first."""
    return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
