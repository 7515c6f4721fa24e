"""`Index`: a collection on disk in which any modality finds any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, opened
from calmrl._support.parsing import naming
from calmrl._support.places import is_remote
from calmrl._support.tensor_files import from_files
from calmrl._support.text import plural
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.storage import from_state
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.search import levels as levels_module
from calmrl.search import store
from calmrl.search.build import NAMES, OCR, REPEATED, build
from calmrl.search.collection import REPLACED, SEGMENTS
from calmrl.search.hits import Answer, Item, StoredItems
from calmrl.search.levels import APART, LEVELS
from calmrl.search.query import LIKE, Features, QueryVectors, terms_of
from calmrl.search.searcher import Searcher
from calmrl.search.space import ALIGNER, AUTO, HEADER, BuildOptions, in_short
from calmrl.search.update import Change, FolderChanges, add, folder_changes, remove
from calmrl.search.upgrade import Upgrade, old_name, upgrade

SHOWN = 8  # patterns in the sentences
WEIGHTS = ("weights", "signature")  # of the description of an encoder


def _upgrading(index: Index) -> list[str]:
    """Of which modalities the encoder is being replaced, and how far that is."""
    lines = []
    for name, entry in index.modalities().items():
        if (old := old_name(index.layout, name)) is not None:
            has = index.stored.encoded(name)
            done, waiting = index.stored.count(has), index.stored.count(index.stored.encoded(old), f"NOT ({has})")
            was = index.layout["modalities"][old]["encoder"]
            lines.append(
                f"{name}: {plural(done, 'item')} by {entry['encoder']}, {waiting:,} still by {was}; "
                "calmrl index --upgrade goes on"
            )
    return lines


def _without_levels(index: Index) -> list[str]:
    """Of which queries it is not known whether their hits are weak."""
    if LEVELS not in index.layout:
        return ["which hits are weak is not known: the index is of an earlier version; make it again"]
    entries = index.layout["modalities"].items()
    unknown = [name for name, entry in entries if name not in index.layout[LEVELS] and REPLACED not in entry]
    few = f"fewer than {round(1 / levels_module.ERROR) - 1} items have it"
    return [f"{name}: which hits are weak is not known, for {few}" for name in unknown]


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
        self.stored = StoredItems(path, self.table, self.layout)

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
        segments: float = 10.0,
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
        segments : float
            Seconds of the segments of a video, at most 60 of each, whose vectors are kept beside that of the whole, so that
            a hit says where in its video the query is nearest (`Hit.segment`); 0 for none.
        engine : {"local", "ray"} or Engine
            Where items are encoded, aligned and placed: in this process, or on a Ray cluster that shares files with it.
            The table is written by this process.
        address : str, optional
            Of the Ray cluster; by default the one of this machine, or one that is started on its cores.
        progress : callable, optional
            Called with (done so far, of how many, what is being done).
        """
        if isinstance(segments, bool) or not isinstance(segments, (int, float)) or not 0 <= segments < float("inf"):
            raise InputError(f"segments is the seconds of a segment of a video, 0 for none; got {segments!r}")
        with opened(engine, address) as started:
            where = None if engine == "local" else started
            build(source, path, BuildOptions(encoders, model, groups, relevant, progress, where, base, ocr, segments))
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

    def upgrade(
        self,
        source: Any,
        encoders: Mapping[str, str],
        *,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> Upgrade:
        """Change encoders without encoding everything at once; searched all the while, by the new ones.

        Parameters
        ----------
        source
            The folder or table of files that the index was made from.
        encoders : mapping of str to str
            Modality -> name of its new encoder.
        limit : int, optional
            Encode at most so many items of each modality now; call it again for more. The first time at least 20, from which
            one encoder's vectors are found by the other's. The old vectors go when no item needs them any more.
        progress : callable, optional
        """
        return upgrade(self, source, encoders, limit, progress)

    def refresh(self) -> None:
        """See what others have done since: other items, a space that was fitted again, or an index that was made again."""
        with self.stored.reading():
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
            Without it, similarities are corrected where the aligner chose so (`Aligner(hubs="auto")`): cos - r(item) / 2.
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
        conditions = now.stored.conditions(having, lacking, where)
        return Answer(now._searcher.search(terms, int(k), conditions, hubs, words, why))

    # ---- look at it

    def __len__(self) -> int:
        return self.stored.count()

    def item(self, id: str) -> Item:
        """All that is known about an item."""
        stored = self._now().stored
        return stored.item(stored.row(id, stored.of_items, "description", "columns"))

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
        stored = self._now().stored
        query = stored.table.search().offset(int(offset)).limit(int(limit))
        filters = " AND ".join(stored.conditions(having, lacking, where))
        rows = stored.fetch(query.where(filters) if filters else query, stored.of_items, "description", "columns")
        return [stored.item(row) for row in rows]

    def thumbnail(self, id: str) -> bytes | None:
        """A small picture of an item as WebP; None if it has no picture."""
        return self._now().stored.row(id, ["thumbnail"], "thumbnail")["thumbnail"]

    def file(self, id: str, modality: str) -> Path:
        """The file of an item; nothing outside of the collection is ever returned."""
        stored = self._now().stored
        return stored.file(stored.row(id, ["root", "paths"], "description", "columns"), id, modality)

    def labels(self) -> dict[str, int]:
        """Labels and how many items have each, the most frequent first."""
        counts = Counter(label for row in self.rows(["labels"]) for label in row["labels"] or [])
        return dict(counts.most_common())

    def modalities(self) -> dict[str, dict[str, Any]]:
        """Per modality: kind, n (items that have it), encoder, aligned, searchable, and why it is not.

        What is left of an encoder that is being replaced is not listed.

        `searchable`: a text or file of this modality can be a query, because its encoder is known. `aligned`: it finds and is
        found by other modalities; otherwise it only finds items that have it too.
        """
        self.refresh()
        counts = [self.stored.count(f"has_{j}") for j in range(len(self.layout["modalities"]))]
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
            if REPLACED not in entry
        }

    def is_words(self, argument: str) -> bool:
        """Whether an argument of `search` takes texts, or ids, rather than files."""
        return argument == LIKE or self._searcher.queries.kind_of(argument) == "text"

    @property
    def expected(self) -> dict[str, dict[str, float]]:
        """Recall to expect per direction, by cross-validation over the items: `Aligner.expected_`."""
        return {} if self.aligner is None else self.aligner.expected_

    def about(self) -> dict[str, Any]:
        """Counts, patterns of what items have, encoders, versions, and how it is searched."""
        self.refresh()
        layout = self.layout
        made = (layout["encoders"] or {"encoders": {}})["encoders"]
        return {
            "path": str(self.path),
            "items": len(self),
            "version": int(self.table.version),
            "modalities": self.modalities(),
            "patterns": self._patterns(),
            "encoders": {
                name: {"name": entry["encoder"], **{key: made[name][key] for key in WEIGHTS if name in made}}
                for name, entry in layout["modalities"].items()
                if REPLACED not in entry
            },
            "latents": layout["width"],
            "base": [] if self.aligner is None else [{"name": b.name, "weight": b.weight} for b in self.aligner.base_],
            "search": {"exact": True} if layout["search"] is None else {"exact": False, **layout["search"]},
            **{name: layout[name] for name in ("fitted_on", "source", "made", "calmrl", "problems")},
        }

    def _patterns(self) -> dict[str, int]:
        """What items have ("image + text") and how many have it, the most frequent first."""
        names = list(self.layout["modalities"])
        mask = self.stored.flags({f"has_{j}": f"has_{j}" for j in range(len(names))})
        rows, counts = np.unique(mask, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {
            " + ".join(name for name, has in zip(names, rows[p], strict=True) if has): int(counts[p]) for p in order
        }

    def summary(self) -> list[str]:
        """Items, patterns, the space and recall to expect per direction, what cannot be searched and why."""
        every, layout, modalities = self._patterns(), self.layout, self.modalities()
        listed = ", ".join(f"{count} {name}" for name, count in list(every.items())[:SHOWN])
        more = f", and {plural(len(every) - SHOWN, 'more pattern')}" if len(every) > SHOWN else ""
        lines = [f"{plural(len(self), 'item')}: {listed}{more}"]
        lines += [] if self.aligner is None else self.aligner.summary()
        short = in_short(self.aligner, {name: entry["why"] for name, entry in modalities.items()})
        lines += [] if short is None else [f"in short: {short}"]
        for name, entry in layout["modalities"].items():
            if (one := entry.get("better")) is not None:
                speech = one["encoder"]
                lines.append(
                    f"{name}: {speech} relates the recordings to the rest, {entry['encoder']} does not (of {one['tried']} "
                    f"tried, the own item is ahead of {100 * one['behind']:.0f} % of the others; 50 % is chance); make the "
                    f'index again with encoders={{"{name}": "{speech}"}} (--encoder {name}={speech})'
                    if one["tried"]
                    else f"{name}: if these are recordings of speech, {speech} may relate them to the rest; it is not "
                    f'installed (pip install "calmrl[encoders]"), so it was not tried'
                )
        lines += [
            f"{name}: {plural(items, 'item')} with {different:,} different files; those of one file count as one in estimates"
            for name, (items, different) in layout.get(REPEATED, {}).items()
        ]
        if layout.get("hubs"):
            lines.append("similarities are corrected for hubs, items near to everything")
        if apart := " or ".join(layout.get(APART, ())):
            lines.append(f"for queries of {apart}, items that have it and items that lack it are ranked side by side")
        if layout.get(OCR):
            lines.append("words in pictures were read, and count as texts")
        if layout.get(NAMES):
            lines.append("names of files stand for texts where items have none")
        if layout.get(SEGMENTS):
            lines.append(f"hits say where in a video they are, by segments of {layout[SEGMENTS]:g} s or more")
        for name, entry in modalities.items():
            if not entry["aligned"]:
                lines.append(f"{name} is found only by {name} itself, not by other modalities: {entry['why']}")
            if not entry["searchable"]:
                lines.append(f"{name}: no encoder is known, so only vectors and items of the index can ask with it")
        lines += [*_upgrading(self), *_without_levels(self)]
        if (how := layout["search"]) is None:
            return [*lines, "search is exact"]
        share, asked = 100 * how["recall@10"], f"({how['queries']} items as queries)"
        return [
            *lines,
            f"search is approximate ({how['index']}): it finds {share:.1f} % of the true ten nearest {asked}",
        ]

    # ---- inside

    @cached_property
    def aligner(self) -> Aligner | None:
        """The aligner behind it; None where no two modalities could be aligned."""
        with naming(self.path), self.stored.reading():
            return from_state(from_files(self.parts, ALIGNER)) if HEADER in self.parts else None

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
    def _searcher(self) -> Searcher:
        return Searcher(self.stored, QueryVectors(self.layout, self.aligner, self.encoders, self.stored.features_of))

    def features_of(self, id: str) -> Features:
        """The features of all that was observed of an item."""
        return self._now().stored.features_of(id)

    def rows(self, columns: list[str], where: str | None = None) -> list[dict[str, Any]]:
        """Some columns of all items, or of those that fulfil an SQL condition."""
        self.refresh()
        query = self.table.search().select(columns)
        with self.stored.reading():
            return (query.where(where) if where else query).limit(max(1, len(self))).to_list()
