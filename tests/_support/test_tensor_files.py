"""Files of tensors: saved states, states inside others, checkpoints of others."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calmrl._support.tensor_files import load_state, load_tensors, packed, plain, read_checkpoint, save_state, unpacked
from calmrl.errors import InputError


def test_a_saved_state(tmp_path):
    state = {"meta": {"x": 1}, "tensors": {"w": torch.arange(3.0)}}
    save_state(state, tmp_path / "a", overwrite=False)
    header = json.loads((tmp_path / "a" / "imputer.json").read_text())
    assert (header["format"], header["version"]) == ("calmrl.imputer", 2)
    loaded = load_state(tmp_path / "a")
    assert loaded["meta"]["x"] == 1
    assert loaded["tensors"]["w"].tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="exists already; choose another path, or pass overwrite=True"):
        save_state(state, tmp_path / "a", overwrite=False)
    save_state(state | {"meta": {"x": 2}}, tmp_path / "a", overwrite=True)
    assert load_state(tmp_path / "a")["meta"]["x"] == 2
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="exists and is not a saved model; it will not be replaced"):
        save_state(state, tmp_path / "b", overwrite=True, name="model")
    with pytest.raises(InputError, match=r"is not a folder; a saved model is a folder with model\.json"):
        load_state(tmp_path / "nowhere", "model")
    with pytest.raises(InputError, match=r"has no model\.json; it is not a saved model, or it is incomplete"):
        load_state(tmp_path / "a", "model")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 3}, "was written in format version 3, but this calmrl reads up to 2; update calmrl"),
        ({"version": "2"}, "was written in format version 2, but"),
        ({"format": "calmrl.other"}, "format 'calmrl.imputer' expected, got 'calmrl.other'"),
        ({"x": 5}, "is damaged: it is not what was written"),
        (None, "format 'calmrl.imputer' expected, got 'list'"),
    ],
)
def test_headers_of_another_kind(change, said, tmp_path):
    save_state({"meta": {"x": 1}, "tensors": {}}, tmp_path / "a", overwrite=False)
    header = tmp_path / "a" / "imputer.json"
    content = json.loads(header.read_text())
    header.write_text(json.dumps([] if change is None else content | change))
    with pytest.raises(InputError) as caught:
        load_state(tmp_path / "a")
    assert said in str(caught.value)
    header.write_text(json.dumps({"format": "calmrl.imputer", "version": 1, "x": 7}))  # without checksums
    assert load_state(tmp_path / "a")["meta"]["x"] == 7


def test_states_inside_other_states():
    assert unpacked(packed(None)) is None
    assert packed(None).shape == (0,)
    state = {"meta": {"x": "ä" * 300}, "tensors": {"w": torch.arange(4).reshape(2, 2).T}}
    content = packed(state)
    assert content.dtype == torch.uint8
    again = unpacked(content)
    assert again["meta"] == state["meta"]
    assert again["tensors"]["w"].tolist() == [[0, 2], [1, 3]]
    length = int.from_bytes(bytes(content[:8].tolist()), "little")
    assert json.loads(bytes(content[8 : 8 + length].tolist())) == state["meta"]
    shared = plain({"w": state["tensors"]["w"].requires_grad_(False)})["w"]
    assert shared.is_contiguous()
    with pytest.raises(InputError, match="it is damaged or cut short: save or copy it again"):
        load_tensors(__import__("pathlib").Path(__file__))


def test_checkpoints_of_others(tmp_path):
    with pytest.raises(InputError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "nowhere.pt")
    torch.save({"w": torch.ones(2), "n": 3}, tmp_path / "a.pt")
    assert read_checkpoint(tmp_path / "a.pt")["n"] == 3
    torch.save([1, 2], tmp_path / "list.bin")
    with pytest.raises(InputError, match=r"list\.bin holds a list; a dict of tensors is needed"):
        read_checkpoint(tmp_path / "list.bin")
    torch.save({"w": np.random.default_rng}, tmp_path / "code.pth")
    with pytest.raises(InputError, match=r"cannot be read as tensors alone \(.*\); files that run code") as caught:
        read_checkpoint(tmp_path / "code.pth")
    assert "\n" not in str(caught.value)
    (tmp_path / "empty.pt").touch()
    with pytest.raises(InputError, match="cannot be read as tensors alone"):
        read_checkpoint(tmp_path / "empty.pt")
    from safetensors.torch import save_file

    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    assert list(read_checkpoint(tmp_path / "a.safetensors")) == ["w"]
