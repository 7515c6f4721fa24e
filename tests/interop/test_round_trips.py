"""Every format holds features, to the bit, and keeps what was imputed apart from what was observed."""

from __future__ import annotations

import re
import sys

import numpy as np
import pyarrow as pa
import pytest

import calmrl.interop as interop
from calmrl.data import FeatureSet, Shards, open_features
from calmrl.errors import InputError, MissingExtraError
from calmrl.interop import containers as tables
from tests.interop.interop_data import ROWS, assert_same, imputed, observed


def read_h5ad(path):
    """From the disk, not from memory."""
    import anndata

    return interop.from_anndata(anndata.read_h5ad(path, backed="r"))


OBJECTS = {
    "arrow": (interop.to_arrow, interop.from_arrow),
    "arrow, wide": (lambda features: interop.to_arrow(features, wide=True), interop.from_arrow),
    "pandas": (interop.to_pandas, interop.from_pandas),
    "pandas, wide": (lambda features: interop.to_pandas(features, wide=True), interop.from_pandas),
    "polars": (interop.to_polars, interop.from_polars),
    "polars, wide": (lambda features: interop.to_polars(features, wide=True), interop.from_polars),
    "datasets": (interop.to_dataset, interop.from_dataset),
    "anndata": (interop.to_anndata, interop.from_anndata),
    "mudata": (interop.to_mudata, interop.from_mudata),
}
FILES = {
    "parquet": (interop.to_parquet, interop.from_parquet),
    "lance": (interop.to_lance, interop.from_lance),
    "webdataset": (interop.to_webdataset, interop.from_webdataset),
    "h5mu": (interop.to_h5mu, interop.from_h5mu),
    "h5ad": (lambda features, path: interop.to_anndata(features).write_h5ad(path), read_h5ad),
}


@pytest.mark.parametrize("make", [observed, imputed])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name, make, dtype):
    there, back = OBJECTS[name]
    features = make(dtype)
    assert_same(features, back(there(features)))


@pytest.mark.parametrize("make", [observed, imputed])
@pytest.mark.parametrize("name", FILES)
def test_files(name, make, tmp_path):
    there, back = FILES[name]
    features = make()
    there(features, tmp_path / "features")
    assert_same(features, back(tmp_path / "features"))
    if name == "lance":
        interop.to_lance(features, tmp_path / "named", table="stamps")
        assert_same(features, interop.from_lance(tmp_path / "named" / "stamps.lance", ["image", "text"]))
        with pytest.raises(InputError, match="no Lance table"):
            interop.from_lance(tmp_path / "named")


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_comes_back_imputed_with_its_observations_untouched(name):
    there, back = OBJECTS[name]
    given = there(observed())
    from calmrl import GaussianImputer

    done = GaussianImputer(2, max_iter=100, tol=1e-2).fit(given).transform(given)
    assert type(done) is type(given)
    assert_same(imputed(), back(done))
    assert_same(observed(), back(given))


def test_whoever_reads_a_modality_sees_observations_only(tmp_path):
    features = imputed()
    table = interop.to_arrow(features)
    assert table["image"].null_count == 5
    assert table["image.imputed"].null_count == table["image.std"].null_count == ROWS - 5
    interop.to_webdataset(features, tmp_path)
    (z, present), *_ = Shards(sorted(tmp_path.glob("*.tar")), {"image": 4, "text": 3})
    np.testing.assert_array_equal(present, features.present)
    assert np.isnan(z["image"][:5]).all()


def test_open_features_reads_what_to_parquet_wrote(tmp_path):
    interop.to_parquet(imputed(), tmp_path / "done.parquet")
    assert_same(imputed(), open_features(tmp_path / "done.parquet"))
    with pytest.raises(InputError, match="exists; choose another name"):
        interop.to_parquet(imputed(), tmp_path / "done.parquet")


def test_lance_keeps_what_is_missing_of_long_vectors(tmp_path):
    z = {"image": np.arange(60, dtype=np.float32).reshape(3, 20), "text": np.ones((3, 12), dtype=np.float32)}
    z["image"][1] = np.nan
    interop.to_lance(FeatureSet(z), tmp_path / "db")  # LanceDB looks into columns of ten and more numbers
    again = interop.from_lance(tmp_path / "db")
    assert again.present.tolist() == [[True, True], [False, True], [True, True]]
    np.testing.assert_array_equal(again.z["image"], z["image"])


