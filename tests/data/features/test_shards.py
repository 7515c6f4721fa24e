"""Features through tar shards: the same rows, in order, in chunks of any size and any number of processes."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.shards import Shards, from_webdataset, write_shards
from calmrl.data.hiding import hide
from calmrl.errors import InputError

WIDTHS = {"image": 5, "text": 3}


def features(n: int = 25) -> FeatureSet:
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(n, width)).astype(np.float16) for name, width in WIDTHS.items()}
    present = hide(np.ones((n, 2), dtype=bool), 0.3, rng)
    return FeatureSet(z, present, meta_table(n, ids=[f"é{i}" for i in range(n)], text=["un café"] * n))


def tar(path: Path, *files: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def npy(values: list[Any], dtype: str | None = "float32") -> bytes:
    content = io.BytesIO()
    np.save(content, np.array(values, dtype=dtype))
    return content.getvalue()


@pytest.mark.parametrize("rows", [1, 7, 25, 100])
def test_round_trip(tmp_path: Path, rows: int) -> None:
    given = features()
    paths = write_shards(given, tmp_path / "shards", rows=10)
    shards = Shards(paths, WIDTHS, rows=rows)
    for _ in range(2):  # an iterable, not an iterator: fitting passes over it again and again
        chunks = list(shards)
        assert [len(present) for _, present in chunks][:-1] == [rows] * (len(chunks) - 1)
        assert np.array_equal(np.concatenate([present for _, present in chunks]), given.present)
        for j, name in enumerate(WIDTHS):
            got = np.concatenate([z[name] for z, _ in chunks])
            expected = np.where(given.present[:, [j]], given.z[name].astype(np.float32), np.nan)
            assert np.array_equal(got, expected, equal_nan=True)


def test_rows_are_described(tmp_path: Path) -> None:
    (path,) = write_shards(features(), tmp_path)
    with tarfile.open(path) as archive:
        file = archive.extractfile("000000003.json")
        assert json.loads(file.read()) == {"id": "é3", "text": "un café"}


def test_one_modality_of_a_foreign_shard(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", ("x/1.image.npy", npy([1, 2])), ("x/1.jpg", b"..."), ("y/1.image.npy", npy([3, 4])))
    ((z, present),) = Shards([path], {"image": 2})
    assert z["image"].tolist() == [[1, 2], [3, 4]]  # the folder is a part of the key
    assert present.all()


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shard at"):
        list(Shards([tmp_path / "no.tar"], WIDTHS))
    (path,) = write_shards(features(), tmp_path / "s")
    with pytest.raises(InputError, match=r"exists; choose another name"):
        write_shards(features(), tmp_path / "s")
    os.truncate(path, 20_000)
    with pytest.raises(InputError, match="cannot be read as a tar file"):
        list(Shards([path], WIDTHS))
    wide = tar(tmp_path / "w.tar", ("1.image.npy", npy([1, 2])))
    with pytest.raises(InputError, match=r"1\.image\.npy holds float32 of shape \(2,\); expected 5 floats"):
        list(Shards([wide], WIDTHS))
    bad = tar(tmp_path / "b.tar", ("1.image.npy", b"garbage"))
    with pytest.raises(InputError, match=r"cannot be read as \.npy"):
        list(Shards([bad], WIDTHS))
    twice = tar(tmp_path / "t.tar", ("1.image.npy", npy([1])), ("1.image.npy", npy([1])))
    with pytest.raises(InputError, match=r"holds 1\.image\.npy twice"):
        list(Shards([twice], {"image": 1}))


def test_shards_are_numbered_and_shared(tmp_path: Path) -> None:
    given = FeatureSet({"a": np.arange(5.0, dtype=np.float32)[:, None]})
    paths = write_shards(given, tmp_path / "deep" / "er", rows=2)
    assert [path.name for path in paths] == ["000000.tar", "000001.tar", "000002.tar"]
    assert write_shards(FeatureSet({"a": np.zeros((0, 1))}), tmp_path / "deep") == []
    with tarfile.open(paths[1]) as archive:
        assert archive.getnames() == ["000000002.a.npy", "000000002.json", "000000003.a.npy", "000000003.json"]
    for options, seen in (
        ({"rows": 3}, [[0, 1, 2], [3, 4]]),
        ({"rows": 9, "rank": 1, "world": 3}, [[2, 3]]),
        ({"rows": 9, "rank": 0, "world": 2}, [[0, 1, 4]]),
    ):
        assert [z["a"].ravel().tolist() for z, _ in Shards(paths, {"a": 1}, **options)] == seen
    for rank, world in ((-1, 1), (1, 1), (3, 3), (0, 4)):
        with pytest.raises(InputError, match=f"rank {rank} of {world} processes and 3 shards"):
            Shards(paths, {"a": 1}, rank=rank, world=world)


# ---- into memory


def test_a_folder_a_file_or_several(tmp_path):
    paths = write_shards(features(), tmp_path / "shards", rows=10)
    assert [path.name for path in paths] == ["000000.tar", "000001.tar", "000002.tar"]
    assert len(from_webdataset(tmp_path / "shards")) == 25
    assert len(from_webdataset(str(paths[0]))) == 10
    assert from_webdataset(paths[::2]).ids.tolist() == [f"é{row}" for row in [*range(10), *range(20, 25)]]


def test_the_modalities_wanted_in_their_order(tmp_path):
    write_shards(features(), tmp_path)
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
    found = from_webdataset(tar(tmp_path / "0.tar", *files.items()))
    assert found.ids.tolist() == ["a", "b"]
    assert found.present.tolist() == [[True, True], [False, True]]
    assert found.imputed.tolist() == [[False, False], [True, False]]
    assert found.z["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found.std is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.txt": b"x"}, "the shards hold no <modality>.npy; asked for all"),
        ({"a.x.npy": npy([[1.0]], None)}, "a.x.npy holds float64 of shape (1, 1); expected a vector of floats"),
        ({"a.x.npy": npy([1, 2], None)}, "a.x.npy holds int64 of shape (2,); expected a vector of floats"),
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
        from_webdataset(tar(tmp_path / "0.tar", *files.items()))


def test_a_folder_without_shards(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.tar file; name the shards or their folder"):
        from_webdataset(tmp_path)
