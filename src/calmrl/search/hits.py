"""What a search returns, and what is known about one item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Hit:
    """One item that was found.

    Attributes
    ----------
    id : str
    similarity : float
        Cosine with the query; with `hubs=True` the corrected score 2 cos - r(query) - r(item).
    certainty : float or None
        How far what is observed of the item determines its place, 0 to 1, from the variance of its posterior; see
        docs/how-to/search.md. None where there is no latent model.
    modalities : tuple of str
        What was really observed of it; nothing here is imputed.
    text, label : str or None
        Captions (a line each) and labels (with commas between them).
    paths : dict of str to str
        Modality -> file, relative to the collection.
    """

    id: str
    similarity: float
    certainty: float | None = None
    modalities: tuple[str, ...] = ()
    text: str | None = None
    label: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str | None:
        """The first of its files."""
        return next(iter(self.paths.values()), None)


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
