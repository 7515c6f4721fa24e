"""Texts for models of `transformers`."""

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from calmrl.encoders.hf_files import read_file
from calmrl.encoders.hf_pooling import pooled

LONGEST = 512  # tokens of a text, where a model has positions
ENDLESS = 10**9  # tokenizers without a limit say a number beyond this
FILLED = ("siglip", "siglip2")  # trained on texts that are padded to the full length, without a mask


def text_encoder(
    transformers: ModuleType, model: Any, name: str, pooling: str | None, device: str, batched: bool
) -> Callable[[list[str]], np.ndarray]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    settings = json.loads(read_file(transformers, name, "sentence_bert_config.json") or "{}")
    modules = json.loads(read_file(transformers, name, "modules.json") or "[]")
    pool = json.loads(read_file(transformers, name, "1_Pooling/config.json") or "{}")
    text_config = getattr(model.config, "text_config", model.config)
    given = [settings.get("max_seq_length"), tokenizer.model_max_length]
    if hasattr(text_config, "max_position_embeddings"):
        given += [text_config.max_position_embeddings, LONGEST]
    longest = min(limit for limit in given if limit)
    pooling = pooling or ("cls" if pool.get("pooling_mode_cls_token") else None)
    normalise = any("Normalize" in module.get("type", "") for module in modules)
    cut = longest < ENDLESS
    limits = {"truncation": cut, "max_length": longest if cut else None}

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
