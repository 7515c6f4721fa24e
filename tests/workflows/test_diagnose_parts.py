"""The diagnosis from its numbers on: verdicts at their limits, sentences, tables and pages, word for word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calmrl.anchors import anchor
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.patterns import ModalityPattern
from calmrl.errors import InputError
from calmrl.workflows.diagnose import examine as row_sample
from calmrl.workflows.diagnose.examine import (
    Diagnosis,
    Modality,
    Pair,
    Shift,
    _holes,
    anchor_shifts,
    describe,
    linked,
    pairs,
    pick,
    punch,
    sample,
)
from calmrl.workflows.diagnose.predictable import (
    Direction,
    FoldedRows,
    _asked,
    _fits,
    directions,
    fit_folds,
    recoverable,
    ridge,
    share,
)
from calmrl.workflows.diagnose.run import as_page
from calmrl.workflows.diagnose.sentences import by_modality, gain_words, overall, percent, remarks, sentences

ALL, PART = ("a", "b", "c"), ("a", "b")


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
        "patterns": [
            ModalityPattern(ALL, 590, 0.59),
            ModalityPattern(PART, 400, 0.4),
            ModalityPattern((), 10, 0.01),
        ],
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


# ---- numbers


def test_numbers_of_a_diagnosis():
    found = diagnosis()
    assert found.missing == pytest.approx((0.01 + 0.01 + 0.41) / 3)
    assert found.incomplete == pytest.approx(0.41)
    assert found.back == 0.25
    assert found.gain == pytest.approx(0.25 * 0.43 / 3)
    assert found.anchor_gain == pytest.approx(0.41 * 0.1)
    assert diagnosis(shift=None).anchor_gain == 0.0
    assert diagnosis(recoverable={}).back == 0.0
    assert diagnosis(recoverable={"a": (0.5, 100), "c": (0.2, 300)}).back == pytest.approx(0.275)
    assert diagnosis(recoverable={"c": (-0.5, 400)}).gain == 0.0
    assert found.whole("c").explained == 0.25
    assert found.whole("nosuch") is None
    assert [m.name for m in diagnosis(groups=[PART, ("c",)]).examined] == ["a", "b"]
    assert not found.shared_space
    assert diagnosis().shift.reduction == pytest.approx(0.25)
    assert Shift(0.0, 0, 0.3, 0, 0, 0, 1, True).reduction == 0.0
    assert direction("c", ("a",), 0.2).nmse == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.2, "0.0 %"), (0.001, "0.1 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (0.5, "50 %"), (1.0, "100 %")],
)
def test_percent(value, text):
    assert percent(value) == text


# ---- verdicts


@pytest.mark.parametrize(
    ("back", "verdict", "begins"),
    [
        (0.2, "likely to help", "is likely to help: 20 %"),
        (0.199, "may help a little", "may help a little: 20 %"),
        (0.1, "may help a little", "may help a little: 10 %"),
        (0.099, "unlikely to help", "is unlikely to help: only 9.9 %"),
        (0.0005, "unlikely to help", "is unlikely to help: only 0.1 %"),
        (0.0004, "unlikely to help", "is unlikely to help: 0.0 %"),
    ],
)
def test_verdicts_at_their_limits(back, verdict, begins):
    found = overall(diagnosis(recoverable={"c": (back, 400)}))
    sentence = f"Imputing {begins} of the variance of what is missing can be predicted from what is there."
    assert (found.about, found.verdict, found.number, found.sentence) == ("all", verdict, back, sentence)


def test_what_cannot_be_imputed_is_an_exception_where_the_rest_can():
    found = diagnosis(recoverable={"a": (0.9, 10), "c": (0.05, 10)})
    assert overall(found).sentence.endswith(
        "48 % of the variance of what is missing can be predicted from what is there, except c (5.0 %)."
    )
    poor = diagnosis(recoverable={"a": (0.09, 10), "c": (0.05, 10)})
    assert "except" not in overall(poor).sentence


def test_nothing_to_say():
    complete = diagnosis(patterns=[ModalityPattern(ALL, 1000, 1.0)])
    verdict = overall(complete)
    assert verdict.sentence == "Nothing is missing: all 1,000 rows have all 3 modalities; there is nothing to impute."
    assert (verdict.verdict, verdict.number) == ("nothing missing", 0.0)
    apart = overall(diagnosis(directions=[]))
    assert (
        apart.sentence == "Whether imputing helps cannot be measured: no two modalities occur together in enough rows."
    )
    assert (apart.verdict, apart.number) == ("cannot tell", 0.0)
    one = overall(diagnosis(directions=[], modalities=[modality("a", 590)]))
    assert one.sentence == "There is only one modality, so there is nothing to predict it from."


def test_a_verdict_for_each_modality_that_rows_lack():
    first, _, third = by_modality(diagnosis())
    assert (
        first.sentence
        == "a is missing in 1.0 % of the rows (10); too few rows have it together with others to learn from."
    )
    assert (first.verdict, first.number) == ("cannot tell", 0.0)
    assert third.sentence == (
        "c is missing in 41 % of the rows (410) and can be imputed: 25 % of its variance is explained, tested on 1,234 "
        "hidden blocks; the best single source is b (22 %)."
    )
    assert (third.about, third.verdict, third.number) == ("c", "can be imputed", 0.25)
    assert [v.about for v in by_modality(diagnosis(modalities=[modality("a", 1000), modality("c", 999)]))] == ["c"]
    little = by_modality(diagnosis(recoverable={"c": (0.1, 400)}))[2]
    assert (little.verdict, "best single source" in little.sentence) == ("can be imputed roughly", True)
    hardly = by_modality(diagnosis(recoverable={"c": (0.09, 400)}))[2]
    assert (hardly.verdict, "best single source" in hardly.sentence) == ("cannot be imputed", False)
    untested = by_modality(diagnosis(directions=[direction("c", ("a",), 0.2)]))[2]
    assert untested.sentence.endswith("25 % of its variance is explained; the best single source is a (20 %).")


# ---- sentences


def test_the_expected_gain():
    assert gain_words(diagnosis()) == [
        "Expected gain: 14.3 % of the blocks are missing, and imputing explains 25 % of their variance: 3.6 % of the "
        "variance of complete data.",
        "Anchors of 1,590 complete rows that lose modalities as they are missing in the data move by 0.40 on average, and "
        "by 0.30 after imputing: 25 % less.",
    ]
    assert gain_words(diagnosis(directions=[], shift=None)) == []
    whole = diagnosis(patterns=[ModalityPattern(ALL, 1000, 1.0)], shift=Shift(0.4, 0, 0.399, 0, 0, 0, 5, False))
    assert gain_words(whole) == [
        "Anchors of 5 rows with two modalities or more that lose one modality move by 0.40 on average, and by 0.40 after "
        "imputing: no less."
    ]
    barely = diagnosis(shift=Shift(1.0, 0, 0.995, 0, 0, 0, 5, True))
    assert gain_words(barely)[1].endswith("0.5 % less.")


def test_remarks_word_for_word():
    assert remarks(diagnosis()) == [
        "10 rows have no modality at all; they count as missing everything and are not tested.",
        "The features differ in width (a 4, b 4, c 1500), which leaves the gap undefined. In the latent model's space, "
        "where the anchors above were measured, the largest gap is 0.30 (a and c).",
    ]
    spoiled = diagnosis(
        modalities=[modality("a", 990, zeros=1200), modality("b", 0, constant=4), modality("c", 590, 1500, constant=3)],
        groups=[PART, ("c", "d")],
        directions=[],
        latent=[],
        patterns=[],
    )
    assert remarks(spoiled) == [
        "a is zero throughout in 1,200 rows that count as observed; if zeros stand for missing, mark these rows as missing "
        "and diagnose again.",
        "3 of the 1,500 columns of c never vary.",
        "Too few rows have c and d together with a and b: neither can be learned from the other, and they are left out "
        "below.",
    ]
    assert sentences(diagnosis())[0] == overall(diagnosis()).sentence
    assert len(sentences(diagnosis())) == 1 + 2 + 3 + 2


@pytest.mark.parametrize(
    ("ridge", "explained", "said"), [(0.31, 0.25, True), (0.30, 0.25, False), (0.06, -0.5, True), (0.05, -0.5, False)]
)
def test_ridge_regression_is_worth_a_word(ridge, explained, said):
    found = diagnosis(
        directions=[direction("c", ("a", "b"), explained, ridge), direction("c", ("a",), 0.0, 0.9)], latent=[]
    )
    words = [sentence for sentence in remarks(found) if sentence.startswith("Ridge")]
    assert len(words) == said
    if said:
        assert words[0] == (
            f"Ridge regression predicts c better than the chosen imputer ({percent(ridge)} against {percent(explained)}): "
            "compare calmrl impute with imputer.method=ridge."
        )


def poor(*meets: float) -> Diagnosis:
    """Nothing can be imputed; pairs a-b, a-c, b-c meet so often."""
    names = (("a", "b"), ("a", "c"), ("b", "c"))
    return diagnosis(
        directions=[direction(name, tuple(n for n in ALL if n != name), 0.05) for name in ALL],
        latent=[Pair(*pair, 0.1, meet, 0.0, 9) for pair, meet in zip(names, meets, strict=True)],
        patterns=[],
    )


def test_partners_that_meet_although_they_cannot_be_imputed():
    found = remarks(poor(0.9, 0.6, 0.59))
    assert found[0] == (
        "a and b are related all the same: a row's own pair is more alike than a mixed one in 90 % of comparisons (50 % is "
        "chance), so searching one by the other can work where imputing does not."
    )
    assert [sentence.split(" are related")[0] for sentence in found[:3]] == ["a and b", "b and a", "c and a"]
    found = remarks(poor(0.9, 0.5, 0.59))
    assert found[2] == (
        "c has nothing in common with the others: a row's own pair is more alike than a mixed one in at best 59 % of "
        "comparisons (b and c; 50 % is chance)."
    )
    assert remarks(poor(0.5, 0.51, 0.52))[0] == (
        "a, b and c have nothing in common with one another: a row's own pair is more alike than a mixed one in at best "
        "52 % of comparisons (b and c; 50 % is chance)."
    )
    good = poor(0.9, 0.6, 0.59)
    explained = [direction(d.target, d.sources, 0.1) for d in good.directions]
    assert len(remarks(replace(good, directions=explained))) == 1


def test_one_space():
    given = [Pair("a", "b", 0.4, 0.9, 0.0, 9), Pair("a", "c", 0.7, 0.9, 0.0, 9)]
    assert remarks(diagnosis(as_given=given, shared_space=True))[-1] == (
        "The features are in one space already; the largest modality gap is 0.70 (a and c; 0 is none, 2 the most)."
    )
    assert remarks(diagnosis(as_given=given))[-1].startswith(
        "The features have the same width but are not in one space: own pairs are hardly more alike than mixed ones. In the"
    )


# ---- text


def test_the_text_line_by_line():
    text = diagnosis(as_given=[Pair("a", "b", 0.456, 0.9, 0.0, 9)]).as_text()
    head, *_ = text.split("\n\n")
    assert head == "1,000 rows, 3 modalities, 14.3 % of blocks missing"
    assert "\n".join(line.rstrip() for line in text.splitlines()).endswith(remarks_block(text))
    for block in (
        "patterns   rows   share\na + b + c   590  59.0 %\na + b       400  40.0 %\nnothing      10   1.0 %",
        "modality  width  missing  explained by all others  ridge      n\n"
        "a             4    1.0 %             50.0 ± 1.0 %  0.0 %  1,234\n"
        "b             4    1.0 %             50.0 ± 1.0 %  0.0 %  1,234\n"
        "c          1500   41.0 %             25.0 ± 1.0 %  0.0 %  1,234\n"
        "explained: share of the variance of hidden blocks that is predicted, ± standard\n"
        "deviation over 3 folds; n: hidden blocks. Tested on 990 of 1,000 rows",
        "explained (%) by       a       b  c\na                      -       -  -\n"
        "b                      -       -  -\nc                 20 ± 1  22 ± 1  -",
        "pair         gap  gap, latent space  own pair nearer    n\n"
        "a - b       0.46               0.10         90 ± 2 %  990\n"
        "a - c  undefined               0.30         80 ± 2 %  590\n"
        "b - c  undefined               0.20         70 ± 2 %  590",
    ):
        assert block in text, block


def remarks_block(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n\n")[-1].splitlines())


def test_what_a_text_leaves_out():
    many = [ModalityPattern(("a",), 100 - i, (100 - i) / 1000) for i in range(10)]
    text = diagnosis(patterns=many, latent=[], directions=[], shift=None).as_text()
    assert "2 rarer patterns   183  18.3 %" in text
    assert text.count("\na  ") >= 8
    assert "explained: share" not in text
    assert "pair" not in text.split("modality")[1].split("- ")[0]
    assert "rarer" not in diagnosis(patterns=many[:8]).as_text()
    two = diagnosis(groups=[PART], modalities=[modality("a", 990), modality("b", 990)])
    assert "explained (%) by" not in two.as_text()
    single = diagnosis(modalities=[modality("a", 500)], directions=[], groups=[("a",)], latent=[], shift=None)
    assert single.as_text().startswith("1,000 rows, 1 modality, 50.0 % of blocks missing\n\n")
    names = [f"m{i}" for i in range(6)]
    wide = diagnosis(
        modalities=[modality(name, 990) for name in names],
        groups=[tuple(names)],
        directions=[direction("m0", ("m5",), 0.5)],
        latent=[Pair("m0", f"m{i}", 0.1, 0.5, 0.0, 9) for i in range(1, 6)] * 3,
    ).as_text()
    assert "explained (%) by  m0  m1  m2  m3  m4\n" in wide
    assert "explained (%) by      m5\nm0                50 ± 1\n" in wide
    assert wide.count("m0 - m") == 10


# ---- page


def test_a_page_has_the_sections_that_there_are_numbers_for():
    full = as_page(diagnosis(), "calmrl diagnose x")
    assert full.title == "Diagnosis of toy"
    assert [section.title for section in full.sections] == [
        "What is missing",
        "What can be predicted",
        "Anchors",
        "One space",
        "How this was measured",
    ]
    short = as_page(diagnosis(directions=[], shift=None, latent=[], name=""), "c")
    assert short.title == "Diagnosis of features"
    assert [section.title for section in short.sections] == ["What is missing", "How this was measured"]
    none = as_page(diagnosis(modalities=[modality("a", 1000)], patterns=[], directions=[], latent=[], shift=None), "c")
    assert all(not hasattr(block, "lines") for block in none.first)


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
    tables = {section.title: section.blocks[-1] for section in page.sections}
    assert numbers(tables["What is missing"].lines[2]) == [
        "c", ("1,500", 1500), ("590", 590), ("41.0 %", pytest.approx(0.41)), ("0", 0), ("2.50", 2.5),
    ]  # fmt: skip
    predicted = [numbers(line) for line in tables["What can be predicted"].lines]
    assert predicted[2] == ["c ← all others", ("25.0 ± 1.0 %", 0.25), ("0.750", 0.75), ("0.0 %", 0.0), ("1,234", 1234)]
    assert predicted[3][0] == "c ← a"
    space = [numbers(line) for line in tables["One space"].lines]
    assert space[0] == [
        "a – b",
        ("0.456", 0.456),
        ("90.0 ± 3.0 %", 0.9),
        ("0.100", 0.1),
        ("90.0 ± 2.0 %", 0.9),
        ("990", 990),
    ]
    assert space[1][1:3] == ["undefined (widths differ)", "–"]


# ---- measuring


def test_patterns_of_holes_over_some_modalities():
    every = [
        ModalityPattern(ALL, 50, 0.5),
        ModalityPattern(("a", "c"), 20, 0.2),
        ModalityPattern(("a",), 15, 0.15),
        ModalityPattern(("c",), 10, 0.1),
        ModalityPattern((), 5, 0.05),
    ]
    found = [(has.tolist(), rows) for has, rows in _holes(every, ("a", "b"))]
    assert found == [([True, False], 35)]
    assert [rows for _, rows in _holes(every, ALL)] == [20, 15, 10]


def features(n: int = 40, seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    z = {name: rng.normal(size=(n, 3)).astype(np.float32) for name in ("a", "b")}
    z["a"][:, 2] = 7.0
    z["a"][3] = 0.0
    z["b"][n // 2 :] = np.nan
    return FeatureSet(z)


def test_counts_of_a_modality(monkeypatch):
    data = features()
    monkeypatch.setattr(row_sample, "CHUNK_BYTES", 12 * 7)  # seven rows at a time
    a, b = describe(data)
    assert (a.name, a.width, a.rows, a.missing, a.zeros, a.constant) == ("a", 3, 40, 0.0, 1, 0)
    assert a.norm == pytest.approx(np.linalg.norm(data.z["a"], axis=1).mean(), rel=1e-6)
    assert (b.rows, b.missing, b.zeros) == (20, 0.5, 0)
    assert b.norm == pytest.approx(np.linalg.norm(data.z["b"][:20], axis=1).mean(), rel=1e-6)
    data.z["a"][3, 2] = 7.0
    assert describe(data)[0].constant == 1


def test_values_that_a_diagnosis_cannot_use_are_named_with_their_row():
    for value, said in (
        (np.inf, "a has a value in row 9 that is not finite"),
        (1e30, "a has a value of size 1e[+]30 in row 9"),
    ):
        data = features()
        data.z["a"][9, 1] = value
        with pytest.raises(InputError, match=said):
            describe(data)


def test_a_sample_prefers_rows_with_several_modalities(monkeypatch):
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(1000, 2)).astype(np.float32) for name in ("a", "b")}
    z["b"][100:990] = np.nan
    z["a"][990:] = z["b"][990:] = np.nan  # nothing at all
    data = FeatureSet(z)
    assert len(sample(data, 0)[1]) == 990  # all, if they are few
    monkeypatch.setattr(row_sample, "SAMPLE_ROWS", 150)
    found, present = sample(data, 0)
    assert (len(present), int(present.all(1).sum())) == (150, 75)
    assert (found["b"][~present[:, 1]] == 0).all()
    monkeypatch.setattr(row_sample, "SAMPLE_ROWS", 400)
    assert (lambda p: (len(p), int(p.all(1).sum())))(sample(data, 0)[1]) == (400, 100)
    monkeypatch.setattr(row_sample, "SAMPLE_BYTES", 4 * 4 * 120)
    assert len(sample(data, 0)[1]) == 120
    monkeypatch.setattr(row_sample, "SAMPLE_BYTES", 1)
    assert len(sample(data, 0)[1]) == 100  # at least


def test_groups_that_rows_tie_together():
    present = np.zeros((6, 4), dtype=bool)
    present[:3, :2] = True
    present[3:5, 1:3] = True
    present[5, 2:] = True
    assert linked(present, 3) == [[0, 1], [2], [3]]
    assert linked(present, 2) == [[0, 1, 2], [3]]
    z, has = pick({name: np.arange(6.0)[:, None] for name in "abcd"}, present, [0, 3])
    assert (list(z), len(has), z["a"][:, 0].tolist()) == (["a", "d"], 4, [0.0, 1.0, 2.0, 5.0])


class Mean:
    """An imputer that knows nothing; it counts how it was fitted."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def fit(self, z, present):
        self.log.append(f"fit {len(present)}")
        return self

    def refit(self, z, present):
        self.log.append(f"refit {len(present)}")
        return self

    def transform(self, z, seen):
        return {name: np.zeros_like(values) for name, values in z.items()}


