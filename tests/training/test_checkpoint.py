"""Checkpoints one by one: what is kept, what is removed, what is put on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from calmrl.errors import InputError
from calmrl.training import checkpoints as checkpoint
from calmrl.training.checkpoints import Checkpoint

TRAINING = {"position": {"step": 1}, "optimiser": {}, "scaler": None, "random": []}


def content(value: float = 1.0, **more) -> Checkpoint:
    return Checkpoint({"w": torch.full((2,), value)}, TRAINING, **more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_reads_as_it_was_written(tmp_path):
    path = checkpoint.write(tmp_path / "a" / "b", 7, content(ema={"w": torch.zeros(2)}), best=False, keep=2)
    assert path == tmp_path / "a" / "b" / "step-00000007"
    again = checkpoint.read(path)
    assert again.weights["w"].tolist() == [1.0, 1.0]
    assert again.ema["w"].tolist() == [0.0, 0.0]
    assert (again.training, again.latent) == (TRAINING, None)
    assert names(path) == ["checkpoint.json", "ema.safetensors", "training.pt", "weights.safetensors"]
    assert checkpoint.read(checkpoint.write(tmp_path, 1, content(), best=False, keep=1)).ema == {}


def test_loading_executes_nothing(tmp_path, monkeypatch):
    path = checkpoint.write(tmp_path, 1, content(), best=False, keep=1)
    real, how = torch.load, []
    monkeypatch.setattr(torch, "load", lambda *a, **k: how.append(k["weights_only"]) or real(*a, **k))
    checkpoint.read(path)
    assert how == [True]


@pytest.mark.parametrize(("keep", "left"), [(1, [2, 5]), (2, [2, 4, 5]), (3, [2, 3, 4, 5])])
def test_the_newest_and_the_best_stay(keep, left, tmp_path):
    for step in range(1, 6):
        checkpoint.write(tmp_path, step, content(step), best=step == 2, keep=keep)
    assert names(tmp_path) == ["best", *(f"step-0000000{step}" for step in left)]
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000005"
    assert checkpoint.best(tmp_path) == tmp_path / "step-00000002"
    checkpoint.mark_best(tmp_path, 5)
    assert checkpoint.best(tmp_path) == tmp_path / "step-00000005"


def test_what_is_no_checkpoint_is_none(tmp_path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.best(tmp_path) is None
    checkpoint.mark_best(tmp_path, 3)
    assert checkpoint.best(tmp_path) is None  # it is named, but not there
    (tmp_path / "step-00000003").write_text("a file")
    (tmp_path / "step-3").mkdir()
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.best(tmp_path) is None


def test_drafts_of_a_killed_run_are_removed(tmp_path):
    for left in (".step-00000001.calmrl-abcdefgh/new", ".step-00000000.calmrl-12345678/removed"):
        (tmp_path / left).mkdir(parents=True)
        (tmp_path / left / "half").write_text("")
    checkpoint.write(tmp_path, 2, content(), best=False, keep=1)
    assert names(tmp_path) == ["step-00000002"]


def test_a_checkpoint_that_is_there_is_not_written_again_but_may_become_the_best(tmp_path):
    path = checkpoint.write(tmp_path, 2, content(1.0), best=False, keep=1)
    assert checkpoint.write(tmp_path, 2, content(5.0), best=True, keep=1) == path
    assert checkpoint.read(path).weights["w"].tolist() == [1.0, 1.0]
    assert checkpoint.best(tmp_path) == path


def test_all_of_it_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done: list[str] = []
    real = os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name))
    monkeypatch.setattr(os, "rename", lambda a, b: done.append("renamed") or real(a, b))
    before = len(os.listdir("/proc/self/fd"))
    checkpoint.write(tmp_path, 3, content(), best=False, keep=1)
    assert set(done[:4]) == {"checkpoint.json", "training.pt", "weights.safetensors", "new"}
    assert done[4:] == ["renamed", tmp_path.name]  # then the folder alone, which holds the name
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_write_that_fails_leaves_no_draft_and_says_what_to_do(tmp_path, monkeypatch):
    def full(*arguments, **more):
        raise OSError("No space\n left")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError) as wrong:
        checkpoint.write(tmp_path, 3, content(), best=False, keep=1)
    assert str(wrong.value) == (
        f"the checkpoint of step 3 could not be written to {tmp_path} (No space left); earlier checkpoints are intact. "
        "Free some space, then continue with `resume=True`"
    )
    assert names(tmp_path) == []
