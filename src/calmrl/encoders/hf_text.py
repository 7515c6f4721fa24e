"""Texts for models of `transformers`."""

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from calmrl.encoders.hf_files import read_file
from calmrl.encoders.hf_pooling import pooled

FILLED = ("siglip", "siglip2")  # trained on texts that are padded to the full length, without a mask


def text_encoder(
    transformers: ModuleType, model: Any, name: str, pooling: str | None, device: str, batched: bool
) -> Callable[[list[str]], np.ndarray]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    settings = json.loads(read_file(transformers, name, "sentence_bert_config.json") or "{}")
    modules = json.loads(read_file(transformers, name, "modules.json") or "[]")
    pool = json.loads(read_file(transformers, name, "1_Pooling/config.json") or "{}")
    text_config = getattr(model.config, "text_config", model.config)
    longest = min(
        settings.get("max_seq_length") or 10**9,
        tokenizer.model_max_length,
        getattr(text_config, "max_position_embeddings", 10**9),
        512 if hasattr(text_config, "max_position_embeddings") else 10**9,
    )
    pooling = pooling or ("cls" if pool.get("pooling_mode_cls_token") else None)
    normalise = any("Normalize" in module.get("type", "") for module in modules)
    limits = {"truncation": longest < 10**9, "max_length": longest if longest < 10**9 else None}

    @torch.inference_mode()
    def encode(texts: list[str], batched: bool = batched) -> np.ndarray:
        rows = []
        for group in [texts] if batched else [[text] for text in texts]:
            fill = "max_length" if model.config.model_type in FILLED else len(group) > 1
            tokens = tokenizer(group, padding=fill, return_tensors="pt", **limits).to(device)
            if fill == "max_length":
                tokens = {"input_ids": tokens["input_ids"]}
            if hasattr(model, "get_text_features"):
                vectors = pooled(model.get_text_features(**tokens), None, None, True)
            else:
                run = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
                vectors = pooled(run(**tokens), tokens.get("attention_mask"), pooling, False)
            rows.append(torch.nn.functional.normalize(vectors, dim=1) if normalise else vectors)
        return torch.cat(rows).float().cpu().numpy()

    return encode
