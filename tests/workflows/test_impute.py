"""Imputing features on disk: observed bytes stay, imputed blocks are marked, memory does not grow with the rows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

from calmrl.config import ImputeConfig, load
from calmrl.data.features.feature_set import open_features
from calmrl.data.features.writer import write_features
from calmrl.datasets import load_dataset
from calmrl.errors import InputError
from calmrl.imputers import IMPUTERS
from calmrl.workflows import diagnose, impute
from calmrl.workflows.impute import imputation_warnings


class Marker:
    """Fills every missing value with 7 and remembers how many rows it saw at once; it can do nothing else."""

    blocks: ClassVar[list[int]] = []

    def __init__(self, random_state=0):
        self.blocks.clear()

    def fit(self, z, present=None):
        return self

    def impute(self, z, present=None, *, return_std=False):
        self.blocks.append(len(present))
        filled = {name: np.where(present[:, [j]], a, a.dtype.type(7)) for j, (name, a) in enumerate(z.items())}
        std = {name: np.where(present[:, [j]], 0, 2).repeat(a.shape[1], 1) for j, (name, a) in enumerate(z.items())}
        return (filled, {name: a.astype(np.float32) for name, a in std.items()}) if return_std else filled


@pytest.fixture
def features(tmp_path):
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(50, 3))
    z = {name: (latent @ rng.normal(size=(3, d))).astype("float32") for name, d in {"image": 5, "text": 4}.items()}
    present = rng.random((50, 2)) < 0.6
    present[~present.any(axis=1), 0] = True
    return write_features(
        tmp_path / "features",
        z,
        present,
        ids=[f"item {i}" for i in range(50)],
        split=["train"] * 40 + ["test"] * 10,
        text=["a caption"] * 50,
        columns={"folder": ["f"] * 50},
    )


def _check_completed(given, done):
    assert np.array_equal(done.present, given.present)
    assert np.array_equal(done.imputed, ~given.present)
    for j, name in enumerate(given.z):
        here = given.present[:, j]
        assert done.z[name].dtype == given.z[name].dtype
        assert done.z[name][here].tobytes() == given.z[name][here].tobytes()
        assert np.isfinite(done.z[name]).all()
    assert done.meta.equals(given.meta.select(done.meta.column_names))
    assert set(done.meta.column_names) == set(given.meta.column_names)


@pytest.fixture
def marker(monkeypatch):
    monkeypatch.setitem(IMPUTERS, "marker", Marker)
    return lambda std=False: ImputeConfig(kind="impute", imputer={"method": "marker"}, std=std)


@pytest.mark.parametrize("std", [False, True])
def test_every_block_is_imputed_and_marked(features, tmp_path, monkeypatch, marker, std):
    monkeypatch.setattr(sys.modules["calmrl.workflows.impute"], "IMPUTE_BYTES", 7 * 9 * 4)
    reported = []
    impute(features, tmp_path / "done", marker(std), progress=lambda *at: reported.append(at))
    done = open_features(tmp_path / "done")
    _check_completed(features, done)
    assert Marker.blocks == [7] * 7 + [1]
    assert reported == [(rows, 50, "imputing") for rows in (*range(7, 50, 7), 50)]
    for j, name in enumerate(features.z):
        assert (done.z[name][~features.present[:, j]] == 7).all()
    assert (done.std is not None) == std
    if std:
        assert (done.std["text"][~features.present[:, 1]] == 2).all()
        assert (done.std["text"][features.present[:, 1]] == 0).all()


def test_rows_without_anything_are_refused(tmp_path, marker):
    empty = write_features(tmp_path / "f", {"a": np.full((3, 2), np.nan)}, np.zeros((3, 1), dtype=bool))
    with pytest.raises(InputError, match="f, rows 0 to 2, counted from 0: 3 of 3 rows have no modality at all"):
        impute(empty, tmp_path / "done", marker())
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_directory_that_was_replaced_is_read_again(features, tmp_path, marker):
    impute(features.path, tmp_path / "before", marker())
    shutil.rmtree(features.path)
    write_features(features.path, {"image": np.full((4, 5), 3.0)})
    impute(features.path, tmp_path / "after", marker())
    assert (open_features(tmp_path / "after").z["image"] == 3).all()


def test_ctrl_c_in_the_fit_leaves_nothing_behind(features, tmp_path, monkeypatch, marker):
    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(Marker, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        impute(features, tmp_path / "done", marker())
    assert [path.name for path in tmp_path.iterdir()] == ["features"]


@pytest.mark.parametrize("method", ["gaussian", "mean", "knn", "ridge"])
def test_impute_from_the_command_line(features, tmp_path, calmrl, method):
    small = ["imputer.latent_dim=2"] if method == "gaussian" else []
    out = tmp_path / "done"
    code, printed, err = calmrl(
        "impute", features.path, "--out", out, "--std", f"imputer.method={method}", "seed=3", *small
    )
    assert (code, printed) == (0, ""), err
    assert f"imputed {int((~features.present).sum())} of 100 value blocks in 50 rows; wrote {out}" in err
    done = open_features(out)
    done.verify()
    _check_completed(features, done)
    for j, name in enumerate(features.z):
        assert (np.asarray(done.std[name])[features.present[:, j]] == 0).all()
        assert (np.asarray(done.std[name])[~features.present[:, j]] > 0).all()
    config = load(out / "config.yaml")
    assert (config.imputer.method, config.seed, config.std) == (method, 3, True)
    assert json.loads((out / "features.json").read_text())["info"]["config"]["seed"] == 3


def test_impute_refuses_to_overwrite(features, tmp_path, calmrl):
    out, mean = tmp_path / "done", "imputer.method=mean"
    assert calmrl("impute", features.path, "--out", features.path, mean)[0] == 2
    code, _, err = calmrl("impute", features.path, "--out", features.path, "--force", mean)
    assert (code, "was not written by calmrl" in err) == (2, True)
    assert [calmrl("impute", features.path, "--out", out, mean)[0] for _ in range(2)] == [0, 2]
    assert calmrl("impute", features.path, "--out", out, "--force", "--std", mean)[0] == 0
    assert (out / "text.std.npy").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["done", "features"]


UNUSED = """
import sys
from calmrl.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
packages = ("calmrl.alignment", "calmrl.training.", "calmrl.losses.", "calmrl.models.", "calmrl.metrics.", "calmrl.report.")
tables = (".registry", ".method", ".methods", ".recipes", ".sections")  # names and keys, no torch
plain = [name for name, module in sys.modules.items() if not hasattr(module, "__path__")]
print([name for name in plain if name.startswith(packages) and not name.endswith(tables)])
print(sum(name.split(".")[0] == "calmrl" and not name.startswith("calmrl.cli") for name in sys.modules))
"""


def test_impute_loads_neither_trainer_nor_losses_nor_models(features, tmp_path):
    line = [sys.executable, "-c", UNUSED, "impute", str(features.path), "--out", str(tmp_path / "done")]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    unused, modules = done.stdout.splitlines()
    assert unused == "[]"
    assert int(modules) < 110  # besides those of the command line, which has one per command


def test_the_command_warns_where_nothing_is_predicted_and_speaks_json(tmp_path, calmrl):
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(300, 3))
    z = {name: latent @ rng.normal(size=(3, 5)) for name in ("image", "text")}
    z["noise"] = rng.normal(size=(300, 5))
    for j, name in enumerate(z):
        z[name][j::4] = np.nan
    np.savez(tmp_path / "features.npz", **z)
    line = [
        "impute",
        tmp_path / "features.npz",
        "--out",
        tmp_path / "out",
        "--json",
        "imputer.candidates=[gaussian, mean]",
    ]
    code, out, err = calmrl(*line)
    assert code == 0
    told = json.loads(out)
    errors = told["choice"]["error_by_modality"]
    assert errors["image"] < 0.5  # the premise: one modality is predicted, the other is not
    assert errors["noise"] > 0.98
    assert told["imputed"] == 225
    assert "does not predict noise (" in err
    assert "image (" not in err.partition("does not predict")[2]


def test_warnings_name_modalities_that_cannot_be_trusted():
    choice = {
        "error_by_modality": {"a": 1.01, "b": 0.6, "c": 0.7, "d": None},
        "coverage_by_modality": {"a": 94.0, "b": 84.4, "c": 99.2, "d": None},
        "held_out_by_modality": {"a": 90, "b": 90, "c": 90, "d": 3},
    }
    useless, narrow, wide, few = imputation_warnings(choice)
    assert "does not predict a (1.010)" in useless
    assert narrow == "95 % intervals of b hold 84 % of the held-out values: they are too narrow"
    assert wide == "95 % intervals of c hold 99 % of the held-out values: they are too wide"
    assert "few blocks could be held out of d (3)" in few
    good = {"error_by_modality": {"a": 0.5}, "coverage_by_modality": {"a": 95.0}, "held_out_by_modality": {"a": 90}}
    assert imputation_warnings(good) == []


@pytest.mark.parametrize(("error", "held", "count"), [(0.979, 10, 0), (0.98, 10, 1), (0.5, 9, 1), (0.98, 9, 2)])
def test_warnings_at_their_limits(error, held, count):
    choice = {"error_by_modality": {"a": error, "b": None}, "coverage_by_modality": {"a": 95.0, "b": None}}
    assert len(imputation_warnings({**choice, "held_out_by_modality": {"a": held}})) == count


# ---- features by the name of a bundled data set


def mean():
    return ImputeConfig.model_validate({"kind": "impute", "imputer": {"method": "mean"}})


def test_a_name_stands_for_the_data_set_with_features_as_the_encoders_gave_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    impute("emoji", "imputed", mean())
    raw, made = load_dataset("emoji", standardize=False), open_features("imputed")
    assert made.ids.tolist() == raw.ids.tolist()
    np.testing.assert_array_equal(made.imputed, ~raw.present)
    assert not any(np.isnan(array).any() for array in made.z.values())
    there = raw.present[:, 0]
    np.testing.assert_array_equal(made.z["image"][there], raw.z["image"][there])


def test_a_path_comes_first(features, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "features").rename("digits")
    impute("digits", "imputed", mean())
    assert open_features("imputed").names == ("image", "text")
    assert diagnose("digits").rows == 50


def test_an_unknown_name_is_a_path_that_does_not_exist(tmp_path):
    for run in (lambda: diagnose("charakters"), lambda: impute("charakters", tmp_path / "out", mean())):
        with pytest.raises(InputError, match="no features at charakters"):
            run()
    assert list(tmp_path.iterdir()) == []
