"""Like imagebind.models.imagebind_model: clips are averaged, and audio and text carry a temperature."""

from types import SimpleNamespace

import torch
from torch import nn

ModalityType = SimpleNamespace(VISION="vision", TEXT="text", AUDIO="audio")
TEMPERATURE = {"vision": 1.0, "audio": 20.0, "text": 100.0}


class ImageBindModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(8, 1024, bias=False) for name in TEMPERATURE})

    def forward(self, inputs):
        outputs = {}
        for name, value in inputs.items():
            clips = value.ndim >= 5
            flat = value.flatten(0, 1) if clips else value
            parts = flat.flatten(1).float().tensor_split(8, dim=1)
            pooled = torch.stack([part.mean(1) for part in parts], dim=1)
            vectors = nn.functional.normalize(self.heads[name](pooled), dim=-1) * TEMPERATURE[name]
            outputs[name] = vectors.unflatten(0, value.shape[:2]).mean(1) if clips else vectors
        return outputs


def imagebind_huge(pretrained=False):
    assert not pretrained, "weights are to be read as tensors by the caller"
    return ImageBindModel()
