"""From a config to rows, a step and a trainer: what is hidden on purpose, what is left out, what a step starts from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from calmrl.config import TrainConfig
from calmrl.config.schema.train import HideSection, SourceSection
from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import InputError
from calmrl.models.heads import Heads
from calmrl.workflows import from_config
from calmrl.workflows.from_config import Data, build_step, build_trainer, hidden, open_data, parts_of, split_rows

SOURCE = {"dataset": "digits", "resplit": {"by": "id", "val": 0.1, "test": 0.0}}


def config(hide: dict) -> TrainConfig:
    values = {"kind": "train", "sources": {"data": SOURCE | {"hide": hide}}, "modalities": ["top_left", "top_right"]}
    return TrainConfig.model_validate(values)


def test_only_modalities_in_use_are_hidden():
    """Half of the blocks that training sees go, every row keeps one of them, and none is left out."""
    train = open_data(config({"kind": "mcar", "rate": 0.5})).train["data"]
    assert train.unusable == 0
    assert train.present.any(axis=1).all()
    assert 1 - train.present.mean() == pytest.approx(0.5, abs=0.001)


def test_so_many_rows_stay_complete():
    train = open_data(config({"kind": "all-but", "complete": 40})).train["data"]
    assert train.present.all(axis=1).sum() == 40


def test_a_group_with_a_modality_that_is_not_in_use():
    with pytest.raises(InputError, match=r'hide\.groups names the modality "bottom_left"; the training has top_left'):
        open_data(config({"kind": "source", "rate": 0.5, "groups": [["top_left", "bottom_left"]]}))


def test_a_test_share_of_zero_leaves_all_rows_to_train_and_validate():
    data = open_data(config({"kind": "mcar", "rate": 0.1}))
    assert len(data.train["data"]) + len(data.validation[0]) == 1797
    assert np.isin(data.validation[0].ids, data.train["data"].ids).sum() == 0


@pytest.mark.parametrize(("change", "same"), [({}, False), ({"seed": 3}, True)])
def test_the_seed_of_hiding_is_that_of_the_training_unless_it_has_its_own(change, same):
    section = HideSection.model_validate({"kind": "one", "rate": 0.5, **change})
    present = np.ones((40, 2), dtype=bool)
    found = hidden(present, ("a", "b"), section, 3)
    assert found.sum() == 60
    assert (found == hidden(present, ("a", "b"), section, 3)).all()
    assert (found == hidden(present, ("a", "b"), section, 4)).all() == same


def test_raw_media_have_no_values_to_hide_by():
    section = HideSection.model_validate({"kind": "value", "rate": 0.5})
    with pytest.raises(InputError, match=r'hide\.kind "value" needs features; for raw media take mcar, one or source'):
        hidden(np.ones((4, 2), dtype=bool), ("a", "b"), section, 0)


# ---- features in memory


def opened(**more) -> tuple[TrainConfig, Data]:
    """Fifteen rows to train and five to validate; the first three have a sound only."""
    values = {"kind": "train", "method": "gram", "sources": {"a": {"features": "x"}}, "modalities": ["image", "text"]}
    config = TrainConfig.model_validate(values | more)
    z = {name: np.random.default_rng(0).normal(size=(20, 3)) for name in ("image", "text", "sound")}
    z["image"][:3] = z["text"][:3] = np.nan
    columns = {"split": ["train"] * 15 + ["val"] * 5, "kind": ["x"] * 17 + ["y", None, "x"]}
    features = FeatureSet(z, None, pa.table({"id": [str(i) for i in range(20)], **columns}))
    return config, open_data(config, {"a": features})


HIDING = {"sources": {"a": {"features": "x", "hide": {"kind": "one", "rate": 0.5}}}}
LEFT_OUT = "source a: left out 3 rows with none of image, text"


@pytest.mark.parametrize(
    ("more", "notes", "rows", "blocks"),
    [
        ({}, [LEFT_OUT], 12, 24),
        ({"modalities": ["image", "sound"]}, [], 15, 27),
        (HIDING, [LEFT_OUT], 12, 24 - 8),  # of half of 15
    ],
)
def test_rows_that_have_nothing_of_what_trains_are_noted(more, notes, rows, blocks):
    _, data = opened(**more)
    assert (data.notes, len(data.train["a"]), data.train["a"].present.sum()) == (notes, rows, blocks)
    assert (len(data.validation[0]), data.validation[0].present.all()) == (5, True)


@pytest.mark.parametrize(("column", "found"), [(None, None), ("kind", ["x", "x", "y", 3, "x"])])
def test_which_validation_rows_count_as_found(column, found):
    config, data = opened(validation={"relevant": column})
    assert build_trainer(config, data, build_step(config, data), cpu=True).relevant == found


def test_raw_media_have_no_column_of_what_counts_as_found():
    config, data = opened(validation={"relevant": "kind"})
    step, media = build_step(config, data), Data(data.train, data.validation, data.widths, [])
    with pytest.raises(
        InputError, match=r"validation\.relevant needs features; for a model of raw media a query finds"
    ):
        build_trainer(config, media, step, cpu=True)


@pytest.mark.parametrize(("learns", "own", "starts"), [(True, 0.25, 0.25), (True, None, 0.07), (False, 0.25, 0.07)])
def test_a_learned_temperature_starts_at_that_of_the_checkpoint(learns, own, starts):
    objective = {"name": "contrastive", "learn_temperature": learns, "temperature": 0.07}
    config, data = opened(method="contrastive", objective=objective)
    model = Heads(data.widths, 4)
    if own is not None:
        model.matching = nn.Module()
        model.matching.register_buffer("temperature", torch.tensor(own))
    temperature = build_step(config, data, model).objective.temperature
    assert float(temperature(torch.ones(())).detach()) == pytest.approx(starts)


ITS_OWN_ROWS = "the imputer mvae learns from the rows of its own process only"


@pytest.mark.parametrize(
    ("method", "update", "processes", "found"),
    [
        ("gaussian", "auto", 1, "stepwise"),
        ("mvae", "auto", 1, "stepwise"),
        ("knn", "auto", 1, "frozen"),
        ("gaussian", "frozen", 1, "frozen"),
        ("gaussian", "auto", 2, "stepwise"),
        ("mvae", "auto", 2, "frozen"),
        ("mvae", "stepwise", 2, InputError(ITS_OWN_ROWS)),
        ("mvae", "gradient", 2, InputError("gradient needs the imputer gaussian; got mvae")),
    ],
)
def test_how_imputers_are_updated(method, update, processes, found, monkeypatch):
    monkeypatch.setattr(from_config, "world", lambda: (processes, 0))
    config, data = opened(method="calibrated", calibration={"imputer": {"method": method}, "update": update})
    if isinstance(found, str):
        assert build_step(config, data).objective.update == found
    else:
        with pytest.raises(InputError, match=str(found)):
            build_step(config, data)


# ---- which rows train, validate and test


def rows_of(n: int = 20, **columns) -> FeatureSet:
    z = {name: np.ones((n, 2), np.float32) for name in ("image", "text")}
    z["text"][:4] = np.nan
    return FeatureSet(z, None, pa.table({"id": [str(i) for i in range(n)], **columns}))


def section(**values) -> SourceSection:
    return SourceSection.model_validate({"features": "x", **values})


@pytest.mark.parametrize(
    ("fraction", "held", "are"), [(0.1, 2, "rows are"), (0.01, 1, "row is"), (0.5, 10, "rows are")]
)
def test_without_validation_rows_some_are_held_out(fraction, held, are):
    rows, kept, notes = split_rows(rows_of(), section(), ["image"], fraction, 0)
    assert (len(rows), len(kept)) == (20 - held, held)
    assert sorted([*rows, *kept]) == list(range(20))
    assert notes == [f'no row has split "val", so {held} training {are} held out']
    again = split_rows(rows_of(), section(), ["image"], fraction, 0)
    assert again[0].tolist() == rows.tolist()
    if held > 1:
        assert split_rows(rows_of(), section(), ["image"], fraction, 1)[1].tolist() != kept.tolist()


def test_the_split_column_is_taken_as_it_is():
    parts = ["train"] * 10 + ["val"] * 4 + ["test"] * 5 + [""]
    rows, kept, notes = split_rows(rows_of(split=parts), section(), ["image"], 0.5, 0)
    assert (rows.tolist(), kept.tolist(), notes) == (list(range(10)), list(range(10, 14)), [])
    rows, kept, notes = split_rows(rows_of(split=["test"] * 20), section(), ["image"], 0.5, 0)
    assert (len(rows), len(kept), notes) == (0, 0, [])


def test_rows_that_are_left_out():
    found, notes = parts_of(rows_of(), section(complete=True), ["image", "text", "absent"], 0)
    assert found.tolist() == [""] * 4 + ["train"] * 16
    assert notes == ["4 rows are left out (complete=True, exclude=None)"]
    assert parts_of(rows_of(), section(complete=True), ["image"], 0)[1] == []
    marked = rows_of(bad=[True] * 3 + [False] * 17)
    found, notes = parts_of(marked, section(exclude="bad"), ["image"], 0)
    assert found.tolist() == [""] * 3 + ["train"] * 17
    assert notes == ["3 rows are left out (complete=False, exclude=bad)"]


def test_a_new_split_keeps_groups_together():
    groups = [f"g{i // 2}" for i in range(20)]
    how = {"by": "group", "test": 0.3, "val": 0.2}
    grouped = rows_of(group=groups)
    found, _ = parts_of(grouped, section(resplit=how), ["image"], 0)
    counts = {part: int((found == part).sum()) for part in ("train", "val", "test")}
    assert counts == {"train": 10, "val": 4, "test": 6}
    assert all(found[2 * i] == found[2 * i + 1] for i in range(10))
    assert parts_of(grouped, section(resplit=how), ["image"], 1)[0].tolist() != found.tolist()
    own = section(resplit={**how, "seed": 0})
    assert parts_of(grouped, own, ["image"], 1)[0].tolist() == found.tolist()
