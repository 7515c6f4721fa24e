"""Uploaded images and audio: which are let through, and how large and long they may be."""

from __future__ import annotations

import io
import warnings
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.errors import InputError
from calmrl.search.hits import Answer
from calmrl.server import Limits, uploads
from calmrl.server.uploads import audio_seconds, check_audio, container_of, suffix_of, without_tags
from tests.support import shapes as data
from tests.support.make_media import make_sound

CODECS = {
    "wav": "pcm_s16le", "mp3": "libmp3lame", "flac": "flac", "ogg": "libopus", "m4a": "aac", "aac": "aac",
    "aiff": "pcm_s16be", "webm": "libopus",
}  # fmt: skip
TAG = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10)
PICTURE = "the picture cannot be read; send one of PNG, JPEG, WEBP, GIF, BMP, TIFF, AVIF, HEIC"
UNREADABLE = "the sound cannot be read; send WAV, MP3, FLAC, Ogg, M4A, AAC, AIFF or WebM"


def audio(tmp_path, suffix: str, seconds: float = 2.0) -> bytes:
    samples = 0.3 * np.sin(np.arange(int(16_000 * seconds)) / 20).astype(np.float32)
    return make_sound(tmp_path / f"a.{suffix}", samples, codec=CODECS[suffix]).read_bytes()


def image(form: str) -> bytes:
    out, drawn = io.BytesIO(), data.draw("red", "circle")
    if form == "HEIC":
        pytest.importorskip("pillow_heif", reason="the extra files is not installed").from_pillow(drawn).save(out)
    else:
        drawn.save(out, form)
    return out.getvalue()


@pytest.fixture
def send(shapes, client_of, monkeypatch):
    """(status, error or the bytes that the index got) of a search by a file"""
    given = []
    monkeypatch.setattr(data.ShapeIndex, "search", lambda self, **terms: given.append(terms) or Answer())

    def post(name, content, **limits):
        with client_of(shapes, limits=Limits(**limits)) as client:
            answer = client.post("/api/search", files={name: ("a", content, "x/y")})
        return answer.status_code, given.pop()[name] if answer.status_code == 200 else answer.json()["error"]

    return post


@pytest.mark.parametrize("suffix", CODECS)
def test_audio_is_let_through_and_measured(suffix, tmp_path, send):
    content = audio(tmp_path, suffix)
    status, checked = send("sound", content)
    assert (status, content.endswith(checked)) == (200, True)
    assert suffix_of(checked) == f".{suffix}"
    assert send("sound", content, audio_seconds=1) == (413, "the sound is longer than 1 s; send a part of it")


def test_tags_are_taken_off(tmp_path, send):
    content = audio(tmp_path, "mp3")
    assert send("sound", TAG + TAG + content) == send("sound", content)


@pytest.mark.parametrize("start", [b"", TAG, TAG + bytes(20), bytes(8)])
@pytest.mark.parametrize(
    "content",
    [b"ffconcat version 1.0\nfile x.wav\n", b"#EXTM3U\nx.wav\n", b"[playlist]\nFile1=x.wav\n", b"v=0\r\no=-\r\n"],
)
def test_play_lists_are_refused(start, content, send):
    assert send("sound", start + content) == (400, UNREADABLE)


def test_a_length_that_the_header_hides_is_counted(tmp_path):
    """The packets count, not what the header says."""
    content = bytearray(audio(tmp_path, "wav", 3.0))
    place = content.index(b"data") + 4
    content[place : place + 4] = b"\xff\xff\xff\xff"
    assert audio_seconds(bytes(content), "wav", 100) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIC"])
def test_images_are_let_through_and_measured(form, send):
    content = image(form)
    assert send("image", content, pixels=160 * 160) == (200, content)
    assert suffix_of(content) == f".{form.lower()}"
    if form in ("AVIF", "HEIC"):
        assert send("image", content[:200])[0] == 400
        assert send("image", b"    ftypheic" + bytes(90)) == (400, PICTURE)
    said = "the picture has more than 0.025599 million pixels; got 160 x 160"
    assert send("image", content, pixels=160 * 160 - 1) == (413, said)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("image", image("PDF"), PICTURE),
        ("image", b'<a  ftyp><svg width="9" height="9"/></a>', PICTURE),
        ("image", b"", "the picture is empty; send a file with something in it"),
        ("sound", b"", "the sound is empty; send a file with something in it"),
        ("sound", data.tone(440)[:30], "the sound cannot be read; it is damaged"),
    ],
)
def test_files_that_are_refused(name, content, sentence, send):
    assert send(name, content) == (400, sentence)


