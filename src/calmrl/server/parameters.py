"""What a client asks for, checked: each mistake is a sentence with status 400."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from calmrl._support.registry import lookup
from calmrl.errors import InputError
from calmrl.search.query import parse_query
from calmrl.server.limits import Limits

SEARCH = ("text", "like", "k", "having", "lacking", "label", "where", "hubs")
BROWSE = ("offset", "limit", "having", "lacking", "label", "where")
REPEATED = ("having", "lacking")
LARGEST = 10**9


@dataclass(frozen=True)
class Asked:
    """The parameters of a search or of a page of items; what was not given is None."""

    text: str | None = None
    like: str | None = None
    k: int = 24
    offset: int = 0
    limit: int = 60
    having: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    label: str | None = None
    where: str | None = None
    hubs: bool = False

    def filters(self) -> dict[str, Any]:
        """`having`, `lacking` and `where` of the collection; a label is a condition like others."""
        where = self.where
        if self.label is not None:
            of_label = "label = '{}'".format(self.label.replace("'", "''"))
            where = of_label if where is None else f"{of_label} and ({_balanced(where)})"
        return {"having": list(self.having) or None, "lacking": list(self.lacking) or None, "where": where}


def _balanced(condition: str) -> str:
    """A condition that closes only parentheses of its own, so that it cannot leave those around it."""
    depth, quote = 0, ""
    for letter in condition:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
    if depth or quote:
        raise InputError("where has a parenthesis or a quote that is not closed, or one too many; balance them")
    return condition


def from_query(query: bytes, names: tuple[str, ...], limits: Limits) -> Asked:
    """The parameters of an address."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100, separator="&"
        )
    except ValueError as error:
        raise InputError(f"the address cannot be read ({error}); encode its parameters as UTF-8") from None
    return from_pairs(pairs, names, limits)


def from_pairs(pairs: Iterable[tuple[str, str]], names: tuple[str, ...], limits: Limits) -> Asked:
    """The parameters of an address or of a form."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        lookup(dict.fromkeys(names), name[:80], "parameter")
        checked_text(name, text, limits)
        if name in REPEATED:
            values[name] = (*values.get(name, ()), *(part.strip() for part in text.split(",") if part.strip()))
        elif name in values:
            raise InputError(f"{name} is given twice; give it once")
        elif text.strip():
            values[name] = _read(name, text, limits)
    return Asked(**values)


def weighted_words(text: str, limits: Limits) -> list[tuple[float, str]]:
    """`2:dog - fruit` as (weight, words) pairs, as on the command line; a term is never a path here."""
    pairs = parse_query(text)
    if len(pairs) > limits.terms:
        raise InputError(f"the query has {len(pairs)} terms; at most {limits.terms} are allowed")
    return pairs


def checked_text(name: str, text: str, limits: Limits) -> str:
    """A text of bounded length without control characters."""
    if len(text) > limits.characters:
        raise InputError(f"{name} has {len(text)} characters; at most {limits.characters} are allowed")
    if any(ord(letter) < 32 and letter not in "\t\n\r" for letter in text) or any(
        0xD800 <= ord(letter) <= 0xDFFF for letter in text
    ):
        raise InputError(f"{name} contains control characters; send plain text")
    return text


def _read(name: str, text: str, limits: Limits) -> Any:
    if name in ("k", "limit"):
        return _whole(name, text, 1, limits.hits)
    if name == "offset":
        return _whole(name, text, 0, LARGEST)
    if name == "hubs":
        if text.lower() not in ("true", "false"):
            raise InputError(f"hubs must be true or false; got {text[:80]!r}")
        return text.lower() == "true"
    return text


def _whole(name: str, text: str, least: int, most: int) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 12 and least <= int(digits) <= most):
        raise InputError(f"{name} must be a whole number from {least} to {most}; got {text[:80]!r}")
    return int(digits)
