"""Uploaded pictures and sounds: which are let through, and how large and long they may be."""

from __future__ import annotations

import io
import re
import warnings
from fractions import Fraction
from types import SimpleNamespace

import anyio
import numpy as np
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

import shapes as data
from calmrl.errors import InputError
from calmrl.server import Limits, uploads
from calmrl.server.uploads import (
    check_picture,
    check_sound,
    checked_files,
    container_of,
    modality_named,
    read_form,
    sound_seconds,
    suffix_of,
    without_tags,
)
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
    check_picture(out.getvalue(), Limits(pixels=160 * 160))
    with pytest.raises(HTTPException, match=r"more than 0\.025599 million pixels; got 160 x 160") as refused:
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


def test_a_picture_that_pillow_itself_finds_too_large(monkeypatch):
    from PIL import Image

    content = data.png("red", "bar")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)  # it warns of 25,600, and refuses twice as many
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_picture(content, Limits()) is content
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(HTTPException, match="more than 40 million pixels") as refused:
        check_picture(content, Limits())
    assert refused.value.status_code == 413


def test_empty_files_say_so():
    with pytest.raises(InputError, match="the picture is empty"):
        check_picture(b"", Limits())
    with pytest.raises(InputError, match="the sound is empty"):
        check_sound(b"", Limits())


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
def test_tags_and_zeros_before_a_sound(content, left):
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
    assert sound_seconds(b"", "wav", 10.0) == pytest.approx(seconds)
    assert len(taken) == read
    packets[:] = [packet(0)]
    with pytest.raises(InputError, match="the sound has no samples"):
        sound_seconds(b"", "wav", 10.0)
    File.streams.audio.clear()
    with pytest.raises(InputError, match="the file holds no sound"):
        sound_seconds(b"", "wav", 10.0)
    av.open = lambda file, format: {}["x"]
    with pytest.raises(InputError, match="the sound cannot be read; it is damaged"):
        sound_seconds(b"", "wav", 10.0)


def test_a_sound_of_the_longest_length(monkeypatch):
    monkeypatch.setattr(uploads, "sound_seconds", lambda content, container, most: 3.0)
    assert check_sound(b"fLaC", Limits(sound_seconds=3)) == b"fLaC"


def test_files_are_for_modalities():
    picture = data.png("red", "bar")
    kinds = {"photo": "image", "words": "text"}
    assert checked_files({"image": picture, "photo": picture}, kinds, Limits()) == {"image": picture, "photo": picture}
    with pytest.raises(InputError, match=f"takes the file '{'x' * 80}'; name it image, sound, or photo$"):
        checked_files({"x" * 90: picture}, kinds, Limits())
    with pytest.raises(InputError, match="takes the file 'words'"):
        checked_files({"words": picture}, kinds, Limits())


def form(parts, kind=b"Multipart/Form-Data ; boundary=xx"):
    """What `read_form` makes of (name, content, whether it is a file)."""
    body = b""
    for name, content, is_file in parts:
        file = b'; filename="f"' if is_file else b""
        body += b'--xx\r\nContent-Disposition: form-data; name="' + name + b'"' + file + b"\r\n\r\n" + content + b"\r\n"

    async def receive():
        return {"type": "http.request", "body": body + b"--xx--\r\n", "more_body": False}

    headers = [(b"content-type", kind)] if kind else []
    return anyio.run(read_form, Request({"type": "http", "method": "POST", "headers": headers, "app": None}, receive))


def test_a_form_has_so_many_files_and_fields():
    files = [(b"f%d" % number, b"x", True) for number in range(9)]
    fields = [(b"t", b"y", False)] * 31
    read = form(files[:8] + fields[:30])
    assert read.files == {f"f{number}": b"x" for number in range(8)}
    assert read.fields == [("t", "y")] * 30
    for parts in (files, fields):
        with pytest.raises(HTTPException, match="Too many") as refused:
            form(parts)
        assert refused.value.status_code == 400
    assert len(form([(b"t", b"y" * 16_384, False)]).fields[0][1]) == 16_384
    with pytest.raises(HTTPException, match="exceeded maximum size"):
        form([(b"t", b"y" * 16_385, False)])
    with pytest.raises(InputError, match="the file 'f' is given twice; give it once"):
        form([(b"f", b"x", True)] * 2)


@pytest.mark.parametrize(("kind", "got"), [(b"text/plain; a=b", "text/plain"), (None, "no type")])
def test_other_bodies_are_refused(kind, got):
    with pytest.raises(
        HTTPException, match=re.escape(f"send multipart/form-data with the files image and sound; got {got}")
    ) as refused:
        form([], kind)
    assert refused.value.status_code == 415
