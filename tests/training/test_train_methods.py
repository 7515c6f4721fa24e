"""Every method of a comparison is one that `calmrl train method=NAME` trains, with a model that loads."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl import load
from calmrl.config.schema.train import TrainConfig
from calmrl.data import write_features
from calmrl.training.methods import METHODS, find_method
from calmrl.workflows import train

VARIANTS = [
    "contrastive+mlp",
    "pmrl+latent+mlp",
    "gram+staged",
    "contrastive+kernel",
    "contrastive+latent+kernel+mlp",
    "closed-form+kernel",
    "calibrated:gaussian+kernel",
    "aligner:linear:unrefined",
    "aligner:kernel:refined",
]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(90, 4))
    z = {name: (shared @ rng.normal(size=(4, 12))).astype(np.float32) for name in ("image", "text", "audio")}
    present = np.ones((90, 3), dtype=bool)
    present[np.arange(20, 60), np.arange(40) % 3] = False
    folder = tmp_path_factory.mktemp("data") / "a"
    write_features(folder, z, present, split=["val"] * 20 + ["train"] * 70)
    return folder, z


def config_of(method: str, folder) -> TrainConfig:
    steps = find_method(method).steps
    stages = {"stages": find_method(method).stages("steps", 4)} if steps else {}
    heads = {} if find_method(method).recipe.get("model.kind") else {"model": {"width": 8}}
    source = {"a": {"features": str(folder)}}
    return TrainConfig.model_validate({"kind": "train", "method": method, "sources": source, **stages, **heads})


@pytest.mark.parametrize("method", [name for name in (*METHODS, *VARIANTS) if name != "ideal"])
def test_trains_and_loads(method, features, tmp_path):
    folder, z = features
    outcome = train(config_of(method, folder), tmp_path / "run")
    assert outcome.steps == (4 if find_method(method).steps else 0)
    vectors = load(tmp_path / "run").encode({name: values[:20] for name, values in z.items()})
    assert set(vectors) == set(z)
    for values in vectors.values():
        np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1, atol=1e-5)


def test_ideal_is_a_row_of_comparisons_only(features):
    with pytest.raises(ValueError, match="ideal is a row of comparisons only; to train on complete rows, hide nothing"):
        config_of("ideal", features[0])
