"""Imputing by blocks: the bytes of one process, whoever does the blocks; stopped runs resume; damage is named or counted."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from calmrl._support.engine import LocalEngine
from calmrl.config import load
from calmrl.data import open_features, write_features
from calmrl.data.features import distributed_rows
from calmrl.errors import InputError
from calmrl.latent import em
from calmrl.workflows.impute import impute
from tests.engines.pickling_engine import PicklingEngine, save_parquet
from tests.support.latent_data import from_model

imputation = importlib.import_module("calmrl.workflows.impute")  # the package exports a function of this name

GAUSSIAN = ("imputer.method=gaussian", "imputer.latent_dim=2", "imputer.max_iter=12", "imputer.tol=1e-9")


@pytest.fixture
def features(tmp_path):
    z, present = from_model(n=600)
    return write_features(tmp_path / "features", z, present, ids=[f"item {i}" for i in range(600)], text=["a"] * 600)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of about forty rows, in one process and elsewhere."""
    monkeypatch.setattr(distributed_rows, "BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(imputation, "IMPUTE_BYTES", 1 << 12)


def config(*overrides):
    return load(None, list(overrides), kind="impute")


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


class Stopped(Exception):
    pass


class StoppingEngine:
    """Counts the blocks that it does, and stops at one of them."""

    name, workers = "stopping", 1

    def __init__(self, last=None):
        self.last, self.done = last, []

    def map(self, function, items, *shared):
        for item in items:
            if len(self.done) == self.last:
                raise Stopped
            self.done.append(function.__name__)
            yield function(item, *shared)


@pytest.mark.parametrize(
    "overrides",
    [
        GAUSSIAN,
        (*GAUSSIAN, "imputer.n_components=2", "std=true"),
        (*GAUSSIAN, "imputer.whitening=0.5"),
        ("imputer.method=gaussian", "imputer.latent_dim=auto", "imputer.max_iter=8"),
        ("imputer.method=knn",),
        ("imputer.method=mean", "std=true"),
    ],
    ids=" ".join,
)
def test_blocks_give_every_byte_of_one_process(features, tmp_path, overrides):
    engine = StoppingEngine()
    impute(features.path, tmp_path / "one", config(*overrides))
    impute(features.path, tmp_path / "blocks", config(*overrides), engine=engine)
    assert len(engine.done) > 30
    assert content(tmp_path / "blocks") == content(tmp_path / "one")
    assert not (tmp_path / "blocks.part").exists()
    given, done = open_features(features.path), open_features(tmp_path / "blocks")
    for j, name in enumerate(given.z):
        here = given.present[:, j]
        assert done.z[name][here].tobytes() == given.z[name][here].tobytes()
    done.verify()


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_file_is_imputed_as_a_directory_is(features, tmp_path, suffix):
    opened = open_features(features.path)
    file = tmp_path / f"features{suffix}"
    if suffix == ".npz":
        np.savez(file, present=opened.present, ids=opened.ids.astype(str), **opened.z)
    else:
        save_parquet(opened, file)
    impute(features.path, tmp_path / "one", config(*GAUSSIAN))
    impute(file, tmp_path / "blocks", config(*GAUSSIAN), engine=PicklingEngine())
    one, blocks = open_features(tmp_path / "one"), open_features(tmp_path / "blocks")
    assert list(blocks.ids) == list(one.ids)
    assert np.array_equal(blocks.imputed, one.imputed)
    for name in one.z:
        assert blocks.z[name].tobytes() == one.z[name].tobytes()


@pytest.mark.parametrize("last", [5, 100, 160])
def test_a_stopped_run_resumes_and_ends_with_the_same_bytes(features, tmp_path, last):
    whole = StoppingEngine()
    impute(features.path, tmp_path / "whole", config(*GAUSSIAN), engine=whole)
    with pytest.raises(Stopped):
        impute(features.path, tmp_path / "out", config(*GAUSSIAN), engine=StoppingEngine(last))
    assert not (tmp_path / "out").exists()
    again = StoppingEngine()
    impute(features.path, tmp_path / "out", config(*GAUSSIAN), engine=again)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    checks = sum(name == "check_block" for name in whole.done)
    if last > 2 * checks:  # blocks are checked and measured again; iterations are not
        assert len(again.done) < len(whole.done) - (last - 3 * checks) + 1


def test_em_resumes_from_its_last_iteration(features, tmp_path, monkeypatch):
    iterations = []
    plain = em.expected_statistics
    monkeypatch.setattr(em, "expected_statistics", lambda *given: iterations.append(1) or plain(*given))
    impute(features.path, tmp_path / "whole", config(*GAUSSIAN), engine=StoppingEngine())
    needed = len(iterations)
    blocks = len(distributed_rows.stored_rows(features.path, features.path / "present.npy").blocks())
    with pytest.raises(Stopped):
        impute(features.path, tmp_path / "out", config(*GAUSSIAN), engine=StoppingEngine(2 * blocks + 6 * blocks + 3))
    assert len(iterations) - needed == 7
    iterations.clear()
    impute(features.path, tmp_path / "out", config(*GAUSSIAN), engine=StoppingEngine())
    assert len(iterations) == needed - 6


def test_what_was_begun_with_other_arguments_is_not_continued(features, tmp_path):
    with pytest.raises(Stopped):
        impute(features.path, tmp_path / "out", config(*GAUSSIAN), engine=StoppingEngine(100))
    with pytest.raises(InputError, match=r"begun with other arguments \(config differ\); delete .*out\.part"):
        impute(features.path, tmp_path / "out", config(*GAUSSIAN, "seed=1"), engine=StoppingEngine())


def test_a_damaged_value_is_named_before_the_fit_or_counted(features, tmp_path):
    name = next(iter(features.z))
    values = np.load(features.path / f"{name}.npy", mmap_mode="r+")
    rows = np.flatnonzero(features.present.all(axis=1))[[3, 40]]
    values[rows] = np.inf
    values.flush()
    engine = StoppingEngine()
    with pytest.raises(
        InputError, match=rf"features, rows \d+ to \d+, counted from \d+: z\['{name}'\] has an infinite"
    ):
        impute(features.path, tmp_path / "out", config(*GAUSSIAN), engine=engine)
    assert set(engine.done) == {"check_block"}
    assert not (tmp_path / "out.part").exists()
    result = impute(features.path, tmp_path / "counted", config(*GAUSSIAN), engine=StoppingEngine(), allow_missing=True)
    local = impute(features.path, tmp_path / "local", config(*GAUSSIAN), engine=LocalEngine(), allow_missing=True)
    assert local.damaged == result.damaged
    assert content(tmp_path / "local") == content(tmp_path / "counted")
    done = open_features(tmp_path / "counted")
    column = done.names.index(name)
    assert result.damaged == {other: 2 * (other == name) for other in done.names}
    assert result.imputed == int((~features.present).sum()) + 2
    assert not done.present[rows, column].any()
    assert done.imputed[rows, column].all()
    assert np.isfinite(done.z[name]).all()
    assert done.info["damaged"] == result.damaged


def test_a_file_that_is_cut_off_is_named_before_any_work(features, tmp_path):
    name = next(iter(features.z))
    file = features.path / f"{name}.npy"
    file.write_bytes(file.read_bytes()[:-8])
    engine = StoppingEngine()
    with pytest.raises(InputError, match=rf"{name}\.npy has \d+ bytes but \d+ were written: cut off"):
        impute(features.path, tmp_path / "out", config(*GAUSSIAN), engine=engine)
    assert engine.done == []
    assert not (tmp_path / "out.part").exists()


def test_rows_without_a_mask_or_a_table_and_their_progress(tmp_path, monkeypatch):
    z = {name: np.arange(20, dtype=np.float32).reshape(10, 2) for name in ("a", "b")}
    z["b"][4] = np.nan
    plain = tmp_path / "plain"
    plain.mkdir()
    for name, values in z.items():
        np.save(plain / f"{name}.npy", values)
    monkeypatch.setattr(imputation, "IMPUTE_BYTES", 16 * 4)  # four rows at a time
    reported = []
    made = impute(plain, tmp_path / "out", config("imputer.method=mean"), progress=lambda *what: reported.append(what))
    assert reported == [(done, 10, "imputing") for done in (4, 8, 10)]
    assert (made.rows, made.blocks, made.imputed) == (10, 20, 1)
    values = np.load(tmp_path / "out" / "b.npy")
    np.testing.assert_allclose(values[4], np.delete(z["b"], 4, axis=0).mean(axis=0), rtol=1e-6)
    assert np.load(tmp_path / "out" / "present.npy").sum() == 19
    assert not list(tmp_path.glob("*.part"))