def folded(n: int, present=None) -> FoldedRows:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(n, 2))
    z = {name: (shared + 0.1 * rng.normal(size=(n, 2))).astype(np.float32) for name in ALL}
    return FoldedRows(z, np.ones((n, 3), dtype=bool) if present is None else present, np.arange(n) % 3)


def test_the_first_fold_chooses_and_the_others_follow():
    heard = []
    rows = folded(31)
    models = fit_folds(rows, [rows.z] * 3, Mean(), lambda *what: heard.append(what), "looking")
    assert models[0].log == ["fit 20", "refit 21", "refit 21"]  # the copies share the list of the first
    assert models[1] is not models[0]
    assert heard == [(0, 0, f"looking, fold {fold} of 3") for fold in (1, 2, 3)]


def test_every_direction_is_asked():
    assert list(_asked(2)) == [(0, [1]), (1, [0])]
    assert list(_asked(3))[:3] == [(0, [1, 2]), (0, [1]), (0, [2])]


@pytest.mark.parametrize(("n", "there"), [(30, True), (29, False)])
def test_ten_rows_per_fold_are_enough(n, there):
    heard = []
    rows = folded(n)
    found = directions(rows, [Mean()] * 3, 0, lambda *what: heard.append(what))
    assert [(d.target, d.sources) for d in found] == (
        [(rows.names[m], tuple(rows.names[j] for j in sources)) for m, sources in _asked(3)] if there else []
    )
    assert heard[0] == (0, 9, "measuring every direction")
    assert len(heard) == 9
    for d in found:
        assert d.n == 30
        assert d.ridge > 0.9
        assert d.explained < 0.1
    by_hand = pairs(rows, [rows.z] * 3)
    assert [(p.first, p.second, p.n) for p in by_hand] == (
        [("a", "b", 30), ("a", "c", 30), ("b", "c", 30)] if there else []
    )


