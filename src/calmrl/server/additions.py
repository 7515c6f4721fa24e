"""Add an item from a form, and remove one.

Uploaded files are kept inside the index, in a folder of their own per item with a manifest of one row.
"""

import json
import shutil
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calmrl.errors import InputError
from calmrl.server.limits import Limits
from calmrl.server.parameters import checked_text
from calmrl.server.uploads import Form, checked_files, modality_named, suffix_of

FIELDS = ("id", "text", "label")
FOLDER = "added"
CHANGING = threading.Lock()  # one change at a time


def add(index: Any, form: Form, kinds: Mapping[str, str], limits: Limits) -> str:
    """Put an item into the collection and return its id, the client's or a new one."""
    fields = _fields(form, limits)
    files = {modality_named(name, kinds): content for name, content in checked_files(form.files, kinds, limits).items()}
    if not files and "text" not in fields:
        raise InputError("the item is empty; give text, or the files image and sound")
    if "://" in str(index.path):
        raise InputError("this index is not on the disk of the server, so that files cannot be put into it")
    row: dict[str, Any] = {"id": fields.get("id") or uuid.uuid4().hex}
    row |= {"labels": fields["label"]} if "label" in fields else {}
    row |= {"text": fields["text"], modality_named("text", kinds): fields["text"]} if "text" in fields else {}
    folder = Path(index.path) / FOLDER / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        for name, content in files.items():
            file = folder / f"{len(row)}{suffix_of(content)}"
            file.write_bytes(content)
            row[name] = file.name
        manifest = folder / "item.jsonl"
        manifest.write_text(json.dumps(row) + "\n", encoding="utf-8")
        with CHANGING:
            change = index.add(manifest)
        if row["id"] not in change.added:
            raise InputError(f"the item cannot be used: {'; '.join(change.problems) or 'nothing of it can be read'}")
    except BaseException:
        shutil.rmtree(folder)
        raise
    return row["id"]


def remove(index: Any, id: str) -> None:
    """Take an item out of the collection; its files are deleted only if they were uploaded."""
    with CHANGING:
        uploads = Path(index.path).resolve() / FOLDER
        folders = {folder for folder in _folders(index, id) if folder.parent == uploads}
        index.remove([id])
        for folder in folders:
            shutil.rmtree(folder)


def _folders(index: Any, id: str) -> list[Path]:
    """Where the files of an item are, as far as they are still there."""
    folders = []
    for modality in index.item(id).paths:
        try:
            folders.append(Path(index.file(id, modality)).resolve().parent)
        except InputError:
            continue  # gone already
    return folders


def _fields(form: Form, limits: Limits) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, text in form.fields:
        if name not in FIELDS or name in fields:
            raise InputError(f"an item has the fields {', '.join(FIELDS)}, each once; got {name[:80]!r}")
        if checked_text(name, text, limits).strip():
            fields[name] = text.strip()
    return fields
