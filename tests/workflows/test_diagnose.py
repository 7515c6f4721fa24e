"""The diagnosis: right verdicts with their numbers, honest tests on unseen rows, bounded memory, readable text."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from calmrl.anchors import anchor
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.writer import write_features
from calmrl.data.hiding import hide
from calmrl.data.patterns import connected, rows_together
from calmrl.datasets import load_dataset
from calmrl.datasets.world import world
from calmrl.errors import InputError
from calmrl.workflows import diagnose
from calmrl.workflows.diagnose import examine, predictable
from calmrl.workflows.diagnose.examine import (
    SAMPLE_ROWS,
    anchor_shifts,
    describe,
    meeting,
    pairs,
    punch,
    sample,
)
from calmrl.workflows.diagnose.predictable import (
    FOLDS,
    Direction,
    FoldedRows,
    deal,
    directions,
    fit_folds,
    recoverable,
    ridge,
    share,
)
from calmrl.workflows.diagnose.run import as_text, percent
from tests.reference import diagnose as slow

STRONG = {"n": 800, "noise": 0.3, "private": 0, "nonlinear": 0.0}
NOTHING = {"n": 800, "shared": 1, "private": 200}
ONE_IS_NOISE = {"n": 800, "noise": (0.3, 0.3, 20.0)}


# ---- verdicts


@pytest.mark.parametrize(
    ("options", "verdict", "low", "high"),
    [
        (STRONG, "likely to help", 0.8, 0.95),
        (NOTHING, "unlikely to help", -0.02, 0.01),
        (ONE_IS_NOISE, "likely to help", 0.2, 0.4),
    ],
    ids=["strong shared signal", "no shared signal", "one modality is noise"],
)
def test_worlds_get_the_right_verdict(tmp_path, calmrl, options, verdict, low, high):
    made = world(**options)
    write_features(tmp_path / "features", made.z, made.present)
    code, out, err = calmrl("diagnose", tmp_path / "features", "--out", tmp_path / "out")
    assert (code, out.strip()) == (0, str(tmp_path / "out" / "diagnosis.json"))
    found = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert found["verdict"] == verdict
    assert low <= found["rests_on"]["value"] <= high
    assert f"Imputing is {verdict}" in err
    assert f"{percent(found['rests_on']['value'])} of the variance of what is missing" in err
    said = {v["about"]: v["verdict"] for v in found["modality_verdicts"]}
    if options is ONE_IS_NOISE:
        assert said == {"image": "can be imputed", "text": "can be imputed", "audio": "cannot be imputed"}
        assert "audio has nothing in common with the others" in err
    page = (tmp_path / "out" / "report.html").read_text()
    assert found["words"][0].split(":")[0] in page


def test_stamps_cannot_but_partners_meet():
    """What is missing in stamps is nearly always the sound, and the other modalities hardly tell it."""
    data, names = load_dataset("stamps"), ("image", "text", "sound")
    present = data.present[:, [data.names.index(name) for name in names]]
    some = present.any(axis=1) & (
        present[:, 2] | (np.arange(len(data)) % 3 == 0)
    )  # all that sounds, a third of the others
    assert present[some].sum(axis=0).tolist() == [394, 392, 107]
    found = diagnose({name: data.z[name][some] for name in names}, present[some])
    said = found.as_dict()
    assert said["verdict"] == "unlikely to help"
    assert 0.03 < said["rests_on"]["value"] < 0.1
    assert abs(found.shift.reduction) < 0.1
    meet = {(p.first, p.second): p.meet for p in found.latent}
    assert meet["image", "text"] > 0.85
    assert any(
        sentence.startswith("sound and ") and "are related all the same" in sentence for sentence in said["words"]
    )


def test_modalities_that_never_meet_cannot_be_told():
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(200, 4)) for name in ("image", "text")}
    present = np.arange(200)[:, None] % 2 == np.arange(2)
    found = diagnose(z, present)
    assert found.as_dict()["verdict"] == "cannot tell"
    assert "no two modalities occur together" in as_text(found)


def test_a_modality_that_is_apart_is_left_out_and_named():
    made = world(n=400, widths={"image": 8, "text": 8, "audio": 8}, rate=0.0)
    present = np.ones((400, 3), dtype=bool)
    present[:200, 2], present[200:, :2] = False, False
    found = diagnose(made.truth.z, present)
    assert found.groups == [("image", "text"), ("audio",)]
    assert [(d.target, d.n) for d in found.directions] == [("image", 200), ("text", 200)]
    assert found.tested == 200
    assert "Too few rows have audio together with image and text" in " ".join(as_text(found).split())


# ---- numbers


def test_what_comes_back_is_what_the_truth_allows():
    made = world(n=1500, widths={"image": 24, "text": 24, "audio": 16}, shared=6, private=0, nonlinear=0.0, noise=0.8)
    best = 1 - made.truth.error(made.present)
    found = diagnose(made)
    assert best - 0.04 < found.back < best + 0.02


def test_missing_values_are_never_read():
    made = world(n=300, widths={"image": 6, "text": 5})
    other = {name: np.where(made.present[:, [j]], made.z[name], 1e6) for j, name in enumerate(made.z)}
    first, second = diagnose(made.z, made.present), diagnose(other, made.present)
    assert first.as_dict() == second.as_dict()


def test_the_same_seed_gives_the_same_and_another_seed_other_folds():
    made = world(n=300, widths={"image": 6, "text": 5})
    assert diagnose(made, seed=0).as_dict() == diagnose(made, seed=0).as_dict()
    assert diagnose(made, seed=0).directions != diagnose(made, seed=1).directions


def test_one_space_is_recognised():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(400, 8))
    z = {name: shared + 0.3 * rng.normal(size=shared.shape) + shift for name, shift in (("image", 0.0), ("text", 1.0))}
    found = diagnose(z, hide(np.ones((400, 2), dtype=bool), 0.2, rng))
    assert found.shared_space
    assert found.as_given[0].gap > 0.5
    rotated = {"image": z["image"], "text": z["text"] @ np.linalg.qr(rng.normal(size=(8, 8)))[0]}
    apart = diagnose(rotated, hide(np.ones((400, 2), dtype=bool), 0.2, rng))
    assert apart.as_given[0].meet < found.as_given[0].meet


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_shares_and_meetings_are_the_obvious_ones(n, d, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-2, 3, size=(2, n, d)).astype(float)
    if np.square(a).sum():
        assert share(a, b, np.zeros(d)) == pytest.approx(slow.explained(a, b, np.zeros(d)))
    assert meeting(a * n, b * n) == pytest.approx(slow.meeting(a * n, b * n), abs=0.5 / n)


def best_ridge(x, y, new, strength):
    alpha = strength * np.square(x - x.mean(axis=0)).sum() / len(x)
    return Ridge(alpha=alpha).fit(x, y).predict(new)


@pytest.mark.parametrize(("n", "d", "scale"), [(30, 5, 1.0), (12, 20, 1.0), (30, 5, 1e120)])
def test_ridge_is_ridge(n, d, scale, monkeypatch):
    rng = np.random.default_rng(0)
    x, y, new = rng.normal(size=(n, d)), rng.normal(size=(n, 3)), rng.normal(size=(7, d))
    monkeypatch.setattr(predictable, "STRENGTHS", (0.1,))
    assert np.allclose(ridge(scale * x, y, scale * new, rng), best_ridge(x, y, new, 0.1))


@pytest.mark.parametrize(("signal", "strength"), [(True, 1e-4), (False, 10.0)])
def test_rows_apart_choose_the_strength_of_ridge(signal, strength):
    rng = np.random.default_rng(0)
    x, noise, new = rng.normal(size=(60, 4)), rng.normal(size=(60, 2)), rng.normal(size=(7, 4))
    y = x @ rng.normal(size=(4, 2)) + 5.0 if signal else noise
    found = ridge(x, y, new, np.random.default_rng(1))
    np.testing.assert_allclose(found, best_ridge(x, y, new, strength), atol=1e-8)
    assert ridge(x[:2], y[:2], new, rng).shape == (7, 2)


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_punched_rows_lose_something_and_keep_something(k, seed):
    rng = np.random.default_rng(seed)
    has = hide(np.ones((40, k), dtype=bool), 0.2, rng)
    has = has[has.sum(axis=1) > 1]
    holes = [(pattern, int(rng.integers(1, 9))) for pattern in rng.random((3, k)) < 0.5]
    left = punch(has, holes, rng)
    assert not (left & ~has).any()
    assert left.any(axis=1).all()
    assert (left != has).any(axis=1).all()


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_linked_groups_are_the_obvious_ones(k, least, seed):
    present = np.random.default_rng(seed).random((20, k)) < 0.4
    found = connected(rows_together(present), least)
    assert {frozenset(group) for group in found} == slow.groups(present, least)
    assert [len(group) for group in found] == sorted(map(len, found), reverse=True)


def test_every_pattern_is_in_every_fold():
    present = hide(np.ones((100, 3), dtype=bool), 0.3, np.random.default_rng(0))
    rows = deal({"a": np.zeros((100, 1))}, present, 0)
    for pattern in np.unique(present, axis=0):
        counts = np.bincount(rows.fold[(present == pattern).all(axis=1)], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1


class Known:
    """An imputer that is right about everything or nothing, and counts how it was fitted."""

    def __init__(self, right: bool) -> None:
        self.right, self.log = right, []

    def fit(self, z, present):
        self.log.append(f"fit {len(present)}")
        return self

    def refit(self, z, present):
        self.log.append(f"refit {len(present)}")
        return self

    def transform(self, z, seen):
        return z if self.right else {name: np.zeros_like(values) for name, values in z.items()}


RIGHT, WRONG = [Known(True)] * FOLDS, [Known(False)] * FOLDS


def folded(n: int, k: int = 3) -> FoldedRows:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(n, 2))
    z = {name: (shared + 0.1 * rng.normal(size=(n, 2))).astype(np.float32) for name in "abc"[:k]}
    return FoldedRows(z, np.ones((n, k), dtype=bool), np.arange(n) % FOLDS)


def test_the_first_fold_chooses_and_the_others_follow():
    rows = folded(31)
    models = fit_folds(rows, [rows.z] * FOLDS, Known(True), lambda *step: None, "looking")
    assert models[0].log == ["fit 20", "refit 21", "refit 21"]  # the copies share the list of the first
    assert models[1] is not models[0]


BY_ALL_THEN_BY_EACH = ["a bc", "a b", "a c", "b ac", "b a", "b c", "c ab", "c a", "c b"]


@pytest.mark.parametrize(
    ("n", "k", "asked", "tied"),
    [(30, 3, BY_ALL_THEN_BY_EACH, ["ab", "ac", "bc"]), (30, 2, ["a b", "b a"], ["ab"]), (29, 3, [], [])],
)
def test_ten_rows_per_fold_are_enough(n, k, asked, tied):
    rows = folded(n, k)
    found = directions(rows, WRONG, 0, lambda *step: None)
    assert [f"{d.target} {''.join(d.sources)}" for d in found] == asked
    assert all(d.n == 30 and d.ridge > 0.9 and d.explained < 0.1 for d in found)
    assert [(p.first + p.second, p.n) for p in pairs(rows, [rows.z] * FOLDS)] == [(pair, 30) for pair in tied]


CONSTANT = np.full((40, 1), 1e-3, dtype=np.float32)
MIDDLE = CONSTANT.mean(axis=0) + np.float32(1.2e-10)  # differs by rounding


@pytest.mark.parametrize(
    ("truth", "guess", "middle", "expected"),
    [
        (np.zeros((2, 1)), np.zeros((2, 1)), np.zeros(1), 1.0),
        (CONSTANT, CONSTANT, MIDDLE, 1.0),
        (CONSTANT, CONSTANT * np.float32(1.0000002), MIDDLE, 1.0),
        (CONSTANT, CONSTANT * 2, MIDDLE, 0.0),
        (np.float32([[1.0], [1.001]]), np.float32([[1.0], [1.0]]), np.float32([1.0005]), -1.0),
    ],
)
def test_rows_that_differ_by_rounding_are_explained_or_not(truth, guess, middle, expected):
    assert share(truth, guess, middle) == pytest.approx(expected, rel=1e-3)


NO_C, ONLY_A = (np.array([True, True, False]), 3), (np.array([True, False, False]), 5)
FROM_ALL = [Direction("c", ("a", "b"), 0.4, 0.0, 0.0, 9), Direction("b", ("a",), 0.9, 0.0, 0.0, 9)]


@pytest.mark.parametrize(
    ("n", "measured", "expected"),
    [
        (60, FROM_ALL, {"b": (1.0, 5), "c": (1.0, 8)}),
        (29, FROM_ALL, {"c": (pytest.approx(0.4), 8)}),  # too few rows: what was measured from all others stands
        (29, [], {}),
    ],
)
def test_missing_blocks_are_weighted_by_their_number(n, measured, expected):
    assert recoverable(folded(n), RIGHT, [NO_C, ONLY_A], measured) == expected


TIED = {"abc": 60, "ac": 30, "a": 15, "c": 10, "": 5}
C_APART = {"ab": 60, "ac": 20, "a": 25, "c": 10, "": 5}  # 30 rows tie two modalities together


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [(TIED, 16, {"a": 10, "b": 55, "c": 15}), (TIED, 1, {"b": 30}), (C_APART, 1, {"b": 45})],
)
def test_holes_are_the_patterns_of_what_is_examined(counts, most, expected, monkeypatch):
    """The most frequent first; patterns that differ in a modality that is left out are one."""
    patterns = [pattern for pattern, count in counts.items() for _ in range(count)]
    present = np.array([[name in pattern for name in "abc"] for pattern in patterns])
    monkeypatch.setattr(examine, "MOST_PATTERNS", most)
    found = diagnose(folded(len(present)).z, present)
    assert {name: blocks for name, (_, blocks) in found.recoverable.items()} == expected


def unit(rows: FoldedRows) -> dict:
    return {name: values / np.linalg.norm(values, axis=1, keepdims=True) for name, values in rows.z.items()}


def test_how_far_anchors_move():
    rows = folded(60)
    z = unit(rows)
    found = anchor_shifts(rows, [z] * FOLDS, RIGHT, [NO_C], 0)
    before, mean = [], []
    for fold in range(FOLDS):
        here = rows.fold == fold
        part = {name: values[here] for name, values in z.items()}
        whole = anchor(part)
        left = np.tile(NO_C[0], (len(whole), 1))
        before.append(np.linalg.norm(whole - anchor(part, left), axis=1).mean())
        middle = np.tile(z["c"][~here].mean(axis=0), (len(whole), 1))
        mean.append(np.linalg.norm(whole - anchor(part | {"c": middle}), axis=1).mean())
    assert (found.before, found.mean) == (pytest.approx(np.mean(before)), pytest.approx(np.mean(mean)))
    assert found.before_spread == pytest.approx(np.std(before, ddof=1), rel=1e-4)
    assert (found.after, found.after_spread) == (pytest.approx(0.0, abs=1e-5), pytest.approx(0.0, abs=1e-5))
    assert found.nearer == 1.0


@pytest.mark.parametrize(
    ("n", "lacking", "tested"), [(60, 0, (60, True)), (60, 3, (60, False)), (6, 0, (6, False)), (5, 0, None)]
)
def test_which_rows_move_anchors(n, lacking, tested):
    """Complete ones if there are 60, else all that have two modalities; two per fold are the least."""
    rows = folded(n)
    rows.present[:lacking, 2] = False
    found = anchor_shifts(rows, [unit(rows)] * FOLDS, RIGHT, [NO_C], 0)
    assert (None if found is None else (found.n, found.complete)) == tested


def test_holes_are_laid_by_their_frequency():
    left = punch(np.ones((400, 3), dtype=bool), [NO_C, ONLY_A], np.random.default_rng(0))
    kinds, counts = np.unique(left, axis=0, return_counts=True)
    assert kinds.tolist() == [ONLY_A[0].tolist(), NO_C[0].tolist()]
    assert 220 < counts[0] < 280  # five of eight
    assert (punch(np.ones((9, 3), dtype=bool), [], np.random.default_rng(0)).sum(axis=1) == 2).all()


# ---- rows


def test_counts_are_over_all_rows_and_the_sample_says_its_size():
    n = SAMPLE_ROWS + 3000
    rng = np.random.default_rng(0)
    present = np.ones((n, 2), dtype=bool)
    present[: n - 400, 1] = False
    present[-1] = False
    features = FeatureSet({"image": rng.normal(size=(n, 3)), "text": rng.normal(size=(n, 2))}, present)
    z, seen = sample(features, 0)
    assert len(seen) == SAMPLE_ROWS
    assert seen.all(axis=1).sum() == 399
    assert not z["text"][~seen[:, 1]].any()
    found = diagnose(features)
    assert [m.rows for m in found.modalities] == [n - 1, 399]
    text = " ".join(as_text(found).split())
    assert f"Tested on {SAMPLE_ROWS:,} of {n:,} rows" in text
    assert "1 row has no modality at all" in text


def test_zeros_and_constant_columns_are_named():
    rng = np.random.default_rng(0)
    z = {"image": rng.normal(size=(120, 3)), "text": rng.normal(size=(120, 2))}
    z["image"][:7] = 0.0
    z["text"][:, 1] = 4.0
    assert [(m.zeros, m.constant) for m in describe(FeatureSet(z))] == [(7, 0), (0, 1)]
    text = " ".join(as_text(diagnose(z)).split())
    assert "image is zero throughout in 7 rows" in text
    assert "1 of the 2 columns of text never vary" in text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.inf, "text has a value in row 31 that is not finite"),
        (1e30, r"text has a value of size 1e\+30 in row 31; a diagnosis works in single precision"),
    ],
)
def test_a_value_that_cannot_be_used_is_an_error(value, reason):
    z = {"image": np.ones((40, 3)), "text": np.ones((40, 2))}
    z["text"][31, 1] = value
    with pytest.raises(InputError, match=reason):
        diagnose(z, np.ones((40, 2), dtype=bool))


def test_counts_do_not_depend_on_the_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(40, 3)).astype(np.float32) for name in ("a", "b")}
    z["b"][20:] = np.nan
    monkeypatch.setattr(examine, "CHUNK_BYTES", 12 * 7)  # seven rows at a time
    a, b = describe(FeatureSet(z))
    assert ((a.rows, a.missing), (b.rows, b.missing)) == ((40, 0.0), (20, 0.5))
    norms = [np.linalg.norm(rows, axis=1).mean() for rows in (z["a"], z["b"][:20])]
    assert [a.norm, b.norm] == pytest.approx(norms, rel=1e-6)


@pytest.mark.parametrize(
    ("most", "most_bytes", "rows", "both"),
    [
        (5000, 1 << 27, 990, 100),
        (150, 1 << 27, 150, 75),
        (400, 1 << 27, 400, 100),
        (400, 16 * 120, 120, 60),
        (400, 1, 100, 50),
    ],
)
def test_a_sample_prefers_rows_with_several_modalities(most, most_bytes, rows, both, monkeypatch):
    """Of 1,000 rows, 100 have both modalities and 10 have none; 100 rows are taken whatever their size."""
    z = {name: np.ones((1000, 2), np.float32) for name in ("a", "b")}
    z["b"][100:] = z["a"][990:] = np.nan
    monkeypatch.setattr(examine, "SAMPLE_ROWS", most)
    monkeypatch.setattr(examine, "SAMPLE_BYTES", most_bytes)
    _, present = sample(FeatureSet(z), 0)
    assert (len(present), present.all(axis=1).sum()) == (rows, both)


def test_text_fits_80_columns_with_long_names_and_many_modalities():
    widths = {f"a rather long name of a modality, number {number}": 4 for number in range(6)}
    text = as_text(diagnose(world(n=80, widths=widths, shared=2, rate=0.1)))
    assert max(map(len, text.splitlines())) <= 80


MEMORY = """
import resource, sys, torch, calmrl.cli, matplotlib.figure, sklearn.linear_model
from calmrl.workflows.diagnose import examine
from calmrl.data.features.feature_set import open_features
from calmrl.workflows import diagnose
examine.SAMPLE_ROWS = 500  # what is fitted is not the question here
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = diagnose(open_features(sys.argv[1]))
print(found.rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_memory_stays_that_of_chunks(tmp_path):
    n, width = 400_000, 64  # 205 MB of files
    rng = np.random.default_rng(0)
    np.save(tmp_path / "present.npy", hide(np.ones((n, 2), dtype=bool), 0.2, rng))
    for name in ("image", "text"):
        array = np.lib.format.open_memmap(tmp_path / f"{name}.npy", mode="w+", dtype=np.float32, shape=(n, width))
        for start in range(0, n, 50_000):
            array[start : start + 50_000] = rng.standard_normal((50_000, width), dtype=np.float32)
    run = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True)
    rows, megabytes = run.stdout.split()
    assert int(rows) == n
    assert float(megabytes) < 100


def test_progress_is_reported_inside_the_long_parts():
    """Every candidate of the first fold, every fold, every direction."""
    reported = []
    made = world(n=200, widths={"a": 6, "b": 5, "c": 4}, seed=0)
    diagnose(made, progress=lambda *step: reported.append(step))
    texts = [text for _, _, text in reported]
    assert "predicting each modality from the others, fold 3 of 3" in texts
    tried = [step for step in reported if step[2].startswith("predicting") and "trying" in step[2]]
    assert len(tried) > 2
    assert [(done, total) for done, total, _ in tried] == [(c, len(tried) + 1) for c in range(len(tried))]
    steps = [(done, total) for done, total, text in reported if text == "measuring every direction"]
    assert steps == [(step, 9) for step in range(9)]
