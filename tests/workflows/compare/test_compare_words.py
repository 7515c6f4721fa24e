"""What a comparison says: words, places and settings, from rows made by hand."""

from __future__ import annotations

import importlib

import numpy as np
import pyarrow as pa
import pytest

from calmrl.config import CompareConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.metrics.significance import PairedDifference
from calmrl.workflows.compare.collect import SettingTests, average, collect, describe, in_words
from calmrl.workflows.compare.jobs import JobResult
from calmrl.workflows.compare.plan import (
    Job,
    anchor_of,
    needs_anchor,
    open_rows,
    plan,
    repeats,
    training_config,
    trials_of,
)

PLACE = ("toy", "half")


def row(method, seed, value, metric="R@1", task="average", dataset="toy", setting="half"):
    names = ("dataset", "setting", "method", "seed", "value", "metric", "task")
    return dict(zip(names, (dataset, setting, method, seed, value, metric, task), strict=True))


ROWS = [row("aligner", 0, 50.0), row("aligner", 1, 54.0), row("gram", 0, 40.0), row("gram", 1, 41.0)]


def difference(gain, low, high, p):
    return PairedDifference(gain, low, high, p)


def test_values_by_method_and_seed():
    rows = [
        *ROWS,
        row("aligner", 0, 9.0, task="x"),
        row("aligner", 0, 9.0, "R@5"),
        row("aligner", 0, 9.0, setting="other"),
    ]
    assert average(rows, PLACE) == {"aligner": {0: 50.0, 1: 54.0}, "gram": {0: 40.0, 1: 41.0}}


def said(tests=None, rows=ROWS):
    return in_words({PLACE: "toy, half"}, rows, {"toy, half": tests}, ["aligner", "gram", "ideal"])


def test_the_best_mean_with_chance_and_the_ideal():
    rows = [
        row("aligner", 0, 50.0),
        row("ideal", 0, 80.0),
        row("gram x=1", 0, 99.0),
        row("aligner", 0, 2.0, "chance R@1"),
    ]
    assert said(rows=rows) == [
        "toy, half: aligner has the best mean: R@1 50.0 over all directions (by chance 2.0). With nothing missing, ideal "
        "reaches 80.0."
    ]
    assert said(rows=[row("ideal", 0, 80.0)]) == []
    (with_spread,) = said()
    assert with_spread.startswith("toy, half: aligner has the best mean: R@1 52.0 ± ")


@pytest.mark.parametrize(
    ("gain", "p", "words"),
    [
        (5.0, 0.049, "aligner is better than gram (40.5), {}: +5.0 points, 95 % interval +1.0 to +9.0."),
        (-5.0, 0.01, "aligner is worse than gram (40.5), {}: -5.0 points, 95 % interval +1.0 to +9.0."),
        (5.0, 0.05, "aligner is not distinguishable from gram (40.5), {}: +5.0 points, 95 % interval +1.0 to +9.0; no "
         "difference shown."),
        (-0.01, None, "aligner is not distinguishable from gram (40.5), {}: +0.0 points, 95 % interval +1.0 to +9.0; no "
         "difference shown."),
    ],
)  # fmt: skip
def test_how_the_aligner_compares(gain, p, words):
    test = SettingTests("gram", {"aligner": difference(gain, 1.0, 9.0, p)})
    plain, latent = "the best method without a latent model", "the best of the methods that start from the latent model"
    assert said(test)[1:] == [f"toy, half: {words.format(latent)}"]
    both = SettingTests("gram", test.methods, test)
    assert said(both)[1:] == [f"toy, half: {words.format(plain)}"]  # the same one is said once
    other = SettingTests("aligner", test.methods, test)
    assert len(said(other)) == 3
    assert said(SettingTests("gram", {}))[1:] == []


def test_what_imputing_does_to_anchors():
    def shifts(*pairs):
        rows = list(ROWS)
        for seed, (before, after) in enumerate(pairs):
            rows += [
                row("aligner", seed, before, "anchor_shift", "observed"),
                row("aligner", seed, after, "anchor_shift", "calibrated"),
            ]
        return said(rows=rows)[1]

    assert shifts((0.5, 0.4), (0.5, 0.6)) == (
        "toy, half: imputing what test items lack moves anchors away from those of complete items (distance 0.500 to 0.500 "
        "with aligner; closer in 1 of 2 seeds)."
    )
    assert "brings anchors closer to those of complete items (distance 0.500 to 0.400" in shifts((0.5, 0.4))
    assert len(said(rows=[*ROWS, row("gram", 0, 0.5, "anchor_shift", "calibrated")])) == 1


# ---- tests of significance


