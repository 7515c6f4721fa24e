"""A folder of files as a collection: files with one stem in one folder are one item.

dogs/rex.png, dogs/rex.wav and dogs/rex.txt are the item "dogs/rex" with an image, a sound and a text, and its label is
"dogs". If all folders at the top are called train, val or test, they are the split, and the folders below them the
labels. Nothing is skipped in silence but hidden files: what cannot be used is a problem.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from calmrl.data.media.manifest import KINDS, MODALITIES, SPLITS, Manifest, build, modality_of
from calmrl.data.media.problems import Problems
from calmrl.errors import InputError

TEXT_BYTES = 1 << 20  # a longer file is no text of an item
CLOSED = "folder that cannot be read"
Files = dict[str, dict[str, list[str]]]  # item -> modality -> paths relative to the folder


def read_folder(path: str | Path, problems: Problems) -> Manifest:
    """The items of a folder and of the folders in it.

    Parameters
    ----------
    path : str or Path
        The folder.
    problems : Problems
        Takes what is wrong: several files of one kind for one item, links that lead out of the folder, texts that
        are not UTF-8. Files whose suffix says nothing are counted there as well; they do not stop anything.

    Returns
    -------
    Manifest
        Modalities "text", "image", "video", "sound", as far as there are any; the id of an item is its path without
        suffix.

    Examples
    --------
    >>> rows = read_folder("photos")  # doctest: +SKIP
    """
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the folder that holds the files of the collection")
    files: Files = {}
    strangers: dict[str, list[str]] = {}
    for name in _inside(root, problems):
        modality = modality_of(name)
        if modality is None:
            strangers.setdefault(PurePosixPath(name).suffix.lower() or "no suffix", []).append(name)
        else:
            files.setdefault(name.removesuffix(PurePosixPath(name).suffix), {}).setdefault(modality, []).append(name)
    if not files:
        understood = ", ".join(suffix for suffixes in MODALITIES.values() for suffix in suffixes)
        raise InputError(
            f"{root} holds no file that can be part of an item ({sum(map(len, strangers.values()))} others); understood "
            f"are {understood}"
        )
    for suffix, names in strangers.items():
        problems.add("file not understood", "file", detail=f"{len(names)} x {suffix} (first: {names[0]})")
    _check_kind_folders(files, problems)
    by_split = _folders_are_splits(files)
    rows = [(0, _row(root, item, parts, by_split, problems)) for item, parts in sorted(files.items())]
    modalities = [name for name in MODALITIES if any(row.get(name) for _, row in rows)]
    return build(rows, {name: KINDS[name] for name in modalities}, problems, root=root)


def _inside(root: Path, problems: Problems) -> Iterator[str]:
    """All files, sorted, relative to the folder; links are followed only to files inside it."""
    home = root.resolve()

    def closed(error: OSError) -> None:
        problems.add(CLOSED, "file", detail=Path(error.filename).relative_to(root).as_posix())

    for folder, folders, names in os.walk(root, onerror=closed):
        hidden = [name for name in folders if name.startswith(".")]
        linked = [name for name in folders if name not in hidden and os.path.islink(os.path.join(folder, name))]
        for name in linked:
            where = (Path(folder) / name).relative_to(root).as_posix()
            problems.add("link to a folder", "file", detail=f"{where} is not followed; name the folder itself")
        folders[:] = sorted(name for name in folders if name not in hidden and name not in linked)
        for name in sorted(names):
            file = Path(folder) / name
            where = file.relative_to(root).as_posix()
            if name.startswith("."):
                continue
            if file.is_symlink() and not file.resolve().is_relative_to(home):
                problems.add("link out of the folder", "table", detail=f"{where} -> {os.readlink(file)}; copy the file")
            elif not file.is_file():
                problems.add("not a file", "table", detail=f"{where} is a broken link or a special file; remove it")
            else:
                yield where


def _row(root: Path, item: str, parts: dict[str, list[str]], by_split: bool, problems: Problems) -> dict[str, Any]:
    """The cells of one item, as a row of a manifest."""
    folders = PurePosixPath(item).parent.parts
    row: dict[str, Any] = {"id": item, "split": folders[0] if by_split and folders else None}
    row["labels"] = "/".join(folders[1:] if by_split else folders) or None
    for modality, names in parts.items():
        if len(names) > 1:
            listed = ", ".join(PurePosixPath(name).name for name in names)
            detail = f"{listed}: an item has one {modality}; keep one, or give the others another stem"
            problems.add("several files of one kind", "cell", id=item, column=modality, detail=detail)
        elif modality == "text":
            row["text"] = _read_text(root / names[0], item, problems)
        else:
            row[modality] = names[0]
    return row


def _read_text(file: Path, item: str, problems: Problems) -> list[str] | None:
    """The whole file is one text; None if it is empty or cannot be used."""
    size = file.stat().st_size
    if size > TEXT_BYTES:
        problems.add("text too long", "cell", id=item, column="text", detail=f"{file.name} has {size} bytes")
        return None
    try:
        text = " ".join(file.read_bytes().decode("utf-8-sig").split())
    except UnicodeDecodeError as error:
        detail = f"{file.name} is not UTF-8 (byte {error.start}); save it as UTF-8"
        problems.add("not a text", "cell", id=item, column="text", detail=detail)
        return None
    if not text:
        problems.add("empty file", "cell", id=item, column="text", detail=f"{file.name} holds no text")
        return None
    return [text]


def _folders_are_splits(files: Files) -> bool:
    """Whether every item lies in a folder train, val or test."""
    tops = {PurePosixPath(item).parts[0] if "/" in item else "" for item in files}
    return len(tops) > 1 and tops <= set(SPLITS)


def _check_kind_folders(files: Files, problems: Problems) -> None:
    """images/7.png and sounds/7.wav look like one item, but are two: say so."""
    if any(len(parts) > 1 for parts in files.values()) or len({next(iter(parts)) for parts in files.values()}) < 2:
        return
    stems = Counter(PurePosixPath(item).name for item in files)
    shared = [stem for stem, count in stems.items() if count > 1]
    if 2 * len(shared) >= len(stems):
        folders = sorted({str(PurePosixPath(item).parent) for item in files if PurePosixPath(item).name in shared})
        listed = ", ".join(folders[:5])
        problems.add(
            "no item has two modalities",
            "table",
            detail=f"{len(shared)} stems occur in several folders ({listed}) that hold one kind of file each; put the "
            "files of an item into one folder, or write a table with a column per modality",
        )
