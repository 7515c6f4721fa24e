"""Symile, ConFu, FuseMix and STRUCTURE learn from rows that lack modalities, by name and with their keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl.data.features.writer import write_features
from calmrl.losses import ConfuLoss
from calmrl.metrics import retrieval
from calmrl.workflows.build import build_step, build_trainer, open_data
from calmrl.workflows.train import train
from tests.support.train_data import config, records

NEW = ("symile", "confu", "fusemix", "structure")


@pytest.mark.parametrize("method", ["contrastive", *NEW])
def test_rows_that_were_not_trained_on_are_found(method, tmp_path):
    """Of 40 complete rows, chance finds 2.5 % at the first place; every training row lacks a modality or two."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(240, 6))
    z = {
        name: (shared @ rng.normal(size=(6, 12)) + 0.3 * rng.normal(size=(240, 12))).astype(np.float32)
        for name in ("image", "text", "audio")
    }
    present = np.ones((240, 3), dtype=bool)
    present[np.arange(40, 220), np.arange(180) % 3] = False
    present[220:, 1:] = False
    write_features(tmp_path / "a", z, present, split=["val"] * 40 + ["train"] * 200)
    cfg = config(
        tmp_path, method=method, sources={"a": {"features": "a"}}, batch_size=50, validation={"every": 0},
        model={"kind": "heads", "width": 16}, stages=[{"steps": 150}], optimiser={"learning_rate": 1e-2},
    )  # fmt: skip
    data = open_data(cfg)
    step = build_step(cfg, data)
    build_trainer(cfg, data, step).run()
    (held_out,) = data.validation
    with torch.no_grad():
        found = step.model(held_out.fetch(np.arange(40), held_out.present, 0), torch.from_numpy(held_out.present))
    for a, b in (("image", "text"), ("audio", "image"), ("text", "audio")):
        assert retrieval(found[a], found[b])["R@1"] > 40, (a, b)


def test_what_an_objective_says_of_itself_is_recorded(tmp_path):
    train(config(tmp_path, method="structure", stages=[{"steps": 4}]), tmp_path / "structure")
    rows = records(tmp_path / "structure", "train")
    assert [row["weight"] for row in rows] == [0.0, 0.5, 1.0, 1.5]
    assert all(row["structure"] > 0 for row in rows)
    train(config(tmp_path, method="confu", stages=[{"steps": 2}]), tmp_path / "confu")
    assert all(row["pairs"] > 0 and row["fused"] > 0 for row in records(tmp_path / "confu", "train"))


def test_the_same_seed_mixes_the_same_and_another_does_not(tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("other", 3)):
        train(config(tmp_path, method="fusemix", stages=[{"steps": 4}], seed=seed), tmp_path / name)
    one, two, other = (records(tmp_path / name, "train") for name in ("one", "two", "other"))
    assert one == two
    assert [row["loss"] for row in one] != [row["loss"] for row in other]


def test_confu_has_weights_for_the_pairs_of_the_model_and_trains_them(tmp_path):
    cfg = config(tmp_path, method="confu", stages=[{"steps": 3}])
    data = open_data(cfg)
    step = build_step(cfg, data)
    assert isinstance(step.objective, ConfuLoss)
    assert step.objective.names == ("image", "text", "audio")
    before = [parameter.detach().clone() for parameter in step.objective.parameters()]
    assert len(before) == 12
    build_trainer(cfg, data, step).run()
    assert all(not torch.equal(a, b) for a, b in zip(before, step.objective.parameters(), strict=True))
    plain = config(tmp_path, method="confu", objective={"name": "confu", "fusion": "mean"})
    assert not list(build_step(plain, open_data(plain)).objective.parameters())
