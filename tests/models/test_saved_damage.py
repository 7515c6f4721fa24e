"""Saved models, imputers and aligners whose files are not what they should be: errors that name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.heads import Heads
from calmrl.models.saved import Trained, load, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    save(path, Trained(Heads({"image": 3, "text": 2}, width=4), info={"method": "gram"}))
    assert load(path).width == 4
    return path


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"", b"{}", b"[" * 100_000, b"\xff"])
def test_model_json_that_is_none(folder: Path, content: bytes) -> None:
    (folder / "model.json").write_bytes(content)
    with pytest.raises(InputError, match="model"):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1"},
        {"version": None},
        {"kind": "no such kind"},
        {"kind": []},
        {"arguments": []},
        {"arguments": {"widths": {"image": -1}}},
        {"arguments": {"widths": {"image": 3, "text": 2}, "width": 5}},
        {"calibration": {"imputer": "gaussian"}},
        {"calibration": []},
        {"matching": {"no": 1}},
    ],
)
def test_model_json_with_other_values(folder: Path, change: dict) -> None:
    content = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(content | change))
    with pytest.raises(InputError, match=str(folder)):
        load(folder)


def test_an_imputer_with_other_values(tmp_path: Path) -> None:
    path = tmp_path / "imputer"
    z = {"a": torch.randn(30, 3, generator=torch.Generator().manual_seed(0))}
    GaussianImputer(latent_dim=1).fit(z | {"b": z["a"][:, :2] * 2}).save(path)
    whole = json.loads((path / "imputer.json").read_text())
    for change in ({"arguments": []}, {"names": 3}, {"names": ["a"] * 3}, {"settings": {}}, {"running_rows": "x"}):
        (path / "imputer.json").write_text(json.dumps(whole | change))
        with pytest.raises(InputError, match=str(path)):
            GaussianImputer.load(path)
