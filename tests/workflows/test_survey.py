"""What a survey says of a collection, line by line, and what a check finds in features."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calmrl.data.features.writer import write_features
from calmrl.data.media.manifest import Item, Manifest
from calmrl.data.media.problems import Problems, Unreadable
from calmrl.errors import InputError
from calmrl.workflows.check import check_source
from calmrl.workflows.survey import (
    Survey,
    absent_files,
    beside,
    cell_problem,
    file_cells,
    stop_at_problems,
    survey,
    take_out,
    unplayable_files,
)

NAMES = ("image", "text")


def seen(present, split=None, labels=None, texts=None, names=NAMES) -> Survey:
    mask = np.array(present, dtype=bool)
    n = len(mask)
    return Survey(
        "features", names, mask, split or [None] * n, labels or [None] * n, texts or [[]] * n, {}, None, Problems()
    )


def test_the_lines_of_a_survey():
    present = [[1, 1]] * 12 + [[1, 0]] * 3 + [[0, 0]]
    found = seen(present, labels=["a"] * 9 + [["b", "a"]] * 4 + [None] * 3, texts=[["x"], ["y", "x"]] + [[]] * 14)
    assert found.lines() == [
        "16 items, 2 modalities: image, text",
        "  image: 15 of 16",
        "  text: 12 of 16",
        "missing: 15.6 % of the blocks; 12 items have everything",
        "  12 items have image + text",
        "  3 items have image",
        "  1 item has nothing",
        "split: none; the configs draw one: 60 % train, 10 % val, 30 % test",
        "texts: 3, of which 2 differ; an item with a repeated text cannot be found by its text alone, so R@1 stays low",
        "labels: 2 classes of 4 to 13 items",
    ]


def test_splits_that_are_there():
    present = [[1, 1]] * 10 + [[1, 0]]
    whole = seen(present, split=["train"] * 6 + ["val"] * 2 + ["test", None, "test"])
    assert whole.has_split()
    assert "split: train 6, val 2, test 2, none 1; 1 of the test items have everything" in whole.lines()
    part = seen(present, split=["train"] * 11)
    assert not part.has_split()
    assert "split: none (there is only train); the configs draw one: 60 % train, 10 % val, 30 % test" in part.lines()


@pytest.mark.parametrize(("different", "repeats"), [(9, False), (8, True)])
def test_texts_repeat_below_nine_tenths(different, repeats):
    texts = [[str(min(i, different - 1))] for i in range(10)]
    assert seen([[1, 1]] * 10, texts=texts).repeats_texts() is repeats


@pytest.mark.parametrize(("together", "warned"), [(9, True), (10, False)])
def test_modalities_that_hardly_meet_are_a_warning(together, warned):
    present = [[1, 1]] * together + [[1, 0]] * 5
    warnings = [line for line in seen(present).lines() if line.startswith("warning")]
    expected = [f"warning: only {together} items have {name} and something else, too few to align it" for name in NAMES]
    assert warnings == (expected if warned else [])
    assert not [line for line in seen([[1]] * 3, names=("image",)).lines() if line.startswith("warning")]


def test_at_most_five_patterns_are_shown():
    rows = [[(i >> bit) & 1 for bit in range(3)] for i in range(7)]
    lines = seen(rows, names=("a", "b", "c")).lines()
    assert "  2 items have 2 other patterns" in lines
    assert sum(" item has " in line and line.startswith("  1") for line in lines) == 5
    assert not any("other patterns" in line for line in seen(rows[:5], names=("a", "b", "c")).lines())


def test_tables_of_vectors_are_features(tmp_path):
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0]], type=pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": ["a", "b"], "image": vectors, "text": vectors}), tmp_path / "f.parquet")
    assert survey(tmp_path / "f.parquet").form == "features"
    words = pa.array([["x"], ["y"]], type=pa.list_(pa.string()))
    pq.write_table(pa.table({"id": ["a", "b"], "text": words}), tmp_path / "m.parquet")
    assert survey(tmp_path / "m.parquet").form == "manifest"
    np.save(tmp_path / "image.npy", np.ones((2, 3), np.float32))
    z = {"image": np.ones((3, 2), np.float32), "text": np.ones((3, 2), np.float32)}
    write_features(tmp_path / "d", z, split=["train", "", None], text=["a", ["b", "c"], None])
    found = survey(tmp_path / "d")
    assert (found.form, found.split, found.texts) == ("features", ["train", None, None], [["a"], ["b", "c"], []])
    assert found.labels == [None, None, None]


# ---- features


def test_problems_of_features(tmp_path):
    z = {name: np.ones((6, 2), np.float32) for name in NAMES}
    z["image"][2] = 0.0
    z["image"][4] = z["text"][4] = np.nan
    np.savez(tmp_path / "f.npz", **z, split=np.array(["train", "test", "val", "", "", "dev"]))
    said = []
    assert check_source(tmp_path / "f.npz", report=said.append) == [
        "image: 1 row is zero throughout; a missing modality is NaN, or False in present",
        "1 row has no modality at all (first: row 4); leave such rows out",
        "the split column holds dev; rows count only as train, val, test",
    ]
    assert said[0] == "6 items, 2 modalities: image, text"
    write_features(tmp_path / "whole", {name: np.ones((6, 2), np.float32) for name in NAMES})
    assert check_source(tmp_path / "whole") == []


def test_values_that_are_not_finite_are_counted(tmp_path):
    z = {name: np.ones((6, 2), np.float32) for name in NAMES}
    write_features(tmp_path / "f", z)
    z["text"][3, 1], z["text"][5] = np.inf, np.nan
    np.save(tmp_path / "f" / "text.npy", z["text"])
    changed, values = check_source(tmp_path / "f")
    assert "text.npy" in changed
    assert values == "text: 2 rows that count as present hold values that are not finite (first: row 3)"


# ---- collections


def manifest(tmp_path) -> Manifest:
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "b.wav").write_bytes(b"x")
    items = [
        Item(2, "one", {"image": str(tmp_path / "a.png"), "text": ["t"]}, {}),
        Item(3, "two", {"image": str(tmp_path / "c.png"), "sound": str(tmp_path / "b.wav")}, {}),
        Item(4, "three", {"image": str(tmp_path / "d.png")}, {}),
    ]
    return Manifest(items, {"image": "image", "text": "text", "sound": "audio"})


def test_files_that_are_absent_are_taken_out_with_their_items(tmp_path):
    collection, problems = manifest(tmp_path), Problems()
    assert [(item.id, name) for item, name, _ in file_cells(collection)] == [
        ("one", "image"),
        ("two", "image"),
        ("three", "image"),
        ("two", "sound"),
    ]
    absent = absent_files(collection)
    assert [(p.kind, p.scope, p.line, p.id, p.column) for p in absent] == [
        ("file not found", "cell", 3, "two", "image"),
        ("file not found", "cell", 4, "three", "image"),
    ]
    checked = take_out(collection, problems, absent)
    assert [(item.id, sorted(item.cells)) for item in collection.items] == [
        ("one", ["image", "text"]),
        ("two", ["sound"]),
    ]
    assert checked.lines(False)[:4] == [
        "2 items",
        "image: 1 present, 1 missing, 2 unusable",
        "text: 1 present, 1 missing",
        "sound: 1 present, 1 missing",
    ]
    (bad,) = unplayable_files(collection, workers=2)
    assert (bad.id, bad.column) == ("two", "sound")


def test_a_report_lists_problems_and_what_is_allowed_goes_on(tmp_path):
    collection, problems = manifest(tmp_path), Problems()
    checked = take_out(collection, problems, absent_files(collection))
    report = beside(tmp_path / "out.dir", "problems.csv")
    assert report.name == "out.dir.problems.csv"
    serious = len(problems.blocking())
    with pytest.raises(InputError, match=f"^{serious} problems, all of them listed in {report}; repair them"):
        stop_at_problems(checked, report, allow_missing=False)
    assert "c.png" in report.read_text()
    stop_at_problems(checked, report, allow_missing=True)
    assert report.is_file()
    fine = SimpleNamespace(problems=Problems(), manifest=SimpleNamespace(items=[1]))
    stop_at_problems(fine, report, allow_missing=False)
    assert not report.exists()  # one of an earlier run
    with pytest.raises(InputError, match="no item is left; see"):
        stop_at_problems(SimpleNamespace(problems=Problems(), manifest=SimpleNamespace(items=[])), report, True)


def test_a_problem_of_a_cell():
    found = cell_problem(Item(7, "one", {}, {}), "image", Unreadable("huge image", "a.png: too many"), "a.png")
    assert (found.kind, found.scope, found.line, found.id, found.column, found.detail) == (
        "huge image", "cell", 7, "one", "image", "a.png: too many",
    )  # fmt: skip
    assert found.names == ("a.png",)
