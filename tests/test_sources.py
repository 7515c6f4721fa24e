"""What a source is taken for, and what is opened then."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calmrl import sources
from calmrl.data import FeatureSet
from calmrl.errors import InputError
from calmrl.sources import COLLECTION, FEATURES, FOLDER, MANIFEST, Source, form_of, open_source


def write_parquet(path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"id": pa.array(["a"]), "x": pa.array([None], kind)}), path)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that holds one of each."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "arrays", "made", "ix/items.lance", "begun/parts.lance"):
        Path(name).mkdir(parents=True)
    Path("photos/a.png").write_bytes(b"x")
    Path("made/features.json").touch()
    np.save("arrays/image.npy", np.ones((2, 3)))
    np.savez("f.npz", a=np.ones((2, 3)))
    for name in ("t.csv", "t.TSV", "f.safetensors", "a.doc", "file"):
        Path(name).touch()
    Path("t.jsonl").write_text(json.dumps({"id": "1", "photo": "photos/a.png", "caption": "words"}) + "\n")
    lists = {"list": pa.list_(pa.float32()), "large": pa.large_list(pa.float64()), "fixed": pa.list_(pa.float32(), 2)}
    others = {"words": pa.list_(pa.string()), "number": pa.float32()}
    for name, kind in (lists | others).items():
        write_parquet(Path(f"{name}.parquet"), kind)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("photos", "folder"), ("arrays", "features"), ("made", "features"), ("ix", "index"), ("begun", "index"),
        ("s3://bucket/index", "index"), ("t.csv", "manifest"), ("t.TSV", "manifest"), ("t.jsonl", "manifest"),
        ("f.npz", "features"), ("f.safetensors", "features"), ("list.parquet", "features"), ("large.parquet", "features"),
        ("fixed.parquet", "features"), ("words.parquet", "manifest"), ("number.parquet", "manifest"),
        ("emoji", "dataset"), ("nowhere", None), ("a.doc", None), ("file", None),
        ({"a": np.ones((2, 3))}, "features"), (FeatureSet({"a": np.ones((2, 3))}), "features"),
        (SimpleNamespace(read=lambda wanted=None: None), "collection"),
    ],
)  # fmt: skip
def test_what_a_source_is(source, form, place):
    assert form_of(source) == form
    if isinstance(source, str) and "://" not in source:
        assert form_of(Path(source)) == form


def test_sources_in_memory():
    features = FeatureSet({"a": np.ones((2, 3))}, name="mine")
    opened = open_source(features)
    assert (opened.form, opened.root, opened.features) == ("features", "mine", features)
    assert opened.modalities == ("a",)
    assert open_source(opened) is opened
    opened = open_source({"a": np.ones((2, 3))})
    assert (opened.form, opened.root) == ("features", "features")
    assert Source("folder", "x").modalities == ()


def test_files_of_features_and_of_items(place):
    assert open_source("f.npz").root == str(place / "f.npz")
    folder = open_source("photos")
    assert (folder.form, folder.root, folder.modalities) == ("folder", str(place / "photos"), ("image",))
    table = open_source("t.jsonl")
    assert (table.form, table.root, table.modalities) == ("manifest", str(place), ("photo", "caption"))
    kinds = {"photo": "image", "hum": "audio"}
    assert open_source("t.jsonl", kinds, some=True).modalities == ("photo",)
    with pytest.raises(InputError, match='the manifest has no column "hum"'):
        open_source("t.jsonl", kinds)
    below = open_source("t.jsonl", {"photo": "image"}, root="photos", ignore=["caption"])
    assert below.root == str(place / "photos")
    assert below.manifest.items[0].cells == {"photo": "photos/photos/a.png"}
    assert not below.problems


def test_a_public_collection_is_read_for_the_modalities_that_are_asked_for():
    asked = []

    def read(wanted=None):
        asked.append(wanted)
        rows = [(1, {"id": "a", "vision": "a.mp4", "text": ["words"]})]
        return SimpleNamespace(rows=rows, kinds={"vision": "image", "text": "text"}, counts="1 of 2", notes=["a note"])

    opened = open_source(SimpleNamespace(read=read, root="data"))
    assert (opened.form, opened.root, opened.remarks) == ("collection", "data", ["1 of 2", "a note"])
    assert opened.modalities == ("vision", "text")
    assert open_source(SimpleNamespace(read=read, root="data"), {"text": "text"}, ignore=["vision"]).modalities == (
        "text",
    )
    assert asked == [None, ["text"]]


def test_bundled_data_sets_are_opened_as_the_encoders_gave_them(monkeypatch):
    asked = []
    monkeypatch.setattr(sources, "load_dataset", lambda name, **options: asked.append((name, options)))
    opened = open_source("stamps")
    assert (opened.form, opened.root) == ("dataset", "stamps")
    assert opened.indexing.encoders["sound"] == "yamnet"
    assert open_source("digits").indexing.encoders == {}
    assert asked == [("stamps", {"standardize": False}), ("digits", {})]
    assert Source("folder", "stamps").indexing.encoders == {}  # a folder of that name


FILES = {"accept": (FOLDER, MANIFEST, COLLECTION)}
NO_NAMES = {"accept": (FOLDER, MANIFEST, FEATURES, COLLECTION)}


@pytest.mark.parametrize(
    ("source", "more", "reason"),
    [
        (
            "nowhere",
            {},
            r"nowhere is neither a file or folder nor a bundled data set \(stamps, emoji, .*\); check the name",
        ),
        ("nowhere", NO_NAMES, "nowhere does not exist; give a folder of files, a table of files, or features"),
        ("emoji", NO_NAMES, "emoji does not exist; give a folder"),
        ("nowhere", FILES, r"no manifest at nowhere; give a file that ends in \.csv, \.tsv, \.jsonl, \.parquet$"),
        ("a.doc", {}, r"ends in '\.doc'; give a folder, or a file that ends in \.csv, .*\.parquet, \.npz, \.safetens"),
        ("a.doc", FILES, r"a\.doc ends in '\.doc'; give a folder, or a file that ends in .*, \.parquet$"),
        ("file", {}, "file ends in ''; give a folder"),
        ("ix", {}, "ix is an index; give the folder, the table of files or the features that it holds"),
        ("f.npz", FILES, r"f\.npz holds features, not files to encode; give a folder or a table of files"),
    ],
)
def test_what_cannot_be_opened(source, more, reason, place):
    with pytest.raises(InputError, match=reason):
        open_source(source, **more)


def test_columns_are_judged_by_their_names_and_values(tmp_path):
    rows = [
        {"id": "x.png", "split": "train", "labels": "a.png", "meta.file": "a.png", "photo": "", "note": "words"},
        {"id": "y", "photo": "a.PNG", "film": "a.mp4", "hum": "a.wav", "text": "t", "note": "b.zip"},
        {"id": "z", "photo": "later.wav"},
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = open_source(tmp_path / "items.jsonl").manifest
    assert found.kinds == {"photo": "image", "film": "image", "hum": "audio", "text": "text"}
    (tmp_path / "none.jsonl").write_text('{"id": "x", "note": "words"}\n')
    with pytest.raises(InputError, match=r"holds names of pictures, videos or sounds; it has id, note; name the enc"):
        open_source(tmp_path / "none.jsonl")
