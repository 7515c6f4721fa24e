"""features.json of a feature directory, with every value of the type that it should have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calmrl._support.parsing import AGAIN, read_json
from calmrl.convention import check_names
from calmrl.errors import InputError

FORMAT = "calmrl-features"
VERSION = 1
FILE = "features.json"
TYPES: dict[str, type] = {"version": int, "rows": int, "modalities": dict, "info": dict}


def read_header(folder: Path) -> dict[str, Any]:
    """The content of features.json; what does not fit is an error that names it."""
    file = folder / FILE
    header = read_json(file)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{folder} is not a feature directory: its features.json does not say format {FORMAT!r}")
    lacks = [key for key in TYPES if key not in header]
    if lacks:
        raise InputError(f"{file} lacks {', '.join(lacks)}; {AGAIN}")
    for key, wanted in TYPES.items():
        _check_type(file, key, header[key], wanted)
    if header["version"] > VERSION:
        raise InputError(f"{folder} has feature format {header['version']}, this calmrl reads up to {VERSION}; upgrade")
    if "files" not in header:
        raise InputError(f"{folder} is unfinished; run the command that writes it again, it continues where it stopped")
    for name, width in header["modalities"].items():
        _check_type(file, f"modalities.{name}", width, int)
    check_names(list(header["modalities"]))
    _check_files(file, header["files"])
    return header


def _check_files(file: Path, files: Any) -> None:
    """Name -> number of bytes and checksum."""
    _check_type(file, "files", files, dict)
    for name, written in files.items():
        _check_type(file, f"files.{name}", written, dict)
        _check_type(file, f"files.{name}.bytes", written.get("bytes"), int)
        _check_type(file, f"files.{name}.sha256", written.get("sha256"), str)
        if Path(name).name != name:
            raise InputError(f"{file}: files.{name} is no file of the directory; {AGAIN}")


def _check_type(file: Path, key: str, value: Any, wanted: type) -> None:
    negative = isinstance(value, int) and value < 0
    if not isinstance(value, wanted) or isinstance(value, bool) or negative:
        names = {int: "a number from 0 on", dict: "an object", str: "a text"}
        raise InputError(f"{file}: {key} should be {names[wanted]}; got {value!r:.60}; {AGAIN}")
