"""The expected quality of a search in ordinary words, beside what guessing would give."""

import math
from collections.abc import Mapping
from typing import Any

NOUNS = {"text": "words", "image": "a picture", "audio": "a sound"}
TARGETS = {"text": "text", "image": "picture", "audio": "sound"}


def expected_sentences(
    expected: Mapping[str, Mapping[str, float]], modalities: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One sentence per direction, the best first, with the numbers that it is made of.

    Parameters
    ----------
    expected : mapping
        Direction ("text->image") -> R@1, R@10, low and high (of R@1) in percent, and n, the items searched;
        "own", where several are right, is how many.
    modalities : mapping
        Name -> its kind, among others.
    """
    rows = [_row(direction, numbers, modalities) for direction, numbers in expected.items()]
    return sorted(rows, key=lambda row: -row["R@1"])


def _row(direction: str, numbers: Mapping[str, float], modalities: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    given, _, target = direction.partition("->")
    n = int(numbers["n"])
    chance = {f"chance R@{k}": _chance(k, numbers.get("own", 1), n) for k in (1, 10)}
    right = "a right" if "own" in numbers else "the right"
    sentence = (
        f"A search by {_called(given, modalities, NOUNS)} should put {right} {_called(target, modalities, TARGETS)} "
        f"among {n:,} first in {_of_100(numbers['R@1'])} searches (likely {_whole(numbers['low'])} to "
        f"{_whole(numbers['high'])}) and among the first ten in {_of_100(numbers['R@10'])}; "
        f"guessing gives {_percent(chance['chance R@1'])} and {_percent(chance['chance R@10'])}."
    )
    return {"direction": direction, "from": given, "to": target, "sentence": sentence, **numbers, **chance}


def _chance(k: int, own: float, n: int) -> float:
    """Percent of random orders with one of the `own` right items of n among the first k."""
    if own == 1:
        return min(100.0, 100 * k / n)
    missed = math.prod(max(0.0, (n - own - place) / (n - place)) for place in range(min(k, n)))
    return 100 * (1 - missed)


def _called(name: str, modalities: Mapping[str, Mapping[str, Any]], nouns: Mapping[str, str]) -> str:
    """The noun of a kind where one modality is of that kind, otherwise the name of the modality."""
    parts = name.split("+")
    if len(parts) > 1:
        return " and ".join(_called(part, modalities, nouns) for part in parts)
    kind = str(modalities.get(name, {}).get("kind"))
    alone = sum(one["kind"] == kind for one in modalities.values()) == 1
    return nouns[kind] if kind in nouns and alone else name


def _of_100(percent: float) -> str:
    return f"{_whole(percent)} of 100"


def _whole(percent: float) -> str:
    return "fewer than 1" if 0 < percent < 0.5 else f"{percent:.0f}"


def _percent(percent: float) -> str:
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"
