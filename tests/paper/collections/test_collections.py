"""Public collections through the commands: init, check and extract take one in place of a manifest."""

from __future__ import annotations

import json

import pytest

from calmrl.config import ConfigError, ExtractConfig, load
from calmrl.data import PublicCollection
from calmrl.data.features.feature_set import open_features
from calmrl.errors import InputError
from calmrl.workflows.extract import extract
from tests.support.make_media import click, make_sound, make_video
from tests.support.publisher_files import write
from tests.support.tiny_encoders import TINY, tiny  # noqa: F401

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
pytestmark = pytest.mark.usefixtures("tiny")
ENCODERS = {"vision": "tiny_image", "audio": "tiny_audio", "text": "tiny_text"}


@pytest.fixture
def vggsound(tmp_path):
    """Four clips in each of two parts: one whole, one mute, one with sound only, one whose file is absent."""
    root = tmp_path / "vggsound"
    clips = [(f"{part[:2]}{i}", i, part) for part in ("train", "test") for i in range(4)]
    write(root, {"vggsound.csv": "".join(f"{name},{i},class {i % 2},{part}\n" for name, i, part in clips)})
    for name, i, _ in clips:
        if i == 0:
            make_video(root / f"{name}_000000.mp4", 6, sound=click(0.2, 0.6))
        elif i == 1:
            make_video(root / f"{name}_1_11.mp4", 6)
        elif i == 2:
            make_sound(root / f"{name}.wav", click(0.2, 0.6))
    return root


def test_extract_counts_what_is_not_there(vggsound, tmp_path) -> None:
    collection, told = PublicCollection("vggsound", vggsound), list[str]()
    with pytest.raises(InputError, match="8 problems, all of them listed in"):
        extract(collection, ENCODERS, tmp_path / "f", report=told.append)
    assert told[0] == "vggsound all: train 4 of 183,730 published, test 4 of 15,496 published items"
    features = extract(collection, ENCODERS, tmp_path / "f", allow_missing=True)
    lost = {"listed": 4, "vision": 2, "audio": 2}
    assert features.info["left_out"] == {"train": lost, "test": lost}
    assert features.present.tolist() == [[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]] * 2
    assert list(features.split) == ["train"] * 4 + ["test"] * 4
    assert list(features.labels[:2]) == ["class 0", "class 1"]
    with pytest.raises(InputError, match="go with a manifest"):
        extract(collection, ENCODERS, tmp_path / "g", layout="vggsound")
    with pytest.raises(InputError, match='"speech" is no modality of vggsound'):
        extract(collection, {"speech": "tiny_audio"}, tmp_path / "g")


def test_init_writes_a_config_that_names_the_collection(vggsound, tmp_path, calmrl, monkeypatch) -> None:
    names = {"text": "tiny_text", "image": "tiny_image", "audio": "tiny_audio"}
    monkeypatch.setattr("calmrl.encoders.registry.DEFAULTS", names)
    monkeypatch.setattr("calmrl.encoders.registry.PACKAGES", {name: () for name in TINY})
    out = tmp_path / "work"
    code, _, err = calmrl("init", vggsound, "--collection", "vggsound", "--out", out)
    assert code == 0, err
    assert "vggsound all: train 4 of 183,730 published" in err
    assert "6 x file not found" in err
    config = load(out / "extract.yaml", kind="extract")
    assert isinstance(config, ExtractConfig)
    assert (config.collection.name, config.collection.split, config.allow_missing) == ("vggsound", "all", True)
    assert not (out / "items.csv").exists()
    assert load(out / "train.yaml").sources["own"].resplit is None  # the collection has its own split
    code, _, err = calmrl("extract", out / "extract.yaml", "--out", out / "features", "--workers", 0)
    assert code == 0, err
    assert open_features(out / "features").info["left_out"]["test"]["vision"] == 2


def test_check_and_extract_on_the_command_line(vggsound, tmp_path, calmrl) -> None:
    code, out, err = calmrl("check", vggsound, "--collection", "vggsound:all", "--json")
    assert code == 2
    assert {problem.split(" x ")[1].split(":")[0] for problem in json.loads(out)["problems"]} == {
        "file not found", "no audio stream",
    }  # fmt: skip
    sounds = ["--media", f"audio={vggsound}", "--encoder", "audio=tiny_audio", "--encoder", "text=tiny_text"]
    words = ["extract", vggsound, "--collection", "vggsound", *sounds, "--workers", 0, "--out", tmp_path / "f"]
    assert calmrl(*words)[0] == 2
    assert calmrl(*words, "--allow-missing")[0] == 0
    assert open_features(tmp_path / "f").names == ("audio", "text")
    for arguments, said in (
        (["check", vggsound, "--media", "audio=x"], "go with --collection"),
        (["init", vggsound, "--out", tmp_path / "w", "--collection", "vgg"], 'did you mean "vggsound"'),
        (["check", vggsound, "--collection", "ucf101:4"], 'unknown split of ucf101 "4"'),
    ):
        code, _, err = calmrl(*arguments)
        assert (code, said in err) == (2, True), err


def test_configs_that_name_a_collection_wrongly(tmp_path) -> None:
    config = tmp_path / "c.yaml"
    for text, said in (
        ("manifest: a.csv\ncollection: {name: clotho, root: x}", "one of manifest"),
        ("encoders: {text: minilm}", "manifest: missing"),
        ("collection: {name: cloto, root: x}", 'did you mean "clotho"'),
        ("collection: {name: clotho, root: x, split: v3}", 'unknown split of clotho "v3"'),
        ("collection: {name: clotho, root: x}\nlayout: clotho", "belong to a manifest"),
    ):
        config.write_text(f"kind: extract\n{text}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=said):
            load(config, kind="extract")
    config.write_text("kind: train\nsources: {a: {features: x, allow_missing: true}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="allow_missing belongs to a manifest or a collection"):
        load(config, kind="train")
