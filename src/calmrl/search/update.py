"""Change an index in place, one commit per change, encoding only what is new; and notice that its folders have changed."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from calmrl._support.text import beginning
from calmrl.data.media.manifest import modality_in
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.search import checksums, neighbours, store
from calmrl.search.build import NAMES, OCR, index_part_folder
from calmrl.search.collection import (
    SEGMENTS,
    UNREADABLE,
    UNUSABLE,
    Collection,
    ItemRecord,
    encode,
    from_features,
    names_as_texts,
    records_of,
    segments_key,
    unread_texts,
    words_as_texts,
)
from calmrl.search.levels import LEVELS
from calmrl.search.refit import check_recipe, fit_again
from calmrl.search.space import Places, place, threads_for, unlike_line
from calmrl.search.syntax import id_in, quote
from calmrl.sources import FOLDER, Source, open_source

if TYPE_CHECKING:
    from calmrl.search.index import Index

REMOVED = "removed"  # the table of items that were removed on purpose
SCHEMA = pa.schema([pa.field(name, pa.string()) for name in ("root", "id", "paths")])
CLASH = 3  # ids named in an error


@dataclass
class Change:
    """What an addition did: ids that are new, that changed, that were removed, and that are gone from their source.

    `left_out` are items of the source that were removed from the index on purpose.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unchanged: int = 0
    problems: list[str] = field(default_factory=list)
    refit: str | None = None  # what fitting the space again gained, if it was tried
    unlike: list[str] = field(
        default_factory=list
    )  # sentences about modalities in which added items are unlike the rest

    def lines(self) -> list[str]:
        """The same in sentences."""
        counts = [f"{len(self.added)} added", f"{len(self.changed)} changed", f"{self.unchanged} unchanged"]
        lines = [*self.problems, ", ".join(counts + ([f"{len(self.removed)} removed"] if self.removed else []))]
        if self.left_out:
            items, them, their = (
                ("item that was", "it", "its") if len(self.left_out) == 1 else ("items that were", "them", "their")
            )
            stay = "stays" if len(self.left_out) == 1 else "stay"
            lines.append(
                f"{len(self.left_out)} {items} removed from the index {stay} out; `removed=True` adds {them} again, "
                f"and so does naming one of {their} files"
            )
        if self.gone:
            count = "1 item is gone from its" if len(self.gone) == 1 else f"{len(self.gone)} items are gone from their"
            lines.append(f"{count} source but still in the index; `prune=True` removes what is gone")
        return [*lines, *self.unlike] if self.refit is None else [*lines, *self.unlike, self.refit]


def add(
    index: Index,
    source: Any,
    prune: bool = False,
    progress: Progress | None = None,
    removed: bool = False,
    refit: bool | None = None,
) -> Change:
    """Add what is new or changed in a source; with `prune` remove what is gone from it.

    Items of a folder that were removed on purpose stay out, unless `removed` says otherwise or `source` is one of their files.
    """
    index.refresh()
    if refit:
        check_recipe(index)
    with changing(index) as part:
        folder, file = _folder_of(index, source)
        opened = open_as_before(index, source if folder is None else folder, progress)
        rows = stored(index)
        on_purpose = removed_items(index.path).get(opened.root, {}) if opened.form == FOLDER else {}
        left_out = set() if removed or file is not None else set(on_purpose) - set(rows)
        fresh, change, there = _compare(index, opened, rows, file, left_out, part, progress)
        gone = [id for id, row in rows.items() if row["root"] == opened.root and id not in there]
        change.unlike = [] if fresh is None or refit else _unlike(index, fresh)
        change.gone = [] if prune else gone
        change.removed = gone if prune else []
        _commit(index, fresh, change.removed)
        _remember_unusable(index, unread_texts(opened) if fresh is None else fresh.unusable)
        clear_removed(index.path, opened.root, sorted(set(on_purpose) & set(change.added)))
        if refit is not False:
            checksums.record(index.path)
            with threads_for(len(index)):
                change.refit = fit_again(index, part, bool(refit), progress)
        return change