def test_webdataset_itself_reads_our_shards_and_we_read_its(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    features = imputed()
    paths = interop.to_webdataset(features, tmp_path / "ours", rows=10)
    samples = list(webdataset.WebDataset([str(path) for path in paths], shardshuffle=False).decode())
    assert len(samples) == ROWS
    np.testing.assert_array_equal(samples[7]["image.npy"], features.z["image"][7])
    np.testing.assert_array_equal(samples[2]["image.imputed.npy"], features.z["image"][2])
    assert samples[2]["json"]["id"] == "item 2"
    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as sink:
        for row in range(ROWS):
            vectors = {"image.npy": features.z["image"][row]} if features.present[row, 0] else {}
            sink.write({"__key__": f"k{row:03d}", **vectors, "text.npy": features.z["text"][row]})
    theirs = interop.from_webdataset(tmp_path / "theirs.tar")
    assert theirs.ids[3] == "k003"
    np.testing.assert_array_equal(theirs.present[:, 0], features.present[:, 0])
    np.testing.assert_array_equal(theirs.z["text"], features.z["text"])


def test_parquet_without_nulls_in_lists_of_one_length(tmp_path, monkeypatch):
    """Older pyarrow cannot read them back; the file then has lists of any length, with the same values and holes."""
    features = observed()
    monkeypatch.setattr(tables, "NULLS_IN_LISTS", False)
    interop.to_parquet(features, tmp_path / "rows.parquet")
    kinds = [field.type for field in tables.pq.read_schema(tmp_path / "rows.parquet")]
    assert not any(pa.types.is_fixed_size_list(kind) for kind in kinds)
    assert sum(pa.types.is_large_list(kind) for kind in kinds) == len(features.z)
    back = interop.from_parquet(tmp_path / "rows.parquet")
    assert not features.present.all()
    np.testing.assert_array_equal(back.present, features.present)
    for j, (name, values) in enumerate(features.z.items()):
        np.testing.assert_array_equal(back.z[name][back.present[:, j]], values[features.present[:, j]])


def test_a_modality_that_no_row_has_keeps_its_width():
    features = observed()
    features.present[:, 0] = False
    assert interop.from_arrow(interop.to_arrow(features)).z["image"].shape == (ROWS, 4)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": ["a"]}, "no column of lists of floats"),
        ({"a.0": [1.0, None], "a.1": [1.0, 2.0]}, "row 1 has some columns of modality"),
        ({"a.0": ["x"], "a.1": ["y"]}, "holds string, not numbers"),
        ({"a": [[1.0], [2.0]], "a.imputed": [None, [3.0]]}, 'both "a" and "a.imputed"'),
        ({"a": [[1.0, 1.0], None], "a.imputed": [None, [3.0]]}, "has width 1 but its modality has 2"),
        ({"a": [[1.0], [1.0, 2.0]]}, "have 1 to 2 entries"),
    ],
)
def test_tables_that_cannot_be_read(columns, said):
    with pytest.raises(InputError, match=re.escape(said)):
        interop.from_arrow(pa.table(columns))


def test_a_column_that_would_pass_for_a_modality_is_refused():
    features = FeatureSet(observed().z, meta=pa.table({"id": [str(r) for r in range(ROWS)], "image": ["x"] * ROWS}))
    with pytest.raises(InputError, match='"image" that describes the rows would be taken for a modality'):
        interop.to_arrow(features)


def test_own_columns_of_numbers_make_a_modality():
    table = pa.table({"id": ["a", "b"], "w": [1, 2], "h": [3, None], "x": [0.5, 0.25]})
    with pytest.raises(InputError, match="lacks others"):
        interop.from_arrow(table, {"size": ["w", "h"]})
    features = interop.from_arrow(table, {"place": ["x"], "size": ["h"]})
    assert features.z["size"].tolist()[0] == [3.0]
    assert features.present.tolist() == [[True, True], [True, False]]
    assert features.meta.column_names == ["id", "w"]


@pytest.mark.parametrize("package", ["pandas", "polars", "datasets", "anndata", "mudata"])
def test_a_library_that_is_not_installed_is_named(package, monkeypatch):
    write = {"datasets": interop.to_dataset}.get(package) or getattr(interop, f"to_{package}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r'pip install "calmrl\[interop\]"'):
        write(observed())
