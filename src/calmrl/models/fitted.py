"""A fitted estimator as a module: features in, unit vectors out; nothing in it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import nn

from calmrl._support.distributed import own_rows, world
from calmrl.aligner import storage
from calmrl.aligner.estimator import Aligner
from calmrl.baselines import base
from calmrl.baselines.registry import BASELINES
from calmrl.models.registry import AlignerSection, BaselineSection

F = TypeVar("F", bound="FittedModel")


class FittedModel(nn.Module):
    """Unit vectors of every modality from an estimator; `embed` gives the vector of a row from all that it has.

    Its numbers are buffers, so that it is saved and moved like any module. A subclass says how an estimator becomes a state
    {"meta": json-able, "tensors": name -> tensor} and comes back, and gives `width`.

    Parameters
    ----------
    meta : dict
        What the estimator is: arguments, modalities, and more.
    tensors : dict
        Name of each tensor -> (dtype, shape).
    """

    kind: str  # its name in MODELS
    width: int
    to_state: ClassVar[Any]
    from_state: ClassVar[Any]

    def __init__(self, meta: dict[str, Any], tensors: Mapping[str, tuple[str, list[int]]]) -> None:
        super().__init__()
        self.meta, self.shapes = meta, {name: (dtype, list(shape)) for name, (dtype, shape) in tensors.items()}
        self.names: tuple[str, ...] = tuple(meta["modalities"])
        for name, (dtype, shape) in self.shapes.items():
            self.register_buffer(_key(name), torch.zeros(shape, dtype=getattr(torch, dtype)))
        self._fitted: Any = None
        self.register_load_state_dict_post_hook(lambda module, keys: setattr(module, "_fitted", None))

    @classmethod
    def of(cls: type[F], estimator: Any) -> F:
        """The model of a fitted estimator."""
        state = cls.to_state(estimator)
        shapes = {
            name: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            for name, tensor in state["tensors"].items()
        }
        model = cls(state["meta"], shapes)
        for name, tensor in state["tensors"].items():
            model.get_buffer(_key(name)).copy_(tensor)
        return model

    @property
    def estimator(self) -> Any:
        """The estimator itself."""
        if self._fitted is None:
            tensors = {name: self.get_buffer(_key(name)) for name in self.shapes}
            self._fitted = type(self).from_state({"meta": self.meta, "tensors": tensors})
        return self._fitted

    @property
    def widths(self) -> dict[str, int]:
        """Modality -> width of its input."""
        return {name: self.shapes[f"lift.{name}.centre"][1][0] for name in self.names}

    @property
    def arguments(self) -> dict[str, Any]:
        """What to call the class with to get one of the same shape."""
        return {"meta": self.meta, "tensors": self.shapes}

    @torch.no_grad()
    def forward(self, inputs: Mapping[str, torch.Tensor], present: torch.Tensor) -> dict[str, torch.Tensor]:
        """Unit vectors (N, width) of every modality; 0 in rows that lack it."""
        vectors = {}
        for j, name in enumerate(self.names):
            has = present[:, j]
            rows = inputs[name].new_zeros(len(has), self.width)
            if has.any():
                rows[has] = self.estimator.embed({name: inputs[name][has]}).to(rows)
            vectors[name] = rows
        return vectors

    def encode(self, inputs: Mapping[str, torch.Tensor], present: torch.Tensor) -> tuple[dict[str, torch.Tensor], None]:
        """(`forward`, the tokens a matching head could look at: none)."""
        return self(inputs, present), None

    @torch.no_grad()
    def embed(self, z: Any, present: Any = None) -> Any:
        """One unit vector per row, from all that it has."""
        return self.estimator.embed(z, present)


def _key(name: str) -> str:
    """Names of buffers must not contain dots."""
    return name.replace(".", "/")


def training_rows(data: Any, names: Sequence[str]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(z, present) of the training rows of all sources, one after the other."""
    parts = [rows.fetch(np.arange(len(rows)), rows.present, 0) for rows in data.train.values()]
    masks = [torch.from_numpy(rows.present) for rows in data.train.values()]
    return {name: torch.cat([part[name] for part in parts]) for name in names}, torch.cat(masks)


class AlignedModel(FittedModel):
    """Unit vectors of every modality from an `Aligner`."""

    kind = "aligner"
    to_state, from_state = staticmethod(storage.to_state), staticmethod(storage.from_state)

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
        return (
            f"{chosen['features']} features, whitening {chosen['whitening']:g}, {chosen['latent_dim']} latents, prior "
            f"{chosen['prior']:g}{refined}; the best of {len(chosen['candidates'])} candidates"
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


class ClassicalModel(FittedModel):
    """Unit vectors of every modality from one of BASELINES."""

    to_state, from_state = staticmethod(base.to_state), staticmethod(base.from_state)

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
