"""Weights that ship inside packages of others: found without importing the package, and checked against a hash."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from calmrl.errors import InputError, MissingExtraError


def packaged(package: str, files: dict[str, str], install: str) -> dict[str, Path]:
    """Paths of files (relative name -> sha256) inside an installed package, or an error that says what to install."""
    spec = find_spec(package)  # finds a top-level package without running it
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f'these weights ship in "{package}", which is not installed; run: {install}')
    folder = Path(next(iter(spec.submodule_search_locations)))
    paths = {name: folder / name for name in files}
    for name, path in paths.items():
        if not path.is_file():
            raise InputError(f"{path} is missing; install the version that was checked: {install}")
        check_hash(path.name, path.read_bytes(), files[name], install)
    return paths


def check_hash(name: str, content: bytes, expected: str, install: str) -> None:
    """Raise InputError unless the content has this sha256."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise InputError(
            f"{name} has sha256 {digest[:16]}..., expected {expected[:16]}...: it is not the file that was checked, so "
            f"its features would not be comparable; install it again: {install}"
        )
