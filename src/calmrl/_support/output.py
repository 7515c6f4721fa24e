"""Output that is written atomically: write beside the target, then rename. And the errors where that cannot be.

Whether a place can be written to is asked before any work. Nothing here overwrites what is there unless `force` is given, and
with `force` a directory is replaced only if calmrl wrote it: every result directory of a command holds a `config.yaml` whose
first line begins with `WRITTEN_BY`. What is replaced stays in place until the new output is whole.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from calmrl._support.filesystem import locked, put_in_place, remove_leftovers, scratch
from calmrl._support.parsing import read_json, read_json_object, reason_of
from calmrl.errors import InputError

WRITTEN_BY = "# written by calmrl"
FORCE = ", or pass `force=True` to replace it"  # ends the error about a target that exists
FILE_ENDINGS = {".parquet", ".npz", ".npy", ".safetensors", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".html",
                ".md", ".txt", ".tar", ".zip"}  # fmt: skip
RECORD = "run.json"
PROBE = ".calmrl-probe-"
SPARE = 24  # bytes that names of unfinished output are longer than the name of the output
NAME_BYTES, PATH_BYTES = 255, 260  # at most, where the system does not say: on Windows
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_WORDS = re.compile(  # where a library hides the number; the last are of NumPy and torch
    r"no space left on device|disk quota exceeded|file too large|\d+ requested and \d+ written|file write failed", re.I
)


# ---- atomic output


@contextmanager
def new_file(target: str | Path, *, force: bool = False, advice: str = FORCE) -> Iterator[Path]:
    """Yield a path beside `target` to write to; it takes the target's name when the block ends well."""
    check_free_file(target, force=force, advice=advice)
    place = Path(os.path.realpath(target))
    with writing(target), scratch(place) as folder:
        (folder / "new").mkdir()
        draft = folder / "new" / place.name
        yield draft
        os.replace(draft, place)


@contextmanager
def new_directory(target: str | Path, *, force: bool = False, advice: str = FORCE) -> Iterator[Path]:
    """Yield an empty directory beside `target` to fill; it takes the target's name when the block ends well."""
    check_free(target, force=force, advice=advice)
    with replaced_directory(target) as draft:
        yield draft
        check_free(target, force=force, advice=advice)


@contextmanager
def replaced_directory(target: str | Path) -> Iterator[Path]:
    """As `new_directory`, for a target that was found to be free, or that may be replaced whatever it is."""
    place = Path(os.path.realpath(target))
    with writing(target), scratch(place) as folder:
        draft = folder / "new"
        draft.mkdir()
        yield draft
        put_in_place(draft, place)


@contextmanager
def replaced_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to; it takes the target's name when the block ends well.

    For files of a folder that only this process writes to. `new_file` is for those that a user names.
    """
    draft = target.with_suffix(".tmp")
    yield draft
    os.replace(draft, target)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write or replace a JSON file of a folder that only this process writes to."""
    with replaced_file(path) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@contextmanager
def part_folder(
    target: Path,
    worth: Sequence[str] = ("*",),
    arguments: Mapping[str, Any] | None = None,
    named: str | Path | None = None,
) -> Iterator[Path]:
    """`<target>.part`, for one run at a time; kept when a run is stopped, so that the next one resumes in it.

    With `arguments`, only a run with the same ones resumes. A run that is refused for its input, or ended by Ctrl-C, leaves
    nothing behind, unless there is a file that matches one of `worth`. `named` is what errors call the target.
    """
    part = target.with_name(target.name + ".part")
    with locked(target, named):
        part.mkdir(exist_ok=True)
        if arguments is not None:
            _record(part, json.loads(json.dumps(arguments, default=str)))
        try:
            with writing(named or target):
                yield part
        except (InputError, KeyboardInterrupt):
            if not any(file for pattern in worth for file in part.glob(pattern)):
                shutil.rmtree(part)
            raise
        shutil.rmtree(part)


def _record(part: Path, arguments: dict[str, Any]) -> None:
    """Write down the arguments of a run that begins; compare those of one that resumes."""
    over = f"delete {part} to start over, or choose another name"
    others = {file.name for file in part.iterdir()}
    if not others:
        (part / RECORD).write_text(json.dumps(arguments), encoding="utf-8")
        return
    if RECORD not in others:
        raise InputError(f"{part} was begun by another command; {over}")
    begun = read_json_object(part / RECORD, over)
    differs = [key for key in {**begun, **arguments} if begun.get(key) != arguments.get(key)]
    if differs:
        raise InputError(f"{part} was begun with other arguments ({', '.join(sorted(differs))} differ); {over}")


# ---- what cannot be written, or not without losing something


