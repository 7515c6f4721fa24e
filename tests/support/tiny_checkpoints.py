"""Tiny random checkpoints of transformers, one function per model; each writes a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny_encoders import save_tokenizer

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
PATCHES = {**SMALL, "image_size": 32, "patch_size": 16}
PIXELS = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 2}
TEXT = {**SMALL, "vocab_size": 64, "max_position_embeddings": 48}


def library() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def written(model: Any, folder: Path, notes: dict[str, Any] | None = None) -> Path:
    """Save a model in evaluation mode with what its preprocessor says."""
    model.eval().save_pretrained(folder)
    if notes is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(notes))
    return folder


def vit(folder: Path, pooler: bool = True) -> Path:
    lib = library()
    model = (
        lib.ViTModel(lib.ViTConfig(**PATCHES)) if pooler else lib.ViTForImageClassification(lib.ViTConfig(**PATCHES))
    )
    return written(model, folder, PIXELS)


def bert_with_head(folder: Path) -> Path:
    lib = library()
    save_tokenizer(folder)
    return written(lib.BertForMaskedLM(lib.BertConfig(**TEXT)), folder)


def clip_vision(folder: Path) -> Path:
    lib = library()
    return written(
        lib.CLIPVisionModelWithProjection(lib.CLIPVisionConfig(**PATCHES, projection_dim=12)), folder, PIXELS
    )


def clip_text(folder: Path) -> Path:
    lib = library()
    save_tokenizer(folder)
    config = lib.CLIPTextConfig(**TEXT, projection_dim=12, eos_token_id=3)
    return written(lib.CLIPTextModelWithProjection(config), folder)


def clip(folder: Path) -> Path:
    lib = library()
    save_tokenizer(folder)
    config = lib.CLIPConfig(text_config=TEXT | {"eos_token_id": 3}, vision_config=PATCHES, projection_dim=12)
    notes = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "resample": 3}
    return written(lib.CLIPModel(config), folder, PIXELS | notes | {"crop_size": {"height": 32, "width": 32}})


def wav2vec2(folder: Path) -> Path:
    lib = library()
    config = lib.Wav2Vec2Config(
        **SMALL, conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    lib.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return written(lib.Wav2Vec2Model(config), folder)


def clap_audio(folder: Path) -> Path:
    lib = library()
    config = lib.ClapAudioConfig(
        spec_size=64, num_mel_bins=16, window_size=4, hidden_size=32, patch_embeds_hidden_size=16, depths=[1, 1],
        num_attention_heads=[2, 2], num_hidden_layers=2, patch_size=4, patch_stride=[4, 4], projection_dim=12,
    )  # fmt: skip
    extractor = lib.ClapFeatureExtractor(
        feature_size=16,
        sampling_rate=16_000,
        hop_length=160,
        max_length_s=1,
        fft_window_size=400,
        frequency_max=8000,
        truncation="rand_trunc",
    )
    written(lib.ClapAudioModelWithProjection(config), folder)
    extractor.save_pretrained(folder)
    return folder


def whisper(folder: Path) -> Path:
    lib = library()
    config = lib.WhisperConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=64, max_source_positions=100, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    written(lib.WhisperModel(config), folder)
    lib.WhisperFeatureExtractor(chunk_length=2).save_pretrained(folder)  # hears two seconds
    return folder


def videomae(folder: Path) -> Path:
    lib = library()
    return written(lib.VideoMAEModel(lib.VideoMAEConfig(**PATCHES, num_frames=4)), folder, PIXELS)


def timesformer(folder: Path) -> Path:
    lib = library()
    model = lib.TimesformerModel(lib.TimesformerConfig(**PATCHES, num_frames=4))
    torch.nn.init.normal_(model.embeddings.time_embeddings)  # zeros would make it blind to the order
    return written(model, folder, PIXELS)


def vivit(folder: Path) -> Path:
    lib = library()
    config = lib.VivitConfig(**SMALL, image_size=32, num_frames=4, tubelet_size=[2, 16, 16])
    return written(lib.VivitModel(config), folder, PIXELS | {"offset": True})


def vjepa2(folder: Path) -> Path:
    lib = library()
    config = lib.VJEPA2Config(
        patch_size=16, crop_size=32, frames_per_clip=4, tubelet_size=2, hidden_size=32, num_attention_heads=2,
        num_hidden_layers=1, mlp_ratio=1.0, pred_hidden_size=24, pred_num_attention_heads=2, pred_num_hidden_layers=1,
        pred_num_mask_tokens=2,
    )  # fmt: skip
    written(lib.VJEPA2Model(config), folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(PIXELS))
    return folder


def xclip(folder: Path) -> Path:
    lib = library()
    save_tokenizer(folder)
    vision = {
        **PATCHES,
        "num_frames": 4,
        "mit_hidden_size": 32,
        "mit_intermediate_size": 32,
        "mit_num_attention_heads": 2,
    }
    config = lib.XCLIPConfig(text_config=TEXT | {"eos_token_id": 3}, vision_config=vision, projection_dim=32)
    return written(lib.XCLIPModel(config), folder, PIXELS)


def naflex(folder: Path) -> Path:
    lib = library()
    save_tokenizer(folder)
    vision = {**SMALL, "patch_size": 16, "num_patches": 16}
    config = lib.Siglip2Config(text_config=TEXT, vision_config=vision)
    notes = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 16, "max_num_patches": 16, "resample": 2}
    return written(lib.Siglip2Model(config), folder, notes)


MAKERS = {
    "vit": (vit, ""),
    "bert": (bert_with_head, ""),
    "clip_vision": (clip_vision, ""),
    "clip_text": (clip_text, ""),
    "clip_image_side": (clip, "#image"),
    "clip_text_side": (clip, "#text"),
    "wav2vec2": (wav2vec2, ""),
    "clap_audio": (clap_audio, "#audio"),
    "whisper": (whisper, ""),
    "videomae": (videomae, ""),
    "timesformer": (timesformer, ""),
    "vivit": (vivit, ""),
    "vjepa2": (vjepa2, ""),
    "xclip": (xclip, "#image"),
    "naflex": (naflex, "#image"),
}


def make(name: str, folder: Path) -> str:
    """The checkpoint of that name in a folder; how to refer to it."""
    torch.manual_seed(0)
    maker, rest = MAKERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    return f"hf:{maker(folder)}{rest}"


def path_of(reference: str) -> str:
    """The folder of a checkpoint."""
    return reference.removeprefix("hf:").partition("#")[0]