def test_the_explained_share():
    truth = np.array([[1.0], [3.0]])
    assert share(truth, truth, np.zeros(1)) == 1.0
    assert share(truth, np.array([[1.0], [1.0]]), np.zeros(1)) == pytest.approx(1 - 4 / 10)
    assert share(np.zeros((2, 1)), np.zeros((2, 1)), np.zeros(1)) == 1.0
    constant = np.full((40, 1), 1e-3, dtype=np.float32)
    middle = constant.mean(axis=0) + np.float32(1.2e-10)  # the sum of single precision is not exact
    assert 0 < np.square(constant - middle).sum() < 1e-17
    assert share(constant, constant, middle) == 1.0
    assert share(constant, constant * np.float32(1.0000002), middle) == 1.0
    assert share(constant, constant * 2, middle) == 0.0
    assert share(np.float32([[1.0], [1.001]]), np.float32([[1.0], [1.0]]), np.float32([1.0005])) == pytest.approx(
        -1, rel=1e-3
    )


def test_missing_blocks_are_weighted_by_their_number():
    rows = folded(60)
    measured = [direction("c", ("a", "b"), 0.4), direction("b", ("a",), 0.9)]
    holes = [(np.array([True, True, False]), 3), (np.array([True, False, False]), 5)]

    class Perfect(Mean):
        def transform(self, z, seen):
            return z

    found = recoverable(rows, [Perfect()] * 3, holes, measured)
    assert found == {"b": (1.0, 5), "c": (1.0, 8)}
    few = folded(29)
    assert recoverable(few, [Perfect()] * 3, holes, measured) == {"c": (pytest.approx(0.4), 8)}
    assert recoverable(few, [Perfect()] * 3, holes, []) == {}


