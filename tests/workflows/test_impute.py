"""Imputing features on disk: observed bytes stay, imputed blocks are marked, memory does not grow with the rows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

from calmrl.cli import main
from calmrl.config import ImputeConfig, load
from calmrl.data.features.feature_set import open_features
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.imputers import IMPUTERS, AutoImputer
from calmrl.workflows import impute
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


def test_some_modalities_of_a_directory(features, tmp_path, marker):
    some = open_features(features.path, ["text"]).select(np.asarray(features.present[:, 1]))
    assert impute(some, tmp_path / "done", marker()).imputed == 0
    done = open_features(tmp_path / "done")
    assert done.names == ("text",)
    assert list(done.ids) == list(some.ids)
    assert done.imputed is None


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


def _run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code or 0


@pytest.mark.parametrize("method", ["gaussian", "mean", "knn", "ridge"])
def test_impute_from_the_command_line(features, tmp_path, capsys, method):
    small = ["imputer.latent_dim=2"] if method == "gaussian" else []
    out = tmp_path / "done"
    code = _run("impute", features.path, "--out", out, "--std", f"imputer.method={method}", "seed=3", *small)
    printed = capsys.readouterr()
    assert (code, printed.out) == (0, ""), printed.err
    assert f"imputed {int((~features.present).sum())} of 100 value blocks in 50 rows; wrote {out}" in printed.err
    done = open_features(out)
    done.verify()
    _check_completed(features, done)
    for j, name in enumerate(features.z):
        assert (np.asarray(done.std[name])[features.present[:, j]] == 0).all()
        assert (np.asarray(done.std[name])[~features.present[:, j]] > 0).all()
    config = load(out / "config.yaml")
    assert (config.imputer.method, config.seed, config.std) == (method, 3, True)
    assert json.loads((out / "features.json").read_text())["info"]["config"]["seed"] == 3


def test_impute_is_the_same_twice(features, tmp_path):
    for name in ("a", "b"):
        assert _run("impute", features.path, "--out", tmp_path / name, "imputer.method=gaussian") == 0
    for file in ("image.npy", "text.npy", "imputed.npy"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_impute_refuses_to_overwrite(features, tmp_path, capsys):
    out = tmp_path / "done"
    mean = ["imputer.method=mean"]
    assert _run("impute", features.path, "--out", features.path, *mean) == 2
    assert _run("impute", features.path, "--out", features.path, "--force", *mean) == 2
    assert "was not written by calmrl" in capsys.readouterr().err
    assert _run("impute", features.path, "--out", out, *mean) == 0
    assert _run("impute", features.path, "--out", out, *mean) == 2
    assert _run("impute", features.path, "--out", out, "--force", "--std", *mean) == 0
    assert (out / "text.std.npy").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["done", "features"]


def test_impute_from_python(features, tmp_path):
    config = ImputeConfig(kind="impute", imputer={"method": "mean"})
    result = impute(features, tmp_path / "here", config)
    assert (result.path, result.rows, result.blocks) == (tmp_path / "here", 50, 100)
    assert _run("impute", features.path, "--out", tmp_path / "there", "imputer.method=mean") == 0
    for file in ("image.npy", "text.npy", "imputed.npy", "config.yaml"):
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes()
    assert open_features(result.path).imputed.sum() == result.imputed


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


def test_impute_reads_npz(tmp_path):
    image, text = np.ones((6, 3)), np.ones((6, 2))
    text[2] = np.nan
    np.savez(tmp_path / "features.npz", image=image, text=text)
    assert _run("impute", tmp_path / "features.npz", "--out", tmp_path / "done", "imputer.method=mean") == 0
    assert open_features(tmp_path / "done").imputed.sum() == 1


def test_impute_of_nothing(tmp_path, capsys):
    assert _run("impute", tmp_path / "nowhere", "--out", tmp_path / "done") == 2
    assert "no features at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_warns_where_nothing_is_predicted_and_speaks_json(tmp_path, capsys):
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(300, 3))
    z = {name: latent @ rng.normal(size=(3, 5)) for name in ("image", "text")}
    z["noise"] = rng.normal(size=(300, 5))
    for j, name in enumerate(z):
        z[name][j::4] = np.nan
    np.savez(tmp_path / "features.npz", **z)
    arguments = ["impute", str(tmp_path / "features.npz"), "--out", str(tmp_path / "out"), "--json"]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "imputer.candidates=[gaussian, mean]"])
    assert not stop.value.code
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    errors = told["choice"]["error_by_modality"]
    assert errors["image"] < 0.5  # the premise: one modality is predicted, the other is not
    assert errors["noise"] > 0.98
    assert told["imputed"] == 225
    assert "does not predict noise (" in printed.err
    assert "image (" not in printed.err.partition("does not predict")[2]


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


def test_auto_records_how_many_held_out_values_its_intervals_cover():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(300, 3))
    z = {name: shared @ rng.normal(size=(3, w)) + 0.5 * rng.normal(size=(300, w)) for name, w in (("a", 6), ("b", 5))}
    z["a"][:60] = z["b"][60:100] = np.nan
    choice = AutoImputer(["ridge", "mean"]).fit(z).choice_
    assert sum(choice["held_out_by_modality"].values()) == choice["held_out"]
    assert all(90 < covered < 98 for covered in choice["coverage_by_modality"].values())  # normal noise
    assert imputation_warnings(choice) == []
    z["b"][60:100] = 0.0
    assert list(AutoImputer(["ridge", "mean"]).fit(z).choice_["held_out_by_modality"]) == ["a"]  # b is never missing
