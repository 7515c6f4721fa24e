"""What people type: a query, `2:dog + ./pool.jpg - fruit`, and a condition on columns, `label = 'dog' and not certainty < 0.5`.

    condition   = term {"or" term}
    term        = factor {"and" factor}
    factor      = "not" factor | "(" condition ")" | comparison
    comparison  = column ("=" | "!=" | "<" | "<=" | ">" | ">=") value
                | column ["not"] "like" text          % stands for any letters, _ for one
                | column ["not"] "in" "(" value {"," value} ")"
                | column "is" ["not"] "null"
    value       = 'text' | number | true | false

Nothing of a condition reaches the database as it is: columns must be known, and texts are quoted again. Nothing is imported
here that computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calmrl._support.registry import lookup
from calmrl.errors import InputError

EMPTY = "the query is empty; give a text, a file of some modality, or an item (like)"
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


TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"""
    r"""|(?P<name>[^\W\d]\w*)|"(?P<quoted>[^"]+)"|(?P<sign><=|>=|!=|<>|[=<>(),]))"""
)
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
KEYWORDS = ("and", "or", "not", "like", "in", "is", "null", "true", "false")
LONGEST = 10_000  # characters
DEEPEST = 50  # parentheses


@dataclass(frozen=True)
class Column:
    """A column that may be asked about: its name in the table, and what it holds ("text", "texts", "number", "flag")."""

    sql: str
    holds: str


def where_sql(expression: str, columns: Mapping[str, Column]) -> str:
    """A condition as SQL over the table.

    Parameters
    ----------
    expression : str
        As above.
    columns : mapping of str to Column
        What may be asked about.
    """
    if not isinstance(expression, str) or len(expression) > LONGEST:
        raise InputError(f"where is a text of at most {LONGEST} characters, for instance \"label = 'dog'\"")
    parser = _Parser(_tokens(expression), columns, expression)
    sql = parser.condition()
    parser.end()
    return sql


def quote(text: str) -> str:
    """A text as an SQL literal."""
    if "\0" in text:
        raise InputError("a text with a NUL character cannot be searched for; remove it")
    return "'" + text.replace("'", "''") + "'"


def id_in(ids: Iterable[str]) -> str:
    """A condition of SQL: items with one of these ids."""
    return f"id IN ({', '.join(map(quote, ids))})"


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens, place = [], 0
    while expression[place:].strip():
        match = TOKEN.match(expression, place)
        if match is None:
            rest = expression[place:].strip()
            raise InputError(f"where: cannot read {rest[:30]!r}; texts stand in single quotes, as in label = 'dog'")
        kind = match.lastgroup or ""
        text = match[kind]
        if kind == "name" and text.lower() in KEYWORDS:
            kind, text = "keyword", text.lower()
        tokens.append(("name" if kind == "quoted" else kind, text))
        place = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], columns: Mapping[str, Column], expression: str) -> None:
        self.tokens, self.columns, self.expression = tokens, columns, expression
        self.place = self.depth = 0

    def condition(self) -> str:
        return self._chain("or", lambda: self._chain("and", self._factor))

    def end(self) -> None:
        if self.place < len(self.tokens):
            self._wrong("'and', 'or' or the end")

    def _chain(self, word: str, part: Any) -> str:
        parts = [part()]
        while self._take("keyword", word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else "(" + f" {word.upper()} ".join(parts) + ")"

    def _factor(self) -> str:
        self.depth += 1
        if self.depth > DEEPEST:
            raise InputError(f"where is nested deeper than {DEEPEST}; write it flatter")
        try:
            if self._take("keyword", "not"):
                return f"(NOT {self._factor()})"
            if self._take("sign", "("):
                inner = self.condition()
                self._need("sign", ")")
                return inner
            return self._comparison()
        finally:
            self.depth -= 1

    def _comparison(self) -> str:
        if self._next()[0] != "name":
            self._wrong(f"a column ({', '.join(self.columns)})")
        name = self._advance()
        column = lookup(self.columns, name, "column in where")
        if self._take("keyword", "is"):
            no = "NOT " if self._take("keyword", "not") else ""
            self._need("keyword", "null")
            return f"({column.sql} IS {no}NULL)"
        negated = self._take("keyword", "not")
        if self._take("keyword", "like"):
            return _negate(self._like(name, column), negated)
        if self._take("keyword", "in"):
            self._need("sign", "(")
            values = [self._value(name, column)]
            while self._take("sign", ","):
                values.append(self._value(name, column))
            self._need("sign", ")")
            return _negate("(" + " OR ".join(_equal(column, value) for value in values) + ")", negated)
        sign = "!=" if self._next()[1] == "<>" else self._next()[1]
        if negated or sign not in COMPARISONS:
            self._wrong("one of " + " ".join(COMPARISONS) + " like in is" if not negated else "like or in")
        self._advance()
        value = self._value(name, column)
        if sign in ("=", "!="):
            return _negate(_equal(column, value), sign == "!=")
        if column.holds in ("texts", "flag"):
            raise InputError(f"where: {name} has no order, so {sign} says nothing about it; use = or in")
        return f"({column.sql} {sign} {value})"

    def _like(self, name: str, column: Column) -> str:
        if column.holds not in ("text", "texts"):
            raise InputError(f"where: {name} is no text; like goes with texts")
        kind, text = self._next()
        if kind != "text":
            self._wrong("a text in single quotes")
        self._advance()
        target = f"array_to_string({column.sql}, ', ')" if column.holds == "texts" else column.sql
        return f"({target} LIKE {quote(text[1:-1].replace(chr(39) * 2, chr(39)))})"

    def _value(self, name: str, column: Column) -> str:
        """A value as SQL, after checking that it is what the column holds."""
        kind, text = self._next()
        if column.holds in ("text", "texts") and kind == "text":
            sql = quote(text[1:-1].replace("''", "'"))
        elif column.holds == "number" and kind == "number":
            if not math.isfinite(float(text)):
                raise InputError(f"where: {text} is too large a number")
            sql = repr(float(text))
        elif column.holds == "flag" and text in ("true", "false"):
            sql = text
        else:
            wants = {"number": "a number", "flag": "true or false"}.get(column.holds, "a text in single quotes")
            self._wrong(f"{wants}, which {name} holds")
        self._advance()
        return sql

    def _next(self) -> tuple[str, str]:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "the end")

    def _advance(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1][1]

    def _take(self, kind: str, text: str) -> bool:
        hit = self._next() == (kind, text)
        self.place += hit
        return hit

    def _need(self, kind: str, text: str) -> None:
        if not self._take(kind, text):
            self._wrong(repr(text))

    def _wrong(self, wanted: str) -> None:
        raise InputError(f"where: expected {wanted}, got {self._next()[1]!r} in {self.expression[:200]!r}")


def _equal(column: Column, value: str) -> str:
    """An unknown value equals nothing, and a list equals each of its texts."""
    if column.holds == "texts":
        return f"coalesce(array_has({column.sql}, {value}), false)"
    return f"coalesce({column.sql} = {value}, false)"


def _negate(sql: str, negated: bool) -> str:
    return f"(NOT {sql})" if negated else sql
