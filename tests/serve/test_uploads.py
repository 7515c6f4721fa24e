"""Uploaded pictures and sounds: which are let through, and how large and long they may be."""

from __future__ import annotations

import io

import numpy as np
import pytest
from starlette.exceptions import HTTPException

import shapes as data
from calmrl.errors import InputError
from calmrl.serve import Limits
from calmrl.serve.uploads import check_picture, check_sound, modality_named, sound_seconds, suffix_of
from make_media import make_sound

SOUNDS = {
    "wav": "pcm_s16le", "mp3": "libmp3lame", "flac": "flac", "ogg": "libopus", "m4a": "aac", "aac": "aac",
    "aiff": "pcm_s16be", "webm": "libopus",
}  # fmt: skip
TAG = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10)


def sound(tmp_path, suffix: str, seconds: float = 2.0) -> bytes:
    samples = 0.3 * np.sin(np.arange(int(16_000 * seconds)) / 20).astype(np.float32)
    return make_sound(tmp_path / f"a.{suffix}", samples, codec=SOUNDS[suffix]).read_bytes()


@pytest.mark.parametrize("suffix", SOUNDS)
def test_sounds_are_let_through_and_measured(suffix, tmp_path):
    content = sound(tmp_path, suffix)
    checked = check_sound(content, Limits())
    assert content.endswith(checked)
    assert suffix_of(checked) == f".{suffix}"
    with pytest.raises(HTTPException, match="longer than 1 s"):
        check_sound(content, Limits(sound_seconds=1))


def test_tags_are_taken_off(tmp_path):
    content = sound(tmp_path, "mp3")
    assert check_sound(TAG + TAG + content, Limits()) == check_sound(content, Limits())


@pytest.mark.parametrize("start", [b"", TAG, TAG + bytes(20), bytes(8)])
@pytest.mark.parametrize(
    "content",
    [b"ffconcat version 1.0\nfile x.wav\n", b"#EXTM3U\nx.wav\n", b"[playlist]\nFile1=x.wav\n", b"v=0\r\no=-\r\n"],
)
def test_play_lists_are_refused(start, content):
    with pytest.raises(InputError, match="cannot be read"):
        check_sound(start + content, Limits())


def test_a_length_that_the_header_hides_is_counted(tmp_path):
    """The packets count, not what the header says."""
    content = bytearray(sound(tmp_path, "wav", 3.0))
    place = content.index(b"data") + 4
    content[place : place + 4] = b"\xff\xff\xff\xff"
    assert sound_seconds(bytes(content), "wav", 100) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_pictures_are_let_through_and_measured(form):
    out = io.BytesIO()
    data.draw("red", "circle").save(out, form)
    assert check_picture(out.getvalue(), Limits()) == out.getvalue()
    assert suffix_of(out.getvalue()) == f".{form.lower()}"
    with pytest.raises(HTTPException, match="got 160 x 160") as refused:
        check_picture(out.getvalue(), Limits(pixels=160 * 160 - 1))
    assert refused.value.status_code == 413


def test_other_pictures_are_refused():
    out = io.BytesIO()
    data.draw("red", "circle").save(out, "PDF")
    with pytest.raises(InputError, match="cannot be read"):
        check_picture(out.getvalue(), Limits())


def test_names_stand_for_modalities():
    kinds = {"photo": "image", "speech": "audio", "sound": "audio", "name": "text"}
    names = {name: modality_named(name, kinds) for name in ("image", "sound", "text", "speech", "smell")}
    assert names == {"image": "photo", "sound": "sound", "text": "name", "speech": "speech", "smell": "smell"}
