"""MobileNetV2 up to its pooled features, laid out so that the published ImageNet checkpoint loads."""

import torch
from torch import nn

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
