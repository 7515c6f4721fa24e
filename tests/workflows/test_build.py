"""From a config to rows: what is hidden on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.config import TrainConfig
from calmrl.errors import InputError
from calmrl.workflows.build import open_data

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
