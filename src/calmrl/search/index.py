"""`Index`: a collection on disk in which any modality finds any other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.engine import Engine, opened
from calmrl._support.parsing import naming
from calmrl._support.places import is_remote
from calmrl._support.text import plural
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.posterior import item_parts
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.search import checksums, neighbours, store
from calmrl.search import levels as levels_module
from calmrl.search.build import NAMES, OCR, REPEATED, build
from calmrl.search.collection import NAMED
from calmrl.search.encoding import TEXTS
from calmrl.search.hits import Answer, Contribution, Hit, Item, Rows
from calmrl.search.levels import APART, LEVELS
from calmrl.search.query import LIKE, Features, QueryVectors, Term, terms_of
from calmrl.search.sides import EVERYTHING, SAMPLE, Side, both_sides
from calmrl.search.space import AUTO, BuildOptions, aligner_from
from calmrl.search.store import reading
from calmrl.search.update import Change, FolderChanges, add, folder_changes, remove
from calmrl.search.where import quote
from calmrl.search.words import COLUMNS, FILE, MOST, VECTORS, Match, Read, fused, matches
from calmrl.search.worth import in_short, repeats_line

SHOWN = 8  # patterns in the sentences


def about(index: Index) -> dict[str, Any]:
    """Counts, patterns of what items have, encoders, versions, and how it is searched."""
    index.refresh()
    layout = index.layout
    description = layout["encoders"] or {"encoders": {}}
    return {
        "path": str(index.path),
        "items": len(index),
        "version": int(index.table.version),
        "modalities": index.modalities(),
        "patterns": patterns(index),
        "encoders": {
            name: {"name": entry["encoder"], **_weights(description["encoders"].get(name))}
            for name, entry in layout["modalities"].items()
        },
        "latents": layout["width"],
        "base": [] if index.aligner is None else [{"name": b.name, "weight": b.weight} for b in index.aligner.base_],
        "fitted_on": layout["fitted_on"],
        "search": {"exact": True} if layout["search"] is None else {"exact": False, **layout["search"]},
        "source": layout["source"],
        "made": layout["made"],
        "calmrl": layout["calmrl"],
        "problems": layout["problems"],
    }


def _weights(entry: dict[str, Any] | None) -> dict[str, Any]:
    return {} if entry is None else {"weights": entry["weights"], "signature": entry["signature"]}


def patterns(index: Index) -> dict[str, int]:
    """What items have ("image + text") and how many have it, the most frequent first."""
    names = list(index.layout["modalities"])
    columns = [f"has_{j}" for j in range(len(names))]
    with reading(index.path):
        table = index.table.search().select(columns).limit(max(1, len(index))).to_arrow()
    mask = np.stack([table[column].to_numpy() for column in columns], axis=1)  # (N, k)
    rows, counts = np.unique(mask, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {" + ".join(name for name, has in zip(names, rows[p], strict=True) if has): int(counts[p]) for p in order}


def summary(index: Index) -> list[str]:
    """Items, patterns, the space and recall to expect per direction, what cannot be searched and why."""
    every = patterns(index)
    listed = ", ".join(f"{count} {name}" for name, count in list(every.items())[:SHOWN])
    more = f", and {plural(len(every) - SHOWN, 'more pattern')}" if len(every) > SHOWN else ""
    lines = [f"{plural(len(index), 'item')}: {listed}{more}"]
    lines += [] if index.aligner is None else index.aligner.summary()
    short = in_short(index.aligner, {name: entry["why"] for name, entry in index.modalities().items()})
    lines += [] if short is None else [f"in short: {short}"]
    lines += [repeats_line(name, *counts) for name, counts in index.layout.get(REPEATED, {}).items()]
    if index.layout.get("hubs"):
        lines.append("similarities are corrected for hubs, items near to everything: held-out items gained from it")
    if apart := index.layout.get(APART):
        lines.append(
            f"for queries of {' or '.join(apart)}, items that have it and items that lack it are ranked side by side"
        )
    if index.layout.get(OCR):
        lines.append("words in pictures were read, and count as texts")
    if index.layout.get(NAMES):
        lines.append("names of files stand for texts where items have none")
    for name, entry in index.modalities().items():
        if not entry["aligned"]:
            lines.append(f"{name} is found only by {name} itself, not by other modalities: {entry['why']}")
        if not entry["searchable"]:
            lines.append(f"{name}: no encoder is known, so only vectors and items of the index can ask with it")
    lines += _without_levels(index)
    how = index.layout["search"]
    if how is None:
        lines.append("search is exact")
    else:
        lines.append(
            f"search is approximate ({how['index']}): it finds "
            f"{100 * how['recall@10']:.1f} % of the true ten nearest ({how['queries']} items as queries)"
        )
    return lines


def _without_levels(index: Index) -> list[str]:
    """Of which queries it is not known whether their hits are weak."""
    if LEVELS not in index.layout:
        return ["which hits are weak is not known: the index is of an earlier version; make it again"]
    unknown = [name for name in index.layout["modalities"] if name not in index.layout[LEVELS]]
    few = f"fewer than {round(1 / levels_module.ERROR) - 1} items have it"
    return [f"{name}: which hits are weak is not known, for {few}" for name in unknown]


DEPTH = 50  # of both ranks that are fused, at least
HUB_CANDIDATES = 1000  # nearest items among which hubs are taken back, at least


def _candidates(k: int) -> int:
    return max(HUB_CANDIDATES, 10 * int(k))


def _hub_levels(rows: Any, columns: list[str]) -> Any:
    return np.mean([rows[name].to_numpy() for name in columns], axis=0) if columns else 0.0


@dataclass(frozen=True)
class _Asked:
    """A query as what its modalities give to its vector, and how it is asked.

    The column that it is compared with, whether CSLS corrects it, its modalities, how many hits.
    """

    parts: list[tuple[str, np.ndarray]]
    column: str
    hubs: bool
    modalities: list[str]
    k: int

    @property
    def vector(self) -> np.ndarray:
        """Of unit length."""
        return np.sum([part for _, part in self.parts], axis=0)

    @property
    def groups(self) -> tuple[str, ...]:
        """What of a hit is verified."""
        return ("description", "vector" if self.column == "vector" else "features")


class Index:
    """A searchable collection on disk: made by `build`, opened by `open`.

    Every item has one place in a shared space, E[beta | what was observed of it] of an `Aligner` fitted on the items' own
    incomplete pairs; so has every query, whatever modalities it mixes. Nearness is the cosine between places.

    Examples
    --------
    >>> index = Index.build("photos", "photos.index")  # doctest: +SKIP
    >>> for hit in index.search(text="a dog by the sea", k=3):  # doctest: +SKIP
    ...     print(f"{hit.similarity:.2f} {hit.certainty:.2f} {hit.path}")
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._place = path if is_remote(path) else Path(path).absolute()
        self._folder = store.folder_at(self._place)
        self.table, self.parts, self._switch = store.open_tables(path)
        self._seen = self._switch.version
        self.layout = store.read_layout(self.parts, path)
        with self._reading():
            self._rows = Rows(self.layout)
            self._columns: list[str] = self.table.schema.names
        self._samples: dict[
            tuple[int, str, tuple[str, ...]], tuple[np.ndarray, np.ndarray]
        ] = {}  # what `_sample` gives
        self._kept_values: dict[tuple[int, str], np.ndarray] = {}  # (version, modality) -> what `sample_of` gives

    # ---- make, open, change

    @classmethod
    def build(
        cls,
        source: Any,
        path: str | Path,
        encoders: Mapping[str, str] | None = None,
        *,
        model: str | Path | Aligner | None = None,
        base: str | Path | Aligner | None = AUTO,
        groups: str | Sequence[Any] | None = None,
        relevant: str | Sequence[Any] | None = None,
        ocr: bool = False,
        engine: str | Engine = "local",
        address: str | None = None,
        progress: Progress | None = None,
    ) -> Index:
        """Encode, align and write.

        Parameters
        ----------
        source : str, Path, FeatureSet or dict
            A folder (files with one stem are one item), a manifest, features, or the name of a bundled data set.
        path : str or Path
            The index to write, a folder or an address such as s3://bucket/index. What is there already is kept: call it
            again to continue a run that was stopped.
        encoders : mapping of str to str, optional
            Modality -> name of an encoder; by default those of `calmrl.encoders.default_encoders`.
        model : path or Aligner, optional
            A fitted aligner to use instead of fitting one on the items; one that is not fitted says how to fit.
        base : str, path or Aligner, optional
            What was learned elsewhere, to stand beside what the items' own pairs say (`Aligner(base=)`): by default the base
            that comes with calmrl, if one was made with the encoders of the items, and none for bundled data sets, from which
            it was learned; None for none.
        groups : str or sequence, optional
            A column, or a label per item, that says which items are siblings; see `Aligner.fit`.
        relevant : str or sequence, optional
            "text", "labels" or another column, or a value per item: items with the same value count as found for each
            other where the aligner is chosen and in `expected`; see `Aligner.fit`.
        ocr : bool
            Whether words in the pictures of a folder are read too (extra `ocr`) and count as texts of their items; `add` then
            reads those of new pictures.
        engine : {"local", "ray"} or Engine
            Where items are encoded, aligned and placed: in this process, or on a Ray cluster that shares files with it.
            The table is written by this process.
        address : str, optional
            Of the Ray cluster; by default the one of this machine, or one that is started on its cores.
        progress : callable, optional
            Called with (done so far, of how many, what is being done).
        """
        with opened(engine, address) as started:
            where = None if engine == "local" else started
            build(source, path, BuildOptions(encoders, model, groups, relevant, progress, where, base, ocr))
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> Index:
        """An index that `build` made."""
        return cls(path)

    def add(
        self,
        source: Any,
        *,
        prune: bool = False,
        removed: bool = False,
        refit: bool | None = None,
        progress: Progress | None = None,
    ) -> Change:
        """Add what is new or changed in a source, in one commit; only new content is encoded.

        Parameters
        ----------
        source
            As in `build`; usually the same folder again. Or one file of a folder that the index was made from.
        prune : bool
            Remove items of this source that are gone from it.
        removed : bool
            Add items of a folder again that `remove` took out; otherwise they stay out, unless one of their files is the
            source.
        refit : bool, optional
            Whether the space is fitted again on all items, at the end and in one commit of its own. By default where the
            pairs of some two modalities have grown by half and finding them gains more than noise; `Change.refit` says
            what it gained. An index that was made with a given model keeps it.
        progress : callable, optional
        """
        return add(self, source, prune, progress, removed, refit)

    def remove(self, ids: str | Iterable[str]) -> int:
        """Remove items by id, in one commit; returns how many. An unknown id is an error, and nothing is removed.

        Files stay; `folder_changes` does not call them new, and `add` of their folder leaves them out.
        """
        return remove(self, ids)

    def refresh(self) -> None:
        """See what others have done since: other items, a space that was fitted again, or an index that was made again."""
        with self._reading():
            if store.folder_at(self._place) == self._folder:
                self._switch.checkout_latest()
                if self._switch.version == self._seen:
                    self.table.checkout_latest()
                    return
        fresh = type(self)(self.path)
        if fresh.layout["encoders"] == self.layout["encoders"] and "_encoders" in self.__dict__:
            fresh.__dict__["_encoders"] = self._encoders
        self.__dict__ = fresh.__dict__  # at one moment, for other threads

    def _now(self) -> Index:
        """This index as it is after a refresh, which those of other threads leave alone."""
        self.refresh()
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__
        return view

    def folder_changes(self) -> FolderChanges:
        """Which files of its folders are new, changed or gone, by names, sizes and times."""
        return folder_changes(self)

    # ---- search

    def search(
        self,
        text: Any = None,
        image: Any = None,
        sound: Any = None,
        *,
        like: Any = None,
        k: int = 10,
        having: str | Sequence[str] | None = None,
        lacking: str | Sequence[str] | None = None,
        where: str | None = None,
        hubs: bool = False,
        words: bool = True,
        why: bool = False,
        **others: Any,
    ) -> Answer:
        """The items nearest to a query that mixes any modalities.

        Parameters
        ----------
        text, image, sound, **others
            By modality: a text; a file, its bytes, a picture (Pillow, or uint8 (H, W, 3)) or samples at 16 kHz; or a feature
            vector of the modality's width. `text`, `image` and `sound` also stand for the only modality of their kind. A
            list holds several values, and (weight, value) pairs weigh them; a negative weight pushes away.
        like : str, pair or list
            Items of the collection, by id; they are not among the hits.
        k : int
            How many hits, at least 1.
        having : str or sequence of str, optional
            Only items of which these modalities were really observed.
        lacking : str or sequence of str, optional
            Only items of which these were not: `text="a dog", lacking="text"` finds what nobody has described yet, which
            items whose own words match would otherwise precede.
        where : str, optional
            A condition on columns, such as "label = 'dog' and certainty > 0.5".
        hubs : bool
            Correct for hubs by CSLS, with the items themselves as queries: similarities then are 2 cos - r(query) - r(item).
            Without it, similarities are corrected where cross-validation chose so (`Aligner(hubs="auto")`): cos - r(item) / 2.
        words : bool
            Whether names of items and what is written about them count too: a query of words alone ranks items by their
            vectors and by the words that they share with it, and those that are called or say exactly that come first; so
            does an item that has the very file that is asked with. False for vectors alone.
        why : bool
            Whether hits say what their similarity is the sum of (`Hit.why`).

        Returns
        -------
        Answer
            A list of `Hit`, the best first: by similarity, where no name, word or file matches (`Hit.found`).
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise InputError(f"k is how many items to return, a whole number from 1 on; got {k!r}")
        terms = terms_of({"text": text, "image": image, "sound": sound, LIKE: like, **others})
        now = self._now()
        conditions = now._rows.conditions(having, lacking, where)
        parts, column, alone = now._queries.parts(terms)
        own = [quote(str(term.value)) for term in terms if term.modality == LIKE]
        if own:
            conditions.append(f"id NOT IN ({', '.join(own)})")
        if column != "vector" and hubs:
            raise InputError("hubs=True needs aligned modalities; this query is compared within one modality")
        asked = _Asked(parts, column, hubs, now._queries.asked_with(terms), int(k))
        found = now._typed(terms, conditions) if words else []
        hits = now._judged(asked, alone, now._hits(asked, conditions, found), found)
        return Answer(now._explained(asked, hits) if why else hits)

    def _typed(self, terms: list[Term], conditions: list[str]) -> list[Match]:
        """Items that words of the query name, or that have the very file that is asked with."""
        if (asked := self._queries.words(terms)) is not None:
            return matches(asked[0], self._reader(conditions), self._counter(conditions), asked[1])
        if len(terms) == 1 and (digest := self._queries.file_digest(terms[0])) is not None:
            rows = self._reader(conditions)(f"contains(stamps, {quote(digest)})", MOST)
            return [Match(row["id"], 1.0, 1.0, True, (FILE,)) for row in rows]
        return []

    def _reader(self, conditions: list[str]) -> Read:
        def read(condition: str, most: int) -> list[Any]:
            query = self.table.search().where(" AND ".join([*conditions, f"({condition})"]))
            with self._reading():
                return query.select(COLUMNS).limit(most).to_list()

        return read

    def _counter(self, conditions: list[str]) -> Callable[[str | None], int]:
        def count(condition: str | None) -> int:
            with self._reading():
                return int(
                    self.table.count_rows(" AND ".join([*conditions, *([condition] if condition else [])]) or None)
                )

        return count

    def _hits(self, asked: _Asked, conditions: list[str], found: list[Match]) -> list[Hit]:
        """The first k: by vectors alone, or by both ranks where names or words match."""
        k, groups, sides = asked.k, asked.groups, self._sides(asked)
        if not found:
            rows, scores, _ = self._nearest(asked, sides, conditions, k)
            hits = self._verified(rows, self._rows.of_hits, *groups)
            return [self._rows.hit(row, score) for row, score in zip(hits, scores, strict=True)]
        found = found[: max(k, DEPTH)]
        named = f"id IN ({', '.join(quote(match.id) for match in found)})"
        score: dict[str, float] = {}
        above: dict[str, float] = {}
        for where, most in (([*conditions, named], len(found)), (conditions, max(k, DEPTH))):
            rows, similar, standing = self._nearest(asked, sides, where, most)
            score |= dict(zip(rows["id"].to_pylist(), similar, strict=True))
            above |= dict(zip(rows["id"].to_pylist(), standing, strict=True))
        order = sorted(above, key=lambda id: -above[id])  # a stable order, as LanceDB gave it
        first = fused(order, found)[:k]
        nearest, by_words = set(order[:k]), {match.id: match.parts for match in found}
        rows = self._fetch(self._by_id(first), self._rows.of_hits, *groups)
        stored = {row["id"]: row for row in rows}
        return [
            self._rows.hit(
                stored[id], score.get(id, 0.0), (*by_words.get(id, ()), *((VECTORS,) if id in nearest else ()))
            )
            for id in first
            if id in stored
        ]

    def _by_id(self, ids: list[str]) -> Any:
        return self.table.search().where(f"id IN ({', '.join(map(quote, ids))})").limit(len(ids))

    def _nearest(
        self, asked: _Asked, sides: list[Side], conditions: list[str], count: int
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """(an Arrow table of items, their similarities, how far these are above what is usual), the best first."""
        if asked.column != "vector":
            conditions = [*conditions, self.encoded(list(self.layout["modalities"])[int(asked.column[2:])])]
        tables, scores, above = [], [], []
        for side in sides:
            rows, similar = self._near(asked, [*conditions, *side.conditions], count)
            tables.append(rows)
            scores.append(similar)
            above.append(side.above(similar))
        order = np.argsort(-np.concatenate(above), kind="stable")[:count]
        return pa.concat_tables(tables).take(order), np.concatenate(scores)[order], np.concatenate(above)[order]

    def _near(self, asked: _Asked, conditions: list[str], count: int) -> tuple[Any, np.ndarray]:
        """(an Arrow table of items, their similarities), those nearest by similarity."""
        within, levels = asked.column != "vector", self._hub_columns(asked)
        corrected = asked.hubs or bool(levels)
        query = neighbours.near_query(
            self.table,
            asked.vector,
            _candidates(count) if corrected else count,
            None if within else self.layout["search"],
            " AND ".join(conditions) or None,
            asked.column,
            neighbours.COSINE if within else self._metric,
        )
        columns = [*self._rows.of_hits, *(["nearness"] if asked.hubs else levels), "_distance"]
        rows = self._read(query, columns, *asked.groups)
        scores = 1.0 - rows["_distance"].to_numpy().astype(np.float64)
        if asked.hubs:
            vector = np.asarray(asked.vector, np.float32)[None]
            own = float(neighbours.hubness(vector, self.hub_vectors())[0])
            scores = 2 * scores - own - rows["nearness"].to_numpy().astype(np.float64)
        scores = scores - _hub_levels(rows, levels)
        if corrected:
            best = np.argsort(-scores, kind="stable")[:count]
            rows, scores = rows.take(best), scores[best]
        return rows, scores

    def _hub_columns(self, asked: _Asked) -> list[str]:
        """What is taken off similarities to this query, where hubs are corrected for by training items."""
        kept = [] if asked.column != "vector" or asked.hubs else self.layout.get("hubs") or []
        return [f"hub_{kept.index(name)}" for name in asked.modalities if name in kept] or [
            f"hub_{j}" for j in range(len(kept))
        ]

    def _sides(self, asked: _Asked) -> list[Side]:
        """Items that share a modality with the query and those that do not, where they are ranked side by side; or all."""
        apart = self.layout.get(APART) or []  # indexes of earlier versions have none
        shared = [self.encoded(name) for name in asked.modalities if name in apart]
        if asked.column != "vector" or asked.hubs or not shared or len(shared) < len(asked.modalities):
            return [EVERYTHING]
        conditions = [f"({' OR '.join(shared)})", f"NOT ({' OR '.join(shared)})"]
        levels = tuple(self._hub_columns(asked))
        samples = [self._sample(condition, levels) for condition in conditions]
        if min(len(vectors) for vectors, _ in samples) < 2:
            return [EVERYTHING]
        return both_sides(conditions, [vectors @ asked.vector - taken_off for vectors, taken_off in samples])

    def _sample(self, condition: str, levels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(places (n, L), what is taken off for hubs (n,)) of some items that fulfil a condition.

        They are drawn at random, but always the same.
        """
        key = (int(self.table.version), condition, levels)
        known = self._samples
        if key not in known:
            where = f"{condition} AND vector IS NOT NULL"
            with self._reading():
                query = self.table.search().where(where).with_row_id(True).select(["_rowid"]).limit(max(1, len(self)))
                drawn = np.random.default_rng(0).permutation(query.to_arrow()["_rowid"].to_numpy())[:SAMPLE]
                rows = self.table.take_row_ids(drawn.tolist()).select(["vector", *levels]).to_arrow()
            vectors = np.array(rows["vector"].to_pylist(), np.float64).reshape(len(rows), self.layout["width"])
            if self._metric == neighbours.COSINE:
                vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            one = vectors, np.broadcast_to(_hub_levels(rows, list(levels)), len(rows))
            known = {kept: others for kept, others in known.items() if kept[0] == key[0]} | {key: one}
            self._samples = known  # at one moment, for other threads
        return known[key]

    def _judged(self, asked: _Asked, alone: Features, hits: list[Hit], found: list[Match]) -> list[Hit]:
        """Hits with the verdict of the levels: of a query of one value, whose similarities are not those of CSLS."""
        levels = self.layout.get(LEVELS) or {}  # indexes of earlier versions have none
        if asked.hubs or not hits or not any(name in levels for name in alone):
            return hits
        ((name, value),) = alone.items()
        nearest = float((levels_module.unit(value[None]) @ self.sample_of(name).T).max(initial=-1.0))
        sure = {match.id for match in found if match.exact or match.share >= 1}
        return [replace(hit, weak=hit.id not in sure and self._is_weak(asked, name, hit, nearest)) for hit in hits]

    def _is_weak(self, asked: _Asked, name: str, hit: Hit, nearest: float) -> bool | None:
        has = hit.modalities if asked.column == "vector" else ()
        return levels_module.is_weak(self.layout[LEVELS], name, has, hit.similarity, nearest)

    def sample_of(self, modality: str) -> np.ndarray:
        """Unit vectors (n, width) of what a sample of items has of a modality."""
        version, known = int(self.table.version), self._kept_values
        if (version, modality) not in known:
            column = f"f_{list(self.layout['modalities']).index(modality)}"
            offsets = neighbours.hub_sample(len(self)).tolist()
            with self._reading():
                taken = self.table.take_offsets(offsets).select([column]).to_arrow()[column].to_pylist()
            values = np.array([value for value in taken if value is not None], np.float32)
            values = levels_module.unit(values.reshape(-1, self.layout["modalities"][modality]["width"]))
            known = {key: one for key, one in known.items() if key[0] == version} | {(version, modality): values}
            self._kept_values = known  # at one moment, for other threads
        return known[version, modality]

    def _explained(self, asked: _Asked, hits: list[Hit]) -> list[Hit]:
        """Hits with what their similarity is the sum of."""
        if asked.column != "vector":
            name = asked.parts[0][0]
            return [replace(hit, why=(Contribution(name, name, hit.similarity),)) for hit in hits]
        if not hits or self.aligner is None:
            return hits
        column = {name: f"f_{j}" for j, name in enumerate(self.layout["modalities"]) if name in self.aligner.widths_}
        rows = self._fetch(self._by_id([hit.id for hit in hits]), ["id", *column.values()], "features")
        present = np.array([[row[c] is not None for c in column.values()] for row in rows])
        width = self.aligner.widths_
        z = {name: np.array([row[c] or [0.0] * width[name] for row in rows]) for name, c in column.items()}
        parts = item_parts(self.aligner, z, present)
        factor = 2.0 if asked.hubs else 1.0
        of = {row["id"]: number for number, row in enumerate(rows)}
        out = []
        for hit in hits:
            row = of[hit.id]
            shares: dict[tuple[str | None, str | None], float] = {}
            for (name, vector), (m, its) in product(asked.parts, enumerate(z)):
                if present[row, m]:
                    shares[name, its] = shares.get((name, its), 0.0) + factor * float(vector @ parts[m, row])
            if shares and (asked.hubs or self.layout.get("hubs")):
                shares[None, None] = hit.similarity - sum(shares.values())
            why = (Contribution(*pair, share) for pair, share in shares.items())
            out.append(replace(hit, why=tuple(sorted(why, key=lambda one: -one.share))))
        return out

    # ---- look at it

    def __len__(self) -> int:
        with self._reading():
            return int(self.table.count_rows())

    def item(self, id: str) -> Item:
        """All that is known about an item."""
        return self._rows.item(self._row(id, self._rows.of_items, "description", "columns"))

    def items(
        self,
        offset: int = 0,
        limit: int = 50,
        having: str | Sequence[str] | None = None,
        where: str | None = None,
        lacking: str | Sequence[str] | None = None,
    ) -> list[Item]:
        """Items in the order in which they are stored, for browsing."""
        for name, value, least in (("offset", offset, 0), ("limit", limit, 1)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise InputError(f"{name} is a whole number from {least} on; got {value!r}")
        self.refresh()
        query = self.table.search().offset(int(offset)).limit(int(limit))
        filters = " AND ".join(self._rows.conditions(having, lacking, where))
        rows = self._fetch(query.where(filters) if filters else query, self._rows.of_items, "description", "columns")
        return [self._rows.item(row) for row in rows]

    def thumbnail(self, id: str) -> bytes | None:
        """A small picture of an item as WebP; None if it has no picture."""
        return self._row(id, ["thumbnail"], "thumbnail")["thumbnail"]

    def file(self, id: str, modality: str) -> Path:
        """The file of an item; nothing outside of the collection is ever returned."""
        return self._rows.file(self._row(id, ["root", "paths"], "description", "columns"), id, modality)

    def labels(self) -> dict[str, int]:
        """Labels and how many items have each, the most frequent first."""
        counts = Counter(label for row in self.rows(["labels"]) for label in row["labels"] or [])
        return dict(counts.most_common())

    def modalities(self) -> dict[str, dict[str, Any]]:
        """Per modality: kind, n (items that have it), encoder, aligned, searchable, and why it is not.

        `searchable`: a text or file of this modality can be a query, because its encoder is known. `aligned`: it finds and is
        found by other modalities; otherwise it only finds items that have it too.
        """
        self.refresh()
        with self._reading():
            counts = [int(self.table.count_rows(f"has_{j}")) for j in range(len(self.layout["modalities"]))]
        return {
            name: {
                "kind": entry["kind"],
                "n": counts[j],
                "searchable": entry["encoder"] is not None,
                "encoder": entry["encoder"],
                "aligned": entry["aligned"],
                "why": entry["why"],
            }
            for j, (name, entry) in enumerate(self.layout["modalities"].items())
        }

    @property
    def expected(self) -> dict[str, dict[str, float]]:
        """Recall to expect per direction, by cross-validation over the items: `Aligner.expected_`."""
        return {} if self.aligner is None else self.aligner.expected_

    def about(self) -> dict[str, Any]:
        """Counts, patterns, encoders, versions, and how it is searched."""
        return about(self)

    def summary(self) -> list[str]:
        """The same as sentences."""
        return summary(self)

    # ---- inside

    def _reading(self) -> AbstractContextManager[None]:
        """Errors of LanceDB name the index."""
        return store.reading(self.path)

    @property
    def _metric(self) -> str:
        """How places are compared; indexes of earlier versions do not say it."""
        return str(self.layout.get("metric", neighbours.COSINE))

    @cached_property
    def aligner(self) -> Aligner | None:
        """The aligner behind it; None where no two modalities could be aligned."""
        with naming(self.path), self._reading():
            return aligner_from(self.parts)

    def encoders(self) -> EncoderSet:
        """The encoders of its modalities."""
        return self._encoders

    @cached_property
    def _encoders(self) -> EncoderSet:
        description = self.layout["encoders"]
        if description is not None:
            return EncoderSet.from_description(description)
        names = {name: entry["encoder"] for name, entry in self.layout["modalities"].items() if entry["encoder"]}
        if not names:
            raise InputError(f"{self.path} was made from features and knows no encoders; add features to it, not files")
        return EncoderSet(names, dtype="float32")

    @cached_property
    def _queries(self) -> QueryVectors:
        return QueryVectors(self.layout, self.aligner, self.encoders, self.features_of)

    def features_of(self, id: str) -> Features:
        """The features of all that was observed of an item."""
        names = list(self.layout["modalities"])
        row = self._row(id, [f"f_{j}" for j in range(len(names))], "features")
        pairs = {name: row[f"f_{j}"] for j, name in enumerate(names)}
        return {name: np.asarray(values, np.float64) for name, values in pairs.items() if values is not None}

    def encoded(self, modality: str) -> str:
        """An SQL condition: items that have features of a modality, if only of their name."""
        has = f"has_{list(self.layout['modalities']).index(modality)}"
        named = self.layout.get(NAMES) and modality == TEXTS
        return f"({has} OR contains(stamps, {quote(json.dumps({TEXTS: [NAMED]})[1:-3])}))" if named else has

    def hub_vectors(self) -> np.ndarray:
        """Places of a sample of items, (n, L); none in an index where nothing is aligned."""
        offsets = neighbours.hub_sample(len(self)).tolist()
        taken: list[Any] = []
        if offsets and self.layout["width"]:
            with self._reading():
                taken = self.table.take_offsets(offsets).select(["vector"]).to_arrow()["vector"].to_pylist()
        kept = [value for value in taken if value is not None]
        return np.asarray(kept, np.float32).reshape(len(kept), self.layout["width"])

    def rows(self, columns: list[str], where: str | None = None) -> list[dict[str, Any]]:
        """Some columns of all items, or of those that fulfil an SQL condition."""
        self.refresh()
        query = self.table.search().select(columns)
        with self._reading():
            return (query.where(where) if where else query).limit(max(1, len(self))).to_list()

    def _fetch(self, query: Any, columns: list[str], *groups: str) -> list[dict[str, Any]]:
        """Some columns of the rows that a query finds, after these groups of columns were verified."""
        return self._verified(self._read(query, columns, *groups), columns, *groups)

    def _read(self, query: Any, columns: list[str], *groups: str) -> Any:
        """An Arrow table with these columns, and with what verifying the groups needs."""
        wanted = dict.fromkeys(columns)
        if checksums.COLUMN in self._columns:
            wanted |= dict.fromkeys(name for group in groups for name in checksums.columns_of(group, self._columns))
            wanted |= {checksums.COLUMN: None}
        with self._reading():
            return query.select(list(wanted)).to_arrow()

    def _verified(self, rows: Any, columns: list[str], *groups: str) -> list[dict[str, Any]]:
        """Rows that `_read` gave, as dicts; an error if they are not what was written."""
        with self._reading():
            if checksums.COLUMN in self._columns:
                checksums.check_rows(rows, self._columns, groups, self.path)
            return rows.select(columns).to_pylist()

    def _row(self, id: str, columns: list[str], *groups: str) -> dict[str, Any]:
        self.refresh()
        rows = self._fetch(self.table.search().where(f"id = {quote(str(id))}").limit(1), columns, *groups)
        if not rows:
            raise InputError(f"no item {str(id)!r:.200} in {self.path}")
        return rows[0]
