"""Saving and loading: a folder with `imputer.json` and `imputer.safetensors`, written atomically, no pickle.

Other things that are learned are saved in the same way under their own `name`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from calmrl._support.filesystem import read_steadily
from calmrl._support.output import (
    FILES,
    check_header,
    check_sealed,
    check_writable,
    header_text,
    replaced_directory,
    write_sealed,
)
from calmrl._support.parsing import parsing, read_json
from calmrl.errors import InputError

VERSION = 2
UNSEALED = 1  # the version that had no checksums


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that safetensors can write: on the CPU, contiguous, sharing no memory."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def save_state(state: dict[str, Any], path: str | os.PathLike[str], overwrite: bool, name: str = "imputer") -> None:
    """Write {"meta": json-able, "tensors": name -> tensor} as a folder; an existing one is replaced only if asked to."""
    target = Path(path)
    check_writable(target)
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; choose another path, or pass overwrite=True to replace it")
    if target.exists() and not (target / f"{name}.json").is_file():
        raise InputError(f"{target} exists and is not a saved {name}; it will not be replaced. Choose another path")
    with replaced_directory(target) as draft:
        save_file(plain(state["tensors"]), draft / f"{name}.safetensors")
        meta = {"format": f"calmrl.{name}", "version": VERSION, **state["meta"]}
        write_sealed(draft / f"{name}.json", meta, [f"{name}.safetensors"])


def load_state(path: str | os.PathLike[str], name: str = "imputer") -> dict[str, Any]:
    """Read what `save_state` wrote; anything else is an error that says what was found."""
    folder = Path(path)
    return read_steadily(folder, lambda: _load_state(folder, name))


def _load_state(folder: Path, name: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; a saved {name} is a folder with {name}.json and {name}.safetensors"
        )
    header, weights = folder / f"{name}.json", folder / f"{name}.safetensors"
    for file in (header, weights):
        if not file.is_file():
            raise InputError(f"{folder} has no {file.name}; it is not a saved {name}, or it is incomplete")
    meta = _checked(read_json(header, f"save the {name} again"), header, name)
    if meta["version"] != UNSEALED:
        meta = check_sealed(header, meta)
    return {"meta": meta, "tensors": load_tensors(weights)}


def _checked(meta: Any, header: str | Path, name: str) -> dict[str, Any]:
    """What a header holds, if it is one of this name that can be read."""
    if not isinstance(meta, dict) or meta.get("format") != f"calmrl.{name}":
        got = meta.get("format") if isinstance(meta, dict) else type(meta).__name__
        raise InputError(f"{header} is not a saved {name}: format 'calmrl.{name}' expected, got {got!r}")
    if not isinstance(meta.get("version"), int) or meta["version"] > VERSION:
        raise InputError(
            f"{Path(header).parent} was written in format version {meta.get('version')}, but this calmrl reads up to "
            f"{VERSION}; update calmrl"
        )
    return meta


def to_files(state: dict[str, Any], name: str) -> dict[str, bytes]:
    """The files that `save_state` writes, by name, for what is kept inside of something else."""
    tensors = save(plain(state["tensors"]))
    meta = {"format": f"calmrl.{name}", "version": VERSION, **state["meta"]}
    body = {**meta, FILES: {f"{name}.safetensors": hashlib.sha256(tensors).hexdigest()}}
    return {f"{name}.json": header_text(body).encode(), f"{name}.safetensors": tensors}


def from_files(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The inverse of `to_files`; also reads the content of files that `save_state` wrote."""
    header, weights = f"{name}.json", f"{name}.safetensors"
    meta = _checked(json.loads(files[header]), header, name)
    if meta["version"] != UNSEALED:
        meta = check_header(header, meta)
        if meta.pop(FILES) != {weights: hashlib.sha256(files[weights]).hexdigest()}:
            raise InputError(f"{weights} is damaged: it is not what was written; copy or make it again")
    return {"meta": meta, "tensors": load(files[weights])}


def load_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file; one that is damaged or cut short is an error that names it."""
    with parsing(file, "safetensors", "it is damaged or cut short: save or copy it again"):
        return load_file(file)


def packed(state: dict[str, Any] | None) -> Tensor:
    """{"meta": json-able, "tensors": name -> tensor} as one uint8 tensor, for a `state_dict`; no state is an empty one."""
    if state is None:
        return torch.zeros(0, dtype=torch.uint8)
    meta = json.dumps(state["meta"]).encode()
    content = len(meta).to_bytes(8, "little") + meta + save(plain(state["tensors"]))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unpacked(content: Tensor) -> dict[str, Any] | None:
    """The inverse of `packed`."""
    if not len(content):
        return None
    raw = content.cpu().numpy().tobytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return {"meta": json.loads(raw[8:start]), "tensors": load(raw[start:])}


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
