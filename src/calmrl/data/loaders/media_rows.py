"""Items of a manifest as tensors for training: frames, filter banks and token ids of the modalities that are there.

| kind | tensor of the n rows that have it | drawn in training |
|---|---|---|
| image | (n, frames, 3, size, size), CLIP's mean and deviation | one frame of each of `frames` segments; perhaps a crop |
| audio | (n, slices, 1024, 64) filter banks as for BEATs | one slice of each of `slices` segments |
| text | dict of input_ids and attention_mask (n, tokens) | one of the item's texts |

At test it is the middle frame and slice, and the first text; `captions` gives all texts. An image stands for all frames.
`decoding` holds the rules, by default those of the public code of VAST. What is drawn depends on seed, epoch, row and
modality, on nothing else.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from calmrl.data.media.decoding import Decoding
from calmrl.data.media.images import FrameTransform
from calmrl.data.media.jobs import Job, decoded
from calmrl.data.media.manifest import Item, Manifest
from calmrl.data.media.problems import Unreadable
from calmrl.data.media.streams import RATE, segment_frames
from calmrl.errors import InputError, need

Inputs = dict[str, Any]
TEXT_TOKENS = {"subtitle": 70}  # of every other text 40


def load_tokenizer(name: str) -> Any:
    """A tokenizer of transformers by local path or name."""
    transformers = need("transformers", "encoders", "reading texts as tokens")
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(f'the tokenizer "{name}" cannot be loaded: {str(error).splitlines()[0]}') from error


class MediaRows:
    """Rows of a manifest; `fetch` decodes some of them, and only the modalities asked for.

    Parameters
    ----------
    manifest : Manifest
    tokenizer : str or tokenizer of transformers, optional
        Its name or folder; needed with texts only.
    name : str
        For messages.
    frames, size, slices : int
        Frames per video, their height and width, slices of sound per item.
    tokens : mapping of str to int, optional
        Modality -> number of tokens that a text is cut or padded to; by default 70 for subtitle, else 40.
    decoding : Decoding
        How to resize, which frames and slices to take, and how to read sound.
    training : bool
        Draw frames, slices and texts; if False, take the middle ones and the first text.
    seed : int
        Of what is drawn.
    present : ndarray of bool (N, k), optional
        Hides modalities that are there; rows left with none are not used, `unusable` counts them.
    rows : ndarray of int, optional
        Rows of the manifest; all by default.
    workers : int
        Threads that decode at the same time.
    weight : float
        How often a row comes per epoch.
    """

    chunk = 32  # rows that are worth decoding at once

    def __init__(
        self,
        manifest: Manifest,
        *,
        tokenizer: Any = None,
        name: str = "media",
        frames: int = 8,
        size: int = 224,
        slices: int = 1,
        tokens: Mapping[str, int] | None = None,
        decoding: Decoding | None = None,
        training: bool = True,
        seed: int = 0,
        present: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        workers: int = 1,
        weight: float = 1.0,
    ) -> None:
        if min(frames, size, slices, workers) < 1:
            raise InputError("frames, size, slices and workers must be at least 1")
        self.name, self.weight, self.names, self.kinds = name, weight, tuple(manifest.kinds), dict(manifest.kinds)
        self.frames, self.slices, self.training, self.seed, self.workers = frames, slices, training, seed, workers
        self.decoding = rules = decoding or Decoding()
        self.transform = FrameTransform(size, rules.resize, rules.interpolation, rules.rounding)
        texts = [modality for modality, kind in self.kinds.items() if kind == "text"]
        self.tokens = {modality: (tokens or {}).get(modality, TEXT_TOKENS.get(modality, 40)) for modality in texts}
        unknown = [modality for modality in tokens or {} if modality not in texts]
        if unknown:
            raise InputError(f"tokens names {unknown[0]!r}, which is no text; there are {', '.join(texts) or 'none'}")
        if texts and tokenizer is None:
            raise InputError(f"{', '.join(texts)} need a tokenizer; pass the folder or the name of one")
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        chosen = np.arange(len(manifest.items)) if rows is None else np.asarray(rows)
        listed = np.array([[modality in item.cells for modality in self.names] for item in manifest.items], dtype=bool)
        listed = listed.reshape(len(manifest.items), len(self.names))
        if present is not None:
            if present.shape != listed.shape:
                raise InputError(f"present has shape {present.shape}; the manifest has {listed.shape}")
            listed &= present
        usable = listed[chosen].any(axis=1)
        self.unusable = int((~usable).sum())
        self.rows = chosen[usable]  # numbers of my rows in the manifest
        self.present = listed[self.rows]
        self.left_out = manifest.left_out
        self.items: list[Item] = [manifest.items[row] for row in self.rows]
        self.ids = np.array([item.id for item in self.items], dtype=object)

    def __len__(self) -> int:
        return len(self.items)

    def settings(self) -> str:
        """What decoding depends on, as text."""
        tokens = sorted(self.tokens.items())
        return (
            f"{self.seed} {self.frames} {self.transform.size} {self.slices} {self.training} {tokens} {self.decoding!r}"
        )

    def fetch(self, wanted: np.ndarray, present: np.ndarray, epoch: int) -> Inputs:
        """The tensors of these rows, for each modality those where `present` (n, k) is True, in order."""
        inputs: Inputs = {}
        media = [name for name, kind in self.kinds.items() if kind != "text"]
        jobs = {name: self._jobs(name, wanted[present[:, self.names.index(name)]], epoch) for name in media}
        pool = ThreadPoolExecutor(self.workers) if self.workers > 1 else nullcontext()
        with pool as executor:
            results = iter(decoded([job for part in jobs.values() for job in part], executor))
            for name, part in jobs.items():
                inputs[name] = self._stack(name, [self._good(next(results), job) for job in part])
        for name in self.tokens:
            rows = wanted[present[:, self.names.index(name)]]
            inputs[name] = self.tokenize(name, [self._text(name, int(row), epoch) for row in rows])
        return {name: inputs[name] for name in self.names}

    @staticmethod
    def join(parts: Sequence[tuple[np.ndarray, Inputs]], present: np.ndarray) -> Inputs:
        """(places in the batch, what `fetch` gave for them) of several sources -> the rows of the batch in order."""
        if len(parts) == 1:
            return parts[0][1]
        whole: Inputs = {}
        for j, name in enumerate(parts[0][1]):
            places = np.concatenate([at[present[at, j]] for at, _ in parts])
            order = torch.from_numpy(np.argsort(places))
            values = [inputs[name] for _, inputs in parts]
            if isinstance(values[0], dict):
                whole[name] = {key: torch.cat([value[key] for value in values])[order] for key in values[0]}
            else:
                whole[name] = torch.cat(values)[order]
        return whole

    def captions(
        self, name: str = "text", batch_size: int = 64
    ) -> Iterator[tuple[dict[str, torch.Tensor], np.ndarray]]:
        """Every text of every row, in order: tokens, and the row that each belongs to."""
        column = self.names.index(name)
        every = [
            (row, text) for row, item in enumerate(self.items) if self.present[row, column] for text in item.cells[name]
        ]
        for start in range(0, len(every), batch_size):
            part = every[start : start + batch_size]
            yield self.tokenize(name, [text for _, text in part]), np.array([row for row, _ in part])

    def tokenize(self, name: str, texts: list[str]) -> dict[str, torch.Tensor]:
        """Token ids and mask, cut or padded to the number of tokens of this modality."""
        length = self.tokens[name]
        if not texts:
            nothing = torch.zeros(0, length, dtype=torch.long)
            return {"input_ids": nothing, "attention_mask": nothing}
        tokens = self.tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        return {key: tokens[key] for key in ("input_ids", "attention_mask")}

    def _jobs(self, name: str, rows: np.ndarray, epoch: int) -> list[Job]:
        kind = self.kinds[name]
        jobs = []
        for row in rows:
            seed = self._draw_seed(name, int(row), epoch)
            prepare = partial(_slices, self.slices, seed, self.decoding) if kind == "audio" else self.transform
            jobs.append(Job(self.items[row].cells[name], kind, prepare, self.frames, RATE, seed, self.decoding))
        return jobs

    def _draw_seed(self, name: str, row: int, epoch: int) -> int | None:
        """For one drawing: of this modality, of this row of the manifest, in this epoch."""
        if not self.training:
            return None
        entropy = [self.seed, epoch, int(self.rows[row]), self.names.index(name)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _text(self, name: str, row: int, epoch: int) -> str:
        texts, seed = self.items[row].cells[name], self._draw_seed(name, row, epoch)
        return texts[0 if seed is None else seed % len(texts)]

    def _good(self, result: Any, job: Job) -> np.ndarray:
        if isinstance(result, Unreadable):
            raise InputError(
                f"{self.name}: {result}; a file that was checked must stay readable: repair it, or check the manifest "
                "again and count it as missing"
            )
        if job.kind == "image" and len(result) == 1:
            return np.repeat(result, self.frames, axis=0)  # an image
        return result

    def _stack(self, name: str, parts: list[np.ndarray]) -> torch.Tensor:
        if parts:
            return torch.from_numpy(np.stack(parts))
        if self.kinds[name] == "audio":
            return torch.zeros(0, self.slices, BEATS_FRAMES, BEATS_BINS)
        return torch.zeros(0, self.frames, 3, self.transform.size, self.transform.size)


def _slices(count: int, seed: int | None, decoding: Decoding, samples: np.ndarray) -> np.ndarray:
    """One slice of the filter banks from each of `count` segments, (count, 1024, 64)."""
    every = beats_fbank(torch.from_numpy(samples), count if decoding.padding == "zeros" else None)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return every[segment_frames(len(every), count, generator, decoding.segments)].numpy()


# ---- sound as log-mel filter banks

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
    """Log-mel filter banks as Kaldi computes them: samples (T,) -> energies (frames, bins).

    Each frame of 25 ms (every 10 ms; only whole frames): subtract its mean, pre-emphasis x_t - 0.97 x_{t-1}, Povey window
    (Hann to the power 0.85), power spectrum |FFT|^2, triangles that are equally wide on the mel scale
    1127 log(1 + f / 700), natural logarithm. No dither. `high` <= 0 counts from half the rate downwards.

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
