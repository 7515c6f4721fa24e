"""What a run leaves behind, damaged afterwards: checkpoints that lack a part, records that are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from calmrl._support.output import read_sealed, write_sealed
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.training import checkpoints as checkpoint
from calmrl.training.checkpoints import Records, read_records


def written(folder: Path) -> Path:
    z = {"a": torch.randn(20, 3, generator=torch.Generator().manual_seed(0))}
    latent = GaussianImputer(latent_dim=1).fit(z | {"b": z["a"][:, :2] * 2}).get_state()
    training = {"position": {"step": 1}, "optimiser": {}, "scaler": None, "random": []}
    weights = {"w": torch.ones(2)}
    content = checkpoint.Checkpoint(weights, training, latent, dict(weights))
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
    "garbage", [b"garbage\n", b"[]\n", b"3\n", b'{"kind": "train"}\n', b'{"kind": 1, "step": 1}\n', b"\xff\n"]
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
