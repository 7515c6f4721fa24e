"""Files that claim what is not true, or were cut off: an error that names the file, never fewer rows."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from calmrl.data import open_features, write_features
from calmrl.data.features.shards import Shards, write_shards
from calmrl.errors import InputError

N = 6


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"image": rng.normal(size=(N, 3)).astype("float32"), "text": rng.normal(size=(N, 2)).astype("float32")}


def refused(path: Path, match: str | None = None) -> None:
    with pytest.raises(InputError, match=match) as caught:
        _ = open_features(path).ids
    assert path.name in str(caught.value)


# ---- shards


def test_a_shard_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    features = write_features(tmp_path / "f", arrays(), np.array([[True, row % 2 == 0] for row in range(N)]))
    (path,) = write_shards(features, tmp_path / "s")
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512  # the zeros after it are the end of the archive
    cut = tmp_path / "cut.tar"
    for size in [*range(0, end + 1, 256), *range(1, end, 777)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"cut\.tar"):
            list(Shards([cut], {"image": 3, "text": 2}))


def test_a_file_taken_out_of_a_shard_is_noticed(tmp_path: Path) -> None:
    features = write_features(tmp_path / "f", arrays())
    (path,) = write_shards(features, tmp_path / "s")
    for lost in ("000000002.text.npy", "000000002"):
        shorter = tmp_path / "shorter.tar"
        with tarfile.open(path) as old, tarfile.open(shorter, "w", pax_headers=old.pax_headers) as new:
            for member in old:
                if not member.name.startswith(lost):
                    new.addfile(member, old.extractfile(member))
        with pytest.raises(InputError, match=r"shorter\.tar .*it holds (17 files of 18|5 rows of 6)"):
            list(Shards([shorter], {"image": 3, "text": 2}))


def test_zeros_in_the_middle_of_a_shard_are_not_its_end(tmp_path: Path) -> None:
    features = write_features(tmp_path / "f", arrays())
    (path,) = write_shards(features, tmp_path / "s")
    content = bytearray(path.read_bytes())
    place = content.index(b"000000003.image.npy")
    content[place : place + 512] = bytes(512)
    path.write_bytes(content)
    with pytest.raises(InputError, match="something follows its end"):
        list(Shards([path], {"image": 3, "text": 2}))


def test_an_archive_instead_of_an_array_in_a_shard(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, a=np.zeros(3))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("1.image.npy")
        member.size = len(content.getvalue())
        tar.addfile(member, io.BytesIO(content.getvalue()))
    with pytest.raises(InputError, match=r"a\.tar: 1\.image\.npy cannot be read as \.npy"):
        list(Shards([tmp_path / "a.tar"], {"image": 3}))


# ---- .npy and .npz


def npy(header: str, values: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3)}", b"1234"), "but 4 bytes follow"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3)}", bytes(16)), "something was appended"),
        (npy("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}"), "it holds <U0"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 3)}", bytes(24)), "it holds object"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -3)}", bytes(12)), "shape"),
        (npy("(" * 9000), r"cannot be read as \.npy"),
        (npy("[" * 4000 + "]" * 4000), r"cannot be read as \.npy"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3)"), r"cannot be read as \.npy"),
        (b"", r"cannot be read as \.npy"),
    ],
)
@pytest.mark.parametrize("form", ["npy", "npz"])
def test_headers_that_cannot_be_true(tmp_path: Path, form: str, content: bytes, said: str) -> None:
    folder = tmp_path / "hand"
    folder.mkdir()
    if form == "npy":
        (folder / "image.npy").write_bytes(content)
        refused(folder, said)
    else:
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("image.npy", content)
        refused(tmp_path / "a.npz", said)


def test_damaged_deflate_streams(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, image=np.random.default_rng(0).normal(size=(50, 4)))
    whole = path.read_bytes()
    for place in range(150, 1500, 50):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        refused(path)


def test_archives_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.save(tmp_path / "b.npy", arrays()["image"])
    (tmp_path / "b.npy").rename(path)
    refused(path, r"cannot be read as \.npz")
    content = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3)}", bytes(12))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("image.npy", content)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("image.npy", content)
    refused(path, "twice")
    np.savez(path, **arrays())
    content = path.read_bytes()
    entry = content.index(b"PK\x01\x02")
    second = content.index(b"PK\x01\x02", entry + 1)
    lost = bytearray(
        content[:entry] + content[second:]
    )  # the first array is there, but its line in the directory is not
    size = len(content) - 22 - entry - (second - entry)
    lost[-22:] = (
        b"PK\x05\x06" + bytes(4) + b"\x01\0\x01\0" + size.to_bytes(4, "little") + entry.to_bytes(4, "little") + bytes(2)
    )
    path.write_bytes(lost)
    refused(path, "does not list what lies at byte 0")


# ---- masks and deviations


@pytest.mark.parametrize(
    "present",
    [np.full((N, 2), np.nan), np.ones((N, 2)), np.full((N, 2), "yes"), np.full((N, 2), 2), np.full((N, 2), -1)],
)
def test_present_is_bool_or_zeros_and_ones(tmp_path: Path, present: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", **arrays(), present=present)
    refused(tmp_path / "a.npz", "present.* must be boolean, or whole numbers 0 and 1")
    for name, values in {**arrays(), "present": present}.items():
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "a.npz").unlink()
    refused(tmp_path, "must be boolean, or whole numbers 0 and 1")


def test_masks_and_deviations_of_another_shape(tmp_path: Path) -> None:
    present = np.ones((N, 2), dtype=bool)
    present[0, 0] = False
    z, std = arrays(), {name: np.ones_like(array) for name, array in arrays().items()}
    path = tmp_path / "f"
    write_features(path, z, present, imputed=~present, std=std)
    header = json.loads((path / "features.json").read_text())
    header["files"] = {}
    (path / "features.json").write_text(json.dumps(header))
    assert open_features(path).std is not None
    whole = {name: (path / name).read_bytes() for name in ("imputed.npy", "text.std.npy")}
    np.save(path / "imputed.npy", np.zeros(N, dtype=bool))
    refused(path, r"imputed\.npy has shape \(6,\)")
    (path / "imputed.npy").write_bytes(whole["imputed.npy"])
    for wrong in (np.ones((N, 3)), np.ones(N), np.ones((N, 2), dtype=int)):
        np.save(path / "text.std.npy", wrong)
        refused(path, r"text\.std\.npy holds")


# ---- features.json


GONE = object()  # a key that is left out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "FeatureCollection"}, "does not say format 'calmrl-features'"),
        ({"rows": GONE, "modalities": GONE, "info": GONE}, "features.json lacks rows, modalities, info"),
        ({"files": GONE}, "is unfinished; run the command that writes it again"),
        ({"version": 2}, "has feature format 2, this calmrl reads up to 1; upgrade"),
        ({"version": "1"}, "version should be a number from 0 on; got '1'"),
        ({"version": None}, "version"),
        ({"version": True}, "version should be a number from 0 on; got True"),
        ({"rows": "6"}, "rows should be a number from 0 on; got '6'"),
        ({"rows": -1}, "rows should be a number from 0 on; got -1"),
        ({"rows": 6.0}, "rows should be a number from 0 on; got 6.0"),
        ({"rows": True}, "rows should be a number from 0 on; got True"),
        ({"modalities": ["image", "text"]}, r"modalities should be an object; got \['image', 'text'\]"),
        ({"modalities": {"image": "3"}}, r"modalities\.image should be a number from 0 on; got '3'"),
        ({"modalities": {}}, None),
        ({"modalities": {"image": 4, "text": 2}}, None),
        *(({"modalities": {name: 3}}, None) for name in ("../f/image", "a/b", "a\0", "\ud800", "x" * 300)),
        ({"info": []}, r"info should be an object; got \[\]"),
        ({"info": "x"}, "info should be an object; got 'x'"),
        ({"files": []}, r"files should be an object; got \[\]"),
        ({"files": {"image.npy": 5}}, r"files\.image\.npy should be an object; got 5"),
        ({"files": {"image.npy": {"bytes": "5", "sha256": ""}}}, r"files\.image\.npy\.bytes should be a number from 0"),
        ({"files": {"image.npy": {"bytes": 5, "sha256": 0}}}, r"files\.image\.npy\.sha256 should be a text; got 0"),
        (
            {"files": {"../image.npy": {"bytes": 5, "sha256": ""}}},
            r"files\.\.\./image\.npy is no file of the directory",
        ),
        *(
            (content, None)
            for content in (b"{", b"[]", b"[" * 100_000, b'{"rows": ' + b"9" * 5001 + b"}", b"\xff\xfe", b"\0")
        ),
    ],
)
def test_features_json_says_what_is_wrong_with_it(tmp_path: Path, change: Any, said: str | None) -> None:
    path = tmp_path / "f"
    write_features(path, arrays())
    if isinstance(change, bytes):
        (path / "features.json").write_bytes(change)
        refused(path)
        return
    header = json.loads((path / "features.json").read_text()) | change
    (path / "features.json").write_text(json.dumps({key: value for key, value in header.items() if value is not GONE}))
    refused(path, said)


# ---- safetensors and Parquet


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({"modalities": '["image", "sound"]'}, "names 'sound', which is no tensor"),
        ({"modalities": '[["image"], ["text"]]'}, "names"),
        ({"modalities": '["image", "image"]'}, "one twice.*; the file has image, text"),
        ({"modalities": "[3]"}, "names 3, which is no tensor.*; the file has image, text"),
        ({"modalities": "[" * 100_000}, "cannot be read"),
        ({"ids": "[[1], [2, 3], 4, 5, 6, 7]"}, "an id is a text or a number"),
        ({"ids": "[1, 2]"}, '"ids" has shape'),
        ({"image": "[1, 2, 3, 4, 5, 6]"}, "both a tensor and an entry"),
    ],
)
def test_safetensors_with_odd_metadata(tmp_path: Path, notes: dict[str, str], said: str) -> None:
    path = tmp_path / "a.safetensors"
    save_file({name: torch.from_numpy(array) for name, array in arrays().items()}, path, metadata=notes)
    refused(path, said)


def test_safetensors_that_are_no_vectors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"image": torch.zeros(4, 3).to(torch.float8_e4m3fn)}, path)
    refused(path, "float8_e4m3fn; convert it")
    save_file({"image": torch.ones(4, 3), "labels": torch.arange(4)}, path, metadata={"modalities": '["labels"]'})
    refused(path, "names 'labels', which is no tensor")


# ---- writing


def test_not_a_number_in_columns_can_be_written(tmp_path: Path) -> None:
    number = np.array([1.0, np.nan, 3.0, np.nan, 5.0, 6.0])
    about: dict[str, Any] = {"labels": number, "columns": {"depth": number, "pair": [[1.0, np.nan]] * N}}
    features = write_features(tmp_path / "f", arrays(), **about, info={"scale": float("nan")})
    assert np.isnan(features.column("depth")).sum() == 2
    again = write_features(
        tmp_path / "g", arrays(), labels=features.labels, columns={"depth": features.column("depth")}
    )
    assert np.array_equal(again.column("depth"), number, equal_nan=True)
