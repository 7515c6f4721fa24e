"""From what a model of `transformers` returns to one vector per item."""

from typing import Any

import torch

EMBEDDINGS = ("image_embeds", "text_embeds", "audio_embeds", "video_embeds")  # of models with a projection


def pooled(output: Any, mask: torch.Tensor | None, pooling: str | None, use_pooler: bool) -> torch.Tensor:
    """(N, tokens, d) -> (N, d): the projection if there is one, the pooled output if it is asked, else by `pooling`."""
    if isinstance(output, torch.Tensor):
        return output
    for name in EMBEDDINGS:
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    if pooling is None and use_pooler and getattr(output, "pooler_output", None) is not None:
        return output.pooler_output.flatten(1)
    states = output.last_hidden_state
    if states.ndim == 4:  # convolutional: (N, d, H, W)
        return states.mean(dim=(2, 3))
    if pooling == "cls":
        return states[:, 0]
    if mask is None:
        return states.mean(dim=1)
    weight = mask[..., None].to(states.dtype)
    return torch.where(weight > 0, states, 0.0).sum(dim=1) / weight.sum(dim=1)
