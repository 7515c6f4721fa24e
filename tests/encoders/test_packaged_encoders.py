"""The code around weights that ship in packages, with stand-ins for the packages: what goes in, what comes out."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from calmrl._support.parsing import stderr_held
from calmrl.data.media.images import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from calmrl.encoders import packaged
from calmrl.encoders.base import each, same_peak
from calmrl.encoders.packaged import Bottleneck, MobileNetV2
from calmrl.errors import InputError

SCALE, ZERO = 0.5, 3


class Lite:
    """An interpreter whose inner layer holds the mean of its window and how often it ran."""

    made: tuple = ()

    def __init__(self, path: str, **how) -> None:
        type(self).made = (path, how)
        warnings.warn("keeping inner layers costs memory", UserWarning, stacklevel=2)
        self.ready, self.windows = False, []

    def allocate_tensors(self) -> None:
        self.ready = True

    def get_tensor_details(self) -> list[dict]:
        layer = {"name": "tower0/network/layer28/reduce_mean", "index": 9, "quantization": (SCALE, ZERO)}
        return [{"name": "other", "index": 1, "quantization": (1, 0)}, layer]

    def get_input_details(self) -> list[dict]:
        return [{"index": 4}, {"index": 5}]

    def set_tensor(self, where: int, window: np.ndarray) -> None:
        assert (where, window.dtype, self.ready) == (4, np.float32, True)
        self.windows.append(window)

    def invoke(self) -> None:
        self.invoked = len(self.windows)

    def get_tensor(self, index: int) -> np.ndarray:
        assert (index, self.invoked) == (9, len(self.windows))
        window = self.windows[-1]
        return np.array([[[[window[0], window[-1], len(window)]]]])


def test_yamnet_averages_half_overlapping_windows(monkeypatch, recwarn):
    monkeypatch.setattr(packaged, "packaged", lambda *what: {"yamnet.tflite": Path("there.tflite")})
    monkeypatch.setattr(packaged, "need", lambda *what: SimpleNamespace(Interpreter=Lite))
    encoder = packaged.yamnet()
    assert Lite.made == ("there.tflite", {"experimental_preserve_all_tensors": True, "num_threads": 1})
    assert not recwarn.list
    assert (encoder.kind, encoder.width, encoder.prepare) == ("audio", 1024, same_peak)
    model = encoder.encode.args[0]
    assert model.ready
    samples = np.arange(15_600 + 2 * 7_800, dtype=np.float32)
    for length, starts in ((31_200, [0, 7_800, 15_600]), (31_199, [0, 7_800]), (15_600, [0]), (23_399, [0])):
        (row,) = encoder.encode([samples[:length]])
        means = [np.mean([(start - ZERO) * SCALE for start in starts])]
        means += [np.mean([(start + 15_599 - ZERO) * SCALE for start in starts]), (15_600 - ZERO) * SCALE]
        np.testing.assert_allclose(row, means)
        assert row.dtype == np.float32
    model.windows.clear()
    encoder.encode([samples[:10_000], samples[:7]])
    np.testing.assert_array_equal(model.windows[0], np.concatenate([samples[:10_000], samples[:5_600]]))  # repeated
    assert [len(window) for window in model.windows] == [15_600, 15_600]


class Whisper:
    """A model that numbers its steps of 20 ms; two columns."""

    made: dict

    def __init__(self, name: str, **how) -> None:
        type(self).made = {"name": name, **how}

    def encode(self, features: np.ndarray, to_cpu: bool = False) -> np.ndarray:
        assert to_cpu
        assert features.shape[:2] == (1, 80)
        steps = features.shape[2] // 2
        assert steps % 25 == 0  # half seconds
        return np.stack([np.arange(steps), np.full(steps, steps)], axis=1)[None].astype(np.float64)


def test_whisper_leaves_out_what_only_saw_padding(monkeypatch, tmp_path):
    parts = {"model.bin.part1": b"one", "model.bin.part2": b"two", "config.json": b"{}", "vocabulary.txt": b"a"}
    for name, content in parts.items():
        (tmp_path / name).write_bytes(content)
    checked = []
    library = SimpleNamespace(
        models=SimpleNamespace(Whisper=Whisper), StorageView=SimpleNamespace(from_array=lambda features: features)
    )
    monkeypatch.setattr(packaged, "packaged", lambda package, files, pip: {name: tmp_path / name[5:] for name in files})
    monkeypatch.setattr(packaged, "check_hash", lambda *what: checked.append(what[:3]))
    monkeypatch.setattr(packaged, "need", lambda *what: library)
    encoder = packaged.whisper_base()
    assert checked == [("model.bin", b"onetwo", packaged.WHISPER_MODEL)]
    assert Whisper.made["files"] == {"model.bin": b"onetwo", "config.json": b"{}", "vocabulary.txt": b"a"}
    assert (Whisper.made["device"], Whisper.made["compute_type"]) == ("cpu", "float32")
    assert (encoder.kind, encoder.width, encoder.prepare) == ("audio", 1024, same_peak)
    sound = np.random.default_rng(0).normal(size=31 * 16_000).astype(np.float32)
    for length, states in (
        (321, [(0, 100), (1, 100)]),  # at least two seconds are given; two steps begin within the sound
        (320, [(0, 100)]),
        (33_000, [(step, 125) for step in range(104)]),  # two seconds and a half
    ):
        (row,) = encoder.encode([sound[:length]])
        np.testing.assert_allclose(row, [*np.mean(states, axis=0), *np.std(states, axis=0)], rtol=1e-6)
        assert row.dtype == np.float32
    (row,) = encoder.encode([sound])  # thirty seconds, then one
    states = [(step, 1500) for step in range(1500)] + [(step, 100) for step in range(50)]
    np.testing.assert_allclose(row, [*np.mean(states, axis=0), *np.std(states, axis=0)], rtol=1e-6)


@pytest.mark.parametrize(
    ("samples", "padded"), [(1, 32_000), (32_000, 32_000), (32_001, 40_000), (40_000, 40_000), (40_001, 48_000)]
)
def test_silence_is_added_up_to_half_a_second_and_two_at_least(samples, padded):
    steps = packaged.whole_steps(np.ones(samples, np.float32))
    assert len(steps) == padded
    assert float(steps.sum()) == samples
    assert steps[:samples].min() == 1


def test_filter_banks_span_eight_decades_and_silence_is_a_floor():
    assert packaged.log_mel(torch.randn(201)).shape == (80, 1)
    with pytest.raises(InputError, match="log_mel needs more than 200 samples; got 200"):
        packaged.log_mel(torch.randn(200))
    loud = torch.zeros(1600)
    loud[800] = 100.0
    values = packaged.log_mel(loud)
    assert float(values.max() - values.min()) == pytest.approx(2.0)  # 8 decades by 4
    silence = packaged.log_mel(torch.zeros(1600))
    torch.testing.assert_close(silence, torch.full((80, 10), (-10.0 + 4.0) / 4.0))


def test_loudness():
    assert same_peak(np.array([0.5, -1.5], np.float32)).tolist() == pytest.approx([0.3, -0.9])
    assert same_peak(np.zeros(0, np.float32)).shape == (0,)


# ---- pictures


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def extract_features(self, x):
        return self.scale * x[:, :2, :3, :5]


def test_efficientnet_pools_the_last_feature_map(monkeypatch, tmp_path):
    torch.save({"scale": torch.full((1,), 2.0)}, tmp_path / "w.pth")
    asked = []
    network = SimpleNamespace(from_name=lambda name: asked.append(name) or Network())
    monkeypatch.setattr(packaged, "packaged", lambda *what: {"w": tmp_path / "w.pth"})
    monkeypatch.setattr(packaged, "need", lambda *what: SimpleNamespace(EfficientNet=network))
    safe = []
    real = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: safe.append(k["weights_only"]) or real(*a, **k))
    encoder = packaged.efficientnet_lite0()
    assert (asked, safe) == (["efficientnet-lite0"], [True])
    assert (encoder.kind, encoder.width) == ("image", 1280)
    assert encoder.prepare == ImageTransform(224, resample=2, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    frames = np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(
        encoder.encode([frames])[0], 2 * frames[:, :2, :3, :5].mean(axis=(2, 3)).mean(axis=0), rtol=1e-5
    )


def test_mobilenet_is_read_without_its_classifier(monkeypatch, tmp_path):
    torch.manual_seed(0)
    published = MobileNetV2().state_dict()
    torch.save(published | {"classifier.1.weight": torch.zeros(3)}, tmp_path / "w.pth")
    monkeypatch.setattr(packaged, "packaged", lambda *what: {"w": tmp_path / "w.pth"})
    safe = []
    real = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: safe.append(k["weights_only"]) or real(*a, **k))
    encoder = packaged.mobilenet_v2()
    assert safe == [True]
    assert (encoder.kind, encoder.width) == ("image", 1280)
    assert encoder.prepare == ImageTransform(224, resample=2, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    model = encoder.encode.args[0]
    assert all(torch.equal(model.state_dict()[name], published[name]) for name in published)
    assert not model.training


def test_the_layers_of_mobilenet():
    """Strides, widths, groups and shortcuts of table 2 of the paper."""
    model = MobileNetV2().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_504_872 - 1_281_000  # without the classifier
    shapes = []
    for layer in model.features:
        layer.register_forward_hook(lambda module, given, out: shapes.append(tuple(out.shape[1:])))
    with torch.no_grad():
        x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        out = model(x)
        np.testing.assert_allclose(out, model.features(x).mean(dim=(2, 3)))
    table = [(32, 32)] + [(16, 32)] + [(24, 16)] * 2 + [(32, 8)] * 3 + [(64, 4)] * 4 + [(96, 4)] * 3
    table += [(160, 2)] * 3 + [(320, 2), (1280, 2)]
    assert shapes[: len(table)] == [(width, side, side) for width, side in table]
    blocks = [layer for layer in model.features if isinstance(layer, Bottleneck)]
    assert [number for number, block in enumerate(blocks) if block.shortcut] == [2, 4, 5, 7, 8, 9, 11, 12, 14, 15]
    assert all(one.bias is None for one in model.modules() if isinstance(one, nn.Conv2d))
    block, x = blocks[2], torch.randn(1, 24, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(block(x), x + block.conv(x))
        torch.testing.assert_close(blocks[1](x[:, :16]), blocks[1].conv(x[:, :16]))


# ---- texts


def test_sentence_encoders(monkeypatch):
    seen = []
    model = SimpleNamespace(encode=lambda texts: seen.append(texts) or np.full((1, 512), len(texts[0]), np.float64))
    how = []
    monkeypatch.setattr(
        packaged, "packaged", lambda *what: {"model/model.safetensors": Path("folder/model.safetensors")}
    )
    monkeypatch.setattr(
        packaged, "need", lambda *what: SimpleNamespace(USE=lambda threads: how.append(threads) or model)
    )
    encoder = packaged.use_multilingual()
    vectors = encoder.encode(["a", "bcd"])
    assert (encoder.kind, encoder.width, how, seen) == ("text", 512, [1], [["a"], ["bcd"]])
    assert (vectors.shape, vectors.dtype, vectors[:, 0].tolist()) == ((2, 512), np.float32, [1.0, 3.0])
    asked = []
    monkeypatch.setattr("calmrl.encoders.hf.load_hf", lambda *what: asked.append(what) or "encoder")
    assert packaged.minilm() == "encoder"
    assert asked == [("folder", "text")]


# ---- any


def test_frames_are_averaged_one_by_one_or_in_a_batch():
    shapes = []

    def forward(x):
        shapes.append(tuple(x.shape))
        return x.flatten(1).double()

    two, one = np.arange(4, dtype=np.float32).reshape(2, 1, 2), np.ones((1, 1, 2), np.float32)
    wide = np.ones((1, 1, 3), np.float32)
    np.testing.assert_array_equal(each(forward, [two, one], batched=False), [[1, 2], [1, 1]])
    assert shapes == [(1, 1, 2)] * 3
    shapes.clear()
    found = each(forward, [two, one], batched=True)
    np.testing.assert_array_equal(found, [[1, 2], [1, 1]])
    assert found.dtype == np.float32
    assert shapes == [(3, 1, 2)]
    shapes.clear()
    assert each(lambda x: forward(x)[:, :2], [one, wide], batched=True).shape == (2, 2)  # of two shapes: one by one
    assert shapes == [(1, 1, 2), (1, 1, 3)]


# ---- lines of a library


def test_only_lines_with_the_beginning_are_dropped(capfd) -> None:
    handles = len(os.listdir("/proc/self/fd"))
    with stderr_held(packaged.without_delegate):
        os.write(2, packaged.XNNPACK + b" for CPU.\nWARNING: something\n")
    os.write(2, packaged.XNNPACK + b"\n")
    assert len(os.listdir("/proc/self/fd")) == handles
    assert capfd.readouterr().err == f"WARNING: something\n{packaged.XNNPACK.decode()}\n"


def test_an_error_still_shows_what_was_written(capfd) -> None:
    with pytest.raises(ZeroDivisionError), stderr_held(bytes):
        1 / os.write(2, b"the reason\n").__sub__(11)
    assert capfd.readouterr().err == "the reason\n"
