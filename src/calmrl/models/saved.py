"""A trained model on disk, and back: `calmrl.load(path)`.

model/  model.json            what it is: kind, sizes, modalities, how it completes
        weights.safetensors   the model
        matching.safetensors  its matching head, if it has one
        imputer/              the latent model, if it was trained with one
        encoders.json         what made its features, if they are of `calmrl extract`
        config.yaml           the config of the training
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from calmrl._support.output import check_sealed, new_directory, write_sealed
from calmrl._support.parsing import naming, read_json_object, reason_of
from calmrl._support.tensor_files import load_tensors, plain
from calmrl.alignment import CalibratedAlignment
from calmrl.anchors import anchor
from calmrl.arrays import Array, check, like_input, to_tensor
from calmrl.encoders.encoder_set import EmbedsFiles
from calmrl.errors import InputError
from calmrl.hub import LIMITS, NO_NEWS, Card, OnHub
from calmrl.imputers.registry import IMPUTERS
from calmrl.losses.matching import InstanceMatching
from calmrl.models.registry import MODELS
from calmrl.protocols import Embedder, Model

FORMAT, VERSION = "calmrl.model", 2
UNSEALED = 1  # the version that had no checksums
ROWS = 4096
ENCODERS_FILE = "encoders.json"
CODE = """from calmrl.models import Trained

model = Trained.from_pretrained("{repo}")
vectors = model.embed(z, present)  # z: dict of the modalities below"""
OWN = ("format", "version", "kind", "arguments", "calibration", "matching", "files", "sha256")
Encoded = tuple[dict[str, torch.Tensor], torch.Tensor, Any]  # vectors, which are there, an array as it was given


