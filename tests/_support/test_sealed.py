"""A flipped bit anywhere in a checkpoint, a saved model or a saved imputer is an error that names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import calmrl
from calmrl._support.output import check_sealed, read_sealed, write_sealed
from calmrl.errors import InputError
from calmrl.imputers.simple import MeanImputer
from calmrl.training import checkpoints as checkpoint
from calmrl.workflows.train import train
from tests.support.train_data import config


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    train(config(folder, stages=[{"steps": 2}], matching={"hidden": 8, "layers": 1, "heads": 2}), folder / "run")
    return folder / "run"


def flipped(source: Path, target: Path, count: int, seed: int = 0):
    """Copies of a directory, each with one bit flipped in one of its files, drawn by size and then every file once."""
    rng = np.random.default_rng(seed)
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".yaml")
    for number in range(count):
        name = files[number % len(files)]
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        content = bytearray((target / name).read_bytes())
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        (target / name).write_bytes(content)
        yield name


def test_no_flipped_bit_goes_unnoticed(run, tmp_path):
    MeanImputer().fit({"a": np.eye(4), "b": np.ones((4, 2))}).save(tmp_path / "imputer")
    for source, read, count, also in (
        (checkpoint.newest(run / "checkpoints"), checkpoint.read, 120, ""),
        (run / "model", calmrl.load, 120, r"|has format|is damaged"),
        (tmp_path / "imputer", MeanImputer.load, 60, "|step-00000002"),
    ):
        for name in flipped(source, tmp_path / "step-00000002", count):
            with pytest.raises(InputError, match=name.name.replace(".", r"\.") + also):
                read(tmp_path / "step-00000002")


def test_what_was_saved_before_there_were_checksums_still_loads(run, tmp_path):
    shutil.copytree(run / "model", tmp_path / "old")
    for header in (tmp_path / "old" / "model.json", tmp_path / "old" / "imputer" / "imputer.json"):
        content = json.loads(header.read_text())
        del content["files"], content["sha256"]
        header.write_text(json.dumps(content | {"version": 1}))
    assert calmrl.load(tmp_path / "old").names == calmrl.load(run).names


def test_a_missing_file_and_a_header_of_another_kind(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"a")
    write_sealed(tmp_path / "head.json", {"x": float("nan"), "y": {1: (2, 3)}}, ["a.bin"])
    content = json.loads((tmp_path / "head.json").read_text())
    assert set(check_sealed(tmp_path / "head.json", content)) == {"x", "y"}
    (tmp_path / "a.bin").unlink()
    with pytest.raises(InputError, match=r"a\.bin is missing"):
        check_sealed(tmp_path / "head.json", content)
    (tmp_path / "no.json").write_text("{")
    for name, reason in (("no.json", "cannot be read as JSON"), ("nowhere.json", "is missing")):
        with pytest.raises(InputError, match=f"{name} {reason}"):
            read_sealed(tmp_path / name)
    for wrong in ([], "x", {"files": []}, {**content, "x": 1}):
        with pytest.raises(InputError, match=r"head\.json is damaged"):
            check_sealed(tmp_path / "head.json", wrong)
