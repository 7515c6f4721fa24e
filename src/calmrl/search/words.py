"""Names and words: what items are called and what is written about them, compared with a query letter by letter.

Vectors find what is meant; this finds what is typed. Words are split at case, dashes, underscores and digits, so that
`PolarBear_02` is found by "polar bear". Nothing is stored for it: the table of items is scanned for rows that contain a word of
the query, and these are ranked by BM25, words of the name twice. So it sees every commit, obeys conditions, and works in
indexes of earlier versions.

`fused` joins both by their ranks: 1 / (C + rank by vectors) + share^2 / (C + rank by words), where share is how much of the
query an item has, each word weighed by how rare it is. Items that are called, or that say, exactly what was typed come first.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from calmrl.search.syntax import quote

NAME, WORDS, FILE, VECTORS = "name", "words", "file", "vectors"  # what finds a hit
EACH = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # letters that are words: kana, Chinese characters, Hangul
TOKEN = re.compile(rf"[{EACH}]|[^\W\d_{EACH}]+|\d+")
ASCII_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # the same words, much faster
LETTER = re.compile(rf"[^\W\d_{EACH}]")
HASH = re.compile(r"[0-9A-Za-z]*(?:[0-9][A-Za-z]+[0-9]|[A-Za-z][0-9]+[A-Za-z])[0-9A-Za-z]*")
SAYS_NOTHING = frozenset({
    *("img", "image", "images", "dsc", "dscn", "dscf", "dcim", "pxl", "mvi", "vid", "video", "mov", "gopr", "photo", "photos"),
    *("picture", "pictures", "pic", "pics", "foto", "scan", "screenshot", "screen", "shot", "clip", "file", "files", "copy"),
    *("untitled", "unnamed", "unknown", "track", "audio", "recording", "rec", "sound", "voice", "item", "whatsapp", "data"),
})  # words in names that cameras, phones and programs give  # fmt: skip
ARTICLES = frozenset({"a", "an", "the"})  # of a query say nothing about what is asked for
LONG = 3  # letters of a word that says something
READ = 10_000  # letters of a text
COLUMNS = {"id": "id", "text": f"left(text, {READ})", "label": "label", "paths": "paths"}
MOST = 2000  # rows that are ranked
ASKED = 16  # words of a query that are looked for
ENOUGH = 0.5  # of a query that an item must have, each word weighed by how rare it is
C = 60  # of reciprocal rank fusion, the value of its authors
K1, B = 1.2, 0.75  # of BM25

Read = Callable[[str, int], list[Mapping[str, Any]]]


def tokens(text: str) -> list[str]:
    """Words and numbers in small letters; case, digits and all that is no letter separate them.

    Examples
    --------
    >>> tokens("PolarBear_02-dark")
    ['polar', 'bear', '02', 'dark']
    """
    if text.isascii():
        return [token.lower() for token in ASCII_TOKEN.findall(text)]
    text = unicodedata.normalize("NFC", text)
    text = "".join(
        f" {letter}" if letter.isupper() and (before.islower() or (before.isupper() and after.islower())) else letter
        for before, letter, after in zip(f" {text}", text, f"{text[1:]} ", strict=False)
    )
    return [text[slice(*match.span())].casefold() for match in TOKEN.finditer(_with_marks_as_letters(text))]


def _with_marks_as_letters(text: str) -> str:
    """Vowel signs and accents after a letter, as in Hindi, are parts of its word, which regular expressions do not know."""
    shape: list[str] = []
    for letter in text:
        of_word = bool(shape) and LETTER.match(shape[-1]) and unicodedata.category(letter).startswith("M")
        shape.append("a" if of_word else letter)
    return "".join(shape)


def name_words(id: str) -> str | None:
    """What the name of a file and of its folder say, as a text; None where that is nothing, as in `IMG_0123`.

    Examples
    --------
    >>> name_words("dogs/GoldenRetriever_02"), name_words("dogs/IMG_0123")
    ('golden retriever, dogs', None)
    """
    stem, folder = (_telling(part) for part in (PurePosixPath(id).name, PurePosixPath(id).parent.name))
    return None if not stem else ", ".join(part for part in (stem, folder) if part)


def _telling(name: str) -> str:
    words = [word for word in tokens(HASH.sub(" ", name)) if not word.isdigit()]
    if not any(word not in SAYS_NOTHING and (len(word) >= LONG or re.match(f"[{EACH}]", word)) for word in words):
        return ""
    return " ".join(word for word in words if word not in SAYS_NOTHING)


@dataclass(frozen=True)
class Match:
    """An item that has half of the words of the query, or more."""

    id: str
    score: float
    share: float  # of the query, 0 to 1
    exact: bool  # it is called, or says, exactly that
    parts: tuple[str, ...]  # NAME, WORDS


def matches(text: str, read: Read, count: Callable[[str | None], int], without: Sequence[str] = ()) -> list[Match]:
    """Items with words of a text, the best first.

    Parameters
    ----------
    text : str
        What was typed.
    read : function
        (SQL condition, how many at most) -> rows with COLUMNS, name -> SQL.
    count : function
        SQL condition -> how many items fulfil it; None for all.
    without : sequence of str
        Items that have all words of one of these texts are left out.
    """
    wanted = _asked_words(text)
    keys = {"".join(map(_plain, tokens(text))), "".join(wanted)}
    looked_for = sorted(dict.fromkeys(wanted), key=len, reverse=True)[:ASKED]
    if not looked_for:
        return []
    (rows, numbers), items = _candidates(text, looked_for, read, count), count(None)
    documents = [_Document.of(row) for row in rows]
    holding = numbers or Counter(token for one in documents for token in {*one.name, *one.said})
    rare = {t: math.log1p((max(items, holding[t]) - holding[t] + 0.5) / (holding[t] + 0.5)) for t in looked_for}
    mean = sum(one.length for one in documents) / max(1, len(documents))
    unwanted = [words for text in without if (words := {*_asked_words(text)})]
    kept = [one for one in documents if not any(words <= {*one.name, *one.said} for words in unwanted)]
    found = [match for one in kept if (match := _match(one, keys, rare, mean)) is not None]
    return sorted(found, key=lambda match: (-match.exact, -match.score, match.id))


def _asked_words(text: str) -> list[str]:
    """The words of a query without articles, unless there is nothing else: "a dog" is about a dog."""
    words = [_plain(token) for token in tokens(text)]
    return [word for word in words if word not in ARTICLES] or words


def _match(one: _Document, keys: set[str], rare: Mapping[str, float], mean: float) -> Match | None:
    score = 0.0
    for token, weight in rare.items():
        often = 2 * one.name[token] + one.said[token]
        score += weight * often * (K1 + 1) / (often + K1 * (1 - B + B * one.length / max(mean, 1.0)))
    called, says = not keys.isdisjoint(one.called), not keys.isdisjoint(one.lines)
    if not (score or called or says):
        return None
    share = sum(rare[t] for t in rare if one.name[t] or one.said[t]) / max(sum(rare.values()), 1e-12)
    if share < ENOUGH and not (called or says):
        return None
    in_name, in_text = (any(words[t] for t in rare) for words in (one.name, one.said))
    parts = (NAME,) * (in_name or called) + (WORDS,) * (in_text or says)
    return Match(one.id, score, 1.0 if called or says else share, called or says, parts)


def _candidates(
    text: str, wanted: Sequence[str], read: Read, count: Callable[[str | None], int]
) -> tuple[list[Mapping[str, Any]], dict[str, int]]:
    """(rows that contain one of the words, {}); where these are too many, (those with one of the rarest, how many have each).

    Where even the rarest is in too many: rows with all words. And what is called or says just that, where these are too many as
    well, since it would be chance which of them are read.
    """
    rows = read(" OR ".join(map(_contains, wanted)), MOST)
    if len(rows) < MOST:
        return rows, {}
    numbers = {word: count(_contains(word)) for word in wanted}
    rarest = sorted(numbers, key=lambda word: numbers[word])
    chosen = [word for n, word in enumerate(rarest) if sum(numbers[w] for w in rarest[: n + 1]) < MOST]
    typed = text.strip().lower()
    alike = f"lower(id) = {quote(typed)} OR lower(text) = {quote(typed)} OR ends_with(lower(id), {quote(f'/{typed}')})"
    some = read(" OR ".join(map(_contains, chosen)) if chosen else " AND ".join(map(_contains, wanted)), MOST)
    rows = [*read(alike, MOST), *(some if len(some) < MOST else [])]
    return list({row["id"]: row for row in rows}.values()), numbers


def _contains(word: str) -> str:
    """A row has the word, in any way to write it in small letters; paths are JSON, which writes all but ASCII as numbers."""
    spelled = dict.fromkeys([word, word.replace("ss", "ß"), re.sub("σ$", "ς", word)])  # which small letters keep apart
    forms = dict.fromkeys(unicodedata.normalize(form, one) for one in spelled for form in ("NFC", "NFD"))
    tests = [f"contains(lower({column}), {quote(form)})" for form in forms for column in ("id", "text", "label")]
    cases = dict.fromkeys(case for form in forms for case in (form, form.capitalize(), form.upper()))
    numbers = dict.fromkeys(json.dumps(case)[1:-1].lower() for case in cases)
    tests += [f"contains(lower(paths), {quote(number)})" for number in numbers]
    return f"({' OR '.join(tests)})"


@dataclass(frozen=True)
class _Document:
    """The words of an item."""

    id: str
    name: Counter[str]
    said: Counter[str]
    called: frozenset[str]  # its names, without what separates their words
    lines: frozenset[str]  # its texts, likewise
    length: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Document:
        files = [PurePosixPath(path) for path in json.loads(row["paths"]).values()]
        own = PurePosixPath(row["id"])
        stems = dict.fromkeys([str(own), own.name, *(str(file.with_suffix("")) for file in files)])
        stems |= dict.fromkeys(part for file in files for part in (file.stem, file.name, str(file)))
        lines = (row["text"] or "").splitlines()
        name = Counter({_plain(token) for stem in [str(own), *(file.stem for file in files)] for token in tokens(stem)})
        said = Counter(_plain(token) for line in [*lines, row["label"] or ""] for token in tokens(line))
        length = sum(name.values()) + sum(said.values())
        return cls(row["id"], name, said, _keys(stems), _keys(lines), length)


def _keys(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(None, ("".join(map(_plain, tokens(text))) for text in texts)))


def _plain(token: str) -> str:
    """dogs -> dog"""
    return token[:-1] if len(token) > LONG and token.endswith("s") and not token.endswith("ss") else token


def joined(*ranks: Iterable[str]) -> list[str]:
    """Ids by the sum of 1 / (C + rank) over several ranks.

    Examples
    --------
    >>> joined(["a", "b", "c"], ["c", "a", "b"])
    ['a', 'c', 'b']
    """
    score: dict[str, float] = {}
    for ids in ranks:
        for rank, id in enumerate(ids, start=1):
            score[id] = score.get(id, 0.0) + 1 / (C + rank)
    return sorted(score, key=lambda id: -score[id])


def fused(nearest: Sequence[str], found: Sequence[Match]) -> list[str]:
    """Ids by both ranks; those that match exactly come first. `nearest` holds all ids that have a place, by vectors."""
    by_words = {match.id: (rank, match) for rank, match in enumerate(found, start=1)}
    by_vectors = {id: rank for rank, id in enumerate(nearest, start=1)}

    def score(id: str) -> tuple[bool, float]:
        value = 1 / (C + by_vectors[id]) if id in by_vectors else 0.0
        if id not in by_words:
            return False, value
        rank, match = by_words[id]
        return match.exact, value + match.share**2 / (C + rank)

    return sorted(dict.fromkeys([*nearest, *by_words]), key=score, reverse=True)
