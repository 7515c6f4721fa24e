"""Saved models, imputers and aligners whose files are not what they should be: errors that name them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "has format calmrl.model 3; this is calmrl.model 2"),
        ({"format": "other"}, "has format other 2; this is calmrl.model 2"),
        ({"version": "2"}, "has format calmrl.model 2; this is calmrl.model 2"),
        ({"version": 1, "arguments": {"widths": 5}}, r"is damaged \(.*export or copy it again"),  # had no checksums
    ],
)
def test_headers_of_other_formats(folder: Path, change: dict, message: str) -> None:
    header = folder / "model.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | change))
    with pytest.raises(InputError, match=message):
        load(folder)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"holds no trained model \(model/model\.json\); name the folder of a finished"
    ):
        load(tmp_path)
    (tmp_path / "aligner.json").write_text("{}")
    with pytest.raises(InputError, match=r"is a saved aligner; open it with calmrl\.Aligner\.load"):
        load(tmp_path)


def test_many_rows_are_encoded_block_by_block(monkeypatch) -> None:
    monkeypatch.setattr("calmrl.models.saved.ROWS", 4)
    torch.manual_seed(0)
    model = Trained(Heads({"a": 4, "b": 3}, 3))
    rng = np.random.default_rng(0)
    for n in (0, 1, 4, 9):
        z = {"a": rng.normal(size=(n, 4)), "b": rng.normal(size=(n, 3))}
        found = model.encode(z)
        expected = model.model({k: torch.tensor(v).float() for k, v in z.items()}, torch.ones(n, 2, dtype=torch.bool))
        np.testing.assert_allclose(found["a"], expected["a"].detach(), rtol=1e-6)
    assert np.isnan(model.encode({"a": z["a"]})["b"]).all()
    assert repr(model) == "Trained(Heads: a, b -> 3)"
    with pytest.raises(
        InputError, match="this model was trained with a method, without a latent model, so it cannot impute"
    ):
        model.transform(z)


def test_a_card_says_what_a_model_is() -> None:
    info = {"method": "gram", "steps": 5, "files": {}, "best": [1]}
    model = Trained(Heads({"a": 4, "b": 3}, 2), info=info, encoders={"encoders": {"a": {"name": "minilm"}}})
    card = model._card()
    assert card.title == "gram: a, b in one space of 2 dimensions"
    assert (card.widths, card.encoders) == ({"a": 4, "b": 3}, {"a": "minilm"})
    assert card.choice == {"kind": "heads", "imputes with": "nothing", "method": "gram", "steps": 5}
    assert card.tags == ("calmrl-heads", "feature-extraction")
    assert card.quality == []