def test_anchors_of_rows_that_lose_something():
    rows = folded(60)
    unit = {name: values / np.linalg.norm(values, axis=1, keepdims=True) for name, values in rows.z.items()}
    holes = [(np.array([True, True, False]), 1)]

    class Perfect(Mean):
        def transform(self, z, seen):
            return z

    found = anchor_shifts(rows, [unit] * 3, [Perfect()] * 3, holes, 0)
    assert (found.n, found.complete, found.nearer) == (60, True, 1.0)
    left = np.tile([[True, True, False]], (60, 1))
    before, mean = [], []
    for fold in range(3):
        here = rows.fold == fold
        z = {name: values[here] for name, values in unit.items()}
        whole = anchor(z)
        before.append(np.linalg.norm(whole - anchor(z, left[here]), axis=1).mean())
        middle = np.tile(unit["c"][~here].mean(axis=0), (int(here.sum()), 1))
        mean.append(np.linalg.norm(whole - anchor(z | {"c": middle}), axis=1).mean())
    assert (found.before, found.mean) == (pytest.approx(np.mean(before)), pytest.approx(np.mean(mean)))
    assert found.before_spread == pytest.approx(np.std(before, ddof=1), rel=1e-4)
    assert (found.after, found.after_spread) == (pytest.approx(0.0, abs=1e-5), pytest.approx(0.0, abs=1e-5))
    present = rows.present.copy()
    present[:3, 2] = False
    fewer = FoldedRows(rows.z, present, rows.fold)
    found = anchor_shifts(fewer, [unit] * 3, [Perfect()] * 3, holes, 0)
    assert (found.n, found.complete) == (60, False)  # 57 complete rows are not enough
    five = {name: values[:5] for name, values in unit.items()}
    assert anchor_shifts(folded(5), [five] * 3, [Perfect()] * 3, holes, 0) is None
    assert anchor_shifts(folded(6), [{k: v[:6] for k, v in unit.items()}] * 3, [Perfect()] * 3, [], 0).n == 6


