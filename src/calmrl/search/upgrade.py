"""Change the encoder of a modality bit by bit: the new one is one more modality of the space.

It takes the name of the modality, and queries are encoded by it. The vectors of the old one stay beside it as "image by OLD";
items that only have these are found because other items have both, and because a query is encoded by both encoders where the
old one is still installed. Items are taken in an order drawn from their ids, so that those with both are a sample of all.
Every run encodes some, fits the space again and changes all places at one moment (`calmrl.search.refit`); a run that is
stopped keeps what it encoded. Once no item needs them, the old vectors go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from calmrl._support.text import plural
from calmrl.aligner.base import MIN_PAIRS
from calmrl.aligner.estimator import Aligner
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.registry import full_name
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.search import store
from calmrl.search.collection import REPLACED, SEGMENTS, Collection, encode, kinds_of, records_of, segments_key, sha256
from calmrl.search.refit import check_recipe, copy_rows, fit_space, replace_items, stored_items
from calmrl.search.space import pair_counts, threads_for, with_base
from calmrl.search.update import changing, open_as_before, stored
from calmrl.sources import Source

if TYPE_CHECKING:
    from calmrl.search.index import Index


@dataclass
class Upgrade:
    """What a run did, by modality: how many items it encoded, how many still have vectors of the old encoder only.

    Examples
    --------
    >>> print(*Upgrade({"image": 100}, {"image": 500}).lines(), sep="\\n")
    image: 100 items encoded, 500 to go; run the same line again
    """

    encoded: dict[str, int]
    left: dict[str, int]
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The same in sentences."""
        lines = [*self.problems]
        for name, count in self.encoded.items():
            left = self.left[name]
            rest = f"{left:,} to go; run the same line again" if left else "all have the new encoder"
            lines.append(f"{name}: {plural(count, 'item')} encoded, {rest}")
        return lines


def old_name(layout: Mapping[str, Any], modality: str) -> str | None:
    """The modality that holds the older vectors of another one; None where there are none."""
    return next((name for name, entry in layout["modalities"].items() if entry.get(REPLACED) == modality), None)


