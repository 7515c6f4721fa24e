"""Expected quality in words."""

from __future__ import annotations

import pytest

from calmrl.server.served_index import expected_sentences

KINDS = {
    "image": {"kind": "image"},
    "drawing": {"kind": "image"},
    "text": {"kind": "text"},
    "speech": {"kind": "audio"},
}


def test_the_best_direction_comes_first_and_chance_is_named():
    numbers = {"R@10": 30.0, "low": 0.2, "high": 20.0, "n": 5000}
    rows = expected_sentences({"text->image": {"R@1": 7.1, **numbers}, "speech->text": {"R@1": 9.0, **numbers}}, KINDS)
    assert [row["direction"] for row in rows] == ["speech->text", "text->image"]
    assert rows[0]["sentence"] == (
        "A search by a sound should put the right text among 5,000 first in 9 of 100 searches (likely fewer than 1 to 20) "
        "and among the first ten in 30 of 100; guessing gives 0.02 % and 0.2 %."
    )
    assert (
        "A search by words should put the right picture" in rows[1]["sentence"]
    )  # as the page calls it, beside drawings
    (drawing,) = expected_sentences({"drawing->text": {"R@1": 7.1, **numbers}}, KINDS)
    assert "A search by drawing should put the right text" in drawing["sentence"]


def test_several_modalities_given_and_a_kind_without_a_noun():
    numbers = {"R@1": 0.5, "R@10": 0.9, "low": 0.0, "high": 0.49, "n": 8, "own": 2.0}
    kinds = {**KINDS, "depth": {"kind": "depth"}}
    row = expected_sentences({"text+speech->depth": numbers}, kinds)[0]
    assert row["sentence"] == (
        "A search by words and a sound should put a right depth among 8 first in 0 of 100 searches (likely 0 to fewer than 1) "
        "and among the first ten in 1 of 100; guessing gives 25 % and 100 %."
    )
    assert (row["from"], row["to"], row["n"]) == ("text+speech", "depth", 8)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        *(({"n": n}, f"guessing gives {text}.") for n, text in (
            (7, "14 % and 100 %"), (9, "11 % and 100 %"), (10, "10 % and 100 %"), (101, "1.0 % and 9.9 %"),
            (625, "0.2 % and 1.6 %"), (1064, "0.094 % and 0.9 %"),
        )),
        ({"n": 40, "own": 4.0}, "guessing gives 10 % and 70 %."),  # 1 - (30 * 29 * 28 * 27) / (40 * 39 * 38 * 37)
        ({"n": 10, "own": 0}, "guessing gives 0 % and 0 %."),
        ({"n": 250, "collections": 4}, "4.0 %. That is what was learned elsewhere reached on 4 other collections."),
    ],
)  # fmt: skip
def test_what_guessing_gives_and_where_it_was_learned(numbers, said):
    row = expected_sentences({"text->image": {"R@1": 50, "R@10": 100, "low": 1, "high": 99, **numbers}}, KINDS)[0]
    assert row["sentence"].endswith(said)
    assert ("a right picture" in row["sentence"]) == ("own" in numbers)
