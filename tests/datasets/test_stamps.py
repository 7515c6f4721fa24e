"""The bundled collection: what the data card says about it is true."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets import load_dataset
from calmrl.datasets.stamps import BUNDLE, MODALITIES


@pytest.fixture(scope="module")
def stamps() -> FeatureSet:
    return load_dataset("stamps")


def test_counts(stamps) -> None:
    assert len(stamps) == 963
    assert dict(zip(stamps.names, stamps.present.sum(axis=0).tolist(), strict=True)) == {
        "image": 961,
        "text": 952,
        "speech": 927,
        "sound": 107,
    }
    assert [stamps.z[name].shape[1] for name in MODALITIES] == [1280, 384, 1024, 1024]
    assert len(set(stamps.labels)) == 16
    assert len(set(stamps.column("second"))) == 75
    assert len(set(stamps.column("folder"))) == 125
    assert stamps.column("glyph").sum() == 178
    assert sum(text is not None for text in stamps.text) == 952
    assert stamps.ids[0] == "animals/amphibians/frog"
    assert stamps.text[0] == "A frog."
    assert BUNDLE.stat().st_size < 6_000_000


@pytest.mark.parametrize("split", ["caption", "folder"])
def test_splits(split: str) -> None:
    data = load_dataset("stamps", split=split)
    glyph = data.column("glyph")
    assert set(data.split[glyph]) == {"train"}
    share = {name: (data.split[~glyph] == name).mean() for name in ("train", "val", "test")}
    assert share["train"] == pytest.approx(0.7, abs=0.02)
    assert share["test"] == pytest.approx(0.2, abs=0.02)
    for name in ("group", "text"):  # nothing that belongs together is in two splits
        homes: dict[str, set[str]] = {}
        for key, home, is_glyph in zip(data.column(name), data.split, glyph, strict=True):
            if key is not None and not is_glyph:
                homes.setdefault(key.lower().rstrip("."), set()).add(home)
        assert all(len(home) == 1 for home in homes.values())
    rows = np.flatnonzero(data.present[:, 0] & ~glyph)
    unit = load_dataset("stamps", standardize=False).z["image"][rows].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    twins = np.argwhere(np.triu(unit @ unit.T > 0.86, 1))
    assert len(twins) > 20
    assert all(data.split[rows[i]] == data.split[rows[j]] for i, j in twins)


def test_features_as_the_encoders_gave_them() -> None:
    raw = load_dataset("stamps", standardize=False)
    present = raw.present[:, 1]
    np.testing.assert_allclose(np.linalg.norm(raw.z["text"][present], axis=1), 1, atol=2e-3)