def upgrade(
    index: Index, source: Any, encoders: Mapping[str, str], limit: int | None, progress: Progress | None
) -> Upgrade:
    """Encode items by other encoders, at most `limit` of each modality; see `calmrl.Index.upgrade`."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(f"limit is how many items to encode at most, a whole number from 1 on; got {limit!r}")
    index.refresh()
    check_recipe(index)
    names = {name: full_name(name, encoder) for name, encoder in encoders.items()}
    layout, chosen = _begun(index, names)
    with changing(index) as part, threads_for(len(index)):
        opened = open_as_before(index, source, progress)
        if opened.manifest is None:
            raise InputError(f"{opened.root} holds features, no files to encode; give the folder or table of the files")
        file = copy_rows(index, part)
        collection = _renamed(stored_items(index, file), layout)
        done, left = {}, {}
        segments: dict[str, dict[str, np.ndarray]] = {}  # id -> those by new encoders
        for name in names:
            fresh = _encoded(index, opened, collection, chosen, name, limit, part, progress)
            _merge(collection, fresh, chosen, name)
            for item, own in zip(fresh.records, fresh.segments, strict=False):
                segments.setdefault(item.id, {}).update(own)
            done[name] = len(fresh)
            has, had = collection.has(name), collection.has(str(old_name(layout, name)))
            left[name], linked = int((had & ~has).sum()), int((had & has).sum())
            if left[name] and linked < MIN_PAIRS:
                raise InputError(
                    f"only {plural(linked, 'item has', 'items have')} {name} by both encoders, and {MIN_PAIRS} are needed "
                    f"before one finds the other; encode at least {MIN_PAIRS} in the first run, and bring the index up "
                    "to date with calmrl add if files were moved"
                )
        _drop_finished(collection, layout, left)
        recipe = _recipe(index.layout["fit"], collection, names)
        fit = fit_space(collection, recipe, layout, part, progress)
        replace_items(index, fit, collection, file, progress, _columns(index.layout, fit.layout, collection, segments))
    return Upgrade(done, left, opened.problems.lines(True))


def _begun(index: Index, names: Mapping[str, str]) -> tuple[dict[str, Any], EncoderSet]:
    """(the layout with both encoders of these modalities, the new ones)"""
    before: Mapping[str, Any] = index.layout["modalities"]
    description = index.layout["encoders"]
    if not names or description is None:
        what = "name the new encoder" if description else f"{index.path} was made from features and knows no files"
        raise InputError(
            f"{what}; an upgrade is as in: calmrl index photos --out photos.index --upgrade --encoder image=NEW"
        )
    modalities = dict(before)
    for name, kind in kinds_of(names).items():
        if name not in before or before[name].get(REPLACED):
            raise InputError(
                f"the index has no modality {name!r} to encode again; it has {', '.join(index.modalities())}"
            )
        entry, old = before[name], old_name(index.layout, name)
        if entry["kind"] != kind:
            raise InputError(f"{names[name]} reads {kind}, but {name} is {entry['kind']}")
        if old is not None and entry["encoder"] != names[name]:
            raise InputError(
                f"{name} is on its way to {entry['encoder']}; finish that first, with --encoder {name}={entry['encoder']}"
            )
        if old is None and entry["encoder"] == names[name]:
            raise InputError(f"{name} has the encoder {names[name]} already")
    chosen = EncoderSet(names, frames=description["frames"], dtype="float32")
    for name in names:
        if old_name(index.layout, name) is None:
            entry = before[name]
            old = f"{name} by {entry['encoder']}"
            new = {**entry, "encoder": names[name], "width": chosen.width(name)}
            modalities = {old if one == name else one: its for one, its in modalities.items()}
            modalities |= {old: {**entry, REPLACED: name}, name: new}
    described = {**description["encoders"], **chosen.describe()["encoders"]}
    return {**index.layout, "modalities": modalities, "encoders": {**description, "encoders": described}}, chosen


def _renamed(collection: Collection, layout: Mapping[str, Any]) -> Collection:
    """The items, with vectors of encoders that are replaced from now on under their new name."""
    entries = layout["modalities"]
    for name in list(collection.z):
        if collection.encoders.get(name) != entries[name]["encoder"]:
            old = old_name(layout, name)
            for values in (collection.z, collection.kinds, collection.encoders):
                items: Any = {old if one == name else one: value for one, value in values.items()}
                values.clear()
                values.update(items)
    return collection


def _encoded(
    index: Index,
    opened: Source,
    collection: Collection,
    chosen: EncoderSet,
    name: str,
    limit: int | None,
    part: Any,
    progress: Progress | None,
) -> Collection:
    """Vectors of the next items that have none by the new encoder and whose content is as it was when they were added."""
    rows = stored(index)
    waiting = {item.id for item, has in zip(collection.records, collection.has(name), strict=True) if not has}
    mine = {id: row["fingerprints"] for id, row in rows.items() if row["root"] == opened.root and id in waiting}
    known = [
        item
        for item in records_of(opened, mine)
        if item.id in mine
        and name in item.fingerprints
        and item.fingerprints[name][0] == mine[item.id].get(name, [None])[0]
    ]
    known.sort(key=lambda item: sha256(item.id.encode()))
    one = EncoderSet({name: chosen.names[name]}, frames=chosen.frames, dtype=chosen.dtype)
    cut = index.layout.get(SEGMENTS, 0.0)
    return encode(opened, known[:limit], one, part / "cells", progress=progress, segments=cut)


def _merge(collection: Collection, fresh: Collection, chosen: EncoderSet, name: str) -> None:
    """Put new vectors among those of all items."""
    values = np.zeros((len(collection), chosen.width(name)), np.float32)
    has = collection.has(name).copy()
    if name in collection.z:
        values[has] = collection.z[name][has]
    row_of = {item.id: row for row, item in enumerate(collection.records)}
    rows = [row_of[item.id] for item in fresh.records]
    values[rows], has[rows] = fresh.z[name], fresh.present[:, 0]
    others = [one for one in collection.z if one != name]
    present = collection.present[:, [list(collection.z).index(one) for one in others]]
    collection.z = {**{one: collection.z[one] for one in others}, name: values}
    collection.present = np.column_stack([present, has])
    collection.kinds[name], collection.encoders[name] = chosen.kind(name), chosen.names[name]


def _drop_finished(collection: Collection, layout: dict[str, Any], left: Mapping[str, int]) -> None:
    """Take old vectors out where every item has new ones; these take their place among the columns."""
    for name in (name for name, count in left.items() if not count):
        old = old_name(layout, name)
        kept = [one for one in collection.z if one != old]
        collection.present = collection.present[:, [list(collection.z).index(one) for one in kept]]
        for values in (collection.z, collection.kinds, collection.encoders):
            values.pop(str(old), None)
        entries = layout["modalities"]
        layout["modalities"] = {
            name if one == old else one: entries[name if one == old else one] for one in entries if one != name
        }


def _recipe(before: Mapping[str, Any], collection: Collection, names: Mapping[str, str]) -> dict[str, Any]:
    """How the space is fitted: as before, where encoders that belong together may now be others."""
    settings = dict(before["settings"])
    if not settings.get("shared") or any(name in group for group in settings["shared"] for name in names):
        joint = with_base(Aligner(), None, collection).shared
        settings["shared"] = None if joint is None else [list(group) for group in joint]
    return {**before, "settings": settings, "pairs": pair_counts(list(collection.z), collection.present)}


def _columns(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    collection: Collection,
    segments: Mapping[str, Mapping[str, np.ndarray]],
) -> Any:
    """What `replace_items` takes: features by the new layout; what was observed of an item does not change."""
    kept = {
        segments_key(e.get(REPLACED, name), e["encoder"]) for name, e in after["modalities"].items() if e["encoder"]
    }
    was = {name: f"has_{j}" for j, name in enumerate(before["modalities"])}

    def columns(rows: pa.RecordBatch, span: slice) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for j, (name, entry) in enumerate(after["modalities"].items()):
            out[f"has_{j}"] = np.zeros(len(rows), bool) if entry.get(REPLACED) else rows[was[name]]
            values = collection.z[name][span] if name in collection.z else np.zeros((len(rows), entry["width"]))
            out[f"f_{j}"] = store.lists(np.asarray(values), ~collection.has(name)[span])
        if SEGMENTS in after:
            held = rows.select(["id", SEGMENTS]).to_pylist()
            every = [{**store.unpacked(row[SEGMENTS]), **segments.get(row["id"], {})} for row in held]
            out[SEGMENTS] = [store.packed({key: one[key] for key in sorted(kept & set(one))}) for one in every]
        return out

    return columns
