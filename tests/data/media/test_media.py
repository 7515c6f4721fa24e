"""The right frames, the right samples, at the right time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.data.media.problems import Unreadable
from calmrl.data.media.streams import read_audio, read_frames, segment_frames
from calmrl.errors import InputError
from tests.support.make_media import click, make_sound, make_video, read_number

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")


@given(total=st.integers(1, 500), n=st.integers(1, 40), seed=st.integers(0, 9))
@settings(deadline=None)
def test_segments_are_equal_and_frames_stay_inside(total: int, n: int, seed: int) -> None:
    middle = segment_frames(total, n)
    drawn = segment_frames(total, n, torch.Generator().manual_seed(seed))
    for i, (a, b) in enumerate(zip(middle, drawn, strict=True)):
        low, high = i * total // n, max(i * total // n + 1, (i + 1) * total // n)
        assert low <= a < high
        assert low <= b < high
        assert a == (low + high - 1) // 2
    assert middle == sorted(middle)


def test_random_frames_cover_the_segment_and_repeat_with_the_seed() -> None:
    drawn = {segment_frames(20, 2, torch.Generator().manual_seed(seed))[0] for seed in range(200)}
    assert drawn == set(range(10))
    twice = [segment_frames(1000, 5, torch.Generator().manual_seed(0)) for _ in range(2)]
    assert twice[0] == twice[1]


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.ts", "libx264"), ("a.avi", "mpeg4"), ("a.webm", "libvpx")],
)
@pytest.mark.parametrize("n", [1, 8, 60])
def test_frames_are_the_right_ones(tmp_path, name: str, codec: str, n: int) -> None:
    path = make_video(tmp_path / name, 40, 10, codec=codec)
    frames, times = read_frames(path, n)
    assert [read_number(frame) for frame in frames] == segment_frames(40, n)
    np.testing.assert_allclose(times, np.array(segment_frames(40, n)) / 10, atol=0.002)


def test_a_turned_video_is_upright(tmp_path) -> None:
    """The track header asks the player to turn the pictures by 90 degrees."""
    path = make_video(tmp_path / "a.mp4", 10)
    content = bytearray(path.read_bytes())
    matrix = content.index(b"tkhd") + 4 + 40  # version and flags, times, id, duration, layer, volume come first
    fixed = [0, 0x10000, 0, -0x10000, 0, 0, 64 << 16, 0, 0x40000000]
    content[matrix : matrix + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in fixed)
    (tmp_path / "turned.mp4").write_bytes(content)
    [plain], _ = read_frames(path, 1)
    [turned], _ = read_frames(tmp_path / "turned.mp4", 1)
    np.testing.assert_array_equal(turned, np.rot90(plain, -1))  # clockwise


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.25])
@pytest.mark.parametrize(("name", "audio"), [("a.mp4", "aac"), ("a.mkv", "aac"), ("a.mkv", "pcm_s16le")])
def test_sound_and_frames_share_a_clock(tmp_path, name: str, audio: str, delay: float) -> None:
    """The click sounds `1.5` s into a track that starts `delay` s after the pictures."""
    path = make_video(tmp_path / name, 50, 10, sound=click(1.5, 3.0), delay=delay, audio_codec=audio)
    samples = read_audio(path)
    heard = np.flatnonzero(np.abs(samples) > 0.3)[0] / 16_000
    assert heard == pytest.approx(1.5 + delay, abs=0.003)
    frames, times = read_frames(path, 50)
    shown = times[[read_number(frame) for frame in frames].index(15)]
    assert heard - shown == pytest.approx(delay, abs=0.003)


def test_a_file_that_does_not_start_at_zero(tmp_path) -> None:
    path = make_video(
        tmp_path / "a.mkv", 20, 10, sound=click(0.5, 1.0), delay=3.0, audio_codec="pcm_s16le", first_time=30
    )
    _, times = read_frames(path, 20)
    assert times[0] == pytest.approx(0, abs=0.002)
    assert np.flatnonzero(np.abs(read_audio(path)) > 0.3)[0] / 16_000 == pytest.approx(0.5, abs=0.003)


def test_resampling_keeps_pitch_and_length(tmp_path) -> None:
    t = np.arange(44_100 * 2) / 44_100
    path = make_sound(tmp_path / "a.wav", (0.5 * np.sin(2 * np.pi * 440 * t)).astype(np.float32), rate=44_100)
    samples = read_audio(path)
    assert samples.dtype == np.float32
    assert len(samples) == pytest.approx(32_000, abs=2)
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert np.argmax(spectrum) * 16_000 / len(samples) == pytest.approx(440, abs=1)
    assert np.abs(samples[1000:-1000]).max() == pytest.approx(0.5, abs=0.01)


def test_what_cannot_be_read_says_why(tmp_path) -> None:
    video = make_video(tmp_path / "a.mp4")
    fast = make_video(tmp_path / "fast.mp4", sound=click(1, 4.0), options={"movflags": "faststart"})
    whole = fast.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "headless.mp4").write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("not a video")
    sound = make_sound(tmp_path / "a.wav", click(0.1, 0.5))
    for name, kind in {
        "cut.mp4": "cut off",
        "headless.mp4": "cut off",
        "empty.mp4": "empty file",
        "text.mp4": "not decodable as video",
        "nowhere.mp4": "file not found",
        "a.wav": "no video stream",
    }.items():
        with pytest.raises(Unreadable) as caught:
            read_frames(tmp_path / name, 4)
        assert caught.value.kind == kind, name
        assert name in str(caught.value)
        assert "Errno" not in str(caught.value)
    with pytest.raises(Unreadable, match="no audio stream"):
        read_audio(video)
    with pytest.raises(Unreadable, match=r"cut off|not decodable"):
        read_audio(tmp_path / "cut.mp4")
    with pytest.raises(InputError, match="at least one frame"):
        read_frames(video, 0)
    assert len(read_audio(sound)) == 8000
