"""What a diagnosis says about its numbers: verdicts at their limits, sentences, tables and pages, word for word."""

from __future__ import annotations

import pytest

from calmrl.data.patterns import ModalityPattern
from calmrl.workflows.diagnose.examine import Diagnosis, Modality, Pair, Shift
from calmrl.workflows.diagnose.predictable import Direction
from calmrl.workflows.diagnose.run import as_page

ALL, PART = ("a", "b", "c"), ("a", "b")
WHOLE = [ModalityPattern(ALL, 1000, 1.0)]
RARE = [ModalityPattern(("a",), 100 - i, (100 - i) / 1000) for i in range(10)]
SIX = [f"m{i}" for i in range(6)]


def modality(name: str, rows: int, width: int = 4, zeros: int = 0, constant: int = 0) -> Modality:
    return Modality(name, width, rows, 1 - rows / 1000, zeros, constant, 2.5)


def direction(target: str, sources: tuple[str, ...], explained: float, ridge: float = 0.0) -> Direction:
    return Direction(target, sources, explained, 0.01, ridge, 1234)


def diagnosis(**changes) -> Diagnosis:
    """1,000 rows of which 400 lack c and 10 everything; c is explained by a quarter."""
    values = {
        "name": "toy",
        "rows": 1000,
        "sampled": 1000,
        "modalities": [modality("a", 990), modality("b", 990), modality("c", 590, width=1500)],
        "patterns": [ModalityPattern(ALL, 590, 0.59), ModalityPattern(PART, 400, 0.4), ModalityPattern((), 10, 0.01)],
        "groups": [ALL],
        "tested": 990,
        "directions": [
            direction("a", ("b", "c"), 0.5),
            direction("b", ("a", "c"), 0.5),
            direction("c", ("a", "b"), 0.25),
            direction("c", ("a",), 0.2),
            direction("c", ("b",), 0.22),
        ],
        "recoverable": {"c": (0.25, 400)},
        "latent": [
            Pair("a", "b", 0.1, 0.9, 0.02, 990),
            Pair("a", "c", 0.3, 0.8, 0.02, 590),
            Pair("b", "c", 0.2, 0.7, 0.02, 590),
        ],
        "shift": Shift(0.4, 0.01, 0.3, 0.02, 0.5, 0.75, 1590, True),
    }
    return Diagnosis(**(values | changes))


def related(*meets: float, explained: float = 0.05) -> dict:
    """Of all modalities so little is explained; the pairs a-b, a-c, b-c meet so often."""
    pairs = zip((("a", "b"), ("a", "c"), ("b", "c")), meets, strict=True)
    return {
        "directions": [direction(name, tuple(n for n in ALL if n != name), explained) for name in ALL],
        "latent": [Pair(*pair, 0.1, meet, 0.0, 9) for pair, meet in pairs],
        "patterns": [],
    }


def ridge(value: float, explained: float) -> dict:
    """The word is about c from all others; a single source does not count."""
    return {"directions": [direction("c", PART, explained, value), direction("c", ("a",), 0.0, 0.9)]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"missing": 0.43 / 3, "incomplete": 0.41, "back": 0.25, "gain": 0.25 * 0.43 / 3, "anchor_gain": 0.041}),
        ({"shift": None}, {"anchor_gain": 0.0}),
        ({"shift": Shift(0.0, 0, 0.3, 0, 0, 0, 1, True)}, {"anchor_gain": -0.123}),
        ({"recoverable": {}}, {"back": 0.0, "gain": 0.0}),
        ({"recoverable": {"a": (0.5, 100), "c": (0.2, 300)}}, {"back": 0.275}),  # weighted by blocks
        ({"recoverable": {"c": (-0.5, 400)}}, {"back": -0.5, "gain": 0.0}),
    ],
)
def test_numbers(changes, expected):
    found = diagnosis(**changes)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("recoverable", "verdict", "begins", "ends"),
    [
        ({"c": (1.0, 400)}, "likely to help", "is likely to help: 100 %", ""),
        ({"c": (0.2, 400)}, "likely to help", "is likely to help: 20 %", ""),
        ({"c": (0.199, 400)}, "may help a little", "may help a little: 20 %", ""),
        ({"c": (0.1, 400)}, "may help a little", "may help a little: 10 %", ""),
        ({"c": (0.0996, 400)}, "unlikely to help", "is unlikely to help: only 10 %", ""),
        ({"c": (0.0994, 400)}, "unlikely to help", "is unlikely to help: only 9.9 %", ""),
        ({"c": (0.0005, 400)}, "unlikely to help", "is unlikely to help: only 0.1 %", ""),
        ({"c": (0.0004, 400)}, "unlikely to help", "is unlikely to help: 0.0 %", ""),
        ({"a": (0.9, 10), "c": (0.05, 10)}, "likely to help", "is likely to help: 48 %", ", except c (5.0 %)"),
        ({"a": (0.09, 10), "c": (0.05, 10)}, "unlikely to help", "is unlikely to help: only 7.0 %", ""),
    ],
)
def test_verdicts_at_their_limits(recoverable, verdict, begins, ends):
    found = diagnosis(recoverable=recoverable)
    said = found.as_dict()
    sentence = f"Imputing {begins} of the variance of what is missing can be predicted from what is there{ends}."
    assert (said["verdict"], said["rests_on"]["value"], said["words"][0]) == (verdict, found.back, sentence)


