"""`calmrl impute` on features with single missing values, from every format."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from calmrl.config import load
from calmrl.data import FeatureSet, open_features, write_features
from calmrl.errors import InputError
from calmrl.imputers import GaussianImputer, MixedImputer
from calmrl.interop import from_h5mu, to_mudata
from calmrl.workflows import impute
from tests.engines.pickling_engine import PicklingEngine
from tests.support.latent_data import torn

CONFIG = ["imputer={method: gaussian, latent_dim: 2, max_iter: 30}", "std=true"]


@pytest.fixture
def rows(tmp_path):
    """(z, folder with the same rows in every format)."""
    z, _ = torn(n=60, widths=(5, 4))
    np.savez(tmp_path / "rows.npz", **z)
    save_file(z, tmp_path / "rows.safetensors")
    wide = {f"{name}.{j}": array[:, j] for name, array in z.items() for j in range(array.shape[1])}
    pq.write_table(pa.table(wide), tmp_path / "wide.parquet")
    lists = {name: [None if np.isnan(row).all() else list(row) for row in array] for name, array in z.items()}
    pq.write_table(pa.table({name: pa.array(column) for name, column in lists.items()}), tmp_path / "nan.parquet")
    nulls = {
        name: pa.array([None if row is None else [None if np.isnan(v) else v for v in row] for row in column])
        for name, column in lists.items()
    }
    pq.write_table(pa.table(nulls), tmp_path / "null.parquet")
    present = np.stack([~np.isnan(array).all(1) for array in z.values()], axis=1)
    write_features(tmp_path / "folder", z, present, holes=True)
    (tmp_path / "by-hand").mkdir()
    for name, array in z.items():
        np.save(tmp_path / "by-hand" / f"{name}.npy", array)
    return z, tmp_path


@pytest.mark.filterwarnings("ignore:EM used all")
@pytest.mark.parametrize(
    "name", ["rows.npz", "rows.safetensors", "wide.parquet", "nan.parquet", "null.parquet", "folder", "by-hand"]
)
def test_every_format_may_have_holes(rows, name):
    z, folder = rows
    result = impute(folder / name, folder / "done", load(None, CONFIG, kind="impute"))
    values, std = GaussianImputer(2, max_iter=30).fit(z).impute(z, return_std=True)
    done = open_features(folder / "done")
    for j, (modality, array) in enumerate(z.items()):
        np.testing.assert_array_equal(done.z[modality], values[modality])
        np.testing.assert_allclose(done.std[modality], std[modality], rtol=1e-6)
        holes = np.isnan(array) & ~np.isnan(array).all(1, keepdims=True)
        assert result.holes[modality] == done.info["holes"][modality] == holes.sum()
        assert (done.present[:, j] == ~np.isnan(array).all(1)).all()
        assert (done.imputed[:, j] == np.isnan(array).all(1)).all()
    assert result.imputed == done.imputed.sum()


@pytest.mark.filterwarnings("ignore:EM used all")
def test_files_of_muon_come_back_with_layers(rows):
    pandas, mudata = pytest.importorskip("pandas"), pytest.importorskip("mudata")
    z, folder = rows
    z = {name: array.copy() for name, array in z.items()}
    z["m1"] = np.where(np.isnan(z["m1"]), np.nan, (z["m1"] > 0) * 1.0)
    given = to_mudata(FeatureSet(z, holes=True))
    given.obs["age"] = np.arange(60.0)
    given["m0"].var["gene"] = [f"g{j}" for j in range(5)]
    with mudata.set_options(pull_on_update=False):
        given.write(folder / "rows.h5mu")
    config = load(None, [*CONFIG, "kinds={m1: binary}"], kind="impute")
    impute(folder / "rows.h5mu", folder / "done.h5mu", config)
    with mudata.set_options(pull_on_update=False):
        done = mudata.read_h5mu(folder / "done.h5mu")
    options = {"latent_dim": 2, "max_iter": 30}
    want, std = MixedImputer({"m1": "binary"}, "gaussian", options).fit(z).impute(z, return_std=True)
    for name, array in z.items():
        np.testing.assert_array_equal(done[name].X, array)
        np.testing.assert_allclose(done[name].layers["imputed"], want[name])
        np.testing.assert_allclose(done[name].layers["imputed_std"], std[name], rtol=1e-6)
    assert list(done["m0"].var["gene"]) == [f"g{j}" for j in range(5)]
    pandas.testing.assert_series_equal(done.obs["age"], given.obs["age"], check_dtype=False)
    p = want["m1"][np.isnan(z["m1"])]
    assert ((p > 0) & (p < 1)).all()
    with pytest.raises(InputError, match=r"done\.h5mu exists; choose another name"):
        impute(folder / "rows.h5mu", folder / "done.h5mu", config)
    with pytest.raises(InputError, match=r"rows\.npz cannot be read as an h5mu file"):
        from_h5mu(folder / "rows.npz")


def test_elsewhere_holes_are_an_error(rows):
    z, folder = rows
    with pytest.raises(InputError, match="is partly NaN in row"):
        write_features(folder / "other", z)
    for name in ("rows.npz", "rows.safetensors"):
        with pytest.raises(InputError, match=r"is partly NaN in row \d+.*, or calmrl impute for files\)"):
            open_features(folder / name)
        assert open_features(folder / name, holes=True).present.shape == (60, 2)
    with pytest.raises(
        InputError, match="lacks others; a modality is missing as a whole: impute the single values first"
    ):
        open_features(folder / "wide.parquet")
    with pytest.raises(InputError, match="has null entries"):
        open_features(folder / "null.parquet")


@pytest.mark.filterwarnings("ignore:EM used all")
def test_allow_missing_drops_blocks_with_infinity_and_keeps_holes(rows):
    z, folder = rows
    row = int(np.flatnonzero(~np.isnan(z["m0"]).any(1) & ~np.isnan(z["m1"]).all(1))[0])
    z["m0"][row, 0] = np.inf
    np.savez(folder / "bad.npz", **z)
    config = load(None, CONFIG, kind="impute")
    with pytest.raises(InputError, match=f"infinite value in row {row}"):
        impute(folder / "bad.npz", folder / "done", config)
    present = np.stack([~np.isnan(array).all(1) for array in z.values()], axis=1)
    np.savez(folder / "bad.npz", present=present, **z)
    result = impute(folder / "bad.npz", folder / "done", config, allow_missing=True)
    assert result.damaged == {"m0": 1, "m1": 0}
    assert open_features(folder / "done").imputed[row, 0]
    assert set(result.holes) == {"m0", "m1"}


@pytest.mark.filterwarnings("ignore:EM used all", "ignore:.*converge")
@pytest.mark.parametrize("name", ["rows.npz", "null.parquet", "folder"])
@pytest.mark.parametrize(
    "method", ["{method: gaussian, latent_dim: 2, max_iter: 30}", "{method: auto, candidates: [ridge]}"]
)
def test_workers_complete_the_same_holes(rows, name, method):
    _, folder = rows
    config = load(None, [f"imputer={method}"], kind="impute")
    impute(folder / name, folder / "here", config)
    impute(folder / name, folder / "there", config, engine=PicklingEngine())
    here, there = open_features(folder / "here"), open_features(folder / "there")
    for modality in here.names:
        assert np.isfinite(there.z[modality]).all()
        np.testing.assert_allclose(here.z[modality], there.z[modality], atol=1e-6)
