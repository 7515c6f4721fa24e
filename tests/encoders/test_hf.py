"""Models of transformers: no weight is random or dropped, projections are kept, videos are seen at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from calmrl.encoders import load_encoder
from calmrl.encoders.hf import naflex_size
from calmrl.errors import InputError
from tests.support import tiny_checkpoints as tiny

image_module = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
VIDEO = ("videomae", "timesformer", "vivit", "vjepa2", "xclip")


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: tiny.make(name, folder / name) for name in tiny.MAKERS}


def item(encoder, seed: int = 0, height: int = 40):
    """Something that the encoder can read."""
    generator = np.random.default_rng(seed)
    if encoder.kind == "text":
        return encoder.prepare("a red boat on a lake")
    if encoder.kind == "audio":
        return encoder.prepare(generator.normal(size=encoder.rate // 2).astype(np.float32))
    pixels = generator.integers(0, 255, (height, 48, 3)).astype(np.uint8)
    return encoder.prepare(image_module.fromarray(pixels))[None]


@pytest.mark.parametrize("name", tiny.MAKERS)
def test_two_runs_give_the_same_bytes(references, name: str) -> None:
    vectors = []
    for seed in (1, 2):  # of what random weights would be drawn from
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        encoder = load_encoder(references[name])
        vectors.append(encoder.encode([item(encoder)]))
    assert vectors[0].shape == (1, encoder.width)
    assert vectors[0].dtype == np.float32
    assert vectors[0].tobytes() == vectors[1].tobytes()
    assert np.ptp(vectors[0]) > 0


def test_a_missing_pooler_is_refused_by_name(tmp_path) -> None:
    torch.manual_seed(0)
    folder = tiny.vit(tmp_path / "classifier", pooler=False)
    with pytest.raises(InputError, match=r'has no "pooler.dense.bias", "pooler.dense.weight", which would be random'):
        load_encoder(f"hf:{folder}")
    cls, mean = (load_encoder(f"hf:{folder}#image+{pooling}") for pooling in ("cls", "mean"))
    assert not np.allclose(cls.encode([item(cls)]), mean.encode([item(mean)]))
    assert load_encoder(f"hf:{folder}#image+allow=pooler.*").width == 32  # the user asked for it


def test_a_weight_that_is_missing_is_named(references, tmp_path) -> None:
    folder = tiny.vit(tmp_path / "vit")
    state = load_file(folder / "model.safetensors")
    lost = next(name for name in state if name.endswith("layernorm_before.weight"))
    save_file(
        {name: value for name, value in state.items() if name != lost}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(InputError, match=r'has no "[\w.]*0.layernorm_before.weight", which would be random'):
        load_encoder(f"hf:{folder}")


def test_a_weight_that_would_be_dropped_is_named(tmp_path) -> None:
    folder = tiny.vit(tmp_path / "vit")
    file = folder / "model.safetensors"
    extra = {"encoder.layer.0.temporal_attn.weight": torch.zeros(3)}
    save_file(load_file(file) | extra, file, {"format": "pt"})
    with pytest.raises(InputError, match=r'holds "[\w.]*0.temporal_attn.weight", for which ViTModel has no place'):
        load_encoder(f"hf:{folder}")
    assert load_encoder(f"hf:{folder}#image+allow=*.temporal_attn.*").width == 32


def path_of(reference: str) -> str:
    return reference.removeprefix("hf:").partition("#")[0]


@torch.inference_mode()
def test_projections_are_kept(references) -> None:
    lib = tiny.library()
    vision = load_encoder(references["clip_vision"])
    model = lib.CLIPVisionModelWithProjection.from_pretrained(path_of(references["clip_vision"])).eval()
    expected = model(pixel_values=torch.from_numpy(item(vision))).image_embeds
    np.testing.assert_allclose(vision.encode([item(vision)]), expected, atol=1e-6)
    text = load_encoder(references["clip_text"])
    model = lib.CLIPTextModelWithProjection.from_pretrained(path_of(references["clip_text"])).eval()
    tokenizer = lib.AutoTokenizer.from_pretrained(path_of(references["clip_text"]))
    expected = model(**tokenizer([item(text)], return_tensors="pt")).text_embeds
    np.testing.assert_allclose(text.encode([item(text)]), expected, atol=1e-6)
    assert (vision.width, text.width, load_encoder(references["clap_audio"]).width) == (12, 12, 12)


@torch.inference_mode()
def test_whisper_leaves_out_what_it_padded(references) -> None:
    lib, folder = tiny.library(), path_of(references["whisper"])
    encoder = load_encoder(references["whisper"])
    sound = np.random.default_rng(0).normal(size=9_000).astype(np.float32)
    extractor = lib.WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(sound, sampling_rate=16_000, return_tensors="pt")
    states = lib.WhisperModel.from_pretrained(folder).eval().get_encoder()(**features).last_hidden_state[0]
    assert len(states) == 100  # two seconds
    kept = math.ceil(9_000 / 320)
    np.testing.assert_allclose(encoder.encode([sound])[0], states[:kept].mean(0), atol=1e-5)
    assert not np.allclose(encoder.encode([sound])[0], states.mean(0), atol=1e-3)


@pytest.mark.parametrize("name", VIDEO)
@torch.inference_mode()
def test_videos_are_seen_at_once(references, name: str) -> None:
    lib = tiny.library()
    encoder = load_encoder(references[name])
    assert (encoder.kind, encoder.frames) == ("image", 4)
    frames = np.concatenate([item(encoder, seed) for seed in range(4)])  # (4, 3, 32, 32)
    model = lib.AutoModel.from_pretrained(path_of(references[name])).eval()
    pixels = torch.from_numpy(frames)[None]
    if name == "xclip":
        output = model.get_video_features(pixel_values=pixels)
        expected = output if isinstance(output, torch.Tensor) else output.pooler_output
    elif name == "vjepa2":
        expected = model(pixel_values_videos=pixels).last_hidden_state.mean(1)
    elif name == "vivit":
        expected = model(pixel_values=pixels).pooler_output
    else:
        expected = model(pixel_values=pixels).last_hidden_state.mean(1)
    np.testing.assert_allclose(encoder.encode([frames]), expected, atol=1e-5)
    order = encoder.encode([frames[::-1].copy()])
    assert not np.allclose(order, expected, atol=1e-6)  # time matters
    np.testing.assert_array_equal(encoder.encode([frames[:1]]), encoder.encode([frames[[0, 0, 0, 0]]]))  # a picture
    with pytest.raises(InputError, match="sees 4 frames at once; got 3"):
        encoder.encode([frames[:3]])


def test_vivit_pixels_go_from_minus_one_to_one(references) -> None:
    """With an offset, (2 x - 1 - mean) / std."""
    encoder = load_encoder(references["vivit"])
    white = encoder.prepare(image_module.new("RGB", (32, 32), "white"))
    black = encoder.prepare(image_module.new("RGB", (32, 32), "black"))
    np.testing.assert_allclose([white[0, 0, 0], black[0, 0, 0]], [(1 - 0.5) / 0.25, (-1 - 0.5) / 0.25], atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(100, 100), (480, 640), (1080, 1920), (30, 900), (7, 7)])
def test_flexible_sizes_use_as_many_patches_as_allowed(height: int, width: int) -> None:
    tall, wide = naflex_size(height, width, 16, 256)
    assert tall % 16 == wide % 16 == 0
    assert tall * wide <= 256 * 256
    rows, columns = tall // 16, wide // 16
    scale = min(rows / height, columns / width) * 1.0001  # a little more, and a side needs another patch
    assert math.ceil(height * scale) * math.ceil(width * scale) > 256 or rows * columns == 256
    assert naflex_size(100, 100, 16, 256) == (256, 256)


@torch.inference_mode()
def test_flexible_pictures_equal_the_padded_ones(references) -> None:
    lib = tiny.library()
    encoder = load_encoder(references["naflex"])
    picture = item(encoder, height=20)  # 20 x 48 in at most 16 patches: 3 x 5
    assert picture.shape == (1, 3, 48, 80)
    model = lib.AutoModel.from_pretrained(path_of(references["naflex"])).eval()
    patches = [
        picture[0, :, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16].transpose(1, 2, 0).reshape(-1)
        for i in range(3)
        for j in range(5)
    ]
    pixels = torch.zeros(1, 16, 16 * 16 * 3)
    pixels[0, :15] = torch.from_numpy(np.stack(patches))
    mask = (torch.arange(16) < 15).int()[None]
    output = model.get_image_features(
        pixel_values=pixels, pixel_attention_mask=mask, spatial_shapes=torch.tensor([[3, 5]])
    )
    expected = output if isinstance(output, torch.Tensor) else output.pooler_output
    np.testing.assert_allclose(encoder.encode([picture]), expected, atol=1e-5)
