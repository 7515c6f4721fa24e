"""A folder of files as a collection: files with one stem in one folder are one item.

dogs/rex.png, dogs/rex.wav and dogs/rex.txt are the item "dogs/rex" with an image, a sound and a text, and its label is
"dogs"; several files of one kind are used together. What a file is, its suffix says, or else its first bytes. If all folders
at the top are called train, val or test, they are the split, and the folders below them the labels. Nothing is skipped in
silence but hidden files: what cannot be used is a problem, and left out.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from calmrl.data.media.documents import texts_of
from calmrl.data.media.manifest import KINDS, MODALITIES, SPLITS, Manifest, build, modality_in, modality_of
from calmrl.data.media.problems import Problems, Unreadable
from calmrl.errors import InputError

CLOSED = "folder that cannot be read"
Files = dict[str, dict[str, list[str]]]  # item -> modality -> paths relative to the folder


def read_folder(path: str | Path, problems: Problems) -> Manifest:
    """The items of a folder and of the folders in it.

    Parameters
    ----------
    path : str or Path
        The folder.
    problems : Problems
        Takes what is wrong: links that lead out of the folder, texts that are not UTF-8. Files that cannot be part of an
        item are listed there as well; they do not stop anything.

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
        modality = modality_in(root / name)
        if modality is None:
            strangers.setdefault(PurePosixPath(name).suffix.lower() or "no suffix", []).append(name)
        else:
            stem = name if modality_of(name) is None else name.removesuffix(PurePosixPath(name).suffix)
            files.setdefault(stem, {}).setdefault(modality, []).append(name)
    if not files:
        understood = ", ".join(suffix for suffixes in MODALITIES.values() for suffix in suffixes)
        raise InputError(
            f"{root} holds no file that can be part of an item ({sum(map(len, strangers.values()))} others); understood "
            f"are {understood}"
        )
    for suffix, names in strangers.items():
        problems.add(
            "file not understood", "file", detail=f"{len(names)} x {suffix} (first: {names[0]})", names=tuple(names)
        )
    texts = {item: _read_texts(root, item, parts, problems) for item, parts in files.items() if "text" in parts}
    _check_kind_folders(files, problems)
    by_split = _folders_are_splits(files)
    rows = [(0, _row(item, parts, texts.get(item), by_split)) for item, parts in sorted(files.items())]
    modalities = [name for name in MODALITIES if any(row.get(name) for _, row in rows)]
    manifest = build(rows, {name: KINDS[name] for name in modalities}, problems, root=root)
    for row in manifest.items:
        row.text_files = tuple(str(root / name) for name in files[row.id].get("text", ()))
    return manifest


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


def _row(item: str, parts: dict[str, list[str]], texts: list[str] | None, by_split: bool) -> dict[str, Any]:
    """The cells of one item, as a row of a manifest."""
    folders = PurePosixPath(item).parent.parts
    row: dict[str, Any] = {"id": item, "split": folders[0] if by_split and folders else None}
    row["labels"] = "/".join(folders[1:] if by_split else folders) or None
    row |= {modality: names if len(names) > 1 else names[0] for modality, names in parts.items() if modality != "text"}
    return row if texts is None else row | {"text": texts or None}


def _read_texts(root: Path, item: str, parts: dict[str, list[str]], problems: Problems) -> list[str]:
    """The texts of an item; a PDF without any is moved to its pictures, and what cannot be used is a problem."""
    texts, pictures = [], []
    for name in parts["text"]:
        try:
            found = texts_of(root / name)
        except Unreadable as error:
            problems.add(error.kind, "cell", id=item, column="text", detail=error.detail)
            continue
        texts += found
        pictures += [] if found else [name]
    if pictures:
        parts["image"] = [*parts.get("image", ()), *pictures]
        parts["text"] = [name for name in parts["text"] if name not in pictures]
    if not parts["text"]:
        del parts["text"]
    return texts


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
