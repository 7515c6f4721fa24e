"""MuData and AnnData as muon and scanpy make them: other observations per modality, sparse matrices, files."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from calmrl import GaussianImputer
from calmrl.data import FeatureSet
from calmrl.errors import InputError
from calmrl.imputers import RidgeImputer
from calmrl.interop import from_anndata, from_mudata, to_anndata, to_mudata
from calmrl.interop.annotated import matrix
from tests.interop.interop_data import assert_same, imputed, observed
from tests.support.later import Later

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
    thin = keep(cells[0])
    thin.mod["rna"].X = sparse.csr_matrix(thin.mod["rna"].X)  # read dense, and kept sparse
    from_thin = RidgeImputer().fit_transform(thin)
    assert sparse.issparse(from_thin.mod["rna"].X)
    assert_same(from_mudata(from_thin), from_mudata(RidgeImputer().fit_transform(mdata)))
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
    assert rna.X.dtype == np.float64
    assert list(done.obs.columns) == list(mdata.obs.columns) == ["batch"]
    assert done.obs["batch"].tolist() == mdata.obs["batch"].tolist()
    np.testing.assert_array_equal(done.obsm["umap"], mdata.obsm["umap"])
    again = imputer.transform(done)  # what was imputed is not taken for observed
    np.testing.assert_array_equal(again.mod["rna"].layers["imputed"], rna.layers["imputed"])


def test_a_layer_holds_the_values(cells):
    features = from_mudata(cells[0], layers={"rna": "counts"})
    assert features.z["rna"].dtype == np.float64
    assert (features.z["rna"][features.present[:, 0]] % 1 == 0).all()
    with pytest.raises(InputError, match="there is no layer 'raw'; there are counts"):
        from_mudata(cells[0], layers={"rna": "raw"})
    with pytest.raises(InputError, match="no modality 'dna'"):
        from_mudata(cells[0], layers={"dna": "raw"})


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


def small(order=(0, 1, 2), dtype=np.float32):
    """Three cells in two modalities; the second lists them in `order`."""
    first = anndata.AnnData(np.arange(6, dtype=dtype).reshape(3, 2), obs=pandas.DataFrame(index=list("abc")))
    first.var_names = ["g0", "g1"]
    second = anndata.AnnData(
        np.arange(3, dtype=dtype)[list(order), None], obs=pandas.DataFrame(index=np.array(list("abc"))[list(order)])
    )
    second.var_names = ["p0"]
    with mudata.set_options(pull_on_update=False):
        return mudata.MuData({"rna": first, "protein": second})


def test_all_that_an_object_knows_is_taken_over():
    mdata = small((2, 0))
    second = mdata.mod["protein"]
    second.obsm["frame"] = pandas.DataFrame({"x": [1.0, 2.0]}, index=second.obs_names)
    second.obsm["whole"] = np.array([[1], [2]])
    mdata.obsp["near"] = np.eye(3)
    mdata.varm["weight"] = np.arange(3.0)[:, None]
    mdata.var["long"] = [True, False, True]
    mdata.uns["made by"] = "us"
    done = to_mudata(from_mudata(mdata), like=mdata)
    protein = done.mod["protein"]
    assert protein.X.ravel().tolist()[::2] == [0.0, 2.0]
    assert protein.X.dtype == np.float32
    assert protein.obsm["frame"]["x"].tolist()[::2] == [2.0, 1.0]
    assert np.isnan(protein.obsm["frame"]["x"].iloc[1])
    np.testing.assert_array_equal(protein.obsm["whole"], [[2.0], [np.nan], [1.0]])
    np.testing.assert_array_equal(done.obsp["near"], np.eye(3))
    np.testing.assert_array_equal(done.varm["weight"], mdata.varm["weight"])
    assert done.var["long"].tolist() == [True, False, True]
    assert done.uns["made by"] == "us"
    without = FeatureSet({"rna": from_mudata(mdata).z["rna"]}, meta=from_mudata(mdata).meta)
    assert "long" not in to_mudata(without, like=mdata).var.columns  # other variables


def test_a_modality_without_values_keeps_its_layers():
    mdata = small((2, 0))
    mdata.mod["protein"].layers["raw"] = mdata.mod["protein"].X.copy()
    mdata.mod["protein"].X = None
    done = to_mudata(from_mudata(mdata, layers={"protein": "raw"}), like=mdata)
    assert done.mod["protein"].X is None
    np.testing.assert_array_equal(done.mod["protein"].layers["raw"].ravel(), [0.0, np.nan, 2.0])
    with pytest.raises(InputError, match="X is empty; name a layer instead, of raw"):
        from_mudata(mdata)


def test_deviations_may_be_unknown_of_some_or_all():
    features = imputed()
    for std in (None, {"text": features.std["text"]}):
        some = FeatureSet(features.z, features.present, features.meta, imputed=features.imputed, std=std)
        assert list(from_mudata(to_mudata(some)).std or {}) == list(std or {})
    assert from_anndata(to_anndata(FeatureSet(features.z, features.present, imputed=features.imputed))).std is None
    assert (
        from_anndata(to_anndata(FeatureSet(features.z, features.present, imputed=features.imputed))).imputed.sum() == 8
    )


def test_the_column_that_names_modalities():
    adata = to_anndata(observed())
    adata.var["kind"] = ["first"] * 2 + ["second"] * 5
    assert {name: block.shape[1] for name, block in from_anndata(_unmasked(adata), by="kind").z.items()} == {
        "first": 2,
        "second": 5,
    }
    with pytest.raises(InputError, match=r"no column other that says .*; it has modality, kind\. Add it"):
        from_anndata(adata, by="other")
    with pytest.raises(InputError, match=r"no column 'modality' or 'feature_types' that says .*; it has none"):
        from_anndata(anndata.AnnData(np.ones((2, 2))))


def _unmasked(adata):
    del adata.obsm["observed"]
    return adata


def test_whole_numbers_are_read_and_texts_are_not():
    var = pandas.DataFrame({"modality": ["a", "b"]}, index=["x", "y"])
    whole = anndata.AnnData(np.array([[1, 2], [3, 4]]), var=var)
    assert from_anndata(whole).z["b"].tolist() == [[2.0], [4.0]]
    assert from_anndata(whole).z["b"].dtype == np.float64
    assert matrix(SimpleNamespace(X=np.array([[True]]), isbacked=False, layers={})).tolist() == [[1.0]]
    for layer, said in ((None, "X holds <U1"), ("words", "words holds <U1")):
        words = np.array([["p"]])
        with pytest.raises(InputError, match=f"{said}; representations must be numbers"):
            matrix(SimpleNamespace(X=words, isbacked=False, layers={"words": words}), layer)
    whole.obsm["observed"] = np.ones((2, 2), dtype=bool)
    with pytest.raises(InputError, match=r'obsm\["observed"\] must be a frame with a column for each of a, b'):
        from_anndata(whole)
    whole.obsm["observed"] = pandas.DataFrame({"a": [True, True]}, index=whole.obs_names)
    with pytest.raises(InputError, match=r'obsm\["observed"\] must be a frame with a column for each of a, b'):
        from_anndata(whole)


def test_rows_and_columns_of_another_object_are_refused():
    features = observed()
    whole = to_anndata(features)
    renamed = whole.copy()
    renamed.obs_names = [f"other {row}" for row in range(24)]
    for other, rows in ((renamed, 24), (whole[:5].copy(), 5)):
        with pytest.raises(InputError, match=f"24 rows with other ids than the {rows} of the object"):
            to_anndata(features, like=other)
    with pytest.raises(InputError, match="no columns for text; write a new one without like="):
        to_anndata(features, like=whole[:, :4].copy())
    with pytest.raises(InputError, match="image has width 4 but the object has 3 columns for it"):
        to_anndata(imputed(), like=whole[:, 1:].copy())


def test_observations_that_cannot_be_told_apart_or_described():
    var = pandas.DataFrame({"modality": ["a"]}, index=["x"])
    twice = anndata.AnnData(np.ones((2, 1)), var=var, obs=pandas.DataFrame(index=["p", "p"]))
    with pytest.raises(InputError, match="1 ids occur more than once"):
        from_anndata(twice)
    mixed = anndata.AnnData(np.ones((2, 1)), var=var, obs=pandas.DataFrame({"id": ["s", "t"]}, index=["p", "q"]))
    assert from_anndata(mixed).ids.tolist() == ["p", "q"]
    mixed.obs["note"] = pandas.Series([1, "x"], index=["p", "q"], dtype=object)
    with pytest.raises(InputError, match=r'obs\["note"\] mixes kinds of values .*; use one kind per column'):
        from_anndata(mixed).column("note")


def test_modalities_that_cannot_be_united():
    mdata = small()
    nested = SimpleNamespace(axis=0, mod={"inner": mdata}, obs_names=mdata.obs_names)
    nested.mod["inner"] = SimpleNamespace(obs_names=mdata.obs_names)
    with pytest.raises(InputError, match="modality 'inner' is a SimpleNamespace; every modality must be an AnnData"):
        from_mudata(nested)
    with pytest.raises(InputError, match=r"share variables \(axis=1\); they must share observations"):
        from_mudata(SimpleNamespace(axis=1))
    first, said = mdata.mod["rna"], "observations of modality 'rna' are not unique, or not all in mdata.obs"
    for names in (["a", "b", "z"], ["a", "b", "b"]):
        other = first.copy()
        other.obs_names = names
        with pytest.raises(InputError, match=said):
            from_mudata(SimpleNamespace(axis=0, mod={"rna": other}, obs_names=mdata.obs_names))
