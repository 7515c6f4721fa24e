"""Where EM stands after an iteration, on disk: a fit over many rows that is stopped goes on from its last iteration."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calmrl._support.tensor_files import plain
from calmrl.imputers.gaussian.parameters import Parameters

PARTS = ("params", "fallback", "best")
PER_MODALITY = ("W", "mu", "noise")


@dataclass(frozen=True)
class Standing:
    """All that the next iteration depends on."""

    params: Parameters  # to go on with
    fallback: Parameters | None  # the plain EM step, where `params` is the accelerated one
    best: Parameters  # of the last recorded objective
    accelerate: bool
    objective: list[float]


class Checkpoint:
    """A file that holds the standing of one fit. Its name follows from where the fit starts and how it goes on, so that
    another fit, or the same one on other rows, never takes it for its own."""

    def __init__(self, folder: Path, start: Parameters, options: dict[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode())
        for name, tensor in _tensors(start, "start").items():
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        self.file = folder / f"em-{digest.hexdigest()[:16]}.safetensors"
        self.names = start.names

    def load(self) -> Standing | None:
        """What was saved last; None at the first start."""
        if not self.file.is_file():
            return None
        with safe_open(self.file, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
            meta = json.loads((file.metadata() or {})["standing"])
        parts = {part: self._part(tensors, part) for part in PARTS}
        params, best = parts["params"], parts["best"]
        assert params is not None
        assert best is not None
        return Standing(params, parts["fallback"], best, meta["accelerate"], meta["objective"])

    def save(
        self,
        params: Parameters,
        fallback: Parameters | None,
        best: Parameters,
        accelerate: bool,
        objective: list[float],
    ) -> None:
        """Put a standing in place of the last one, at one moment."""
        tensors = _tensors(params, "params") | _tensors(best, "best")
        if fallback is not None:
            tensors |= _tensors(fallback, "fallback")
        meta = json.dumps({"accelerate": accelerate, "objective": objective})
        draft = self.file.with_suffix(".tmp")
        save_file(plain(tensors), draft, metadata={"standing": meta})
        os.replace(draft, self.file)

    def _part(self, tensors: dict[str, Tensor], part: str) -> Parameters | None:
        if f"{part}/log_weight" not in tensors:
            return None
        W, mu, noise = ([tensors[f"{part}/{kind}/{name}"] for name in self.names] for kind in PER_MODALITY)
        return Parameters(self.names, W, mu, noise, tensors[f"{part}/log_weight"])


def _tensors(params: Parameters, part: str) -> dict[str, Tensor]:
    """Of a model without whitening, which is how EM sees every model."""
    assert params.turns is None
    tensors = {f"{part}/log_weight": params.log_weight}
    for kind in PER_MODALITY:
        tensors |= {f"{part}/{kind}/{name}": t for name, t in zip(params.names, getattr(params, kind), strict=True)}
    return tensors
