"""`diagnose` and `impute` take the name of a bundled data set; a path of that name comes first."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.cli import main
from calmrl.config import ImputeConfig
from calmrl.data import hide, open_features, write_features
from calmrl.datasets import load_dataset
from calmrl.errors import InputError
from calmrl.workflows import diagnose, impute

MEAN = ImputeConfig.model_validate({"kind": "impute", "imputer": {"method": "mean"}})


def test_a_name_stands_for_the_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    impute("synth", "imputed", MEAN)
    data, made = load_dataset("synth"), open_features("imputed")
    assert made.ids.tolist() == data.ids.tolist()
    np.testing.assert_array_equal(made.imputed, ~data.present)
    assert not any(np.isnan(array).any() for array in made.z.values())


def test_features_are_as_the_encoders_gave_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    impute("emoji", "imputed", MEAN)
    raw, made = load_dataset("emoji", standardize=False), open_features("imputed")
    there = raw.present[:, 0]
    np.testing.assert_array_equal(made.z["image"][there], raw.z["image"][there])


def test_a_path_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    z = {name: np.random.default_rng(0).normal(size=(40, 3)) for name in ("a", "b")}
    present = hide(np.ones((40, 2), dtype=bool), 0.2, np.random.default_rng(0))
    write_features("digits", z, present)
    impute("digits", "imputed", MEAN)
    assert open_features("imputed").names == ("a", "b")
    assert diagnose("digits").rows == 40


def test_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["impute", "digits", "--out", "imputed", "imputer.method=mean"])
    assert len(open_features("imputed")) == 1797


def test_an_unknown_name_is_a_path_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match="no features at charakters"):
        diagnose("charakters")
    with pytest.raises(InputError, match="no features at charakters"):
        impute("charakters", tmp_path / "out", MEAN)
