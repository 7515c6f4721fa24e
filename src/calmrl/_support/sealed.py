"""JSON headers that know the checksums of the files beside them, and their own: a flipped bit is an error, not a value."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from calmrl._support.parsing import read_json
from calmrl.errors import InputError

FILES, SEAL = "files", "sha256"


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def write_sealed(header: Path, content: Mapping[str, Any], files: Iterable[str]) -> None:
    """Write a header, with the checksums of these files of its folder."""
    write_header(header, {**content, FILES: {name: checksum(header.parent / name) for name in files}})


def write_header(header: Path, body: Mapping[str, Any]) -> None:
    """Write a header that holds the checksums of its files already."""
    header.write_text(json.dumps({**body, SEAL: _seal(body)}, indent=2) + "\n", encoding="utf-8")


def check_header(header: Path, content: Any) -> dict[str, Any]:
    """What was given to `write_header`, if that is what the header holds; its files are not looked at."""
    if not isinstance(content, dict):
        raise InputError(f"{header} is damaged: it should hold names and values; copy or make it again")
    body = {key: value for key, value in content.items() if key != SEAL}
    if not isinstance(body.get(FILES), dict) or content.get(SEAL) != _seal(body):
        raise InputError(f"{header} is damaged: it is not what was written; copy or make it again")
    return body


def check_sealed(header: Path, content: Any) -> dict[str, Any]:
    """What was given to `write_sealed`; a file that is not as it was then is an error that names it."""
    body = check_header(header, content)
    for name, written in body.pop(FILES).items():
        path = header.parent / name
        if not path.is_file():
            raise InputError(f"{path} is missing; copy or make it again")
        if checksum(path) != written:
            raise InputError(f"{path} is damaged: it is not what was written; copy or make it again")
    return body


def read_sealed(header: Path) -> dict[str, Any]:
    """What was given to `write_sealed`, read from its file."""
    if not header.is_file():
        raise InputError(f"{header} is missing: {header.parent} is incomplete, or of a version without checksums")
    return check_sealed(header, read_json(header))


def _seal(body: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(body))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