def open_as_before(index: Index, source: Any, progress: Progress | None) -> Source:
    """A source, read as the index was made: with words in pictures, and names for texts."""
    kinds = {name: entry["kind"] for name, entry in index.layout["modalities"].items() if entry["kind"] != "vector"}
    opened = open_source(source, kinds or None, some=True)
    if index.layout.get(OCR) and opened.form == FOLDER:
        words_as_texts(opened, progress)
    if index.layout.get(NAMES) and opened.form == FOLDER:  # indexes of earlier versions do not say it
        names_as_texts(opened)
    return opened


def _remember_unusable(index: Index, files: dict[str, list[int]]) -> None:
    """Do not call files new again of which nothing could be read."""
    known = index.layout.get(UNUSABLE, {})
    if not known.items() >= files.items():
        store.write_layout(index.path, index.parts, {**index.layout, UNUSABLE: {**known, **files}})
        index.refresh()


@contextmanager
def changing(index: Index) -> Iterator[Path]:
    """The working folder, in a block that changes files which have checksums."""
    with index_part_folder(index.path) as part:
        checksums.check_before_change(index.path)
        yield part
        checksums.record(index.path)


def _folder_of(index: Index, source: Any) -> tuple[str | None, str | None]:
    """(folder of the index, path of the file in it) for a picture, video, sound or text file that lies in one."""
    if not isinstance(source, (str, Path)) or not Path(source).is_file() or modality_in(source) is None:
        return None, None
    path = Path(source).resolve()
    roots = {row["root"] for row in index.rows(["root"])} | set(removed_items(index.path))
    for root in sorted(roots, key=len, reverse=True):
        if Path(root).is_dir() and path.is_relative_to(root):
            return root, path.relative_to(root).as_posix()
    raise InputError(f"{source} lies in no folder of {index.path}; add the folder that it is in")


def remove(index: Index, ids: Iterable[str]) -> int:
    """Remove items by id, in one commit."""
    wanted = [ids] if isinstance(ids, str) else [str(id) for id in ids]
    index.refresh()
    if not wanted:
        return 0
    unknown = sorted(set(wanted) - {row["id"] for row in index.rows(["id"], where=id_in(wanted))})
    if unknown:
        named, meant = beginning(unknown, CLASH, "{!r}"), index.stored.meant(unknown[0])
        raise InputError(f"no item {named} in {index.path}; nothing was removed{meant}")
    with changing(index):
        record_removed(index.path, index.rows(["root", "id", "paths"], where=id_in(wanted)))
        _commit(index, None, list(dict.fromkeys(wanted)))
    return len(set(wanted))


def stored(index: Index) -> dict[str, dict[str, Any]]:
    """Id -> where each item comes from and what it was made of."""
    rows = index.rows(["id", "root", "fingerprint", "stamps"])
    return {row["id"]: row | {"fingerprints": json.loads(row["stamps"])} for row in rows}


def _compare(
    index: Index,
    opened: Source,
    rows: dict[str, dict[str, Any]],
    file: str | None,
    left_out: set[str],
    part: Path,
    progress: Progress | None,
) -> tuple[Collection | None, Change, set[str]]:
    """(items to write, what they are, ids of all items that the source has); of those of a file, or all but those left out."""
    whole = None
    if opened.features is not None:
        whole = from_features(opened)
        known = whole.records
    else:
        mine = {id: row["fingerprints"] for id, row in rows.items() if row["root"] == opened.root}
        known = records_of(opened, mine)
    _check_clash(known, rows, opened)
    asked = [row for row, item in enumerate(known) if item.id not in left_out]
    if file is not None:
        id = file.removesuffix(Path(file).suffix)
        asked = [row for row in asked if file in known[row].paths.values() or known[row].id == id]
        if not asked:
            raise InputError(f"{file} is no part of an item of {opened.root}: {'; '.join(opened.problems.lines(True))}")
    todo = [row for row in asked if _differs(known[row], rows.get(known[row].id))]
    change = Change(unchanged=len(asked) - len(todo), left_out=[item.id for item in known if item.id in left_out])
    there = {item.id for item in known}
    if not todo:
        return None, change, there
    if whole is not None:
        fresh = _fitting(index, whole.take(todo))
    else:
        new = [known[row] for row in todo]
        held = partial(_fetch, index, rows)
        cut = index.layout.get(SEGMENTS, 0.0)
        fresh = encode(opened, new, index.encoders(), part / "cells", held, progress, segments=cut)
        there -= {item.id for item in new} - {item.id for item in fresh.records}  # of which nothing could be read
        _note_unknown(index, opened)
        change.problems = fresh.problems.lines(True)
    for item in fresh.records:
        (change.changed if item.id in rows else change.added).append(item.id)
    return fresh, change, there


