"""Whether the folders of an index have changed since, by names, sizes and times; nothing is read.

Files of items that were removed from the index on purpose are not new.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calmrl.data.media.suffixes import modality_of
from calmrl.search.removed import removed_items

if TYPE_CHECKING:
    from calmrl.search.index import Index


@dataclass(frozen=True)
class Growth:
    """Files of the folders of an index, as "folder/file": not in it, changed since, and gone."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)

    def sentence(self, index: str) -> str:
        """For people."""
        parts = [
            (len(self.new), "not in the index (new, or of no use when it was made)"),
            (len(self.changed), "changed"),
            (len(self.gone), "gone"),
        ]
        listed = ", ".join(f"{count} {what}" for count, what in parts if count)
        prune = " --prune" if self.gone else ""
        line = f"calmrl add {shlex.quote(str(index))} {shlex.quote(str(self.folders[0]))}{prune}"
        return f"files since the index was made: {listed}; bring it up to date with: {line}"


def growth(index: Index) -> Growth:
    """Compare the folders that were indexed with what lies in them now."""
    if index.layout["source"]["type"] != "folder":
        return Growth()  # what else lies beside the files of a manifest is no part of it
    files: dict[str, dict[str, tuple[int, int]]] = {}
    for row in index.rows(["root", "paths", "stamps"]):
        paths, stamps = json.loads(row["paths"]), json.loads(row["stamps"])
        known = files.setdefault(row["root"], {})
        known.update({path: (stamps[name][1], stamps[name][2]) for name, path in paths.items() if name in stamps})
    new: list[str] = []
    changed: list[str] = []
    gone: list[str] = []
    folders: list[str] = []
    on_purpose = removed_items(index.path)
    for root, known in files.items():
        if not known or not Path(root).is_dir():
            continue
        left_out = {path for paths in on_purpose.get(root, {}).values() for path in paths} - set(known)
        before = len(new) + len(changed) + len(gone)
        here = dict(_files(root))
        new += [f"{root}/{path}" for path in here if path not in known and path not in left_out]
        changed += [f"{root}/{path}" for path, stamp in here.items() if path in known and stamp != known[path]]
        gone += [f"{root}/{path}" for path in known if path not in here]
        if len(new) + len(changed) + len(gone) > before:
            folders.append(root)
    return Growth(tuple(new), tuple(changed), tuple(gone), tuple(folders))


def _files(root: str) -> list[tuple[str, tuple[int, int]]]:
    """(path, (size, time)) of all files that could be part of an item; hidden ones and linked folders are none."""
    out = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") or modality_of(name) is None:
                continue
            file = Path(folder) / name
            try:
                stat = file.stat()
            except OSError:
                continue  # a broken link, which no item holds either
            out.append((file.relative_to(root).as_posix(), (stat.st_size, stat.st_mtime_ns)))
    return out
