"""MuData and AnnData as muon and scanpy make them: other observations per modality, sparse matrices, files."""

from __future__ import annotations

import numpy as np
import pytest
from interop_data import assert_same, imputed, observed
from scipy import sparse

from calmrl import Aligner, GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers import RidgeImputer
from calmrl.interop import from_anndata, from_mudata, to_anndata, to_mudata
from later import Later

anndata = Later("anndata")
mudata = Later("mudata")
pandas = pytest.importorskip("pandas")
CELLS = [f"cell{j}" for j in range(40)]


@pytest.fixture
def cells():
    """RNA of the first 30 cells (sparse counts beside it), protein of the last 30; 10 of them lack NaN-free protein."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(40, 2))
    rna, protein = shared @ rng.normal(size=(2, 6)), shared @ rng.normal(size=(2, 4))
    first = anndata.AnnData(
        rna[:30],
        obs=pandas.DataFrame({"depth": np.arange(30)}, index=CELLS[:30]),
        var=pandas.DataFrame({"chromosome": list("abcdef")}, index=[f"gene{j}" for j in range(6)]),
        layers={"counts": sparse.csr_matrix(np.round(rna[:30] ** 2).astype(np.int64))},
        obsm={"pca": rna[:30, :2]},
    )
    first.uns["made by"] = "us"
    first.obsp["near"] = sparse.eye(30).tocsr()
    second = anndata.AnnData(protein[10:].copy(), obs=pandas.DataFrame(index=CELLS[10:][::-1]))
    second.var_names = [f"protein{j}" for j in range(4)]
    second.X[:5] = np.nan  # cells 39 to 35
    with mudata.set_options(pull_on_update=False):
        mdata = mudata.MuData({"rna": first, "protein": second})
    mdata.obs["batch"] = pandas.Categorical(["one", "two"] * 20)
    mdata.obsm["umap"] = shared
    return mdata, rna, protein


def keep(mdata):
    """Observations that have something: cells 35 to 39 have neither."""
    with mudata.set_options(pull_on_update=False):
        return mdata[[name for name in mdata.obs_names if name not in CELLS[35:]]].copy()


def test_observations_are_united_and_missing_where_a_modality_does_not_list_them(cells):
    mdata, rna, protein = cells
    features = from_mudata(mdata)
    assert list(features.ids) == list(mdata.obs_names)
    place = {name: row for row, name in enumerate(features.ids)}
    assert set(place) == set(CELLS)
    present = {name: features.present[place[name]].tolist() for name in CELLS}
    assert present["cell0"] == [True, False]
    assert present["cell20"] == [True, True]
    assert present["cell32"] == [False, True]
    assert present["cell39"] == [False, False]
    np.testing.assert_array_equal(features.z["rna"][place["cell7"]], rna[7])
    np.testing.assert_array_equal(features.z["protein"][place["cell12"]], protein[10 + (39 - 12)])
    assert features.column("batch")[0] in ("one", "two")


@pytest.mark.filterwarnings("error::FutureWarning")
def test_imputed_layers_come_back_over_all_observations(cells):
    mdata = keep(cells[0])
    before = {name: adata.X.copy() for name, adata in mdata.mod.items()}
    imputer = GaussianImputer(2, tol=1e-3).fit(mdata)
    done = imputer.transform(mdata)
    features = from_mudata(mdata)
    z, std = imputer.impute(features.z, features.present, return_std=True)
    for name, adata in done.mod.items():
        assert list(adata.obs_names) == list(done.obs_names) == list(mdata.obs_names)
        np.testing.assert_array_equal(adata.layers["imputed"], z[name])
        np.testing.assert_array_equal(adata.layers["imputed_std"], std[name])
        seen = adata.obs["observed"].to_numpy()
        np.testing.assert_array_equal(adata.X[seen], adata.layers["imputed"][seen])
        assert np.isnan(adata.X[~seen]).all()
        assert (adata.layers["imputed_std"][seen] == 0).all()
        assert (adata.layers["imputed_std"][~seen] > 0).all()
        np.testing.assert_array_equal(mdata.mod[name].X, before[name])
        assert list(mdata.mod[name].layers) == (["counts"] if name == "rna" else [])
    rna = done.mod["rna"]
    assert rna.var["chromosome"].tolist() == list("abcdef")
    assert rna.uns["made by"] == "us"
    assert rna.obs["depth"].isna().sum() == rna.obsm["pca"][:, 0].shape[0] - 30
    assert rna.obsp["near"].sum() == 30
    assert rna.layers["counts"].dtype == np.int64
    assert done.obs["batch"].tolist() == mdata.obs["batch"].tolist()
    np.testing.assert_array_equal(done.obsm["umap"], mdata.obsm["umap"])
    again = imputer.transform(done)  # what was imputed is not taken for observed
    np.testing.assert_array_equal(again.mod["rna"].layers["imputed"], rna.layers["imputed"])


def test_sparse_values_are_read_dense_and_stay_sparse(cells):
    mdata = keep(cells[0])
    mdata.mod["rna"].X = sparse.csr_matrix(mdata.mod["rna"].X)
    done = RidgeImputer().fit_transform(mdata)
    assert sparse.issparse(done.mod["rna"].X)
    assert_same(from_mudata(done), from_mudata(RidgeImputer().fit_transform(keep(cells[0]))))


def test_a_layer_holds_the_values(cells):
    features = from_mudata(cells[0], layers={"rna": "counts"})
    assert features.z["rna"].dtype == np.float64
    assert (features.z["rna"][features.present[:, 0]] % 1 == 0).all()
    with pytest.raises(InputError, match="there is no layer 'raw'; there are counts"):
        from_mudata(cells[0], layers={"rna": "raw"})
    with pytest.raises(InputError, match="no modality 'dna'"):
        from_mudata(cells[0], layers={"dna": "raw"})


def test_a_space_for_all_observations(cells):
    mdata = keep(cells[0])
    aligner = Aligner("linear", False, 0.5, 2, 30, "never").fit(mdata)
    mdata.obsm["X_calmrl"] = aligner.embed(mdata)
    assert mdata.obsm["X_calmrl"].shape == (35, 2)


def test_files_keep_layers_and_masks(tmp_path):
    to_anndata(imputed()).write_h5ad(tmp_path / "done.h5ad")
    assert_same(imputed(), from_anndata(anndata.read_h5ad(tmp_path / "done.h5ad")))
    assert_same(imputed(), from_anndata(anndata.read_h5ad(tmp_path / "done.h5ad", backed="r")))
    with mudata.set_options(pull_on_update=False):
        to_mudata(imputed()).write(tmp_path / "done.h5mu")
        assert_same(imputed(), from_mudata(mudata.read(tmp_path / "done.h5mu")))


def test_columns_of_anndata_may_be_interleaved():
    features = observed()
    whole = to_anndata(features)
    order = np.array([0, 4, 1, 5, 2, 6, 3])
    mixed = whole[:, order].copy()
    mixed.var = mixed.var.rename(columns={"modality": "feature_types"})
    assert_same(features, from_anndata(mixed))
    done = GaussianImputer(2, max_iter=100, tol=1e-2).fit(mixed).transform(mixed)
    assert_same(imputed(), from_anndata(done))
    np.testing.assert_array_equal(done.X, mixed.X)


def test_what_cannot_be_read_is_a_sentence(cells):
    plain = anndata.AnnData(np.ones((2, 2)))
    with pytest.raises(InputError, match="which modality a variable belongs to"):
        GaussianImputer(1).fit(plain)
    mdata = keep(cells[0])
    mdata.mod["rna"].obs["observed"] = "yes"
    with pytest.raises(InputError, match=r'mod\["rna"\]\.obs\["observed"\] must be boolean'):
        from_mudata(mdata)
    with pytest.raises(InputError, match="leave out present"):
        GaussianImputer(1).fit(cells[0], np.ones((40, 2), dtype=bool))
    with pytest.raises(InputError, match="rows with other ids"):
        to_mudata(observed(), like=cells[0])
    with pytest.raises(InputError, match="5 of 40 rows have no modality at all"):
        GaussianImputer(1).fit(cells[0])
