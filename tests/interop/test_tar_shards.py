"""Tar shards that were written elsewhere: what is read, in which order, and what is refused."""

from __future__ import annotations

import inspect
import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from calmrl.data.features.shards import write_shards
from calmrl.errors import InputError
from calmrl.interop import from_webdataset, to_webdataset
from tests.interop.interop_data import ROWS, observed


def npy(values) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(values))
    return file.getvalue()


def shard(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_a_folder_a_file_or_several(tmp_path):
    features = observed()
    paths = to_webdataset(features, tmp_path / "shards", rows=10)
    assert [path.name for path in paths] == ["000000.tar", "000001.tar", "000002.tar"]
    assert len(from_webdataset(tmp_path / "shards")) == ROWS
    assert len(from_webdataset(str(paths[0]))) == 10
    assert from_webdataset(paths[::2]).ids.tolist() == [f"item {row}" for row in [*range(10), *range(20, ROWS)]]
    for write in (to_webdataset, write_shards):
        assert inspect.signature(write).parameters["rows"].default == 10_000


def test_the_modalities_wanted_in_their_order(tmp_path):
    to_webdataset(observed(), tmp_path)
    assert from_webdataset(tmp_path).names == ("image", "text")
    assert from_webdataset(tmp_path, ["text", "image"]).names == ("text", "image")
    assert from_webdataset(tmp_path, ["text"]).names == ("text",)
    with pytest.raises(InputError, match="the shards hold image, text; asked for text, sound"):
        from_webdataset(tmp_path, ["text", "sound"])
    with pytest.raises(InputError, match="the shards hold image, text; asked for all"):
        from_webdataset(tmp_path, [])


def test_imputed_values_without_deviations(tmp_path):
    files = {
        "a.x.npy": npy([1.0, 2.0]),
        "a.y.npy": npy([0.5]),
        "b.x.imputed.npy": npy([3.0, 4.0]),
        "b.y.npy": npy([0.6]),
    }
    features = from_webdataset(shard(tmp_path / "0.tar", files))
    assert features.ids.tolist() == ["a", "b"]
    assert features.present.tolist() == [[True, True], [False, True]]
    assert features.imputed.tolist() == [[False, False], [True, False]]
    assert features.z["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert features.std is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.txt": b"x"}, "the shards hold no <modality>.npy; asked for all"),
        ({"a.x.npy": npy([[1.0]])}, "a.x.npy holds float64 of shape (1, 1); expected a vector of floats"),
        ({"a.x.npy": npy([1, 2])}, "a.x.npy holds int64 of shape (2,); expected a vector of floats"),
        (
            {"a.x.npy": npy([1.0]), "b.x.npy": npy([1.0, 2.0])},
            "vectors of x have 1 to 2 entries; make them equally long",
        ),
        (
            {"a.x.npy": npy([1.0]), "b.x.imputed.npy": npy([1.0, 2.0])},
            "vectors of x.imputed have 1 to 2 entries; make them equally long",
        ),
        ({"a.x.npy": npy([1.0]), "a.json": b"{"}, "a.json is no JSON ("),
        ({"a.x.npy": npy([1.0]), "a.json": b"[1]"}, "a.json holds a list; expected names and values"),
    ],
)
def test_shards_that_cannot_be_read(files, said, tmp_path):
    with pytest.raises(InputError, match=re.escape(said)):
        from_webdataset(shard(tmp_path / "0.tar", files))


def test_a_folder_without_shards(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.tar file; name the shards or their folder"):
        from_webdataset(tmp_path)