def check_free(target: str | Path, *, force: bool = False, advice: str = FORCE) -> None:
    """Refuse a directory that cannot be created, or not without losing something; an empty one is free."""
    target = Path(target)
    check_directory(target)
    if not target.exists() or not any(target.iterdir()):
        return
    if not force:
        raise InputError(f"{target} exists and is not empty; choose another name{advice}")
    config = target / "config.yaml"
    if not config.is_file() or not config.read_text(encoding="utf-8", errors="replace").startswith(WRITTEN_BY):
        raise InputError(f"{target} was not written by calmrl, so it is not replaced; choose another name")


def check_directory(target: str | Path) -> None:
    """Refuse a place where no directory can be, or be made; whatever a directory there holds."""
    target = Path(target)
    check_writable(target)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give the name of a directory that does not exist yet")
    if not target.exists() and target.suffix.lower() in FILE_ENDINGS:
        raise InputError(
            f"{target} ends in {target.suffix}, as a file does, but a directory is written; choose a name without it"
        )


def check_free_file(target: str | Path, *, force: bool = False, advice: str = FORCE) -> None:
    """Refuse a file that cannot be written, or not without losing something."""
    target = Path(target)
    check_writable(target)
    if target.is_dir():
        raise InputError(f"{target} is a directory; give the name of a file")
    if target.exists() and not force:
        raise InputError(f"{target} exists; choose another name{advice}")


def check_writable(target: str | Path) -> None:
    """Refuse a place that cannot be written to: below a file, behind a broken link, with a name that is too long,
    without permission, on a full or read-only disk. Nothing stays behind, nor does what killed processes left there: a
    target that was moved away is back before anyone asks whether it exists."""
    path = Path(os.path.abspath(target))
    if os.path.islink(path) and not os.path.exists(path):
        raise InputError(f"{target} is a link that leads nowhere; remove it, or choose another name")
    folder, missing = path.parent, [path.name]
    while not os.path.lexists(folder):
        missing.append(folder.name)
        folder = folder.parent
    if not os.path.isdir(folder):
        what = "a link that leads nowhere" if os.path.islink(folder) else "a file"
        raise InputError(f"{folder} is {what}, so {target} cannot be written below it; choose another place")
    _check_names(path, folder, missing)
    for place in {folder, path} if os.path.isdir(path) else {folder}:
        try:
            _probe(place)
            remove_leftovers(place)
        except OSError as error:
            if place == path and isinstance(error, FileNotFoundError):
                continue  # another process has just replaced it
            raise InputError(_sentence(target, error)) from error


def _probe(place: Path) -> None:
    """Make a directory and remove it, together with those of processes that were killed between the two."""
    tempfile.mkdtemp(prefix=PROBE, dir=place)
    with os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(PROBE)]
    for name in names:
        with suppress(OSError):  # another process, living or of another user, removes its own
            os.rmdir(os.path.join(place, name))


@contextmanager
def writing(target: str | Path) -> Iterator[None]:
    """A full disk, whoever noticed it, becomes a sentence that names what was to be written."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, InputError) else error  # of a part: the user named the whole
        if cause is None or not is_full(cause):
            raise
        raise InputError(
            f"{target} could not be written: {_reason(cause)}; make room, then run the same command again"
        ) from cause


def is_full(error: BaseException) -> bool:
    """Whether an error says that no space is left."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return FULL_WORDS.search(str(error)) is not None


def unwritable(error: OSError) -> str | None:
    """A sentence for an error about a file that cannot be used; None for any other."""
    if error.filename is None or error.errno is None:
        return None
    return _sentence(os.fsdecode(error.filename), error)


def _check_names(path: Path, folder: Path, missing: list[str]) -> None:
    longest, whole = NAME_BYTES, PATH_BYTES
    if hasattr(os, "pathconf"):
        longest, whole = os.pathconf(folder, "PC_NAME_MAX"), os.pathconf(folder, "PC_PATH_MAX")
    for name in missing:
        size = len(os.fsencode(name))
        if size > longest - SPARE:
            raise InputError(
                f"{name[:40]}... is a name of {size} bytes, too long for an output; choose one of at most {longest - SPARE}"
            )
    if len(os.fsencode(path)) > whole - 2 * SPARE:
        raise InputError(
            f"{str(path)[:40]}... is a path of {len(os.fsencode(path))} bytes, too long; choose another place"
        )


def _sentence(target: str | Path, error: OSError) -> str:
    advice = "make room, then run the same command again" if error.errno in FULL else "choose another place"
    return f"{target} cannot be written or read: {_reason(error)}; {advice}"


def _reason(error: BaseException) -> str:
    full = FULL_WORDS.search(str(error))
    text = error.strerror if isinstance(error, OSError) and error.strerror else full[0] if full else reason_of(error)
    return text[:1].lower() + text[1:]


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
    header.write_text(header_text(body), encoding="utf-8")


def header_text(body: Mapping[str, Any]) -> str:
    """What `write_header` writes."""
    return json.dumps({**body, SEAL: _seal(body)}, indent=2) + "\n"


def check_header(header: str | Path, content: Any) -> dict[str, Any]:
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
