"""Saved imputers, aligners and models, checkpoints of training, official .pt files, and indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import calmrl
from calmrl.aligner.estimator import Aligner
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.heads.model import Heads
from calmrl.models.saved import Trained, load, save
from calmrl.models.vast import checkpoints
from calmrl.models.vast.beats import Beats
from calmrl.training import checkpoint
from fuzz.family import Make, Sample
from fuzz.features import arrays
from tiny_models import BEATS_CFG, official_beats, scramble


def imputer_of(z: dict[str, np.ndarray], present: np.ndarray) -> GaussianImputer:
    return GaussianImputer(latent_dim=2, max_iter=3).fit(z, present)


def imputer(folder: Path) -> Sample:
    path = folder / "imputer"
    imputer_of(*arrays()).save(path)

    def read(damaged: Path) -> Any:
        parameters = GaussianImputer.load(path).parameters_
        return len(parameters.names), parameters.widths

    return Sample(sorted(path.iterdir()), read, path.name)


def fitted_aligner() -> Aligner:
    fixed: dict[str, Any] = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 2, "prior": 1.0}
    return Aligner(**fixed, refine="never", candidates=1).fit(*arrays())


def aligner(folder: Path) -> Sample:
    path = folder / "aligner"
    fitted_aligner().save(path)
    return Sample(sorted(path.iterdir()), lambda damaged: Aligner.load(path)._space.latent_dim, path.name)


def model(folder: Path) -> Sample:
    path = folder / "model"
    path.mkdir()
    torch.manual_seed(0)
    z, present = arrays()
    heads = Heads({"image": 5, "text": 3}, width=4)
    inputs = {name: torch.from_numpy(np.nan_to_num(array)) for name, array in z.items()}
    vectors = {name: rows.detach() for name, rows in heads(inputs, torch.from_numpy(present)).items()}
    align = calmrl.CalibratedAlignment(
        imputer=GaussianImputer(latent_dim=2, max_iter=3).fit(vectors, torch.from_numpy(present))
    )
    save(path, Trained(heads, align, info={"method": "calmrl-paper"}))
    return Sample(
        sorted(file for file in path.rglob("*") if file.is_file()), lambda damaged: load(path).width, path.name
    )


def training_checkpoint(folder: Path) -> Sample:
    training = {
        "position": {"step": 3, "stage": 0},
        "optimiser": {
            "state": {0: {"step": torch.ones(()), "exp_avg": torch.ones(4, 3)}},
            "param_groups": [{"lr": 0.1}],
        },
        "scaler": None,
        "random": [torch.get_rng_state()[:64]],
    }
    weights = {"a": torch.ones(4, 3), "b": torch.ones(4)}
    latent = imputer_of(*arrays()).get_state()
    content = checkpoint.Checkpoint(weights, training, latent, dict(weights))
    path = checkpoint.write(folder / "checkpoints", 3, content, best=True, keep=2)

    def read(damaged: Path) -> Any:
        again = checkpoint.read(path)
        return len(again.weights), len(again.ema), again.latent is not None

    return Sample(sorted(file for file in path.rglob("*") if file.is_file()), read, path.name)


def official(folder: Path) -> Sample:
    source = scramble(Beats.from_cfg(BEATS_CFG)).eval()
    state = official_beats(source.state_dict(), BEATS_CFG["encoder_layers"])
    path = folder / "beats.pt"
    torch.save({"cfg": BEATS_CFG, "model": state}, path)
    return Sample([path], lambda damaged: len(checkpoints.load_beats(path)[1].used), path.name)


def index(folder: Path) -> Sample:
    z, present = arrays()
    path = folder / "items.index"
    calmrl.Index.build(
        {name: np.where(present[:, [j]], array, np.nan) for j, (name, array) in enumerate(z.items())},
        path,
        model=fitted_aligner(),
    )
    query = np.nan_to_num(z["image"][0], nan=0.5)

    def read(damaged: Path) -> Any:
        opened = calmrl.Index.open(path)
        return len(opened), len(opened.search(image=query, k=5))

    return Sample(sorted(file for file in path.rglob("*") if file.is_file()), read, path.name)


FAMILIES: dict[str, Make] = {
    "imputer": imputer,
    "aligner": aligner,
    "model": model,
    "checkpoint": training_checkpoint,
    "official-pt": official,
    "index": index,
}
