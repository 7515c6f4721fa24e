"""A query as it is typed: `2:dog + ./pool.jpg - fruit`. Nothing is imported here that computes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from calmrl.errors import InputError

WEIGHT = re.compile(r"(\d+(?:\.\d*)?|\.\d+):\s*(?=[^\s\d])")  # not 3:00
SIGN = re.compile(r"(?:^|(?<=\s))([+-])\s+")


def check_weight(weight: Any) -> float:
    """A finite number other than 0."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight == 0:
        raise InputError(f"a weight is a finite number other than 0; got {weight!r}")
    return float(weight)


def parse_query(text: str) -> list[tuple[float, str]]:
    """`2:dog + ./pool.jpg - "rock - paper"` as (weight, text or path) pairs.

    Terms are separated by + or - with spaces around; quotes keep a text as it is; a number and a colon in front is a weight.

    Examples
    --------
    >>> parse_query("2:dog + ./pool.jpg - fruit")
    [(2.0, 'dog'), (1.0, './pool.jpg'), (-1.0, 'fruit')]
    >>> parse_query("a well-known dog")
    [(1.0, 'a well-known dog')]
    """
    pairs = []
    for sign, part in _signed_parts(text):
        match = WEIGHT.match(part)
        weight, rest = (float(match[1]), part[match.end() :]) if match else (1.0, part)
        if len(rest) >= 2 and rest[0] == rest[-1] == '"':
            rest = rest[1:-1]
        if not rest.strip():
            raise InputError(f"the query {text!r} has an empty term; write it as in: 2:dog + ./pool.jpg - fruit")
        pairs.append((check_weight(sign * weight), rest))
    return pairs


def _signed_parts(text: str) -> list[tuple[int, str]]:
    """(sign, part) pairs; signs inside double quotes separate nothing."""
    hidden = re.sub(r'"[^"]*"', lambda match: "\0" * len(match[0]), text)
    cuts = list(SIGN.finditer(hidden))
    begins = [match.end() for match in cuts]
    ends = [match.start() for match in cuts] + [len(text)]
    parts = [(1, text[: ends[0]].strip())] if not cuts or text[: ends[0]].strip() else []
    for match, begin, end in zip(cuts, begins, ends[1:], strict=True):
        parts.append((-1 if match[1] == "-" else 1, text[begin:end].strip()))
    return parts


def is_path(text: str) -> bool:
    """Whether a term of the command line is a file: it begins with ./ ../ ~ or /, or names a file with a suffix."""
    path = Path(text).expanduser()
    try:
        exists = path.is_file()
    except (OSError, ValueError):
        return False
    if text.startswith(("./", "../", "/", "~/")):
        if not exists:
            raise InputError(f"there is no file {text}; put a text that looks like a path into double quotes")
        return True
    return exists and path.suffix != ""