def test_tests_as_json():
    inner = SettingTests("gram", {})
    outer = SettingTests("pmrl", {"aligner": difference(1.0, 0.5, 1.5, 0.01)}, inner)
    found = outer.as_json()
    assert (found["against"], found["plain"]["against"]) == ("pmrl", "gram")
    assert "plain" not in inner.as_json()


# ---- configs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(60, 4)).astype(np.float32) for name in ("image", "sound")}
    z["image"][:5] = np.nan
    path = tmp_path_factory.mktemp("words") / "f"
    parts = ["train"] * 30 + ["val"] * 10 + ["test"] * 20
    write_features(path, z, split=parts, text=[f"t{i % 25}" for i in range(60)], labels=["a"] * 60)
    return path


def compared(folder, settings=None, **more) -> CompareConfig:
    values = {"kind": "compare", "source": {"features": str(folder)}, "methods": ["gram", "aligner"], "steps": 40}
    return CompareConfig.model_validate(values | {"settings": settings or {"s": {"kind": "mcar", "rate": 0.25}}} | more)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"kind": "mcar", "rate": 0.5}, "50 % of the blocks hidden at random"),
        ({"kind": "value", "rate": 0.25}, "25 % of the blocks hidden by their value"),
        ({"kind": "alone", "rate": 0.5}, "50 % of the training rows keep one modality only"),
        ({"kind": "one", "rate": 0.7}, "70 % of the rows lack one modality"),
        ({"kind": "one", "rate": 0.7, "regime": "continual"},
         "heads aligned on complete rows, then trained on the 70 % that lack something, without the others"),
        ({"kind": "source", "rate": 0.6, "groups": [["image", "sound"], ["sound"]]},
         "60 % of the training rows keep only image-sound or sound, the others are complete"),
        ({"kind": "source", "rate": 1.0, "groups": [["image"], ["sound"]]}, "every training row keeps only image or sound"),
        ({"kind": "as-is"}, "nothing is hidden: rows lack what they lack in the data"),
        ({"kind": "all-but", "complete": 8}, "8 rows are complete, the others lack at least one modality"),
    ],
)  # fmt: skip
def test_settings_in_words(folder, setting, words):
    config = compared(folder, {"s": setting})
    assert describe(config.only(config.names[0]), "s") == words


def test_the_config_of_a_trial(folder):
    config = compared(folder, relevant_by="labels", width=32, batch_size=16)
    part = config.only(config.names[0])
    form, changes = trials_of("gram", 40, 3)[1]
    found = training_config(part, "s", 7, changes)
    assert (form, found.method, found.seed, found.batch_size, found.model.width) == ("scale", "gram", 7, 16, 32)
    assert (found.validation.every, found.validation.patience, found.validation.relevant) == (2, 6, "labels")
    assert (found.checkpoint.every, found.log_every, found.model.standardize) == (0, 2, None)
    assert found.sources["data"].hide.rate == 0.25
    assert found.objective.anchor == "sound"  # what most rows have
    assert training_config(part, "", 7, changes).sources["data"].hide is None
    short = compared(folder, steps=10)
    assert training_config(short.only(short.names[0]), "s", 0, changes).validation.every == 1
    aligner = training_config(part, "s", 0, trials_of("aligner", 40, 3)[0][1])
    assert (aligner.model.kind, aligner.model.candidates, aligner.model.relevant) == (
        "aligner",
        config.trials,
        "labels",
    )
    assert len(trials_of("gram", 40, 3)) == 3
    assert trials_of("gram+csls", 40, 1)[0][1]["method"] == "gram"
    assert trials_of("ideal", 40, 1)[0][1]["method"] == "aligner"
    assert [needs_anchor(name) for name in ("gram", "contrastive", "")] == [True, False, False]
    assert anchor_of(part) == "sound"


def test_rows_of_a_comparison_are_standardised_or_left(folder):
    part = compared(folder).only(next(iter(compared(folder).names)))
    plain, scaled = open_rows(part, "", 0, None), open_rows(part, "", 0)
    assert (len(plain.test), len(plain.data.train["data"]), len(plain.data.validation[0])) == (20, 30, 10)
    assert len(scaled.test) == 20
    assert not np.allclose(scaled.test.z["image"], plain.features.z["image"][40:])
    hidden = open_rows(part, "s", 0, None).data.train["data"].present
    assert hidden.sum() < plain.data.train["data"].present.sum()


