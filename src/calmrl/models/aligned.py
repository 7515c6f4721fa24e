"""A fitted `Aligner` as a module: features in, unit vectors in the shared space out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calmrl._support.distributed import own_rows, world
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.storage import from_state, to_state
from calmrl.models.fitted import FittedModel, training_rows
from calmrl.models.registry import AlignerSection


class AlignedModel(FittedModel):
    """Unit vectors of every modality from an `Aligner`."""

    kind = "aligner"
    to_state, from_state = staticmethod(to_state), staticmethod(from_state)

    @property
    def aligner(self) -> Aligner:
        """The aligner itself."""
        aligner: Aligner = self.estimator
        return aligner

    @property
    def choice(self) -> str:
        """What cross-validation chose, in words."""
        chosen = self.meta["choice"]
        refined = f", {chosen['refine_steps']} steps of refinement" if chosen["refine_steps"] else ""
        beside = chosen.get("second")
        second = (
            "" if beside is None else f" (beside them whitening {beside['whitening']:g}, prior {beside['prior']:g})"
        )
        return (
            f"{chosen['features']} features, whitening {chosen['whitening']:g}, {chosen['latent_dim']} latents, prior "
            f"{chosen['prior']:g}{second}{refined}; the best of {len(chosen['candidates'])} candidates"
        )

    @property
    def width(self) -> int:  # type: ignore[override]
        return int(self.meta["choice"]["latent_dim"])


def build_aligner(
    section: AlignerSection, data: Any, names: Sequence[str], seed: int, root: str | None = None
) -> AlignedModel:
    """The aligner of the training rows; it has no step to make after that."""
    groups, relevant = [], []
    for name, rows in data.train.items():
        if section.groups is not None:
            groups += [f"{name}/{label}" for label in data.opened[name].column(section.groups)[rows.home]]
        if section.relevant is not None:
            relevant += list(data.opened[name].column(section.relevant)[rows.home])
    z, present = training_rows(data, names)
    arguments = section.model_dump(exclude={"kind", "groups", "relevant"})
    aligner = Aligner(**arguments, random_state=seed)
    size, rank = world()
    siblings, alike = groups[rank::size] or None, relevant[rank::size] or None  # as `own_rows` takes them
    return AlignedModel.of(aligner.fit(*own_rows(z, present), groups=siblings, relevant=alike))
