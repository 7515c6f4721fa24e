"""Log-mel filter banks as Kaldi computes them, in torch.

Each frame of 25 ms (every 10 ms; only whole frames): subtract its mean, pre-emphasis x_t - 0.97 x_{t-1}, Povey window
(Hann to the power 0.85), power spectrum |FFT|^2, triangles that are equally wide on the mel scale
1127 log(1 + f / 700), natural logarithm. No dither.
"""

import math
from functools import lru_cache

import torch

from calmrl.errors import InputError

BEATS_MEAN, BEATS_STD, BEATS_BINS, BEATS_FRAMES = 15.41663, 6.55582, 64, 1024
_EPSILON = torch.finfo(torch.float32).eps


def fbank(
    samples: torch.Tensor,
    *,
    rate: int = 16_000,
    bins: int = 80,
    frame_length: float = 25.0,
    frame_shift: float = 10.0,
    low: float = 20.0,
    high: float = 0.0,
) -> torch.Tensor:
    """Samples (T,) -> log-mel energies (frames, bins). `high` <= 0 counts from half the rate downwards.

    Kaldi's numbers refer to samples in the range of 16-bit integers; multiply samples in [-1, 1] by 2^15 first.
    """
    if samples.ndim != 1:
        raise InputError(f"samples must be one channel, shape (T,); got {tuple(samples.shape)}")
    length, shift = int(rate * frame_length / 1000), int(rate * frame_shift / 1000)
    if len(samples) < length:
        return samples.new_zeros((0, bins), dtype=torch.float32)
    frames = samples.double().unfold(0, length, shift)  # (frames, length); float32 costs the third digit in quiet bands
    frames = frames - frames.mean(dim=1, keepdim=True)
    previous = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
    window = torch.hann_window(length, periodic=False, dtype=torch.float64, device=samples.device) ** 0.85
    padded = 1 << (length - 1).bit_length()
    power = torch.fft.rfft((frames - 0.97 * previous) * window, n=padded).abs() ** 2  # (frames, padded / 2 + 1)
    top = high if high > 0 else rate / 2 + high
    weights = _mel_weights(bins, padded, rate, low, top).to(samples.device)  # (padded / 2, bins)
    return (power[:, :-1] @ weights).clamp(min=_EPSILON).log().float()


def beats_fbank(samples: torch.Tensor, at_least: int | None = None) -> torch.Tensor:
    """Samples (T,) in [-1, 1] at 16 kHz -> (slices, 1024, 64), as BEATs expects them; the last slice is padded with 0.

    (fbank(2^15 x) - 15.41663) / (2 * 6.55582), cut into slices of 1024 frames. With `at_least`, L frames are
    padded by max(1024 at_least - L, 1024 - L mod 1024), as in the public code of VAST: slices of zeros follow up to
    that number, and one more where the frames fill their slices exactly.
    """
    values = (fbank(samples * 2.0**15, bins=BEATS_BINS) - BEATS_MEAN) / (2 * BEATS_STD)
    return whole_slices(values, at_least)


def whole_slices(values: torch.Tensor, at_least: int | None = None) -> torch.Tensor:
    """Frames (L, 64) -> (slices, 1024, 64), padded with 0 as `beats_fbank` says."""
    slices = max(1, math.ceil(len(values) / BEATS_FRAMES))
    if at_least is not None:
        slices = max(at_least, len(values) // BEATS_FRAMES + 1)
    padded = values.new_zeros((slices * BEATS_FRAMES, BEATS_BINS))
    padded[: len(values)] = values
    return padded.view(slices, BEATS_FRAMES, BEATS_BINS)


@lru_cache(maxsize=8)
def _mel_weights(bins: int, padded: int, rate: int, low: float, high: float) -> torch.Tensor:
    """Triangles on the mel scale: bin b rises from edge b to edge b + 1 and falls to edge b + 2."""
    if not 0 <= low < high <= rate / 2:
        raise InputError(f"the band {low} to {high} Hz does not fit in 0 to {rate / 2} Hz")
    edges = torch.linspace(_mel(low), _mel(high), bins + 2, dtype=torch.float64)
    frequency = torch.arange(padded // 2, dtype=torch.float64) * rate / padded
    mel = 1127.0 * torch.log1p(frequency / 700.0)[:, None]  # (padded / 2, 1)
    rise = (mel - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - mel) / (edges[2:] - edges[1:-1])
    return torch.minimum(rise, fall).clamp(min=0)


def _mel(frequency: float) -> float:
    return 1127.0 * math.log1p(frequency / 700.0)