class Trained(OnHub, EmbedsFiles):
    """A trained model: any subset of modalities in, vectors in one space out.

    - `encode(z, present)`: a dict of unit vectors (N, width), one entry per modality; NaN where it was not observed.
    - `transform(z, present)`: the same with every missing vector imputed by the latent model.
    - `embed(z, present)`: (N, width), one vector per row: the anchor of the completed vectors, or of the observed ones
      if the model was trained without a latent model.
    - `embed_files(items)`: the same from raw texts and files, if it was trained on features of `calmrl extract`.

    `z` holds features as they went into training. NumPy in, NumPy out; torch in, torch out. For a model of raw media it
    holds tensors as `calmrl.data.loaders.media_rows.MediaRows.fetch` makes them, and `present` is needed.
    """

    def __init__(
        self,
        model: Model,
        align: CalibratedAlignment | None = None,
        matching: Any = None,
        info: Mapping[str, Any] | None = None,
        encoders: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: Any = model.eval()
        self.align = None if align is None else align.eval()
        self.matching = None if matching is None else matching.eval()
        self.info = dict(info or {})
        self.encoders_ = None if encoders is None else dict(encoders)
        self.names: tuple[str, ...] = tuple(model.names)
        self.width: int = model.width

    def __repr__(self) -> str:
        how = self.info.get("method", type(self.model).__name__)
        imputer = "" if self.align is None else f", imputes with {type(self.align.imputer).__name__}"
        raw = "" if self.encoders_ is None else ", reads files"
        return f"Trained({how}: {', '.join(self.names)} -> {self.width}{imputer}{raw})"

    @torch.no_grad()
    def encode(self, z: Mapping[str, Array], present: Array | None = None) -> dict[str, Array]:
        """Unit vectors of what was observed; NaN elsewhere."""
        vectors, mask, given = self._encode(z, present)
        empty = {name: torch.where(mask[:, j, None], vectors[name], torch.nan) for j, name in enumerate(vectors)}
        return {name: like_input(rows, given) for name, rows in empty.items()}

    @torch.no_grad()
    def transform(self, z: Mapping[str, Array], present: Array | None = None) -> dict[str, Array]:
        """Unit vectors of all modalities, the missing ones imputed."""
        if self.align is None:
            raise InputError(
                f"this model was trained with {self.info.get('method', 'a method')}, without a latent model, so it "
                "cannot impute; fit a calmrl.GaussianImputer on encode(...), or train with method=calibrated"
            )
        vectors, mask, given = self._encode(z, present)
        return {name: like_input(rows, given) for name, rows in self.align.complete(vectors, mask).items()}

    @torch.no_grad()
    def embed(self, z: Mapping[str, Array], present: Array | None = None) -> Array:
        """One unit vector per row."""
        if isinstance(self.model, Embedder):  # the model has a vector for all that a row has
            return self.model.embed(z, present)
        vectors, mask, given = self._encode(z, present)
        if self.align is not None:
            vectors, mask = self.align.complete(vectors, mask), torch.ones_like(mask)
        return like_input(anchor(vectors, mask), given)

    def _encode(self, z: Mapping[str, Array], present: Array | None) -> Encoded:
        if not hasattr(self.model, "widths"):
            return self._encode_media(z, present)
        views = check(z, present, names=self.names, widths=tuple(self.model.widths[name] for name in self.names))
        parts = []
        for start in range(0, max(1, len(views)), ROWS):
            rows = views.rows(start, min(start + ROWS, len(views)))
            mask = views.present[start : start + ROWS]
            inputs = {
                name: torch.zeros(len(mask), self.model.widths[name])
                if values is None
                else torch.where(mask[:, j, None], to_tensor(values).float(), 0.0)
                for j, (name, values) in enumerate(zip(self.names, rows, strict=True))
            }
            parts.append(self.model(inputs, mask))
        return {name: torch.cat([part[name] for part in parts]) for name in self.names}, views.present, views.given()

    def _encode_media(self, inputs: Mapping[str, Any], present: Array | None) -> Encoded:
        if present is None:
            raise InputError("a model of raw media needs present: its inputs hold only the rows that have a modality")
        mask = to_tensor(present)
        vectors = self.model(inputs, mask)
        return vectors, mask, next(iter(vectors.values()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new folder that `calmrl.load` reads; no pickle."""
        with new_directory(Path(path), advice="") as draft:
            save(draft, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trained:
        """Read what `save` or `calmrl train` wrote."""
        return load(Path(path))

    def _card(self) -> Card:
        widths = dict(getattr(self.model, "widths", {})) or dict.fromkeys(self.names, 0)
        encoders: dict[str, Any] = (self.encoders_ or {}).get("encoders", {})
        imputes = None if self.align is None else type(self.align.imputer).__name__
        info = {
            key: value for key, value in self.info.items() if key not in OWN and not isinstance(value, (list, dict))
        }
        return Card(
            title=f"{self.info.get('method', type(self.model).__name__)}: {', '.join(self.names)} in one space of "
            f"{self.width} dimensions",
            code=CODE,
            widths={name: widths[name] for name in self.names},
            encoders={name: str(encoders[name].get("name", "unknown")) for name in self.names if name in encoders},
            choice={"kind": self.model.kind, "imputes with": imputes or "nothing", **info},
            quality=[],
            quality_note="Not part of the saved model; measure it on data of your own with calmrl evaluate.",
            limits=[*LIMITS, *([] if imputes is None else [NO_NEWS])],
            tags=(f"calmrl-{self.model.kind}", "feature-extraction"),
        )


def save(folder: Path, trained: Trained) -> None:
    """Write a model into an existing empty folder."""
    info = dict(trained.info) | {
        "format": FORMAT,
        "version": VERSION,
        "kind": trained.model.kind,
        "arguments": trained.model.arguments,
        "calibration": None,
        "matching": None,
    }
    save_file(plain(trained.model.state_dict()), folder / "weights.safetensors")
    align = trained.align
    if align is not None:
        kept = {"renormalize": align.renormalize, "certainty": align.certainty}
        info["calibration"] = {"imputer": IMPUTERS.name_of(type(align.imputer)), **kept}
        align.imputer.save(folder / "imputer")
    if trained.matching is not None:
        info["matching"] = trained.matching.arguments
        save_file(plain(trained.matching.state_dict()), folder / "matching.safetensors")
    if trained.encoders_ is not None:
        (folder / ENCODERS_FILE).write_text(json.dumps(trained.encoders_, indent=1) + "\n", encoding="utf-8")
    write_sealed(folder / "model.json", info, sorted(file.name for file in folder.iterdir() if file.is_file()))


def load(path: str | Path) -> Trained:
    """The model that `calmrl train` wrote: its output directory, or the `model` directory in it.

    Examples
    --------
    >>> model = load("runs/first")  # doctest: +SKIP
    """
    folder = Path(path)
    folder = folder if (folder / "model.json").is_file() else folder / "model"
    if (Path(path) / "aligner.json").is_file():
        raise InputError(f"{path} is a saved aligner; open it with calmrl.Aligner.load")
    if not (folder / "model.json").is_file():
        raise InputError(
            f"{path} holds no trained model (model/model.json); name the folder of a finished calmrl train"
        )
    info = read_json_object(folder / "model.json", "export or copy it again")
    if info.get("format") != FORMAT or not isinstance(info.get("version"), int) or info["version"] > VERSION:
        got = f"{info.get('format')} {info.get('version')}"
        raise InputError(f"{folder} has format {got:.60}; this is {FORMAT} {VERSION}")
    try:
        with naming(folder):
            return _restore(folder, info)
    except InputError:
        raise
    except Exception as error:  # damaged numbers make constructors raise anything
        raise InputError(f"{folder} is damaged ({reason_of(error)}); export or copy it again") from error


def _restore(folder: Path, info: dict[str, Any]) -> Trained:
    if info["version"] != UNSEALED:
        info = check_sealed(folder / "model.json", info)
    model = MODELS[info["kind"]].part("restore")(**info["arguments"])
    model.load_state_dict(load_tensors(folder / "weights.safetensors"))
    matching = align = None
    if info["matching"] is not None:
        matching = InstanceMatching(**info["matching"])
        matching.load_state_dict(load_tensors(folder / "matching.safetensors"))
    encoders = read_json_object(folder / ENCODERS_FILE) if (folder / ENCODERS_FILE).is_file() else None
    if info["calibration"] is not None:
        how = dict(info["calibration"])
        imputer = IMPUTERS[how.pop("imputer")].load(folder / "imputer")
        align = CalibratedAlignment(imputer=imputer, update="frozen", **how)
    return Trained(model, align, matching, info, encoders)
