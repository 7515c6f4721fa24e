"""Fit the space of an index again on all its items, where the pairs that were added say more than those it was fitted on.

What the old aligner reaches is measured on pairs that it has not seen (all, if it learned from none); what the new one
reaches is its own cross-validation, in galleries of the same size. The new one is taken where the mean R@1 over directions
gains more than one standard error of the difference, as if both were measured on different pairs: on mostly the same ones the
true error is smaller.

The items are written into another table with their new places, and become the index with the commit of its parts
(`calmrl.search.store`). A run that is killed before has changed nothing; the next `add` tries again, with the aligner that was
fitted already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from calmrl._support.places import ITEMS
from calmrl._support.text import plural
from calmrl.aligner.base import MIN_PAIRS, found_in
from calmrl.aligner.crossvalidation import FoldDirection
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.expected import Evidence
from calmrl.data.features.feature_set import relevance_texts
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.search import checksums, store
from calmrl.search.build import REPEATED, ROWS, write_tables
from calmrl.search.collection import Collection, ItemRecord
from calmrl.search.levels import group_numbers, measured
from calmrl.search.space import (
    LEARNED,
    BuildOptions,
    column_of,
    fit_linked,
    marks,
    measures_of,
    only_asked_with,
    pair_counts,
    place_all,
    relevance_of_items,
    with_repeats,
)

if TYPE_CHECKING:
    from calmrl.search.index import Index

GROWTH = 1.5  # times as many pairs as at the last fit are worth another one
MOST = 3000  # pairs of two modalities that the old aligner is measured on
LISTED = 2  # directions that a sentence names one by one


def check_recipe(index: Index) -> None:
    """Refuse to fit an index again that does not say how it was fitted."""
    if index.layout.get("fit") is None:
        raise InputError(
            f"{index.path} cannot be fitted again: it was made with a given model, with groups or relevant values that are no "
            "column, or by an earlier calmrl; make it again"
        )


def fit_again(index: Index, part: Path, force: bool = False, progress: Progress | None = None) -> str | None:
    """Fit the space again if pairs have grown and it pays, or in any case; says what it gained, None if it was not tried."""
    recipe = index.layout.get("fit")
    if recipe is None:
        return None
    before, now = recipe["pairs"], _pairs(index)
    if not force and not any(has_grown(before.get(key, 0), count) for key, count in now.items()):
        return None
    try:
        return _fit_again(index, recipe | {"pairs": now}, part, force, progress)
    except InputError as error:
        if force:
            raise
        return f"the items are added, but the space could not be fitted again: {error}"


def has_grown(before: int, now: int) -> bool:
    """Whether so many pairs of two modalities, after so many at the last fit, are worth another one."""
    return now >= MIN_PAIRS and (before < MIN_PAIRS or now >= GROWTH * before)


def _pairs(index: Index) -> dict[str, int]:
    """Pairs of features, which names have too."""
    names = list(index.layout["modalities"])
    has = index.stored.flags({f"has_{j}": index.stored.encoded(name) for j, name in enumerate(names)})
    return pair_counts(names, has)


def _fit_again(index: Index, recipe: dict[str, Any], part: Path, force: bool, progress: Progress | None) -> str:
    file = copy_rows(index, part)
    collection = stored_items(index, file)
    fit = fit_space(collection, recipe, index.layout, part, progress)
    paired = collection.present.sum(axis=1) > 1
    pairs = plural(int(paired.sum()), "pair")
    if fit.aligner is None:
        return f"nothing can be learned from {pairs}; {MIN_PAIRS} of two modalities are needed"
    before, now = index.layout["modalities"], fit.layout["modalities"]
    lost = [name for name, entry in before.items() if entry["aligned"] > now[name]["aligned"]]
    gain = _compare(index, fit.aligner, fit, collection, paired)
    if not force and (lost or not gain.pays):
        store.write_layout(index.path, index.parts, {**index.layout, "fit": recipe})
        index.refresh()
        reason = f"it would lose {', '.join(lost)}" if lost else f"{gain.sentence()}, which is no gain beyond noise"
        return f"the space stays as it was; fitting it again with {pairs} was tried: {reason}"
    replace_items(index, fit, collection, file, progress)
    return f"the space was fitted again with {pairs}{f': {gain.sentence()}' if gain else ''}"


@dataclass(frozen=True)
class Fit:
    """A space that was fitted again, and the layout of an index that has it."""

    aligner: Aligner | None
    layout: dict[str, Any]
    groups: list[Any] | None
    relevant: list[Any] | None


def fit_space(
    collection: Collection,
    recipe: Mapping[str, Any],
    layout: Mapping[str, Any],
    part: Path,
    progress: Progress | None,
) -> Fit:
    """Fit the space of all items as the recipe says; the layout is that of the index, with the same modalities."""
    groups = None if recipe["groups"] is None else column_of(collection.records, recipe["groups"])
    groups, repeated = with_repeats(collection, groups)
    relevant = relevance_of_items(collection, recipe["relevant"])
    settings = Aligner(**recipe["settings"])
    aligner, inside, why = fit_linked(collection, groups, part, settings, relevant, BuildOptions(progress=progress))
    aligned = {*inside, *(() if aligner is None else only_asked_with(aligner, collection))}
    entries = {
        name: entry | {"aligned": name in aligned, "why": None if name in aligned else why.get(name, "no item has it")}
        for name, entry in layout["modalities"].items()
    }
    fitted = {**layout, "fit": recipe, "version": store.VERSION, "modalities": entries, "fitted_on": len(collection)}
    fitted |= {**measures_of(aligner), REPEATED: repeated}
    return Fit(aligner, fitted, groups, relevant)


def replace_items(
    index: Index,
    fit: Fit,
    collection: Collection,
    file: Path,
    progress: Progress | None,
    others: Callable[[pa.RecordBatch, slice], Mapping[str, Any]] = lambda rows, span: {},
) -> None:
    """All items at their new places, in a table that becomes that of the index; `others` gives columns that change too."""
    layout = {**fit.layout, **measured(fit.aligner, collection, fit.groups, True)}
    layout[ITEMS] = store.next_items(index.path)
    places = place_all(fit.aligner, collection)

    def moved() -> Iterator[pa.RecordBatch]:
        done = 0
        for rows in _batches(file):
            span = slice(done, done := done + len(rows))
            yield store.changed(rows, layout, {**places.columns(layout, span), **others(rows, span)})
            if progress is not None:
                progress(done, len(collection), "write items")

    write_tables(index.path, moved(), places, layout, collection)
    index.refresh()


# ---- items as they are stored


def stored_items(index: Index, rows_of: Path) -> Collection:
    """All items, with their features in files beside their rows."""
    modalities, columns = index.layout["modalities"], index.layout["columns"]
    number = {name: j for j, name in enumerate(modalities)}
    total = len(index)
    present = np.zeros((total, len(modalities)), bool)
    files = {
        name: np.lib.format.open_memmap(
            rows_of.with_name(f"features-{j}.npy"), "w+", np.float32, (total, modalities[name]["width"])
        )
        for name, j in number.items()
    }
    records: list[ItemRecord] = []
    for rows in _batches(rows_of):
        start, stop = len(records), len(records) + len(rows)
        for name, j in number.items():
            present[start:stop, j] = rows[f"f_{j}"].is_valid().to_numpy(zero_copy_only=False)
            values = rows[f"f_{j}"].fill_null([0.0] * modalities[name]["width"]).flatten()
            files[name][start:stop] = values.to_numpy().reshape(stop - start, -1)
        own = {name: rows[column["column"]].to_pylist() for name, column in columns.items()}
        for row, item in enumerate(rows.select(["id", "text", "labels", "stamps"]).to_pylist()):
            records.append(
                ItemRecord(
                    item["id"],
                    texts=() if item["text"] is None else (item["text"],),
                    labels=tuple(item["labels"] or ()),
                    fingerprints=json.loads(item["stamps"]),
                    columns={name: values[row] for name, values in own.items()},
                )
            )
    there = [name for name, j in number.items() if present[:, j].any()]
    return Collection(
        records,
        {name: files[name] for name in there},
        present[:, [number[name] for name in there]],
        {name: modalities[name]["kind"] for name in there},
        str(index.path),
        {name: modalities[name]["encoder"] for name in there if modalities[name]["encoder"] is not None},
    )


def copy_rows(index: Index, part: Path) -> Path:
    """All rows in a file. Damaged ones are an error, or they would get checksums that are right.

    LanceDB cannot read one table while it writes another from what is read.
    """
    names, file = index.table.schema.names, part / "rows.arrow"
    with store.reading(index.path), pa.OSFile(str(file), "wb") as out:
        batches = index.table.search().limit(max(1, len(index))).to_batches(batch_size=ROWS)
        with pa.ipc.new_file(out, batches.schema) as writer:
            for rows in batches:
                if checksums.COLUMN in names:
                    checksums.check_rows(pa.Table.from_batches([rows]), names, checksums.GROUPS, index.path)
                writer.write_batch(rows)
    return file


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


# ---- whether it pays


@dataclass(frozen=True)
class Gain:
    """R@1 in percent among n, per direction ("text->image"); `before` lacks directions that could not be asked."""

    now: dict[str, float]
    before: dict[str, float]
    error: float  # of the mean difference
    n: int

    def __bool__(self) -> bool:
        return bool(self.now)

    @property
    def pays(self) -> bool:
        """Whether the mean over directions gains more than noise."""
        return bool(self) and self._mean(self.now) - self._mean(self.before) > self.error

    def _mean(self, values: Mapping[str, float]) -> float:
        return float(np.mean([values.get(key, 100 / self.n) for key in self.now]))  # by chance, where nothing is known

    def sentence(self) -> str:
        """What is found now and was before."""
        if not self:
            return "no pairs say what it reaches"
        if len(self.now) > LISTED:
            values = f"{self._mean(self.now):.0f} instead of {self._mean(self.before):.0f}"
            return f"on average over {len(self.now)} directions R@1 is {values} (of {self.n})"
        parts = []
        for key, value in self.now.items():
            asked, _, wanted = key.partition("->")
            was = f"instead of {self.before[key]:.0f}" if key in self.before else "and could not before"
            parts.append(f"{asked} finds {wanted} at R@1 {value:.0f} {was}")
        return f"{', '.join(parts)} (of {self.n})"


def _compare(index: Index, aligner: Aligner, fit: Fit, collection: Collection, paired: np.ndarray) -> Gain:
    """What an aligner reaches instead of that of an index, in every direction that pairs show."""
    shown = aligner.evidence_
    size = max(2, min((int(np.median(one.gallery)) for one in shown.values()), default=2))
    found = _measured(index, fit, collection, paired, size)
    old = {key: one for key, one in found.items() if key in shown and len(one.ranks) >= MIN_PAIRS}
    n = max(2, min([size, *(int(np.median(one.gallery)) for one in old.values())]))
    expected = aligner.expected(n)
    before = {key: 100 * one.recall(1, n) for key, one in old.items()}
    if index.aligner is not None:  # too few that it has not seen: its own cross-validation
        for key in (key for key in shown if key not in old and key in index.aligner.evidence_):
            old[key] = index.aligner.evidence_[key]
            before[key] = index.aligner.expected(n)[key]["R@1"]
    errors = [math.hypot(*(_error(one[key], n) for one in (shown, old) if key in one)) for key in shown]
    error = float(np.mean(errors)) if errors else 0.0  # directions are of the same pairs, so that they err together
    return Gain({key: expected[key]["R@1"] for key in shown}, before, error, n)


def _error(evidence: Evidence, n: int) -> float:
    """Standard error of R@1 in percent."""
    alone, together = evidence.inflation(1, n)
    return 100 * math.sqrt(alone * together)


def _measured(index: Index, fit: Fit, collection: Collection, paired: np.ndarray, size: int) -> dict[str, Evidence]:
    """What the aligner of an index finds among pairs that it has not seen, nor siblings of them.

    Galleries are about as large as the folds of a cross-validation and, like these, of whole groups of siblings.
    """
    if index.aligner is None:
        return {}
    seen = paired & np.isin(marks(collection.records), np.frombuffer(index.parts.get(LEARNED, b""), np.uint64))
    labels = group_numbers(fit.groups, len(paired))
    new = paired & ~np.isin(labels, labels[seen])
    random, present = np.random.default_rng(0), collection.present
    drawn = [
        random.permutation(np.flatnonzero(new & present[:, a] & present[:, b]))[:MOST]
        for a, b in combinations(range(present.shape[1]), 2)
    ]
    rows = np.unique(np.concatenate([np.zeros(0, np.int64), *drawn]))
    numbers = None if fit.relevant is None else _numbers([fit.relevant[int(row)] for row in rows])
    part = random.permutation(int(labels.max(initial=0)) + 1)[labels[rows]] % max(1, round(len(rows) / size))
    found: dict[str, list[FoldDirection]] = {}
    for number in np.unique(part):
        taken = np.flatnonzero(part == number)
        z = {
            name: np.where(present[rows[taken], j][:, None], np.asarray(values[rows[taken]], np.float64), np.nan)
            for j, (name, values) in enumerate(collection.z.items())
        }
        evidence = found_in(index.aligner, z, MOST, relevant=None if numbers is None else numbers[taken])
        for key, one in evidence.items():
            found.setdefault(key, []).append(FoldDirection(one.ranks, int(one.gallery[0]), one.own))
    return {key: Evidence.of(parts) for key, parts in found.items()}


def _numbers(values: list[Any]) -> np.ndarray:
    """Equal where values are, -1 where there is none."""
    texts = relevance_texts(values)
    known = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    return np.array([-1 if text is None else known[text] for text in texts], np.int64)
