"""Log-mel filter banks against Kaldi's own code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calmrl.data.loaders.media_rows import BEATS_MEAN, BEATS_STD, beats_fbank, fbank, whole_slices
from calmrl.errors import InputError


def kaldi(samples: np.ndarray, bins: int) -> np.ndarray:
    knf = pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank is the reference; it is not installed")
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = bins
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(16_000, samples.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


def chirp(seconds: float, rate: int = 16_000) -> np.ndarray:
    t = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(0).normal(size=len(t))
    return (0.4 * np.sin(2 * math.pi * (100 + 900 * t) * t) + 0.05 * noise).astype(np.float32)


@pytest.mark.parametrize(("bins", "scale"), [(23, 1.0), (80, 2.0**15)])
def test_equals_kaldi(bins: int, scale: float) -> None:
    samples = chirp(1.3) * np.float32(scale)
    ours = fbank(torch.from_numpy(samples), bins=bins).numpy()
    theirs = kaldi(samples, bins)
    assert ours.shape == theirs.shape == (128, bins)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_silence_is_floored_and_short_sound_has_no_frame() -> None:
    silent = fbank(torch.zeros(800))
    assert torch.allclose(silent, torch.full_like(silent, math.log(torch.finfo(torch.float32).eps)))
    assert [len(fbank(torch.zeros(length))) for length in (399, 400, 559, 560)] == [0, 1, 1, 2]
    assert beats_fbank(torch.zeros(10)).shape == (1, 1024, 64)


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match="one channel"):
        fbank(torch.zeros(2, 800))
    assert fbank(torch.zeros(400), low=0.0, high=8000.0).shape == (1, 80)
    for low, high in ((-1.0, 0.0), (20.0, 20.0), (20.0, 8001.0)):
        with pytest.raises(InputError, match=r"does not fit in 0 to 8000\.0 Hz"):
            fbank(torch.zeros(400), low=low, high=high)


def by_hand(samples: np.ndarray, bins: int, rate: int, low: float, high: float) -> np.ndarray:
    """The formulas at the top of the module, frame by frame and triangle by triangle."""
    length, shift = rate * 25 // 1000, rate * 10 // 1000
    padded = 2 ** math.ceil(math.log2(length))
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    mel = lambda hertz: 1127 * np.log(1 + hertz / 700)  # noqa: E731
    edges = np.linspace(mel(low), mel(high), bins + 2)
    at = mel(np.arange(padded // 2) * rate / padded)
    rows = []
    for start in range(0, len(samples) - length + 1, shift):
        frame = samples[start : start + length].astype(float)
        frame = frame - frame.mean()
        sharp = frame - 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(sharp * window, padded))[:-1] ** 2
        triangles = [np.interp(at, edges[b : b + 3], [0, 1, 0], left=0, right=0) for b in range(bins)]
        rows.append([math.log(max(power @ triangle, 2.0**-23)) for triangle in triangles])
    return np.array(rows)


@pytest.mark.parametrize(
    ("rate", "bins", "low", "high"), [(16_000, 80, 20.0, 0.0), (8000, 13, 60.0, -200.0), (8000, 9, 0.0, 3000.0)]
)
def test_equals_the_formula(rate: int, bins: int, low: float, high: float) -> None:
    samples = chirp(0.06, rate) * np.float32(2**15)
    given = {} if rate == 16_000 else {"rate": rate, "bins": bins, "low": low, "high": high}
    expected = by_hand(samples, bins, rate, low, high if high > 0 else rate / 2 + high)
    np.testing.assert_allclose(fbank(torch.from_numpy(samples), **given).numpy(), expected, atol=1e-4)
    assert len(expected) == 4


def test_the_numbers_of_beats() -> None:
    assert (BEATS_MEAN, BEATS_STD) == (15.41663, 6.55582)
    sound = torch.from_numpy(chirp(0.05))
    expected = (fbank(sound * 32768, bins=64) - 15.41663) / 13.11164
    torch.testing.assert_close(beats_fbank(sound)[0, : len(expected)], expected)


@pytest.mark.parametrize(
    ("frames", "at_least", "slices"),
    [
        (0, None, 1),
        (1024, None, 1),
        (1025, None, 2),
        (0, 1, 1),
        (1023, 1, 1),
        (1024, 1, 2),
        (1, 3, 3),
        (2048, 3, 3),
        (3072, 2, 4),
    ],
)
def test_slices(frames: int, at_least: int | None, slices: int) -> None:
    values = torch.ones(frames, 64)
    cut = whole_slices(values, at_least)
    assert cut.shape == (slices, 1024, 64)
    assert int(cut.sum()) == frames * 64
    assert bool((cut.reshape(-1, 64)[:frames] == 1).all())