NOTHING_MISSING = "Nothing is missing in 1,000 rows of 3 modalities; there is nothing to impute."
APART = "Whether imputing helps cannot be measured: no two modalities occur together in enough rows."
ALONE = "There is only one modality, so there is nothing to predict it from."


@pytest.mark.parametrize(
    ("changes", "verdict", "sentence"),
    [
        ({"patterns": WHOLE}, "nothing missing", NOTHING_MISSING),
        ({"directions": []}, "cannot tell", APART),
        ({"directions": [], "modalities": [modality("a", 590)]}, "cannot tell", ALONE),
    ],
)
def test_verdicts_without_a_number(changes, verdict, sentence):
    said = diagnosis(**changes).as_dict()
    assert (said["verdict"], said["rests_on"]["value"], said["words"][0]) == (verdict, 0.0, sentence)


TESTED = "of its variance is explained, tested on 1,234 hidden blocks"


@pytest.mark.parametrize(
    ("changes", "number", "verdict", "ends"),
    [
        ({}, 0.25, "can be imputed", f": 25 % {TESTED}; the best single source is b (22 %)."),
        (
            {"recoverable": {"c": (0.1, 9)}},
            0.1,
            "can be imputed roughly",
            f"{TESTED}; the best single source is b (22 %).",
        ),
        ({"recoverable": {"c": (0.09, 9)}}, 0.09, "cannot be imputed", f": 9.0 % {TESTED}."),
        ({"recoverable": {}}, 0.0, "cannot tell", "; too few rows have it together with others to learn from."),
        (
            {"directions": [direction("c", ("a",), 0.2)]},
            0.25,
            "can be imputed",
            "; the best single source is a (20 %).",
        ),
    ],
)
def test_a_verdict_for_each_modality_that_rows_lack(changes, number, verdict, ends):
    modalities = [modality("a", 1000), modality("b", 999), modality("c", 590)]
    said = diagnosis(modalities=modalities, **changes).as_dict()
    b, c = said["modality_verdicts"]
    assert (b["about"], c["about"], c["verdict"], c["number"]) == ("b", "c", verdict, number)
    assert c["sentence"].startswith("c is missing in 41 % of the rows (410)")
    assert c["sentence"].endswith(ends)
    assert c["sentence"] in said["words"]


GIVEN = [Pair("a", "b", 0.4, 0.9, 0.0, 9), Pair("a", "c", 0.7, 0.9, 0.0, 9)]
IS_ZERO = (
    "a is zero throughout in 1,200 rows that count as observed; if zeros stand for missing, mark these rows as missing"
)
TOO_FEW = (
    "Too few rows have c and d together with a and b: neither can be learned from the other, and they are left out"
)
RIDGE = "Ridge regression predicts c better than the chosen imputer"
RELATED = "are related all the same: a row's own pair is more alike than a mixed one in"
NOTHING_IN_COMMON = "nothing in common with the others: a row's own pair is more alike than a mixed one in at best"
ONE_SPACE = "The features are in one space already; the largest modality gap is 0.70 (a and c; 0 is none, 2 the most)."


