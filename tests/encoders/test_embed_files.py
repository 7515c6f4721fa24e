"""Raw files in, vectors out: what `extract` and `embed` give, for models and for aligners."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import calmrl
from calmrl import config
from calmrl.data.features.feature_set import open_features
from calmrl.errors import InputError
from calmrl.workflows import extract, train
from tests.support.make_media import make_sound
from tests.support.tiny_encoders import tiny  # noqa: F401

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
pytestmark = pytest.mark.usefixtures("tiny")
ENCODERS = {"text": "tiny_text", "image": "tiny_image", "sound": "tiny_audio"}
WORDS = ("red", "green", "blue", "dark", "pale")


def collection(folder: Path, n: int = 90) -> Path:
    """Pictures on a transparent ground, sounds and short texts that repeat; a third of the blocks is missing."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    rows = []
    for i in range(n):
        keep = rng.random(3) > 0.35
        keep[i % 3] = True
        pixels = np.zeros((30, 40, 4), np.uint8)
        pixels[4 : 12 + i % 9, 6:30] = (*rng.integers(0, 256, 3), 255)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        make_sound(folder / f"{i}.wav", rng.normal(size=4000).astype(np.float32) / 10)
        cells = [f"a {WORDS[i % 5]} thing", f"{i}.png", f"{i}.wav"]
        rows.append([f"item{i}", ("train", "train", "val", "test")[i % 4]])
        rows[-1] += [cell if kept else "" for cell, kept in zip(cells, keep, strict=True)]
    with open(folder / "m.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["id", "split", "text", "image", "sound"], *rows])
    return folder / "m.csv"


def raw_items(manifest: Path) -> list[dict[str, str]]:
    with open(manifest, encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [
        {name: row[name] if name == "text" else str(manifest.parent / row[name]) for name in ENCODERS if row[name]}
        for row in rows
    ]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    from tests.support.tiny_encoders import TINY

    folder = tmp_path_factory.mktemp("embed")
    with pytest.MonkeyPatch.context() as patch:
        for name, spec in TINY.items():
            patch.setitem(calmrl.encoders.ENCODERS, name, spec)
        manifest = collection(folder / "c")
        extract(manifest, ENCODERS, folder / "f")
    return manifest, folder / "f"


@pytest.mark.parametrize("method", ["aligner", "contrastive"])
def test_a_trained_model_reads_raw_files(features, tmp_path, method) -> None:
    manifest, directory = features
    (tmp_path / "own.yaml").write_text(
        json.dumps({"kind": "train", "method": method, "sources": {"own": {"features": str(directory)}}})
    )
    train(config.load(tmp_path / "own.yaml"), tmp_path / "run")
    model = calmrl.load(tmp_path / "run")
    data = open_features(directory)
    np.testing.assert_array_equal(model.embed_files(raw_items(manifest)), model.embed(data.z, data.present))
    assert "reads files" in repr(model)


def test_an_aligner_reads_raw_files(features, tmp_path) -> None:
    manifest, directory = features
    data = open_features(directory)
    aligner = calmrl.Aligner(refine="never", latent_dim=4, features="linear").fit(data)
    aligner.save(tmp_path / "a")
    again = calmrl.Aligner.load(tmp_path / "a")
    np.testing.assert_array_equal(again.embed_files(raw_items(manifest)), aligner.embed(data.z, data.present))
    assert repr(again).endswith("fitted: text, image, sound -> 4 latents, linear features, reads files")
    with pytest.raises(InputError, match="item 1 has no text and no file"):
        again.embed_files([{"text": "a"}, {}])
    with pytest.raises(InputError, match=r"calmrl\.Aligner\.load"):
        calmrl.load(tmp_path / "a")


@pytest.mark.parametrize(("dtype", "expected"), [("float16", "float32"), ("float32", "float32")])
def test_vectors_have_the_dtype_of_the_features_or_single_precision(features, tmp_path, dtype, expected) -> None:
    manifest, _ = features
    extract(manifest, ENCODERS, tmp_path / "f", dtype=dtype)
    aligner = calmrl.Aligner(refine="never", latent_dim=4, features="linear").fit(open_features(tmp_path / "f"))
    vectors = aligner.embed_files(raw_items(manifest)[:5])
    assert vectors.dtype == expected
    np.testing.assert_allclose(np.linalg.norm(vectors.astype(np.float64), axis=1), 1, atol=1e-6)


def test_transparent_pictures_are_handled_as_in_extract(features) -> None:
    manifest, directory = features
    item = next(item for item in raw_items(manifest) if "image" in item)
    row = raw_items(manifest).index(item)
    data = open_features(directory)
    aligner = calmrl.Aligner(refine="never", latent_dim=4, features="linear").fit(data)
    z, _ = aligner.encoder_set().encode([item])
    np.testing.assert_array_equal(z["image"][0], data.z["image"][row])
    black = Image.open(item["image"]).convert("RGB")  # drops transparency instead of putting it on white
    by_hand, _ = aligner.encoder_set().encode([{"image": black}])
    assert not np.array_equal(by_hand["image"][0], z["image"][0])


def test_a_model_of_arrays_says_that_it_does_not_know_its_encoders() -> None:
    rng = np.random.default_rng(0)
    z = {"a": rng.normal(size=(60, 5)), "b": rng.normal(size=(60, 4))}
    aligner = calmrl.Aligner(refine="never", latent_dim=2, features="linear").fit(z)
    with pytest.raises(InputError, match="does not know its encoders"):
        aligner.embed_files([{"a": "x"}])
