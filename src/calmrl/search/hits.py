"""What a search returns, what is known about one item, and how both are read from the table of items."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.registry import lookup
from calmrl._support.text import closest
from calmrl.errors import InputError
from calmrl.search import checksums, neighbours, store
from calmrl.search.build import NAMES
from calmrl.search.collection import NAMED, REPLACED, TEXTS
from calmrl.search.levels import SAMPLE, unit
from calmrl.search.syntax import Column, id_in, quote, where_sql
from calmrl.search.words import VECTORS

MEANT, LONGEST = 2_000, 200  # ids that are looked at for the one that was meant, letters of it


@dataclass(frozen=True)
class Contribution:
    """How much of a similarity came from where a modality of the query met a modality of the item.

    Both are None for what the correction for hubs took off.

    Examples
    --------
    >>> for one in index.search(text="a dog", k=1, why=True)[0].why:  # doctest: +SKIP
    ...     print(one.query, one.item, round(one.share, 2))
    """

    query: str | None
    item: str | None
    share: float


@dataclass(frozen=True)
class Hit:
    """One item that was found.

    Attributes
    ----------
    id : str
    similarity : float
        Cosine with the query, less half of r(item) where the index corrects for hubs; with `hubs=True` the score of CSLS,
        2 cos - r(query) - r(item). 0 for an item that has no place and was found by its name or words.
    certainty : float or None
        How far what is observed of the item determines its place, 0 to 1, from the variance of its posterior; see
        docs/how-to/search.md. None where there is no latent model.
    modalities : tuple of str
        What was really observed of it; nothing here is imputed.
    text, label : str or None
        Captions (a line each) and labels (with commas between them).
    paths : dict of str to str
        Modality -> file, relative to the collection.
    found : tuple of str
        What found it: "name" or "words" (its name, or what is written about it, has words of the query), "file" (it has the
        very file that was asked with), "vectors" (it is one of the k nearest).
    weak, close : bool or None
        Weak: the query is less like what items have of its modality, or less similar to this item, than nine of ten true
        pairs that were held out. Close: it is more similar than anything that nine of ten queries found whose own item was left
        out; so are items with all the words, or the very file, that were asked with. An item that is neither may be what was
        meant or not. None where no level is known (`calmrl.search.levels`).
    why : tuple of Contribution
        What the similarity is the sum of, the largest part first, where `search(why=True)` asked for it.
    segment : tuple of float or None
        Begin and end, in seconds, of the part of its video that is nearest to the query; None without a video that was cut into
        segments (`Index.build(segments=)`). Which items are found, their similarity and the verdict are those of the whole.
    """

    id: str
    similarity: float
    certainty: float | None = None
    modalities: tuple[str, ...] = ()
    text: str | None = None
    label: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    found: tuple[str, ...] = (VECTORS,)
    weak: bool | None = None
    close: bool | None = None
    why: tuple[Contribution, ...] = ()
    segment: tuple[float, float] | None = None

    @property
    def path(self) -> str | None:
        """The first of its files."""
        return next(iter(self.paths.values()), None)


class Answer(list[Hit]):
    """The hits of a query, the best first.

    Examples
    --------
    >>> Answer([Hit("a", 0.1, weak=True), Hit("b", 0.0, weak=True)]).verdict
    'nothing close'
    >>> Answer([Hit("a", 0.1, weak=False, close=False), Hit("b", 0.0, weak=True)]).verdict
    'perhaps'
    """

    @property
    def verdict(self) -> str | None:
        """ "close" where some hit is, "nothing close" where all are weak, else "perhaps"; None where that is not known."""
        if any(hit.close for hit in self):
            return "close"
        return {True: "nothing close", False: "perhaps", None: None}[self.nothing_close]

    @property
    def nothing_close(self) -> bool | None:
        """Whether all hits are weak; None where that is not known of some and none is close, or where there are no hits."""
        verdicts = {hit.weak for hit in self}
        return False if False in verdicts else True if verdicts == {True} else None


@dataclass(frozen=True)
class Item:
    """One item of a collection; the attributes are those of `Hit`, and `split`, `columns` and `root` besides.

    `columns` holds the other columns of its source, `root` says which source it comes from.
    """

    id: str
    text: str | None
    label: str | None
    modalities: tuple[str, ...]
    paths: Mapping[str, str]
    certainty: float
    split: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    root: str = ""

    @property
    def path(self) -> str | None:
        """The first of its files."""
        return next(iter(self.paths.values()), None)


SHARED = ("id", "text", "label", "certainty")  # by hits and items


class StoredItems:
    """The items of an opened index: rows of its table, verified by their checksums, and samples of them."""

    def __init__(self, path: str | Path, table: Any, layout: Mapping[str, Any]) -> None:
        self.path, self.table, self.layout = path, table, layout
        with self.reading():
            self._columns: list[str] = table.schema.names
        self._cached: tuple[int, dict[Any, Any]] = (-1, {})  # version of the table, what `_once` made at it
        self.modalities: Mapping[str, Any] = layout["modalities"]
        self.others = {name: column["column"] for name, column in layout["columns"].items()}
        holds = {name: Column(column["column"], column["holds"]) for name, column in layout["columns"].items()}
        own = {name: Column(name, "text") for name in ("id", "text", "split")}
        own |= {"label": Column("labels", "texts"), "certainty": Column("certainty", "number")}
        self.asked = holds | own  # what a condition may ask about
        self.of_hits = [*SHARED, "paths", *(f"has_{j}" for j in range(len(self.modalities)))]
        self.of_items = [*self.of_hits, "split", "root", *self.others.values()]

    def conditions(
        self, having: str | Sequence[str] | None, lacking: str | Sequence[str] | None, where: str | None
    ) -> list[str]:
        """Modalities that must be there, modalities that must not, and a condition, as SQL."""
        wanted = [f"has_{self._number(name)}" for name in _listed(having)]
        unwanted = [f"NOT has_{self._number(name)}" for name in _listed(lacking)]
        return wanted + unwanted + ([where_sql(where, self.asked)] if where else [])

    def _number(self, name: str) -> int:
        lookup(self.modalities, name, "modality")
        return list(self.modalities).index(name)

    def hit(self, row: Mapping[str, Any], similarity: float, found: tuple[str, ...] = (VECTORS,)) -> Hit:
        """A row with the columns `of_hits`."""
        return Hit(similarity=float(similarity), found=found, **self._described(row))

    def item(self, row: Mapping[str, Any]) -> Item:
        """A row with the columns `of_items`."""
        columns = {name: row[column] for name, column in self.others.items()}
        return Item(split=row["split"], root=row["root"], columns=columns, **self._described(row))

    def file(self, row: Mapping[str, Any], id: str, modality: str) -> Path:
        """The file of a row with `root` and `paths`; nothing outside of the collection is ever returned."""
        paths = json.loads(row["paths"])
        if modality not in paths:
            lookup(self.modalities, modality, "modality")
            raise InputError(f"item {id!r} has no file of {modality}; it has {', '.join(paths) or 'none'}")
        path = Path(row["root"]) / paths[modality]
        inside = Path(paths[modality]).is_absolute() or path.resolve().is_relative_to(Path(row["root"]).resolve())
        if not inside or not path.is_file():
            raise InputError(f"the file {paths[modality]} of item {id!r} is no longer in {row['root']}")
        return path

    def _described(self, row: Mapping[str, Any]) -> dict[str, Any]:
        modalities = tuple(name for j, name in enumerate(self.modalities) if row[f"has_{j}"])
        shared = {name: row[name] for name in SHARED}
        return shared | {"modalities": modalities, "paths": json.loads(row["paths"])}

    def reading(self) -> AbstractContextManager[None]:
        """Errors of LanceDB name the index."""
        return store.reading(self.path)

    def count(self, *conditions: str) -> int:
        """How many items there are that fulfil all conditions."""
        with self.reading():
            return int(self.table.count_rows(" AND ".join(conditions) or None))

    @property
    def metric(self) -> str:
        """How places are compared; indexes of earlier versions do not say it."""
        return str(self.layout.get("metric", neighbours.COSINE))

    def fetch(self, query: Any, columns: list[str], *groups: str) -> list[dict[str, Any]]:
        """Some columns of the rows that a query finds, after these groups of columns were verified."""
        return self.verified(self.read(query, columns, *groups), columns, *groups)

    def read(self, query: Any, columns: list[str], *groups: str) -> Any:
        """An Arrow table with these columns, and with what verifying the groups needs."""
        wanted = dict.fromkeys(columns)
        if checksums.COLUMN in self._columns:
            wanted |= dict.fromkeys(name for group in groups for name in checksums.columns_of(group, self._columns))
            wanted |= {checksums.COLUMN: None}
        with self.reading():
            return query.select(list(wanted)).to_arrow()

    def verified(self, rows: Any, columns: list[str], *groups: str) -> list[dict[str, Any]]:
        """Rows that `read` gave, as dicts; an error if they are not what was written."""
        with self.reading():
            if checksums.COLUMN in self._columns:
                checksums.check_rows(rows, self._columns, groups, self.path)
            return rows.select(columns).to_pylist()

    def row(self, id: str, columns: list[str], *groups: str) -> dict[str, Any]:
        """Some columns of one item, verified."""
        rows = self.fetch(self.table.search().where(f"id = {quote(str(id))}").limit(1), columns, *groups)
        if not rows:
            raise InputError(f"no item {str(id)!r:.200} in {self.path}{self.meant(id)}")
        return rows[0]

    def meant(self, id: str) -> str:
        """ "; did you mean 'animals/dog'?" where an item of some folder is called like one that is not there, or nothing."""
        with self.reading():
            ids = self.table.search().select(["id"]).limit(MEANT).to_arrow()["id"].to_pylist()
        names = {one.rpartition("/")[2]: one for one in sorted(ids, reverse=True)}
        near = closest(str(id)[:LONGEST].rpartition("/")[2], names)
        return "" if near is None else f"; did you mean {names[near]!r}?"

    def by_id(self, ids: list[str]) -> Any:
        """The LanceDB query for these items."""
        return self.table.search().where(id_in(ids)).limit(len(ids))

    def features_of(self, id: str) -> dict[str, np.ndarray]:
        """The features of all that was observed of an item."""
        row = self.row(id, [f"f_{j}" for j in range(len(self.modalities))], "features")
        pairs = {name: row[f"f_{j}"] for j, name in enumerate(self.modalities)}
        return {name: np.asarray(values, np.float64) for name, values in pairs.items() if values is not None}

    def encoded(self, modality: str) -> str:
        """An SQL condition: items that have features of a modality, if only of their name."""
        number = self._number(modality)
        if any(REPLACED in entry for entry in self.layout["modalities"].values()):
            return f"f_{number} IS NOT NULL"
        has = f"has_{number}"
        named = self.layout.get(NAMES) and modality == TEXTS
        return f"({has} OR contains(stamps, {quote(json.dumps({TEXTS: [NAMED]})[1:-3])}))" if named else has

    def names_alone(self) -> bool:
        """Whether names of files are all that is written about the items, as in a folder of pictures."""
        if not self.layout.get(NAMES) or any(REPLACED in entry for entry in self.modalities.values()):
            return False
        return bool(self._once(NAMES, lambda: not self.count(f"has_{self._number(TEXTS)}")))

    def flags(self, columns: Mapping[str, str]) -> np.ndarray:
        """Conditions of SQL, by a name for each, of all items: (N, conditions)."""
        with self.reading():
            rows = self.table.search().select(dict(columns)).limit(max(1, self.count())).to_arrow()
        return np.stack([rows[column].to_numpy() for column in columns], axis=1)

    def hub_vectors(self) -> np.ndarray:
        """Places of a sample of items, (n, L); none in an index where nothing is aligned."""
        width = self.layout["width"]
        return self._sampled("vector", width) if width else np.zeros((0, 0), np.float32)

    def sample_of(self, modality: str) -> np.ndarray:
        """Unit vectors (n, width) of what a sample of items has of a modality."""
        column = f"f_{self._number(modality)}"
        return self._once(column, lambda: unit(self._sampled(column, self.modalities[modality]["width"])))

    def _sampled(self, column: str, width: int) -> np.ndarray:
        offsets, taken = neighbours.hub_sample(self.count()).tolist(), []
        if offsets:
            with self.reading():
                taken = self.table.take_offsets(offsets).select([column]).to_arrow()[column].to_pylist()
        return np.array([value for value in taken if value is not None], np.float32).reshape(-1, width)

    def sample(self, condition: str, levels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(places (n, L), what is taken off for hubs (n,)) of some items that fulfil a condition.

        They are drawn at random, but always the same.
        """
        return self._once((condition, levels), lambda: self._drawn(condition, levels))

    def _drawn(self, condition: str, levels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        where = f"{condition} AND vector IS NOT NULL"
        with self.reading():
            query = self.table.search().where(where).with_row_id(True).select(["_rowid"]).limit(max(1, self.count()))
            drawn = np.random.default_rng(0).permutation(query.to_arrow()["_rowid"].to_numpy())[:SAMPLE]
            rows = self.table.take_row_ids(drawn.tolist()).select(["vector", *levels]).to_arrow()
        vectors = np.array(rows["vector"].to_pylist(), np.float64).reshape(len(rows), self.layout["width"])
        if self.metric == neighbours.COSINE:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors, np.broadcast_to(hub_levels(rows, levels), len(rows))

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What a function gives, as long as the table stays at one version."""
        (version, known), now = self._cached, int(self.table.version)
        known = known if version == now else {}
        if key not in known:
            known = {**known, key: make()}
            self._cached = now, known  # at one moment, for other threads
        return known[key]


def hub_levels(rows: Any, columns: Sequence[str]) -> Any:
    """What is taken off similarities to these rows, the mean over the columns; 0 where there are none."""
    return np.mean([rows[name].to_numpy() for name in columns], axis=0) if columns else 0.0


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or [])
