"""The arrays of a feature directory: each is checked against features.json, where there is one, and the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calmrl.convention import as_mask, check_names
from calmrl.data.features.npy_files import open_npy
from calmrl.errors import InputError

RESERVED = ("present", "imputed")  # names of files that are not modalities


def names_by_file(path: Path) -> list[str]:
    """The modalities of a directory made by hand."""
    names = sorted(file.stem for file in path.glob("*.npy") if not file.stem.endswith(".std"))
    names = [name for name in names if name not in RESERVED]
    if not names:
        raise InputError(
            f"{path} is not a feature directory: it holds neither features.json nor any <modality>.npy; make one with "
            "calmrl extract or calmrl.data.features.writer.write_features"
        )
    check_names(names)
    return names


def open_values(path: Path, name: str, header: dict[str, Any] | None) -> np.ndarray:
    """The features of a modality, as wide as features.json says."""
    array = _open_npy(path, f"{name}.npy", header)
    if header is not None and array.shape[1:] != (header["modalities"][name],):
        raise InputError(
            f"{path / name}.npy has shape {array.shape} but features.json says width {header['modalities'][name]}; "
            "copy or write it again"
        )
    return array


def open_mask(path: Path, name: str, names: Sequence[str], rows: int, header: dict[str, Any] | None) -> np.ndarray:
    """present.npy or imputed.npy: a row per item and a column per modality."""
    mask = as_mask(_open_npy(path, name, header), str(path / name))
    if mask.shape != (rows, len(names)):
        raise InputError(
            f"{path / name} has shape {mask.shape} but there are {rows} rows and {len(names)} modalities "
            f"({', '.join(names)}); it needs one column for each, in that order"
        )
    return mask


def open_std(path: Path, name: str, values: np.ndarray, header: dict[str, Any] | None) -> np.ndarray:
    """The standard deviations of a modality: one for every value."""
    std = _open_npy(path, f"{name}.std.npy", header)
    if std.shape != values.shape or std.dtype.kind != "f":
        raise InputError(
            f"{path / name}.std.npy holds {std.dtype} of shape {std.shape} but {name}.npy has shape {values.shape}; it "
            "needs a float for every value"
        )
    return std


def _open_npy(path: Path, name: str, header: dict[str, Any] | None) -> np.ndarray:
    """An array of the directory, with as many rows and bytes as features.json says."""
    file = path / name
    written = None if header is None else header["files"].get(name)
    if written is not None and file.exists() and file.stat().st_size != written["bytes"]:
        raise InputError(
            f"{file} has {file.stat().st_size} bytes but {written['bytes']} were written: cut off or changed; copy it again"
        )
    array = open_npy(file)
    if header is not None and array.shape[:1] != (header["rows"],):
        raise InputError(
            f"{file} has shape {array.shape} but features.json says {header['rows']} rows; copy or write it again"
        )
    return array
