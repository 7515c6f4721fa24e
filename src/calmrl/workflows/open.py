"""The index of a source: made where there is none, and brought up to date where files have changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calmrl._support.output import replaced_directory
from calmrl._support.places import holds_index, index_of, is_remote
from calmrl._support.text import listed, plural
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.search.index import Index
from calmrl.sources import FOLDER, Source, open_source
from calmrl.workflows.index import index as make

NOUNS = {"image": "picture", "sound": "sound", "text": "text", "video": "film"}


@dataclass(frozen=True)
class OpenedIndex:
    """An index, and what was done to have it: "made", "3 added, 1 removed", or "nothing has changed".

    Examples
    --------
    >>> open_index("photos").done  # doctest: +SKIP
    'nothing has changed'
    """

    index: Index
    done: str


def open_index(
    source: str | Path,
    index: str | Path | None = None,
    *,
    progress: Progress | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> OpenedIndex:
    """The index of a folder of files (or a table of files, features, a bundled data set), ready to be searched.

    Nothing is written beside the files: without `index`, it is kept in the user's cache (`calmrl._support.places.index_of`).
    Where it is there already, only what is new or changed is encoded, and what is gone is removed. Items that were taken out
    with `remove` stay out. Where files of another kind have come, it is made again.

    Parameters
    ----------
    source : str or Path
        What to search; an index is opened as it is.
    index : str or Path, optional
        Where the index is, or is to be made.
    progress : callable, optional
        Called with (done so far, of how many, what is being done).
    report : callable, optional
        Gets sentences for people: how much there is, where the index is, what to expect of it.

    Examples
    --------
    >>> open_index("photos").index.search(text="a dog by the sea")  # doctest: +SKIP
    """
    if is_remote(source) or holds_index(source):
        if index is not None:
            raise InputError(f"{source} is an index itself, so `index` says nothing; leave it out")
        return OpenedIndex(Index.open(source), "nothing was compared")
    opened = open_source(source)
    report(f"{source}: {contents(opened)}")
    place = index_of(source) if index is None else index
    if not (is_remote(place) or holds_index(place)):
        report(f"making its index in {place}; the files stay as they are")
        return OpenedIndex(make(opened, place, progress=progress, report=report), "made")
    report(f"its index is {place}")
    there = Index.open(place)
    if there.layout["source"] != {"type": opened.form, "path": opened.root}:
        raise InputError(f"{place} is the index of {there.layout['source']['path']}; choose another name with `index`")
    new = [name for name in opened.modalities if name not in there.layout["modalities"]]
    if new:
        return OpenedIndex(_made_again(opened, there, new, progress, report), "made again")
    if opened.form == FOLDER and not there.folder_changes():
        return OpenedIndex(there, "nothing has changed")
    change = there.add(opened, prune=True, progress=progress)
    for line in change.lines():
        report(line)
    counts = {"added": change.added, "changed": change.changed, "removed": change.removed}
    parts = [f"{len(ids)} {what}" for what, ids in counts.items() if ids]
    return OpenedIndex(there, ", ".join(parts) or "nothing has changed")


def _made_again(
    opened: Source, there: Index, new: list[str], progress: Progress | None, report: Callable[[str], None]
) -> Index:
    if is_remote(there.path):
        raise InputError(f"{listed(new)} came after {there.path} was made; make it again with calmrl index, elsewhere")
    report(f"{listed(new)} came after it was made, so it is made again")
    with replaced_directory(there.path) as draft:
        make(opened, draft, progress=progress, report=report)
    return Index.open(there.path)


def contents(opened: Source) -> str:
    """ "600 items: 598 pictures and 40 texts" """
    if opened.manifest is None:
        present: Any = opened.features.present if opened.features is not None else ()
        return plural(len(present), "item")
    items = opened.manifest.items
    counts = {name: sum(name in item.cells for item in items) for name in opened.modalities}
    parts = [plural(n, NOUNS[name]) if name in NOUNS else f"{n} {name}" for name, n in counts.items() if n]
    return f"{plural(len(items), 'item')}: {listed(parts)}"