@pytest.mark.parametrize(
    ("changes", "said", "unsaid"),
    [
        ({}, "14.3 % of the blocks are missing, and imputing explains 25 % of their variance: 3.6 %", IS_ZERO[:9]),
        ({"directions": []}, APART, "Expected gain"),
        ({"patterns": WHOLE}, "1,590 complete rows that lose one modality move", "Expected gain"),
        ({"shift": None}, "Expected gain", "Anchors"),
        ({}, "1,590 complete rows that lose modalities as they are missing in the data move by 0.40", "no less"),
        ({"shift": Shift(1.0, 0, 0.995, 0, 0, 0, 5, True)}, "after imputing: 0.5 % less.", "no less"),
        ({"shift": Shift(0.4, 0, 0.399, 0, 0, 0, 5, False)}, "by 0.40 after imputing: no less.", "complete rows"),
        ({"shift": Shift(0.0, 0, 0.3, 0, 0, 0, 5, True)}, "by 0.30 after imputing: no less.", "two modalities or more"),
        ({}, "10 rows have no modality at all; such rows lack everything and are not tested.", "Too few"),
        ({"patterns": WHOLE}, NOTHING_MISSING, "no modality at all"),
        ({"modalities": [modality("a", 990, zeros=1200)]}, f"{IS_ZERO} and diagnose again.", "never vary"),
        ({"modalities": [modality("c", 590, 1500, constant=3)]}, "3 of the 1,500 columns of c never vary.", "is zero"),
        ({"modalities": [modality("c", 0, 1500, constant=3)]}, "c is missing", "never vary"),
        ({"groups": [PART, ("c", "d")]}, f"{TOO_FEW} below.", "with c"),
        (
            ridge(0.31, 0.25),
            f"{RIDGE} (31 % against 25 %): compare calmrl impute with imputer.method=ridge.",
            "b better",
        ),
        (ridge(0.30, 0.25), "The features", "Ridge"),
        (ridge(0.06, -0.5), f"{RIDGE} (6.0 % against 0.0 %)", "a better"),
        (ridge(0.05, -0.5), "The features", "Ridge"),
        (
            related(0.9, 0.6, 0.59),
            f"a and b {RELATED} 90 % of comparisons (50 % is chance), so searching one by",
            "has",
        ),
        (related(0.9, 0.6, 0.59), f"c and a {RELATED} 60 % of comparisons", "nothing in common"),
        (
            related(0.9, 0.5, 0.59),
            f"c has {NOTHING_IN_COMMON} 59 % of comparisons (b and c; 50 % is chance).",
            "c and a",
        ),
        (related(0.5, 0.51, 0.52), "a, b and c have nothing in common with one another", "related"),
        (related(0.9, 0.6, 0.59, explained=0.1), "The features", "related"),
        ({}, "differ in width (a 4, b 4, c 1500), which leaves the gap undefined.", "same width"),
        ({"groups": [("b", "c"), ("a",)]}, "differ in width (b 4, c 1500), which", "a 4"),
        ({"latent": []}, "Anchors", "The features"),
        ({"as_given": GIVEN, "shared_space": True}, ONE_SPACE, "latent model"),
        ({"as_given": GIVEN}, "have the same width but are not in one space", "already"),
    ],
)
def test_what_is_said_and_what_is_not(changes, said, unsaid):
    words = "\n".join(diagnosis(**changes).as_dict()["words"])
    assert said in words
    assert unsaid not in words


def test_the_verdict_comes_first_and_remarks_last():
    words = diagnosis().as_dict()["words"]
    assert [word.split()[0] for word in words] == ["Imputing", "Expected", "Anchors", *ALL, "10", "The"]


# ---- text and page

ROWS_OF_SIX = {"modalities": [modality(name, 990) for name in SIX], "groups": [tuple(SIX)]}
PAIRS_OF_SIX = [Pair("m0", f"m{i}", 0.1, 0.5, 0.0, 9) for i in range(1, 6)] * 3