def test_an_image_that_pillow_itself_finds_too_large(monkeypatch, send):
    from PIL import Image

    content = data.png("red", "bar")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)  # it warns of 25,600, and refuses twice as many
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        assert send("image", content) == (200, content)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert send("image", content) == (413, "the picture has more than 40 million pixels")


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b"ID3\x04\x00\x00\x00\x00\x01\x0a" + bytes(138) + b"rest", b"rest"),  # seven bits of each byte count
        (b"ID3\x04\x00\x00\x01\x00\x00\x00" + bytes(2**21) + b"rest", b"rest"),
        (b"ID3\x04\x00\x00\x00\x00\x00\xff" + bytes(127) + b"rest", b"rest"),
        (b"ID3\x04\x00\x00\x00\x00\x00\x00", b"ID3\x04\x00\x00\x00\x00\x00\x00"),  # nothing behind it
        (b"ID3\x04\x00\x00\x00\x00\x00\x00x", b"x"),
        (b"ID4\x04\x00\x00\x00\x00\x00\x00x", b"ID4\x04\x00\x00\x00\x00\x00\x00x"),
        (b"\0\0rest\0", b"rest\0"),
        (b"\0\0\0\x18ftypM4A ", b"\0\0\0\x18ftypM4A "),
        (b"rest\0", b"rest\0"),
    ],
)
def test_tags_and_zeros_before_audio(content, left):
    assert without_tags(content) == left


@pytest.mark.parametrize(
    ("start", "container"),
    [
        (b"RIFF1234WAVE", "wav"), (b"RF641234WAVE", "wav"), (b"RIFF1234AVI ", None), (b"FORM1234WAVE", None),
        (b"FORM1234AIFF", "aiff"), (b"FORM1234AIFC", "aiff"), (b"FORM1234ILBM", None), (b"\0\0\0\x18ftyp", "mov"),
        (b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1aE\xdf\xa3", "matroska"), (b"fLaX", None),
        (b"\xff\xfb" + bytes(10), "mp3"), (b"\xff\xfb" + bytes(9), None), (b"\xff\xe3" + bytes(10), "mp3"),
        (b"\xff\xf2" + bytes(10), "mp3"), (b"\xff\xf1" + bytes(10), "aac"), (b"\xff\xf0" + bytes(10), "aac"),
        (b"\xff\xf9" + bytes(10), "aac"), (b"\xff\xdf" + bytes(10), None), (b"\xfe\xfb" + bytes(10), None), (b"", None),
    ],
)  # fmt: skip
def test_first_bytes_of_containers(start, container):
    assert container_of(start) == container
    if len(start) >= 12:
        assert container_of(start + b"more") == container


def packet(duration, pts=None, size=9, time_base=Fraction(1, 10)):
    return SimpleNamespace(duration=duration, pts=pts, size=size, time_base=time_base)


@pytest.mark.parametrize(
    ("packets", "start", "seconds", "read"),
    [
        ([packet(10), packet(20), packet(None)], None, 3.0, 3),  # without times, lengths add up
        ([packet(10, pts=0), packet(10, pts=50)], None, 6.0, 2),  # a gap counts
        ([packet(10, pts=30), packet(10, pts=40)], 30, 2.0, 2),  # from the start of the stream
        ([packet(10), packet(99, size=0), packet(99, time_base=None), packet(20)], None, 3.0, 4),
        ([packet(60), packet(40), packet(1), packet(99)], None, 10.1, 3),  # stops beyond the longest, not at it
    ],
)
def test_packets_are_counted_until_there_are_too_many(packets, start, seconds, read, monkeypatch):
    taken = []

    class File:
        streams = SimpleNamespace(audio=[SimpleNamespace(start_time=start), None])
        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

        def demux(self, stream):
            assert stream is self.streams.audio[0]
            for one in packets:
                taken.append(one)
                yield one

    av = SimpleNamespace(open=lambda file, format: File(), error=SimpleNamespace(FFmpegError=KeyError))
    monkeypatch.setattr(uploads, "need", lambda *names: av)
    assert audio_seconds(b"", "wav", 10.0) == pytest.approx(seconds)
    assert len(taken) == read
    packets[:] = [packet(0)]
    with pytest.raises(InputError, match="the sound has no samples"):
        audio_seconds(b"", "wav", 10.0)
    File.streams.audio.clear()
    with pytest.raises(InputError, match="the file holds no sound"):
        audio_seconds(b"", "wav", 10.0)
    av.open = lambda file, format: {}["x"]
    with pytest.raises(InputError, match="the sound cannot be read; it is damaged"):
        audio_seconds(b"", "wav", 10.0)


def test_audio_of_the_longest_length(monkeypatch):
    monkeypatch.setattr(uploads, "audio_seconds", lambda content, container, most: 3.0)
    assert check_audio(b"fLaC", Limits(audio_seconds=3)) == b"fLaC"
