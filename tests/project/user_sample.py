"""What a user may write; `mypy --strict` reads it against the installed types."""

from pathlib import Path

import numpy as np
import torch

import calmrl
from calmrl import CalibratedAlignment, GaussianImputer, load
from calmrl.anchors import anchor, anchor_shift, shift_bounds
from calmrl.config import ImputeConfig
from calmrl.data import FeatureSet, hide, open_features, write_features
from calmrl.datasets import DATASETS, load_dataset
from calmrl.encoders import ENCODERS, load_encoder
from calmrl.evaluate import retrieval
from calmrl.imputers import IMPUTERS, KNNImputer
from calmrl.losses import LOSSES, ContrastiveLoss, PMRLLoss
from calmrl.models import Heads
from calmrl.protocols import Imputer
from calmrl.workflows import Imputation, extract, impute


def impute_my_features(folder: Path) -> Imputation:
    features: FeatureSet = open_features(folder)
    write_features(folder / "copy", features.z, features.present, ids=list(features.ids))
    return impute(features, folder / "imputed", ImputeConfig(kind="impute", std=True))


def complete(imputer: Imputer, data: FeatureSet) -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray] = imputer.transform(data.z, data.present)
    return values


def fit() -> GaussianImputer:
    data = load_dataset("stamps")
    present = hide(data.present, 0.2, np.random.default_rng(0))
    model = GaussianImputer(latent_dim=32, random_state=0).fit(data.z, present)
    complete(model, data)
    complete(KNNImputer(n_neighbors=5).fit(data.z, present), data)
    model.save("model")
    return GaussianImputer.load("model")


def loss(z: dict[str, torch.Tensor], present: torch.Tensor) -> torch.Tensor:
    align = CalibratedAlignment(objective=PMRLLoss(temperature=0.05), imputer=fit())
    plain: torch.Tensor = ContrastiveLoss()(z, present)
    total: torch.Tensor = align(z, present) + plain
    return total


def measure(z: dict[str, np.ndarray], present: np.ndarray) -> float:
    low, high = shift_bounds(z, present)
    shift = anchor_shift(z, present)
    centre = anchor(z, present)
    scores = retrieval(z["text"], z["image"], ks=(1, 5, 10))
    return float(scores["R@1"]) + len(low) + len(high) + len(shift) + len(centre)


def names() -> list[str]:
    heads = Heads({"image": 8, "text": 4}, width=4)
    vectors = load("run").embed({"image": torch.zeros(1, 8)})
    encoder = load_encoder("minilm")
    extract("items.csv", {"text": "minilm"}, "features", allow_missing=True)
    listed = [*LOSSES, *IMPUTERS, *DATASETS, *ENCODERS, *heads.names, str(len(vectors)), encoder.kind]
    return [*listed, calmrl.__version__, calmrl.losses.GramLoss.__name__]