@pytest.mark.parametrize(
    ("changes", "there", "times"),
    [
        ({}, "a + b       400  40.0 %\nnothing      10   1.0 %", 1),
        ({}, "b                      -       -  -\nc                 20 ± 1  22 ± 1  -", 1),
        ({"as_given": GIVEN}, "a - c       0.70               0.30         80 ± 2 %  590\nb - c  undefined", 1),
        ({"patterns": RARE}, "2 rarer patterns   183  18.3 %", 1),
        ({"patterns": RARE[:8]}, "rarer", 0),
        ({"directions": []}, "explained: share", 0),
        ({"latent": []}, "own pair nearer", 0),
        ({"groups": [PART], "modalities": [modality("a", 990), modality("b", 990)]}, "explained (%) by", 0),
        (
            {"modalities": [modality("a", 500)], "groups": [("a",)]},
            "1,000 rows, 1 modality, 50.0 % of blocks missing",
            1,
        ),
        (ROWS_OF_SIX | {"directions": [direction("m0", ("m5",), 0.5)]}, "explained (%) by  m0  m1  m2  m3  m4\n", 1),
        (ROWS_OF_SIX | {"directions": [direction("m0", ("m5",), 0.5)]}, "  m5\nm0                50 ± 1\n", 1),
        (ROWS_OF_SIX | {"latent": PAIRS_OF_SIX}, "m0 - m", 10),
    ],
)
def test_tables_of_the_text(changes, there, times):
    assert diagnosis(**changes).as_text().count(there) == times


EVERY = ["What is missing", "What can be predicted", "Anchors", "One space", "How this was measured"]
COUNTS = {"directions": [], "shift": None, "latent": []}


@pytest.mark.parametrize(
    ("changes", "title", "sections", "verdicts"),
    [
        ({}, "Diagnosis of toy", EVERY, 1),
        (COUNTS | {"name": ""}, "Diagnosis of features", [EVERY[0], EVERY[-1]], 1),
        (COUNTS | {"modalities": [modality("a", 1000)], "patterns": []}, "Diagnosis of toy", [EVERY[0], EVERY[-1]], 0),
    ],
)
@pytest.mark.filterwarnings("ignore:constrained_layout")
def test_a_page_has_the_sections_that_there_are_numbers_for(changes, title, sections, verdicts):
    page = as_page(diagnosis(**changes), "calmrl diagnose x")
    assert (page.title, [section.title for section in page.sections]) == (title, sections)
    assert sum(hasattr(block, "lines") for block in page.first) == verdicts


def numbers(cells) -> list:
    return [(cell.text, cell.value) if hasattr(cell, "value") else cell for cell in cells]


def test_tables_of_a_page_hold_text_and_number():
    page = as_page(diagnosis(as_given=[Pair("a", "b", 0.456, 0.9, 0.03, 9)]), "c")
    (verdicts,) = [block for block in page.first if hasattr(block, "lines")]
    assert [numbers(line) for line in verdicts.lines] == [
        ["a", "cannot tell", "–", ("10", 10)],
        ["b", "cannot tell", "–", ("10", 10)],
        ["c", "can be imputed", ("25 %", 0.25), ("410", 410)],
    ]
    tables = {section.title: [numbers(line) for line in section.blocks[-1].lines] for section in page.sections
              if hasattr(section.blocks[-1], "lines")}  # fmt: skip
    share = pytest.approx(0.41)
    assert tables["What is missing"][2] == [
        "c", ("1,500", 1500), ("590", 590), ("41.0 %", share), ("0", 0), ("2.50", 2.5),
    ]  # fmt: skip
    assert tables["What can be predicted"][2:4] == [
        ["c ← all others", ("25.0 ± 1.0 %", 0.25), ("0.750", 0.75), ("0.0 %", 0.0), ("1,234", 1234)],
        ["c ← a", ("20.0 ± 1.0 %", 0.2), ("0.800", 0.8), ("0.0 %", 0.0), ("1,234", 1234)],
    ]
    nearer, n = [("90.0 ± 2.0 %", 0.9), ("80.0 ± 2.0 %", 0.8)], [("990", 990), ("590", 590)]
    assert tables["One space"][:2] == [
        ["a – b", ("0.456", 0.456), ("90.0 ± 3.0 %", 0.9), ("0.100", 0.1), nearer[0], n[0]],
        ["a – c", "undefined (widths differ)", "–", ("0.300", 0.3), nearer[1], n[1]],
    ]
