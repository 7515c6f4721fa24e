"""Registries are plain dicts; looking up an unknown name lists the keys and the closest match."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from calmrl.errors import InputError

T = TypeVar("T")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when nothing is close."""
    hits = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return hits[0] if hits else None


def lookup(registry: Mapping[str, T], name: str, what: str) -> T:
    """`registry[name]`, or an error that names what there is."""
    if name in registry:
        return registry[name]
    near = closest(name, registry)
    hint = f'; did you mean "{near}"?' if near else ""
    raise InputError(f'unknown {what} "{name}"{hint} Known: {", ".join(sorted(registry))}.')
