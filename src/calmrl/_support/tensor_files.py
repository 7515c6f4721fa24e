"""Saving and loading: a folder with `imputer.json` and `imputer.safetensors`, written whole or not at all, no pickle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from calmrl.errors import InputError

FORMAT = "calmrl.imputer"
VERSION = 1


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that safetensors can write: on the CPU, contiguous, sharing no memory."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def save_state(state: dict[str, Any], path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write {"meta": json-able, "tensors": name -> tensor} as a folder; an existing one is replaced only if asked to."""
    target = Path(path)
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; choose another path, or pass overwrite=True to replace it")
    if target.exists() and not (target / "imputer.json").is_file():
        raise InputError(f"{target} exists and is not a saved imputer; it will not be replaced. Choose another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        save_file(plain(state["tensors"]), scratch / "imputer.safetensors")
        meta = {"format": FORMAT, "version": VERSION, **state["meta"]}
        (scratch / "imputer.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        os.chmod(scratch, 0o755)
        if target.exists():
            shutil.rmtree(target)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save_state` wrote; anything else is an error that says what was found."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; a saved imputer is a folder with imputer.json and imputer.safetensors"
        )
    for name in ("imputer.json", "imputer.safetensors"):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}; it is not a saved imputer, or it is incomplete")
    try:
        meta = json.loads((folder / "imputer.json").read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{folder / 'imputer.json'} is damaged ({error}); save the imputer again") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        got = meta.get("format") if isinstance(meta, dict) else type(meta).__name__
        raise InputError(f"{folder / 'imputer.json'} is not a saved imputer: format {FORMAT!r} expected, got {got!r}")
    if not isinstance(meta.get("version"), int) or meta["version"] > VERSION:
        raise InputError(
            f"{folder} was written in format version {meta.get('version')}, but this calmrl reads up to {VERSION}; "
            "update calmrl"
        )
    try:
        tensors: dict[str, Tensor] = load_file(folder / "imputer.safetensors")
    except (SafetensorError, ValueError) as error:
        raise InputError(
            f"{folder / 'imputer.safetensors'} is damaged or cut short ({error}); save it again"
        ) from error
    return {"meta": meta, "tensors": tensors}
