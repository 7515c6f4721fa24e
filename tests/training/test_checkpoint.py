"""What a run writes: checkpoints (kept, removed, on disk, damaged), records and trackers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from calmrl._support.output import read_sealed, write_sealed
from calmrl.errors import InputError, MissingExtraError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.training import checkpoints as checkpoint
from calmrl.training.checkpoints import Checkpoint, Records, read_records
from calmrl.training.loop import close_trackers, flat, open_trackers

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


# ---- damaged


def written(folder: Path) -> Path:
    z = {"a": torch.randn(20, 3, generator=torch.Generator().manual_seed(0))}
    latent = GaussianImputer(latent_dim=1).fit(z | {"b": z["a"][:, :2] * 2}).get_state()
    training = {"position": {"step": 1}, "optimiser": {}, "scaler": None, "random": []}
    weights = {"w": torch.ones(2)}
    content = Checkpoint(weights, training, latent, dict(weights))
    return checkpoint.write(folder, 1, content, best=True, keep=1)


def test_a_checkpoint_without_one_of_its_parts(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert checkpoint.read(path).latent is not None
    for part, reason in {"latent": "is not a folder", "ema.safetensors": "is missing"}.items():
        (path / part).rename(tmp_path / "away")
        with pytest.raises(InputError, match=f"{path}/{part} {reason}.*remove {path} to continue"):
            checkpoint.read(path)
        (tmp_path / "away").rename(path / part)
    torch.save([], path / "training.pt")
    with pytest.raises(InputError, match="is damaged"):
        checkpoint.read(path)
    shutil.rmtree(path)


def test_a_part_that_was_damaged_before_it_was_sealed(tmp_path: Path) -> None:
    path = written(tmp_path)
    header = path / checkpoint.HEADER
    content = read_sealed(header)
    (path / "training.pt").write_bytes(b"garbage")
    write_sealed(header, content, json.loads(header.read_text())["files"])
    with pytest.raises(InputError, match=rf"{path} is damaged \(.+\); remove it to continue from the one before"):
        checkpoint.read(path)


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\n",
        b"[]\n",
        b"3\n",
        b'{"kind": "train"}\n',
        b'{"kind": 1, "step": 1}\n',
        b'{"kind": "train", "step": "1"}\n',
        b"\xff\n",
    ],
)
def test_records_that_are_none(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    records = Records(path)
    records.write("train", 1, loss=0.5)
    records.close()
    path.write_bytes(path.read_bytes() + garbage + b'{"kind": "tr')
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        read_records(path)
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        Records(path, upto=1)


# ---- records and trackers


def test_records_are_lines_of_json_without_numbers_that_are_none(tmp_path):
    records = Records(tmp_path / "m.jsonl")
    records.write("train", 1, loss=float("nan"), rate=float("inf"), note="x", rows=3)
    written = (tmp_path / "m.jsonl").read_text()  # before it is closed
    assert json.loads(written) == {"kind": "train", "step": 1, "loss": None, "rate": None, "note": "x", "rows": 3}
    assert written.endswith("\n")
    records.close()
    assert records.file.closed


def test_a_resumed_run_keeps_what_was_before_its_checkpoint(tmp_path):
    path = tmp_path / "m.jsonl"
    records = Records(path)
    for kind, step in (("start", 0), ("train", 1), ("train", 2), ("validation", 2), ("end", 2), ("train", 3)):
        records.write(kind, step)
    records.close()
    with path.open("a") as file:
        file.write('{"kind": "tra')  # a kill
    assert len(read_records(path)) == 6
    assert [record["step"] for record in read_records(path, "train")] == [1, 2, 3]
    Records(path, upto=2).close()
    assert [(record["kind"], record["step"]) for record in read_records(path)] == [
        ("start", 0),
        ("train", 1),
        ("train", 2),
        ("validation", 2),
    ]
    more = Records(path)
    more.write("end", 2)
    more.close()
    assert len(read_records(path)) == 5  # without `upto` it appends


def test_records_on_a_full_disk(tmp_path):
    records = Records(tmp_path / "m.jsonl")
    records.file.close()
    records.file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(
        InputError, match=r"m\.jsonl cannot be written \(.*No space.*free some space, then continue with `resume=True`"
    ):
        records.write("train", 1)
    records.close()


def test_trackers_get_the_settings_flat():
    started = []
    accelerator = SimpleNamespace(init_trackers=lambda name, config: started.append((name, config)), trackers=[])
    assert open_trackers(accelerator, [], {"a": 1}) is False
    assert started == []
    assert open_trackers(accelerator, ["tensorboard"], {"a": {"b": 1, "c": {}}, "d": [2], "e": None}) is True
    assert started == [("calmrl", {"a.b": 1, "a.c": "{}", "d": "[2]", "e": "None"})]
    assert flat({"x": True, "y": 0.5, "z": "t"}) == {"x": True, "y": 0.5, "z": "t"}
    with pytest.raises(MissingExtraError, match="the tracker nosuchtracker"):
        open_trackers(accelerator, ["nosuchtracker"], {})
    ended = []
    accelerator.trackers = [SimpleNamespace(finish=lambda: ended.append(1))] * 2
    close_trackers(accelerator)
    assert ended == [1, 1]
