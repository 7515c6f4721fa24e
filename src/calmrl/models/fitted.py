"""A fitted estimator as a module: features in, unit vectors out; nothing in it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import nn

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
