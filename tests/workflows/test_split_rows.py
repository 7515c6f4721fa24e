"""Which rows train, validate and test: the split column, a new split, rows that are left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from calmrl.config.schema.train import SourceSection
from calmrl.data.features.feature_set import FeatureSet
from calmrl.workflows.build import open_features_of, parts_of, split_rows


def data(n: int = 20, **columns) -> FeatureSet:
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(n, 2)).astype(np.float32) for name in ("image", "text")}
    z["text"][:4] = np.nan
    return FeatureSet(z, None, pa.table({"id": [str(i) for i in range(n)], **columns}))


def section(**values) -> SourceSection:
    return SourceSection.model_validate({"features": "x", **values})


@pytest.mark.parametrize(
    ("fraction", "held", "are"), [(0.1, 2, "rows are"), (0.01, 1, "row is"), (0.5, 10, "rows are")]
)
def test_without_validation_rows_some_are_held_out(fraction, held, are):
    rows, kept, notes = split_rows(data(), section(), ["image"], fraction, 0)
    assert (len(rows), len(kept)) == (20 - held, held)
    assert sorted([*rows, *kept]) == list(range(20))
    assert notes == [f'no row has split "val", so {held} training {are} held out']
    again = split_rows(data(), section(), ["image"], fraction, 0)
    assert again[0].tolist() == rows.tolist()
    if held > 1:
        assert split_rows(data(), section(), ["image"], fraction, 1)[1].tolist() != kept.tolist()


def test_the_split_column_is_taken_as_it_is():
    parts = ["train"] * 10 + ["val"] * 4 + ["test"] * 5 + [""]
    rows, kept, notes = split_rows(data(split=parts), section(), ["image"], 0.5, 0)
    assert (rows.tolist(), kept.tolist(), notes) == (list(range(10)), list(range(10, 14)), [])
    rows, kept, notes = split_rows(data(split=["test"] * 20), section(), ["image"], 0.5, 0)
    assert (len(rows), len(kept), notes) == (0, 0, [])


def test_rows_that_are_left_out():
    found, notes = parts_of(data(), section(complete=True), ["image", "text", "absent"], 0)
    assert found.tolist() == [""] * 4 + ["train"] * 16
    assert notes == ["4 rows are left out (complete=True, exclude=None)"]
    assert parts_of(data(), section(complete=True), ["image"], 0)[1] == []
    marked = data(bad=[True] * 3 + [False] * 17)
    found, notes = parts_of(marked, section(exclude="bad"), ["image"], 0)
    assert found.tolist() == [""] * 3 + ["train"] * 17
    assert notes == ["3 rows are left out (complete=False, exclude=bad)"]


def test_a_new_split_keeps_groups_together():
    groups = [f"g{i // 2}" for i in range(20)]
    how = {"by": "group", "test": 0.3, "val": 0.2}
    grouped = data(group=groups)
    found, _ = parts_of(grouped, section(resplit=how), ["image"], 0)
    counts = {part: int((found == part).sum()) for part in ("train", "val", "test")}
    assert counts == {"train": 10, "val": 4, "test": 6}
    assert all(found[2 * i] == found[2 * i + 1] for i in range(10))
    assert parts_of(grouped, section(resplit=how), ["image"], 1)[0].tolist() != found.tolist()
    own = section(resplit={**how, "seed": 0})
    assert parts_of(grouped, own, ["image"], 1)[0].tolist() == found.tolist()


def test_features_are_looked_for_below_the_root(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("calmrl.workflows.build.open_features", lambda path, **more: asked.append((str(path), more)))
    open_features_of(section(), "here")
    open_features_of(section())
    assert asked == [("here/x", {}), ("x", {})]
