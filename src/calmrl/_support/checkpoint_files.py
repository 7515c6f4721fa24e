"""Files of tensors that others wrote: read without running anything."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from calmrl._support.tensor_files import load_tensors
from calmrl.errors import InputError


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a .safetensors, .pt, .pth or .bin file; from pickle only tensors, numbers, texts, lists, dicts."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    if path.suffix == ".safetensors":
        return load_tensors(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling damaged bytes raises anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{path} cannot be read as tensors alone ({reason}); files that run code when opened are refused: save its "
            "state dict as safetensors where you trust it"
        ) from error
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds a {type(content).__name__}; a dict of tensors is needed")
    return dict(content)
