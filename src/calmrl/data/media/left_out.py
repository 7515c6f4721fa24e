"""How much of a collection a run has to do without: files that are not there or cannot be read, and rows without any."""

from collections import Counter
from collections.abc import Iterable, Mapping

from calmrl.data.media.collection_problems import MediaProblem

LISTED, ITEMS = "listed", "items"
Counts = dict[
    str, int
]  # "listed" items, "items" that are left out, and by modality the items whose file cannot be used


def count_left_out(parts: Mapping[str, str], problems: Iterable[MediaProblem]) -> dict[str, Counts]:
    """Part of the split -> what is left out of it; empty if nothing is.

    Parameters
    ----------
    parts : mapping of str to str
        Id -> part ("" without one) of every item, before anything was taken out.
    problems : iterable of MediaProblem
        What was taken out.
    """
    counts = {part: Counter({LISTED: size}) for part, size in Counter(parts.values()).items()}
    lost = 0
    for problem in problems:
        if problem.scope not in ("row", "cell"):
            continue
        here = counts.setdefault(parts.get(problem.id, ""), Counter())
        here[ITEMS if problem.scope == "row" else problem.column] += 1
        here[LISTED] += problem.scope == "row" and problem.kind != "no modality at all"  # such a row became no item
        lost += 1
    return {part: dict(count) for part, count in counts.items()} if lost else {}


def counts_of_test(left_out: Mapping[str, Mapping[str, int]], *, whole: bool = False) -> Counts:
    """The counts of the test part; of all parts together if there is no test part or `whole`."""
    chosen = left_out.values() if whole or "test" not in left_out else [left_out["test"]]
    total: Counter[str] = Counter()
    for counts in chosen:
        total.update(counts)
    return {name: count for name, count in total.items() if count or name == LISTED}


def left_out_words(counts: Mapping[str, int]) -> str:
    """5 items, vision of 37, audio of 131 (of 1,000 listed items); empty if nothing is left out."""
    words = [f"{counts[ITEMS]:,} items"] if counts.get(ITEMS) else []
    words += [f"{name} of {count:,}" for name, count in counts.items() if name not in (LISTED, ITEMS) and count]
    return f"{', '.join(words)} (of {counts[LISTED]:,} listed items)" if words else ""
