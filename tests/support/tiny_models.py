"""Tiny towers with random weights, and random checkpoints with the names of the public ones."""

from __future__ import annotations

import torch

EVA = {"image_size": 28, "patch_size": 14, "width": 24, "layers": 3, "heads": 4, "mlp_width": 48}
BEATS_CFG = {
    "input_patch_size": 16,
    "embed_dim": 16,
    "conv_bias": False,
    "encoder_layers": 3,
    "encoder_embed_dim": 24,
    "encoder_ffn_embed_dim": 48,
    "encoder_attention_heads": 4,
    "activation_fn": "gelu",
    "layer_wise_gradient_decay_ratio": 1.0,
    "layer_norm_first": False,
    "deep_norm": True,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "dropout_input": 0.0,
    "conv_pos": 6,
    "conv_pos_groups": 4,
    "relative_position_embedding": True,
    "num_buckets": 16,
    "max_distance": 12,
    "gru_rel_pos": True,
    "finetuned_model": False,
    "predictor_dropout": 0.0,
    "predictor_class": 527,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scramble(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Every parameter random and of a size that matters, so that leaving one out shows."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            spread = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(spread * 0.3 + (1.0 if parameter.ndim == 1 else 0.0))
    return module


def eva_names(layers: int) -> set[str]:
    """The keys of the vision part of EVA01_CLIP_g_14_psz14_s11B.pt, without "visual."."""
    names = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    names |= {f"{part}.{kind}" for part in ("norm", "head") for kind in ("weight", "bias")}
    for i in range(layers):
        parts = ("norm1", "norm2", "attn.proj", "mlp.fc1", "mlp.fc2")
        names |= {f"blocks.{i}.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
        names |= {f"blocks.{i}.attn.{part}" for part in ("q_bias", "v_bias", "qkv.weight")}
    return names


def beats_names(layers: int) -> set[str]:
    """The keys of BEATs_iter3_plus_AS2M.pt; the shared bias is there once for every layer."""
    names = {"patch_embedding.weight", "encoder.pos_conv.0.bias"}
    names |= {f"encoder.pos_conv.0.weight_{kind}" for kind in "gv"}
    parts = ["layer_norm", "post_extract_proj", "encoder.layer_norm"]
    for i in range(layers):
        parts += [f"encoder.layers.{i}.{part}" for part in ("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")]
        inner = ("q_proj", "k_proj", "v_proj", "out_proj", "grep_linear")
        parts += [f"encoder.layers.{i}.self_attn.{part}" for part in inner]
        names |= {f"encoder.layers.{i}.self_attn.{part}" for part in ("grep_a", "relative_attention_bias.weight")}
    return names | {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")}


def official_beats(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """A state dict as the official file has it, with the shared bias repeated."""
    key = "encoder.layers.{}.self_attn.relative_attention_bias.weight"
    return state | {key.format(i): state[key.format(0)].clone() for i in range(layers)}


VAST = {
    "width": 8,
    "frames": 2,
    "slices": 1,
    "image_size": 28,
    "vision_width": 24,
    "vision_layers": 2,
    "vision_heads": 4,
    "vision_mlp": 32,
    "audio_embed": 12,
    "audio_width": 16,
    "audio_layers": 2,
    "audio_heads": 2,
    "audio_mlp": 24,
    "audio_kernel": 6,
    "audio_groups": 4,
    "audio_buckets": 16,
    "audio_max_distance": 12,
    "vocabulary": 40,
    "text_width": 20,
    "text_layers": 2,
    "text_heads": 2,
    "text_mlp": 32,
    "positions": 80,
    "vision_drop_path": 0.0,
    "audio_layer_drop": 0.0,
    "audio_gradient_decay": 1.0,
}
VAST_BEATS = BEATS_CFG | {  # the cfg of its audio tower
    "embed_dim": VAST["audio_embed"],
    "encoder_embed_dim": VAST["audio_width"],
    "encoder_layers": VAST["audio_layers"],
    "encoder_attention_heads": VAST["audio_heads"],
    "encoder_ffn_embed_dim": VAST["audio_mlp"],
}


def tiny_vast(seed: int = 0, **changes):
    import pytest

    pytest.importorskip("transformers", reason="transformers is not installed")
    from calmrl.paper.vast.model import VastModel

    return scramble(VastModel.from_sizes(**{**VAST, **changes}), seed).eval()


def tiny_inputs(present: torch.Tensor, seed: int = 0, frames: int = 2) -> dict:
    """Inputs for the rows that are there, of the modalities vision, audio, text, subtitle."""
    generator = seeded(seed)
    v, a, t, s = present.sum(0).tolist()
    inputs: dict = {
        "vision": torch.randn(v, frames, 3, 28, 28, generator=generator),
        "audio": torch.randn(a, 1, 32, 32, generator=generator),
    }
    for name, rows, longest in (("text", t, 6), ("subtitle", s, 9)):
        mask = torch.arange(longest) < torch.randint(3, longest + 1, (rows, 1), generator=generator)
        ids = torch.randint(4, 40, (rows, longest), generator=generator)
        inputs[name] = {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}
    return inputs


def mixed(n: int, seed: int = 0) -> torch.Tensor:
    """A mask in which every row has something, and every modality is missing somewhere."""
    present = torch.rand(n, 4, generator=seeded(seed)) < 0.6
    present[0], present[1] = True, torch.tensor([True, False, True, False])
    present[2] = torch.tensor([False, True, True, False])
    present[~present.any(1), 2] = True
    return present


def as_vast(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """The state of a VastModel under the names of a published model_step_*.pt, with what else such a file holds."""
    renamed = {}
    letters = {"vision": "v", "audio": "a", "text": "t", "subtitle": "s"}
    for name, value in state.items():
        part, _, rest = name.partition(".")
        if part == "vision":
            renamed[f"vision_encoder.visual.{rest}"] = value
        elif part == "audio":
            renamed[f"audio_encoder.{rest}"] = value
        elif part == "bert":
            renamed[f"multimodal_encoder.bert.{rest}"] = value
        elif part == "heads":
            renamed[f"contra_head_{letters[rest.split('.')[0]]}.linear.weight"] = value
        elif part == "fused":
            renamed[f"contra_head_{rest}"] = value
        elif name == "matching.temperature":
            renamed["contra_temp"] = value
        else:
            kind, _, rest = rest.partition(".")
            modality, _, rest = rest.partition(".")
            if kind == "head":
                renamed[f"itm_head.{modality}.{rest}"] = value
            elif kind == "project":
                renamed[f"hidden_trans_{modality}_multimodal.{rest}"] = value
            else:
                renamed[f"{modality}_{'frame_embedding' if kind == 'frame' else 'type_embeddings'}"] = value
    key = "audio_encoder.encoder.layers.{}.self_attn.relative_attention_bias.weight"
    renamed |= {key.format(i): renamed[key.format(0)].clone() for i in range(layers)}
    extra = [
        "vision_encoder.visual.head.weight",
        "vision_encoder.text.token_embedding.weight",
        "vision_encoder.text.ln_final.weight",
        "vision_encoder.logit_scale",
        "multimodal_encoder.bert.embeddings.position_ids",
        "multimodal_encoder.cls.predictions.bias",
        "multimodal_encoder.bert.pooler.dense.weight",
    ]
    return renamed | {name: torch.randn(3) for name in extra}
