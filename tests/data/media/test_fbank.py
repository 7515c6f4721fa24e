"""Log-mel filter banks against Kaldi's own code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calmrl.data.media.fbank import BEATS_MEAN, BEATS_STD, beats_fbank, fbank
from calmrl.errors import InputError


def kaldi(samples: np.ndarray, bins: int, rate: int = 16_000, low: float = 20.0, high: float = 0.0) -> np.ndarray:
    knf = pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank is the reference; it is not installed")
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = rate
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = bins
    options.mel_opts.low_freq = low
    options.mel_opts.high_freq = high
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(rate, samples.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


def chirp(seconds: float, rate: int = 16_000) -> np.ndarray:
    t = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(0).normal(size=len(t))
    return (0.4 * np.sin(2 * math.pi * (100 + 900 * t) * t) + 0.05 * noise).astype(np.float32)


@pytest.mark.parametrize("bins", [23, 64, 80, 128])
@pytest.mark.parametrize("scale", [1.0, 2.0**15])
def test_equals_kaldi(bins: int, scale: float) -> None:
    samples = chirp(1.3) * np.float32(scale)
    ours = fbank(torch.from_numpy(samples), bins=bins).numpy()
    theirs = kaldi(samples, bins)
    assert ours.shape == theirs.shape == (128, bins)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_equals_kaldi_at_another_rate_and_band() -> None:
    samples = chirp(0.7, 8000) * np.float32(2**15)
    ours = fbank(torch.from_numpy(samples), bins=40, rate=8000, low=60.0, high=-200.0).numpy()
    np.testing.assert_allclose(ours, kaldi(samples, 40, 8000, 60.0, -200.0), atol=1e-3)


def test_beats_settings() -> None:
    samples = chirp(11.0)
    slices = beats_fbank(torch.from_numpy(samples))
    assert slices.shape == (2, 1024, 64)
    expected = (kaldi(samples * np.float32(2**15), 64) - BEATS_MEAN) / (2 * BEATS_STD)
    flat = slices.reshape(-1, 64).numpy()
    np.testing.assert_allclose(flat[: len(expected)], expected, atol=1e-3)
    assert (flat[len(expected) :] == 0).all()


def test_silence_is_floored_and_short_sound_has_no_frame() -> None:
    silent = fbank(torch.zeros(800))
    assert torch.allclose(silent, torch.full_like(silent, math.log(torch.finfo(torch.float32).eps)))
    assert fbank(torch.zeros(399)).shape == (0, 80)
    assert beats_fbank(torch.zeros(10)).shape == (1, 1024, 64)


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match="one channel"):
        fbank(torch.zeros(2, 800))
    with pytest.raises(InputError, match="does not fit"):
        fbank(torch.zeros(800), low=9000.0)