def test_notes_before_anything_is_trained(folder):
    config = compared(folder, methods=["gram", "ideal"])
    found = plan(config)
    name = config.names[0]
    assert {job.method for job in found.jobs} == {"gram"}
    assert found.notes[0] == (
        f"{name}: gram: all modalities are compared with one. None is called text, so that one is sound, which most rows "
        "have (100 %)."
    )
    assert found.notes[1] == (
        f"{name}: 1 different labels in 20 test rows, yet only its own row counts as found for a query; relevant_by: labels "
        "in the config lets every item with the same value count."
    )
    assert found.notes[2] == (
        f"{name}: a direction has as few as 20 test queries, so that one query is 5.0 points; small differences mean "
        "nothing here."
    )
    assert found.notes[3] == (
        f"{name}: ideal is left out; it stands for complete data, but 8.3 % of the blocks of the training rows are missing "
        "before anything is hidden."
    )
    with pytest.raises(
        InputError, match="no method is left to compare; add one that may lack modalities, such as aligner"
    ):
        plan(compared(folder, methods=["ideal"]))
    labels = plan(compared(folder, relevant_by="labels")).notes
    assert f"{name}: what counts as found: every item with the labels of the query, not only its own row." in labels
    with pytest.raises(InputError, match=f'data set {name}: there is no modality "smell"; there are image, sound'):
        plan(compared(folder, modalities=["image", "smell"]))


def test_data_without_test_rows_or_pairs(tmp_path):
    z = {name: np.ones((6, 2), np.float32) for name in ("a", "b")}
    write_features(tmp_path / "n", z, split=["train"] * 6)
    with pytest.raises(InputError, match='no row has split "test"; add one to the data'):
        plan(compared(tmp_path / "n"))
    part = compared(tmp_path / "n")
    with pytest.raises(InputError, match='no row has split "test"; add one to the data'):
        open_rows(part.only(part.names[0]), "", 0)
    z["b"][4:] = np.nan
    write_features(tmp_path / "p", z, split=["train"] * 3 + ["test"] * 3)
    with pytest.raises(InputError, match=r"no two modalities meet in two of the 3 test rows \(seed 0\), so there is"):
        plan(compared(tmp_path / "p"))


@pytest.mark.parametrize("test_rows", [4, 2])
def test_pairs_that_one_test_row_has_do_not_count(test_rows, tmp_path):
    """Of four test rows two have each pair; of the first two, both have a and b, and one has c."""
    present = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 1], [0, 1, 1]] + [[1, 1, 1]] * 8, dtype=bool)
    split = ["test"] * test_rows + ["train"] * (12 - test_rows)
    write_features(tmp_path / "f", {name: np.ones((12, 1), np.float32) for name in "abc"}, present, split=split)
    assert any(
        "as few as 2 test queries, so that one query is 50.0 points" in note
        for note in plan(compared(tmp_path / "f")).notes
    )


SAME = ({"x": [1, 0, 1], "y": [1, 1, 0]}, {"x": [0, 1, 2], "y": [0, 1, 2]})
OTHERS = ({"y": [1], "x": [0, 1]}, {"y": [2], "x": [0, 1]})


@pytest.mark.parametrize(
    ("answers", "items", "hits", "groups"),
    [
        (SAME, ("abc", "abc"), [[100.0, 50.0, 50.0]] * 2, None),
        (SAME, ("abc", "def"), [100.0, 50.0, 50.0] * 2, list("abcdef")),
        (OTHERS, ("abc", "abc"), [0.0, 100.0, 100.0] * 2, list("abcabc")),
    ],
    ids=["the same items", "other items in each seed", "other items in each direction"],
)
def test_items_or_queries_are_redrawn(folder, monkeypatch, answers, items, hits, groups):
    """Items with the mean of their directions where all ask in all of them, else queries, those of an item together."""
    drawn = {}

    def draw(pairs, groups):
        drawn.update(pairs=pairs, groups=groups)
        return [difference(1.0, 0.5, 1.5, 0.01)] * len(pairs)

    monkeypatch.setattr(importlib.import_module("calmrl.workflows.compare.collect"), "paired_bootstraps", draw)
    config = compared(folder, seeds=[0, 1])
    rows = [{"task": "average", "metric": "R@1", "value": 1.0, "n": 3}]
    collect(config, {
        Job(config.names[0], "s", method, seed): JobResult(rows, *answers, list(items[seed]), 0, [{}], [], [], None, [], 1.0)
        for method in ("gram", "aligner") for seed in (0, 1)
    })  # fmt: skip
    for ours, rival in drawn["pairs"]:
        assert ours.tolist() == rival.tolist() == hits
    assert drawn["groups"] == groups


def test_texts_that_repeat():
    z = {"a": np.ones((4, 1), np.float32)}
    everything = np.ones(4, dtype=bool)
    both = FeatureSet(z, None, pa.table({"id": list("wxyz"), "text": ["s", "s", "t", None], "labels": ["l"] * 4}))
    assert repeats(both, everything) == [
        "2 different texts (of 3) and 1 different labels in 4 test rows, yet only its own row counts as found for a query; "
        "relevant_by: text, or labels in the config lets every item with the same value count."
    ]
    different = FeatureSet(z, None, pa.table({"id": list("wxyz"), "text": list("abcd")}))
    assert repeats(different, everything) == []
