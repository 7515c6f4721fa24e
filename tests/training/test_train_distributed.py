"""Two processes under `accelerate launch` train as one process does with the joined batches."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from calmrl.data.loaders.batches import Batches
from calmrl.training import checkpoint
from calmrl.workflows.build import open_data
from calmrl.workflows.train import train
from train_data import calmrl, config, config_file, records, step_of

LAUNCH = ("accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
          "--dynamo_backend", "no", "--main_process_port", "0")  # fmt: skip
CHANGES = {
    "model": {"kind": "heads", "width": 8, "init": "latent", "latent_prior": 20.0},
    "calibration": {"imputer": {"method": "gaussian", "latent_dim": 4}, "m_every": 2},
    "stages": [{"name": "warm-up", "sources": ["a"], "steps": 4, "hide_one": True}, {"name": "joint", "steps": 8}],
    "batch_size": 23,  # an odd number of rows: the processes have unequal shares
    "optimiser": {"learning_rate": 3e-3, "ema": 0.8, "accumulate": 2},
    "checkpoint": {"every": 3, "keep": 9},
}


def compare(one: list[dict], two: list[dict], tolerance: float) -> None:
    assert [(r["kind"], r["step"]) for r in one] == [(r["kind"], r["step"]) for r in two]
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, float):
                assert b[key] == pytest.approx(value, rel=tolerance, abs=tolerance), (a["step"], key)
            else:
                assert b[key] == value, (a["step"], key)


def test_the_two_processes_see_different_patterns(tmp_path):
    data = open_data(config(tmp_path, **CHANGES))
    halves = [Batches(list(data.train.values()), 23, rank=rank, world=2) for rank in range(2)]
    for left, right in zip(*halves, strict=True):
        sets = [{tuple(row) for row in batch["present"].tolist()} for batch in (left, right)]
        counts = [torch.unique(batch["present"], dim=0, return_counts=True)[1].tolist() for batch in (left, right)]
        assert sets[0] != sets[1] or counts[0] != counts[1]


def test_two_processes_equal_one_and_resume(tmp_path):
    path, two = config_file(tmp_path, **CHANGES), tmp_path / "two"
    calmrl("train", path, "--out", two, launch=LAUNCH)
    cfg = config(tmp_path, **CHANGES)
    train(cfg, tmp_path / "one")
    compare(records(tmp_path / "one"), records(two), 1e-4)
    a, b = (checkpoint.read(checkpoint.newest(out / "checkpoints")) for out in (tmp_path / "one", two))
    for name, weights in a.weights.items():
        np.testing.assert_allclose(weights, b.weights[name], atol=1e-3, err_msg=name)

    cut = tmp_path / "cut"
    shutil.copytree(two, cut)
    shutil.rmtree(cut / "model")
    for old in (cut / "checkpoints").glob("step-*"):
        if step_of(old) > 6:
            shutil.rmtree(old)
    calmrl("train", path, "--out", cut, "--resume", launch=LAUNCH)
    assert records(cut) == records(two)
    again = checkpoint.read(checkpoint.newest(cut / "checkpoints"))
    for name, weights in b.weights.items():
        assert torch.equal(weights, again.weights[name]), name
    for file in (two / "model").glob("*.safetensors"):
        assert file.read_bytes() == (cut / "model" / file.name).read_bytes()


def test_a_latent_model_fitted_by_gradient_in_two_processes(tmp_path):
    changes = {
        "calibration": {"imputer": {"method": "gaussian", "latent_dim": 4}, "update": "gradient"},
        "stages": [{"steps": 5}],
        "batch_size": 23,
    }
    calmrl("train", config_file(tmp_path, **changes), "--out", tmp_path / "two", launch=LAUNCH)
    train(config(tmp_path, **changes), tmp_path / "one")
    compare(records(tmp_path / "one"), records(tmp_path / "two"), 1e-3)
