"""Like InternVideo.clip_utils.model: weights that are missing stay random."""

import torch
from torch import nn


class VideoIntern(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.visual_proj = nn.Parameter(torch.randn(8, width))
        self.text_projection = nn.Parameter(torch.randn(8, width))
        self.text_mask_embedding = nn.Parameter(torch.randn(1, 1, width))

    def encode_video(self, video):
        assert video.ndim == 5
        assert video.shape[1] == 3
        return self._pooled(video) @ self.visual_proj

    def encode_text(self, text):
        return self._pooled(text) @ self.text_projection

    def _pooled(self, value):
        return torch.stack([part.mean(1) for part in value.flatten(1).float().tensor_split(8, dim=1)], dim=1)


def build_model(state_dict):
    model = VideoIntern(state_dict["text_projection"].shape[1])
    model.load_state_dict(state_dict, strict=False)
    return model.eval()
