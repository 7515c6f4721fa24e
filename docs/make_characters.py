"""Write the twenty examples of docs/results.md again: what queries of several modalities find among Chinese characters.

    python docs/make_characters.py

An aligner of the training rows of 2,000 characters, with settings that are not chosen, answers queries of test rows, evenly
spaced among those that have what is asked for: ten by Cantonese reading and glyph for the Mandarin reading, ten by all else for
the English definition.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from calmrl import Aligner
from calmrl.data import FeatureSet
from calmrl.datasets import load_dataset

PAGE = Path(__file__).with_name("results.md")
PLACE = re.compile(r"<!-- examples of characters -->\n.*?<!-- end of examples -->", re.S)
COUNT = 10
ASKED = {"mandarin": ("cantonese", "glyph"), "definition": None}  # target -> what asks; None: all else


def examples(aligner: Aligner, test: FeatureSet, target: str, asks: tuple[str, ...] | None) -> list[str]:
    """Lines of the table."""
    column = test.names.index(target)
    others = [name for name in test.names if name != target] if asks is None else list(asks)
    has = test.present[:, [test.names.index(name) for name in others]]
    there = np.flatnonzero(test.present[:, column] & (has.any(axis=1) if asks is None else has.all(axis=1)))
    gallery = np.flatnonzero(test.present[:, column])
    asking = there[np.linspace(0, len(there) - 1, COUNT).round().astype(int)]
    texts = test.text if target == "definition" else test.column(target)
    queries = {name: test.z[name][asking] for name in others}
    scores = np.asarray(aligner.similarity(queries, {target: test.z[target][gallery]}))
    lines = []
    for row, score in zip(asking, scores, strict=True):
        first = gallery[score.argmax()]
        rank = 1 + int((score > score[np.flatnonzero(gallery == row)[0]]).sum())
        right = (
            "yes" if first == row else "homophone" if texts[first] == texts[row] else f"no, {rank} of {len(gallery):,}"
        )
        used = ", ".join(name for name in others if test.present[row, test.names.index(name)])
        lines.append(f"| {test.ids[row]} | {used} | {texts[row]} | {test.ids[first]} {texts[first]} | {right} |")
    return lines


def main() -> None:
    data = load_dataset("characters", rows=2000, standardize=False)
    aligner = Aligner(candidates=1, refine="never", random_state=0).fit(data.select("train"))
    test = data.select("test")
    table = ["| query | asked with | wanted | found | right, or rank |", "|---|---|---|---|---|"]
    for target, asks in ASKED.items():
        table += examples(aligner, test, target, asks)
    text = "\n".join(["<!-- examples of characters -->", *table, "<!-- end of examples -->"])
    PAGE.write_text(PLACE.sub(lambda _: text, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