def test_holes_are_laid_by_their_frequency():
    has = np.ones((400, 3), dtype=bool)
    holes = [(np.array([True, True, False]), 3), (np.array([True, False, False]), 1)]
    left = punch(has, holes, np.random.default_rng(0))
    kinds = {tuple(row): int((left == row).all(1).sum()) for row in np.unique(left, axis=0)}
    assert set(kinds) == {(True, True, False), (True, False, False)}
    assert 260 < kinds[True, True, False] < 340
    assert (punch(has, [], np.random.default_rng(0)).sum(1) == 2).all()
    lacking = np.tile([[False, True, True]], (50, 1))  # the first pattern leaves b, the second nothing
    left = punch(lacking, holes, np.random.default_rng(0))
    assert (left.sum(1) == 1).all()


def test_ridge_takes_the_strength_that_rows_apart_choose(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = x @ rng.normal(size=(4, 2)) + 5.0
    new = rng.normal(size=(7, 4))
    np.testing.assert_allclose(ridge(x, y, new, np.random.default_rng(1)), _fits(x, y, new, (1e-4,))[0], atol=1e-8)
    noise = rng.normal(size=(60, 2))
    found = ridge(x, noise, new, np.random.default_rng(1))
    np.testing.assert_allclose(found, _fits(x, noise, new, (10.0,))[0], atol=1e-8)
    huge = _fits(1e120 * x, y, 1e120 * new, (1e-4,))[0]
    np.testing.assert_allclose(huge, _fits(x, y, new, (1e-4,))[0], rtol=1e-6)
    assert ridge(x[:2], y[:2], new, np.random.default_rng(1)).shape == (7, 2)
