"""What an aligner is fitted on: its arguments and rows are checked, groups numbered, and linked modalities found."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.arguments import check_choice, check_number, check_whole
from calmrl.aligner.base import MIN_PAIRS
from calmrl.data.features.feature_set import relevance_texts
from calmrl.data.patterns import connected
from calmrl.errors import InputError
from calmrl.latent.rows import Source, check_links, open_source

NAMES = {
    "features": ("auto", "linear", "kernel"),
    "refine": ("auto", "never", "always"),
    "hubs": ("beside", "auto", "never", "always"),
}


def check_aligner(arguments: dict[str, Any]) -> None:
    """Every argument of the constructor, with one error that names the first wrong one."""
    for name, allowed in NAMES.items():
        check_choice(name, arguments[name], allowed)
    if not isinstance(arguments["unit_rows"], (bool, np.bool_)) and arguments["unit_rows"] != "auto":
        raise InputError(f"unit_rows must be True, False or 'auto'; got {arguments['unit_rows']!r}")
    or_auto = ", or 'auto'"
    if arguments["whitening"] != "auto":
        check_number("whitening", arguments["whitening"], 0, 1, also=or_auto)
    if arguments["prior"] != "auto":
        check_number("prior", arguments["prior"], 0, what="a number of rows", also=or_auto)
    if arguments["latent_dim"] != "auto":
        check_whole("latent_dim", arguments["latent_dim"], also=or_auto)
    for name, least in (("candidates", 1), ("folds", 2), ("landmarks", 2)):
        check_whole(name, arguments[name], least)


def check_modalities(who: str, names: Sequence[str], counts: Sequence[float]) -> None:
    """An error unless there are two modalities or more, each of them in some row."""
    if len(names) < 2:
        raise InputError(f"z has one modality ({names[0]}); {who} needs at least two")
    absent = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if absent:
        raise InputError(
            f"modality {absent[0]!r} is observed in no row, so nothing can be learned about it; leave it out, or add "
            "rows that have it"
        )


def check_pairs(source: Source) -> None:
    """Modalities that no row has or that nothing links are errors; few rows and pairs that never meet are warnings."""
    check_modalities("an aligner", source.names, source.count.tolist())
    check_links(source)
    apart = [
        f"{source.names[a]} and {source.names[b]}"
        for a, b in combinations(range(len(source.names)), 2)
        if source.together[a, b] == 0
    ]
    if apart:
        warnings.warn(
            f"no row has both {'; nor '.join(apart)}: they are aligned through other modalities only, and expected_ says "
            "nothing about them",
            UserWarning,
            stacklevel=4,
        )


def group_numbers(groups: Sequence[Any] | None, source: Source) -> np.ndarray | None:
    """One number per row from any labels; equal labels give equal numbers in every process."""
    if groups is None:
        return None
    labels = _one_per_row("groups", "label", groups, source)
    number = {label: _hash(label) for label in set(labels)}
    return np.array([number[label] for label in labels], dtype=np.int64)


def relevance_numbers(relevant: Sequence[Any] | None, source: Source) -> np.ndarray | None:
    """One number per row from any values, as `group_numbers`; -1 for rows without a value."""
    if relevant is None:
        return None
    texts = relevance_texts(_one_per_row("relevant", "value", relevant, source))
    number = {text: -1 if text is None else _hash(text) for text in set(texts)}
    return np.array([number[text] for text in texts], dtype=np.int64)


def _one_per_row(name: str, what: str, values: Sequence[Any], source: Source) -> list[Any]:
    if isinstance(values, (str, bytes)):
        raise InputError(
            f"{name} is {values!r}, the name of a column, but z is no feature set; pass one {what} per row"
        )
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    rows = sum(len(views) for views in source.chunks())
    if len(listed) != rows:
        raise InputError(f"{name} has {len(listed)} {what}s but z has {rows} rows; pass one {what} per row")
    return listed


def _hash(label: Any) -> int:
    digest = hashlib.sha256(f"{type(label).__name__}:{label}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def linked_rows(source: Source, numbers: list[np.ndarray | None]) -> tuple[Source | None, list[np.ndarray | None]]:
    """The modalities that enough rows link, of the rows that have any of them, with these numbers; None without such.

    A base knows about the others; so it is no error that nothing can be learned about them here.
    """
    groups = [group for group in connected(source.together.cpu().numpy(), MIN_PAIRS) if len(group) > 1]
    if not groups:
        return None, numbers
    inside = sorted(max(groups, key=lambda group: sum(float(source.count[m]) for m in group)))
    if len(inside) == len(source.names):
        return source, numbers
    if source.distributed is not None:
        apart = [name for m, name in enumerate(source.names) if m not in inside]
        raise InputError(
            f"too few rows have {apart[0]!r} and another modality; with an engine, leave it out of the fit"
        )
    chunks = _Columns(source, inside)
    kept = np.concatenate([views.present[:, inside].any(1).cpu().numpy() for views in source.chunks()])
    z: Any = chunks
    present = None
    if source.in_memory:
        ((z, present),) = list(chunks)
    return open_source(z, present), [None if part is None else part[kept] for part in numbers]


@dataclass(frozen=True)
class _Columns:
    """Some modalities of a source, as chunks of the rows that have any of them."""

    source: Source
    inside: list[int]

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for views in self.source.chunks():
            at = views.present[:, self.inside].any(1).nonzero()[:, 0]
            taken = views.take(at)
            rows = taken.rows(0, len(at))
            z = {}
            for m in self.inside:
                values = rows[m]
                z[views.names[m]] = torch.full((len(at), views.widths[m]), float("nan")) if values is None else values
            yield z, taken.present[:, self.inside]
