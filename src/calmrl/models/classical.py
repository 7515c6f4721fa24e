"""A fitted baseline as a module: features in, unit vectors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calmrl.baselines.base import from_state, to_state
from calmrl.baselines.registry import BASELINES
from calmrl.models.fitted import FittedModel, training_rows
from calmrl.models.registry import BaselineSection


class ClassicalModel(FittedModel):
    """Unit vectors of every modality from one of BASELINES."""

    to_state, from_state = staticmethod(to_state), staticmethod(from_state)

    def __init__(self, meta: dict[str, Any], tensors: Mapping[str, tuple[str, list[int]]]) -> None:
        super().__init__(meta, tensors)
        self.kind = meta["baseline"]

    @property
    def width(self) -> int:  # type: ignore[override]
        return int(self.estimator.width_)


def build_classical(
    section: BaselineSection, data: Any, names: Sequence[str], seed: int, root: str | None = None
) -> ClassicalModel:
    """The baseline of the training rows, the same in every process; it has no step to make after that."""
    baseline = BASELINES[section.kind](**section.model_dump(exclude={"kind"}), random_state=seed)
    return ClassicalModel.of(baseline.fit(*training_rows(data, names)))
