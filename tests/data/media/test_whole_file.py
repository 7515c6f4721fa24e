"""Films and sounds that were cut off, that name other files, or that would fill the memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from calmrl.data.media import streams
from calmrl.data.media.images import open_image
from calmrl.data.media.problems import Unreadable
from calmrl.data.media.streams import check_stream, read_audio, read_frames
from tests.support.make_media import click, make_sound, make_video

SOUNDS = {
    "wav": "pcm_s16le",
    "flac": "flac",
    "mp3": "libmp3lame",
    "ogg": "libopus",
    "m4a": "aac",
    "aiff": "pcm_s16be",
    "mka": "aac",
}
FILMS = {
    "mp4": ("libx264", "aac"),
    "mov": ("libx264", "aac"),
    "mkv": ("libx264", "aac"),
    "webm": ("libvpx-vp9", "libopus"),
    "avi": ("mpeg4", "libmp3lame"),
    "ts": ("mpeg2video", "mp2"),
    "mpg": ("mpeg2video", "mp2"),
    "flv": ("flv", "pcm_s16le"),
}


def cuts(whole: bytes) -> list[int]:
    """Where to cut: all over the file, between packets or inside them, but never a packet of transport streams."""
    return [size for size in range(40, len(whole) - 8, max(1, len(whole) // 23)) if size % 188]


@pytest.mark.parametrize("suffix", SOUNDS)
def test_a_sound_that_was_cut_off(tmp_path: Path, suffix: str) -> None:
    path = make_sound(tmp_path / f"a.{suffix}", click(0.3, 1.0), codec=SOUNDS[suffix])
    assert len(read_audio(path)) >= 15_900
    whole = path.read_bytes()
    for size in cuts(whole):
        path.write_bytes(whole[:size])
        with pytest.raises(Unreadable, match=path.name):
            read_audio(path)
        with pytest.raises(Unreadable):
            read_audio(whole[:size])


@pytest.mark.parametrize("suffix", FILMS)
def test_a_film_that_was_cut_off(tmp_path: Path, suffix: str) -> None:
    video, audio = FILMS[suffix]
    fps = 25 if video == "mpeg2video" else 10
    path = make_video(
        tmp_path / f"a.{suffix}",
        fps,
        fps,
        sound=None if suffix == "flv" else click(0.3, 1.0),
        codec=video,
        audio_codec=audio,
    )
    assert len(read_frames(path, 4)[0]) == 4
    whole = path.read_bytes()
    for size in cuts(whole):
        path.write_bytes(whole[:size])
        with pytest.raises(Unreadable, match=path.name):
            check_stream(path, "video")


def test_the_length_of_a_live_stream_is_open(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.wav", click(0.1, 0.5))
    content = bytearray(path.read_bytes())
    place = content.index(b"data")
    content[place + 4 : place + 8] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert len(read_audio(path)) == 8000


@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile secret.wav\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.wav\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 97\n",
    ],
    ids=["ffconcat", "m3u8", "sdp"],
)
@pytest.mark.parametrize("name", ["list.wav", "list.m3u8", "list.mp4", "list.ffconcat"])
def test_no_file_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    make_sound(tmp_path / "secret.wav", click(0.1, 0.5))
    (tmp_path / name).write_text(text)
    for source in (name, tmp_path / name, text.encode()):
        with pytest.raises(Unreadable, match="not decodable as audio"):
            read_audio(source)
    link = tmp_path / "link.wav"
    link.symlink_to("secret.wav")  # a link is a name of the file itself
    assert len(read_audio(link)) == 8000


def test_a_sound_of_days_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sound(tmp_path / "a.flac", np.zeros(32_000, np.float32), codec="flac")
    assert streams.MAX_SECONDS == 7200
    monkeypatch.setattr(streams, "MAX_SECONDS", 1)
    with pytest.raises(Unreadable, match="huge sound") as caught:
        read_audio(path)
    assert "a.flac lasts 2 s" in str(caught.value)
    content = bytearray(path.read_bytes())
    content[21:26] = bytes([content[21] & 0xF0, 0, 0, 0, 0])  # a length that is not told: it is counted while decoding
    path.write_bytes(content)
    with pytest.raises(Unreadable, match="huge sound"):
        read_audio(path)


def test_huge_frames_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_video(tmp_path / "a.mp4", 3, 10)
    assert streams.MAX_PIXELS == 40_000_000
    monkeypatch.setattr(streams, "MAX_PIXELS", 4000)
    with pytest.raises(Unreadable, match="huge video") as caught:
        read_frames(path, 2)
    assert "64 x 64" in str(caught.value)


def test_a_picture_of_few_bytes_and_many_pixels(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    image.new("1", (9000, 9000)).save(path)
    assert os.path.getsize(path) < 100_000
    for source in (path, path.read_bytes()):
        with pytest.raises(Unreadable, match="huge image"):
            open_image(source)
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    image.fromarray(noise).save(path)
    assert open_image(path).size == (600, 600)


def test_only_pictures_that_hold_their_own_content(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    image.new("RGB", (8, 8)).save(path, format="EPS")
    with pytest.raises(Unreadable, match="not decodable as image"):
        open_image(path)
