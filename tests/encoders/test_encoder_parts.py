"""Sets of encoders, signatures, stores of vectors and official code at their limits."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.data.media.problems import Unreadable
from calmrl.encoders import ENCODERS, Encoder, EncoderSet, EncoderSpec
from calmrl.encoders.base import same
from calmrl.encoders.encoder_set import (
    EmbedsFiles,
    _fixed_item,
    ready_encoder,
    recorded_encoders,
    same_signature,
    signature,
)
from calmrl.encoders.hf import load_st
from calmrl.encoders.packaged import without_lines
from calmrl.encoders.registry import full_name, spec_of
from calmrl.encoders.vector_store import VectorStore, _append, file_key, open_stores, remove_stores, text_key
from calmrl.errors import InputError
from tests.support.tiny_encoders import TINY, tiny  # noqa: F401

pytestmark = pytest.mark.usefixtures("tiny")
NAMES = {"text": "tiny_text", "image": "tiny_image", "sound": "tiny_audio"}


def ready(encode, kind="text", width=4, **more):
    return SimpleNamespace(encoder=Encoder(kind, width, same, encode, **more), encode=encode)


# ---- signatures


def test_a_signature_is_eight_projections_of_the_unit_vector():
    vector = np.array([3.0, 0.0, -4.0, 0.0], np.float32)
    found = signature(ready(lambda items: np.stack([vector])))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (8, 4))
    assert found == [round(float(value), 3) for value in signs @ (vector / 5.0)]
    assert signature(ready(lambda items: np.stack([1e-6 * vector]))) == found  # length does not matter
    assert signature(ready(lambda items: np.zeros((1, 4), np.float32))) == [0.0] * 8
    third = np.array([1.0, 1.0, 1.0, 0.0], np.float32)
    assert set(map(abs, signature(ready(lambda items: np.stack([third]))))) <= {0.577, 1.732}  # three digits


def test_signatures_agree_up_to_a_twentieth():
    one = [0.5, 1.0]
    assert same_signature(one, [0.5, 1.0 + 0.0499])
    assert same_signature([0.0], [0.05])
    assert not same_signature(one, [0.5, 1.0501])
    assert not same_signature(one, [0.5, 1.0, 2.0])
    assert not same_signature(one, [0.5])
    assert same_signature([], [])


def test_the_fixed_items():
    assert _fixed_item(Encoder("text", 1, str.upper, len)) == "A RED BOAT ON A QUIET LAKE"
    shape = _fixed_item(Encoder("image", 1, same, len, reads_files=True, item_shape=(2, 3)))
    np.testing.assert_allclose(shape, np.sin(np.arange(6)).reshape(2, 3), rtol=1e-6)
    sound = _fixed_item(Encoder("audio", 1, same, len, rate=1000))
    assert (sound.dtype, len(sound)) == (np.float32, 1000)
    times = [0, 1, 10, 333]
    expected = [0.5 * math.sin(2 * math.pi * (200 + 600 * t / 1000) * t / 1000) for t in times]
    np.testing.assert_allclose(sound[times], expected, atol=1e-5)
    picture = _fixed_item(Encoder("image", 1, np.asarray, len))
    assert picture.shape == (1, 96, 128, 3)
    for x, y in ((0, 0), (127, 95), (5, 7), (100, 1)):
        assert picture[0, y, x].tolist() == [2 * x, 255 - 2 * y, x + y]


def test_an_encoder_is_loaded_again_when_its_entry_was_replaced(monkeypatch):
    first = ready_encoder("tiny_text")
    assert ready_encoder("tiny_text") is first
    monkeypatch.setitem(ENCODERS, "tiny_text", replace(TINY["tiny_text"], about="another"))
    assert ready_encoder("tiny_text") is not first
    assert first.encode(("a", "b")).shape == (2, 32)


# ---- sets


def test_what_a_set_refuses_and_says():
    with pytest.raises(InputError, match="name at least one encoder, for instance image=efficientnet_lite0"):
        EncoderSet({})
    with pytest.raises(InputError, match='features are float16 or float32; got dtype "float64"'):
        EncoderSet({"text": "tiny_text"}, dtype="float64")
    encoders = EncoderSet(NAMES)
    assert repr(encoders) == "EncoderSet(text=tiny_text, image=tiny_image, sound=tiny_audio)"
    assert (encoders.frames, encoders.dtype, encoders.device, encoders.allow_other) == (8, "float16", "cpu", False)
    assert encoders.modalities == ("text", "image", "sound")
    assert (encoders.kind("sound"), encoders.width("sound")) == ("audio", 20)
    with pytest.raises(InputError, match="several sides; name one"):
        spec_of("imagebind")
    assert repr(EncoderSet({"text": "hf:nowhere"})) == "EncoderSet(text=hf:nowhere)"  # looked at when it is used


def test_at_most_three_files_are_named():
    encoders = EncoderSet({"image": "tiny_image"})
    for count, more in ((3, ""), (4, "; and 1 more"), (5, "; and 2 more")):
        with pytest.raises(InputError) as wrong:
            encoders.encode([{"image": f"absent{i}.png"} for i in range(count)])
        said = str(wrong.value)
        assert said.startswith(f"{count} files cannot be used: item 0, image: absent0.png")
        assert said.count("item ") == 3
        assert said.endswith(f"absent2.png (file not found){more}")


def test_cells_that_are_empty_are_missing():
    encoders = EncoderSet(NAMES)
    z, present = encoders.encode([{"text": "a"}, {"text": None, "image": None, "sound": ""}, {"image": b""}, {}])
    assert present.tolist() == [[True, False, False]] + [[False] * 3] * 3
    assert np.isnan(z["text"][1:]).all()
    assert z["image"].shape == (4, 24)


def test_texts_are_encoded_in_batches_of_sixteen(monkeypatch):
    sizes = []
    plain = TINY["tiny_text"].make()
    counting = Encoder("text", 32, plain.prepare, lambda texts: sizes.append(len(texts)) or plain.encode(texts))
    monkeypatch.setitem(ENCODERS, "tiny_text", replace(TINY["tiny_text"], make=lambda: counting))
    texts = [[str(i)] for i in range(35)]
    found = EncoderSet({"text": "tiny_text"}).encode_texts("text", texts)
    assert sizes == [16, 16, 3]
    np.testing.assert_array_equal(found, plain.encode([text for (text,) in texts]))


def test_files_come_batch_by_batch(monkeypatch):
    picture = pytest.importorskip("PIL.Image").new("RGB", (20, 20), "red")
    sources = [picture, "absent.png", picture, "absent.png", "absent.png"]
    encoders = EncoderSet({"image": "tiny_image"})
    found = list(encoders.encode_files("image", sources, batch_size=2))
    assert [first for first, _ in found] == [0, 2, 4]
    readable = [[not isinstance(vector, Unreadable) for vector in vectors] for _, vectors in found]
    assert readable == [[True, False], [True, False], [False]]
    assert [first for first, _ in encoders.encode_files("image", sources * 4)] == [0, 16]
    job = encoders.job_of("image", Path("a.png"))
    assert (job.source, job.kind, job.frames) == ("a.png", "image", 8)
    clips = replace(TINY["tiny_image"].make(), frames=3)
    monkeypatch.setitem(ENCODERS, "tiny_image", replace(TINY["tiny_image"], make=lambda: clips))
    assert encoders.job_of("image", "a.mp4").frames == 3


def described(**more):
    return {**EncoderSet({"text": "tiny_text"}, frames=5, dtype="float32").describe(), **more}


def test_descriptions_of_other_formats_are_refused():
    assert described()["version"] == 1
    for change, got in (({"format": "other"}, "other 1"), ({"version": 2}, "calmrl.encoders 2")):
        with pytest.raises(InputError) as wrong:
            EncoderSet.from_description(described(**change))
        assert str(wrong.value) == f"these encoders are described as {got}; this calmrl reads calmrl.encoders up to 1"
    older = described()
    del older["version"]
    assert EncoderSet.from_description(older).frames == 5
    with pytest.raises(InputError, match='transparent pictures were put "on black", which is unknown here'):
        EncoderSet.from_description(described(transparency="on black"))


@pytest.mark.filterwarnings("error")
def test_an_encoder_of_another_width_is_noticed_once():
    description = described()
    description["encoders"]["text"]["width"] = 31
    with pytest.raises(InputError, match="gives other vectors for the same input"):
        EncoderSet.from_description(description).encoder("text")
    encoders = EncoderSet.from_description(description, allow_other=True)
    assert encoders.width("text") == 31  # as described, without loading it
    with pytest.warns(UserWarning, match="new items may not be comparable with old ones") as heard:
        encoders.encoder("text")
    encoders.encoder("text")  # says nothing more
    assert len(heard) == 1
    assert encoders.describe()["encoders"]["text"]["width"] == 31  # what was described stays


def test_weights_of_a_family_may_have_another_width(monkeypatch):
    asked = []
    spec = EncoderSpec(
        "text",
        9,
        "",
        "w",
        "",
        "",
        lambda weights, device: asked.append((weights, device)) or Encoder("text", 5, same, len),
        "p",
    )
    monkeypatch.setitem(ENCODERS, "imagebind_text", spec)
    assert EncoderSet({"text": "imagebind"}).width("text") == 9
    other = EncoderSet({"text": "imagebind@own.pth"})
    assert other.kind("text") == "text"
    assert asked == []
    assert other.width("text") == 5
    assert asked == [("own.pth", "cpu")]


def test_how_items_are_prepared_is_said():
    entries = EncoderSet(NAMES).describe()["encoders"]
    assert entries["text"]["prepare"] == "same"
    assert entries["sound"]["prepare"] == "same, 16000 Hz"
    assert entries["image"]["prepare"].startswith("ImageTransform(")
    assert entries["text"]["weights"] == "none"


def test_names_of_modalities_lead_to_sides():
    assert full_name("Film", "imagebind") == "imagebind_image"  # it has films there
    assert full_name("film", "languagebind") == "languagebind_video"
    assert full_name("title", "imagebind@x") == "imagebind_text@x"


# ---- models that know their encoders


def test_an_item_without_anything_is_named():
    model = EmbedsFiles()
    model.encoders_ = EncoderSet({"text": "tiny_text", "image": "tiny_image"}).describe()
    model.embed = lambda z, present: (sorted(z), present.tolist())
    assert model.embed_files([{"text": "a"}]) == (["image", "text"], [[True, False]])
    with pytest.raises(InputError) as wrong:
        model.embed_files([{"text": "a"}, {}, {}])
    assert str(wrong.value) == "item 1 has no text and no file; give it one of text, image"
    monkey = model.encoder_set(allow_other=True)
    assert monkey.allow_other
    assert not model.encoder_set().allow_other


def test_features_of_one_encoding_only():
    def info(frames=8, name="tiny", signature=(1.0,), modality="text"):
        entry = {"name": name, "signature": list(signature)}
        return {"encoding": {"frames": frames, "encoders": {modality: entry}}}

    assert recorded_encoders([info(), info(signature=(1.01,))], ["text"])["encoders"]["text"]["signature"] == [1.0]
    assert recorded_encoders([info(), info(frames=3)], ["text"]) is None
    assert recorded_encoders([info(), info(name="other")], ["text"]) is None
    both = recorded_encoders([info(), info(modality="image")], ["image", "text"])
    assert list(both["encoders"]) == ["image", "text"]
    assert recorded_encoders([{"features": "text"}], ["text"]) is None


# ---- stores


def test_a_store_appends_after_what_was_whole(tmp_path):
    keys, rows = [text_key(name) for name in "abc"], np.arange(6, dtype=np.float64).reshape(3, 2)
    store = VectorStore(tmp_path / "new" / "er", "v", 2)
    assert len(store) == 0
    store.add(keys[:2], rows[:2])
    store.add(keys[2:], rows[2:])
    found = store.get(keys[::-1])
    assert found.tolist() == rows[::-1].tolist()
    assert found.dtype == np.float32
    assert ((tmp_path / "new/er/v.rows").stat().st_size, (tmp_path / "new/er/v.sha256").stat().st_size) == (24, 195)
    assert (keys[0] in store) is True
    assert (text_key("z") in store) is False
    assert store.get([]).dtype == np.float32
    with (tmp_path / "new/er/v.rows").open("ab") as file:
        file.write(b"half a row"[:7])
    assert len(VectorStore(tmp_path / "new/er", "v", 2)) == 3
    assert (tmp_path / "new/er/v.rows").stat().st_size == 24


def test_what_is_appended_has_reached_the_disk(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    _append(tmp_path / "f", b"abc")
    _append(tmp_path / "f", b"de")
    assert sizes == [3, 5]


def test_keys():
    assert text_key("é") == hashlib.sha256("é".encode()).hexdigest()
    assert file_key("no/such/file") == hashlib.sha256(b"no/such/file").hexdigest()
    assert file_key("a\0b") == hashlib.sha256(b"a\0b").hexdigest()


def test_the_key_of_a_file_changes_with_its_size_and_time(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"abc")
    os.utime(file, ns=(5, 7))
    assert file_key(str(file)) == hashlib.sha256(f"{file}\0003\0007".encode()).hexdigest()


def test_stores_belong_to_their_encoders(tmp_path):
    folder, encoders = tmp_path / "a" / "b", EncoderSet({"text": "tiny_text"}, frames=3)
    stores, description = open_stores(folder, encoders)
    assert list(stores) == ["text"]
    assert stores["text"].width == 32
    assert description == encoders.describe()
    assert open_stores(folder, encoders)[1] == description
    header = folder / "encoders.json"
    written = header.read_text()
    first = str(description["encoders"]["text"]["signature"][0])
    header.write_text(written.replace(first, str(float(first) + 0.01), 1))  # another machine
    assert open_stores(folder, encoders)[1]["encoders"]["text"]["signature"][0] == pytest.approx(float(first) + 0.01)
    for old, new in (
        (first, str(float(first) + 0.9)),
        ('"frames": 3', '"frames": 4'),
        ('"kind": "text"', '"kind": "x"'),
    ):
        assert old in written
        header.write_text(written.replace(old, new, 1))
        with pytest.raises(
            InputError, match="holds vectors of a run that was begun with other encoders, frames or dtype"
        ):
            open_stores(folder, encoders)
    remove_stores(folder)
    assert not folder.exists()
    remove_stores(folder)  # again


def test_a_folder_that_is_there_may_hold_stores(tmp_path):
    assert open_stores(tmp_path, EncoderSet({"text": "tiny_text"}))[0]["text"].width == 32


def test_no_handle_is_left_open(capfd):
    before = len(os.listdir("/proc/self/fd"))
    with without_lines("INFO"):
        os.write(2, b"one\nINFO two\nthree\n")
    assert len(os.listdir("/proc/self/fd")) == before
    assert capfd.readouterr().err == "one\nthree\n"


# ---- sentence-transformers


def test_prompts_that_a_model_has_are_listed(monkeypatch):
    asked = []

    class Model:
        prompts: dict = {}  # noqa: RUF012

        def encode(self, texts, **how):
            asked.append((list(texts), how["prompt_name"], how["show_progress_bar"], how["convert_to_numpy"]))
            return np.ones((len(texts), 6))

    library = SimpleNamespace(SentenceTransformer=lambda name, device: Model())
    monkeypatch.setattr("calmrl.encoders.hf.need", lambda *what: library)
    with pytest.raises(InputError, match='the model "name" has no prompt "query"; it has none'):
        load_st("name#query")
    with pytest.raises(InputError, match='an encoder "st:" needs a local path or a name after the colon'):
        load_st("#query")
    Model.prompts = {"query": "q ", "other": "o "}
    with pytest.raises(InputError, match='has no prompt "ask"; it has #query, #other'):
        load_st("name#ask")
    asked.clear()
    encoder = load_st("name#query")
    assert (encoder.kind, encoder.width) == ("text", 6)
    assert encoder.encode(["a", "b"]).dtype == np.float32
    assert asked[1:] == [(["a"], "query", False, True), (["b"], "query", False, True)]
    asked.clear()
    load_st("name", "elsewhere").encode(["a", "b"])
    assert asked[1:] == [(["a", "b"], None, False, True)]