def _differs(item: ItemRecord, row: dict[str, Any] | None) -> bool:
    return row is None or row["fingerprint"] != item.digest() or row["fingerprints"] != dict(item.fingerprints)


def _check_clash(known: list[ItemRecord], rows: dict[str, dict[str, Any]], opened: Source) -> None:
    """An item of one source must not take the place of an item of another."""
    clashing = [item.id for item in known if item.id in rows and rows[item.id]["root"] != opened.root]
    if clashing:
        raise InputError(
            f"{len(clashing)} ids are in the index already, from {rows[clashing[0]]['root']} (first: "
            f"{', '.join(map(repr, clashing[:CLASH]))}); rename the new items, or remove the old ones first"
        )


def _fitting(index: Index, fresh: Collection) -> Collection:
    """Features that are to be added must have the modalities and widths of the index."""
    modalities = index.layout["modalities"]
    for name, values in fresh.z.items():
        if name not in modalities:
            raise InputError(f"the index has no modality {name!r}; it has {', '.join(modalities)}")
        if values.shape[1] != modalities[name]["width"]:
            raise InputError(
                f"{name} has width {values.shape[1]} but the index was made with {modalities[name]['width']}; use the "
                "same encoder"
            )
    return fresh


def _note_unknown(index: Index, opened: Source) -> None:
    """Files of a kind that the index has no modality for."""
    assert opened.manifest is not None
    for name in opened.manifest.kinds:
        count = sum(name in item.cells for item in opened.manifest.items)
        if name not in index.layout["modalities"] and count:
            detail = (
                f"{count} files; the index has {', '.join(index.layout['modalities'])}: make it again to include them"
            )
            opened.problems.add(f"{name} is not in the index", "file", detail=detail)


