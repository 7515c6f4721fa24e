"""Registries: a name -> an object. Values may be given as text and are imported on first use."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pkgutil import resolve_name
from typing import Any, TypeVar

from calmrl._support.signatures import Signature, signature_of
from calmrl.errors import InputError

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A dict whose values may be written as "package.module:Name".

    Such a value is imported when it is first used, so that listing a registry costs nothing. `about` and `signature`
    read the source of what is not imported.
    """

    def __init__(self, what: str, entries: Mapping[str, T | str]) -> None:
        self.what = what
        self._entries: dict[str, T | str] = dict(entries)

    def __getitem__(self, name: str) -> T:
        entry = lookup(self._entries, name, self.what)
        if isinstance(entry, str):
            entry = self._entries[name] = resolve_name(entry)
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        """`self[name]`, or `default` if there is no such name."""
        if name not in self:
            return default
        return self[name]

    def __setitem__(self, name: str, entry: T | str) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __repr__(self) -> str:
        return f"Registry({self.what}: {', '.join(self)})"

    def signature(self, name: str) -> Signature:
        """The parameters and the docstring of an entry, without importing it if it is still a text."""
        return signature_of(lookup(self._entries, name, self.what))

    def about(self, name: str) -> str:
        """The first line of an entry's docstring."""
        return self.signature(name).doc.partition("\n")[0]

    def name_of(self, entry: Any) -> str:
        """The name under which an object is registered, compared by module and name so that nothing is imported."""
        for name, value in self._entries.items():
            if value is entry or value == f"{entry.__module__}:{entry.__qualname__}":
                return name
        raise InputError(f"{entry!r} is no registered {self.what}. Known: {', '.join(self)}.")


def closest(name: str, names: Iterable[str]) -> str | None:
    """The name most like `name`, or None when nothing is close."""
    hits = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return hits[0] if hits else None


def lookup(registry: Mapping[str, T], name: str, what: str) -> T:
    """`registry[name]`, or an error that names what there is."""
    if name in registry:
        return registry[name]
    near = closest(name, registry)
    hint = f'; did you mean "{near}"?' if near else "."
    raise InputError(f'unknown {what} "{name}"{hint} Known: {", ".join(sorted(registry))}.')
