"""What a search returns, what is known about one item, and how both are read from the table of items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calmrl._support.registry import lookup
from calmrl.errors import InputError
from calmrl.search.where import Column, where_sql
from calmrl.search.words import VECTORS


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
    weak : bool or None
        Whether the query is less like what items have of its modality, or less similar to this item, than nine of ten true
        pairs that were held out; never for an item with all the words, or the very file, that were asked with. None where
        no level is known (`calmrl.search.levels`).
    why : tuple of Contribution
        What the similarity is the sum of, the largest part first, where `search(why=True)` asked for it.
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
    why: tuple[Contribution, ...] = ()

    @property
    def path(self) -> str | None:
        """The first of its files."""
        return next(iter(self.paths.values()), None)


class Answer(list[Hit]):
    """The hits of a query, the best first.

    Examples
    --------
    >>> Answer([Hit("a", 0.1, weak=True), Hit("b", 0.0, weak=True)]).nothing_close
    True
    """

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


DESCRIBED = ("id", "text", "label", "paths", "certainty")
SHARED = ("id", "text", "label", "certainty")


class Rows:
    """How the rows of an index are read, by its layout."""

    def __init__(self, layout: Mapping[str, Any]) -> None:
        self.modalities: Mapping[str, Any] = layout["modalities"]
        self.others = {name: column["column"] for name, column in layout["columns"].items()}
        holds = {name: Column(column["column"], column["holds"]) for name, column in layout["columns"].items()}
        own = {name: Column(name, "text") for name in ("id", "text", "split")}
        own |= {"label": Column("labels", "texts"), "certainty": Column("certainty", "number")}
        self.asked = holds | own  # what a condition may ask about
        self.of_hits = [*DESCRIBED, *(f"has_{j}" for j in range(len(self.modalities)))]
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


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or [])
