"""Rows for the examples that train: bundled emoji, most of which lack a modality in training."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from calmrl.data import hide
from calmrl.datasets import load_dataset

NAMES = ("image", "text", "french")
Rows = tuple[dict[str, Tensor], Tensor]  # z and present


def incomplete_emoji(seed: int = 0) -> tuple[Rows, Rows]:
    """Training rows of which 60 % have lost a modality, and complete test rows."""
    data = load_dataset("emoji")
    columns = [data.names.index(name) for name in NAMES]
    present = data.present[:, columns]
    train = (data.split == "train") & present.any(1)
    test = (data.split == "test") & present.all(1)
    mask = hide(present[train], 0.6, np.random.default_rng(seed), kind="one")
    return _rows(data.z, train, mask), _rows(data.z, test, present[test])


def _rows(z: dict[str, np.ndarray], rows: np.ndarray, present: np.ndarray) -> Rows:
    """Missing values become 0, not NaN: losses never read them, but a layer in front would get NaN gradients from them."""
    zeroed = {name: np.where(present[:, [m]], z[name][rows], 0.0) for m, name in enumerate(NAMES)}
    return {name: torch.from_numpy(values) for name, values in zeroed.items()}, torch.from_numpy(present)