def _fetch(
    index: Index, rows: dict[str, dict[str, Any]], name: str, keys: list[str]
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Vectors that the index has already, by the content they were made from, whichever item it belongs to."""
    wanted, owner = set(keys), {}
    for id, row in rows.items():
        key = row["fingerprints"].get(name, [UNREADABLE])[0]
        if key in wanted and f"{name} #2" not in row["fingerprints"]:  # else it has the mean of several
            owner[id] = key
    if not owner:
        return {}
    column = f"f_{list(index.layout['modalities']).index(name)}"
    columns = [column, *([SEGMENTS] if SEGMENTS in index.layout else [])]
    key = segments_key(name, index.layout["modalities"][name]["encoder"])
    return {
        owner[row["id"]]: (np.asarray(row[column], np.float32), store.unpacked(row.get(SEGMENTS)).get(key))
        for row in index.rows(["id", *columns], where=id_in(owner))
        if row[column] is not None
    }


def _commit(index: Index, fresh: Collection | None, removed: list[str]) -> None:
    """New, changed and removed items in one commit."""
    table = index.table
    if fresh is None or not len(fresh):
        if removed:
            table.delete(id_in(removed))
    else:
        vectors, certainty = place(index.aligner, fresh)
        places = Places(index.aligner, vectors, certainty, neighbours.hubness(vectors, index.stored.hub_vectors()))
        merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        if removed:
            merge = merge.when_not_matched_by_source_delete(id_in(removed))
        rows = store.batch(fresh, index.layout, places.columns(index.layout))
        merge.execute(pa.Table.from_batches([rows]), on_bad_vectors="null")
    if removed or fresh is not None:
        store.drop_other_items(index.path, index.layout)
    store.tidy(table, always=index.layout["search"] is not None)
    index.refresh()


def _unlike(index: Index, fresh: Collection) -> list[str]:
    """What is said of items that are unlike those in an index."""
    lines = []
    for j, (name, values) in enumerate(fresh.z.items()):
        of = (index.layout.get(LEVELS) or {}).get(name)
        if of and index.layout["modalities"][name]["aligned"]:
            new = np.asarray(values[np.flatnonzero(fresh.present[:, j])])
            lines.append(unlike_line(name, new, index.stored.sample_of(name), of[""]["nearest"]))
    return [line for line in lines if line is not None]


# ---- items that were removed on purpose


def removed_items(path: str | Path) -> dict[str, dict[str, list[str]]]:
    """Root -> id of a removed item -> its files."""
    items: dict[str, dict[str, list[str]]] = {}
    with store.reading(path):
        table = _table(path)
        for row in [] if table is None else table.to_arrow().to_pylist():
            items.setdefault(row["root"], {})[row["id"]] = list(json.loads(row["paths"]).values())
    return items


def record_removed(path: str | Path, rows: Iterable[dict[str, Any]]) -> None:
    """List items (root, id, paths) among those that were removed on purpose."""
    content = pa.Table.from_pylist([{name: row[name] for name in SCHEMA.names} for row in rows], SCHEMA)
    table = _table(path)
    if table is None:
        store.connect(path).create_table(REMOVED, content)
    else:
        table.merge_insert(["root", "id"]).when_matched_update_all().when_not_matched_insert_all().execute(content)


def clear_removed(path: str | Path, root: str, ids: Sequence[str]) -> None:
    """Take items that are in the index again off that list."""
    table = _table(path)
    if table is not None and ids:
        table.delete(f"root = {quote(root)} AND {id_in(ids)}")


def _table(path: str | Path) -> Any:
    database = store.connect(path)
    return database.open_table(REMOVED) if REMOVED in store.table_names(database) else None


# ---- what has changed on disk since


@dataclass(frozen=True)
class FolderChanges:
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


def folder_changes(index: Index) -> FolderChanges:
    """Compare the folders that were indexed with what lies in them now."""
    if index.layout["source"]["type"] != FOLDER:
        return FolderChanges()  # what else lies beside the files of a manifest is no part of it
    files: dict[str, dict[str, tuple[int, int]]] = {}
    for row in index.rows(["root", "paths", "stamps"]):
        paths, fingerprints = json.loads(row["paths"]), json.loads(row["stamps"])
        known = files.setdefault(row["root"], {})
        known.update({path: tuple(fingerprints[name][1:]) for name, path in paths.items() if name in fingerprints})
    new: list[str] = []
    changed: list[str] = []
    gone: list[str] = []
    folders: list[str] = []
    on_purpose, useless = removed_items(index.path), index.layout.get(UNUSABLE, {})
    for root, known in files.items():
        if not known or not Path(root).is_dir():
            continue
        left_out = {path for paths in on_purpose.get(root, {}).values() for path in paths} - set(known)
        before = len(new) + len(changed) + len(gone)
        here = dict(_files(root))
        left_out |= {path for path, when in here.items() if useless.get(f"{root}/{path}") == list(when)} - set(known)
        new += [f"{root}/{path}" for path in here if path not in known and path not in left_out]
        changed += [f"{root}/{path}" for path, when in here.items() if path in known and when != known[path]]
        gone += [f"{root}/{path}" for path in known if path not in here]
        if len(new) + len(changed) + len(gone) > before:
            folders.append(root)
    return FolderChanges(tuple(new), tuple(changed), tuple(gone), tuple(folders))


def _files(root: str) -> list[tuple[str, tuple[int, int]]]:
    """(path, (size, time)) of all files that could be part of an item; hidden ones and linked folders are none."""
    out = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(folder) / name
            if name.startswith(".") or modality_in(file) is None:
                continue
            try:
                stat = file.stat()
            except OSError:
                continue  # a broken link, which no item holds either
            out.append((file.relative_to(root).as_posix(), (stat.st_size, stat.st_mtime_ns)))
    return out
