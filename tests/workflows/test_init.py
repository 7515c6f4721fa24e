"""`calmrl init`: what it says about a collection, and configs that run as they are."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from calmrl import load as load_model
from calmrl.config import load
from calmrl.data.features.feature_set import open_features
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.workflows.init import init
from tests.support.make_media import make_sound
from tests.support.tiny_encoders import TINY, tiny  # noqa: F401

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
pytestmark = pytest.mark.usefixtures("tiny")


def folder(path, n: int = 80):
    """Pictures, sounds and texts in two folders, a third of them missing."""
    rng = np.random.default_rng(0)
    for i in range(n):
        home = path / ("cats" if i % 2 else "dogs")
        home.mkdir(parents=True, exist_ok=True)
        keep = rng.random(3) > 0.35
        keep[i % 3] = True
        if keep[0]:
            (home / f"{i}.txt").write_text(f"number {i % 20}", encoding="utf-8")
        if keep[1]:
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(home / f"{i}.png")
        if keep[2]:
            make_sound(home / f"{i}.wav", rng.normal(size=3000).astype(np.float32) / 10)
    return path


@pytest.fixture
def defaults(monkeypatch):
    names = {"text": "tiny_text", "image": "tiny_image", "audio": "tiny_audio"}
    monkeypatch.setattr("calmrl.encoders.registry.DEFAULTS", names)
    monkeypatch.setattr("calmrl.encoders.registry.PACKAGES", {name: () for name in TINY})


@pytest.mark.usefixtures("defaults")
def test_from_a_folder_to_vectors_of_new_files(tmp_path, calmrl) -> None:
    source, out = folder(tmp_path / "c"), tmp_path / "work"
    (source / "thumbs.db").write_bytes(b"x")
    code, printed, told = calmrl("init", source, "--out", out)
    assert (code, printed.strip()) == (0, str(out))
    for part in ("80 items, 3 modalities: text, image, sound", "% of the blocks", "labels: 2 classes", "split: none",
                 "of which 20 differ", "1 x file not understood",
                 f"to search it, none of this is needed: calmrl open {source}"):  # fmt: skip
        assert part in told
    assert sorted(file.name for file in out.iterdir()) == [
        "compare.yaml", "extract.yaml", "impute.yaml", "items.csv", "notes.md", "train.yaml",
    ]  # fmt: skip
    assert load(out / "train.yaml").sources["own"].resplit is not None
    compared = load(out / "compare.yaml", kind="compare")
    assert (list(compared.settings), compared.relevant_by) == (["as-is"], "labels")
    for line in (
        ("extract", out / "extract.yaml", "--out", out / "features", "--workers", 0),
        ("train", out / "train.yaml", "--out", out / "run"),
        ("evaluate", out / "run"),
        ("impute", out / "features", "--config", out / "impute.yaml", "--out", out / "imputed", "imputer.method=mean"),
    ):
        code, _, told = calmrl(*line)
        assert code == 0, told
    features = open_features(out / "features")
    row = features.ids.tolist().index("dogs/0")
    item = {name: source / f"dogs/0{suffix}" for name, suffix in (("image", ".png"), ("sound", ".wav"))}
    item = {name: path for name, path in item.items() if path.exists()}
    item |= {"text": "number 0"} if (source / "dogs/0.txt").exists() else {}
    model = load_model(out / "run")
    expected = model.embed(features.z, features.present)[row]
    np.testing.assert_array_equal(model.embed_files([item])[0], expected)


@pytest.mark.usefixtures("defaults")
def test_the_table_of_a_folder_gives_the_features_of_the_folder(tmp_path) -> None:
    from calmrl.workflows import extract

    source = folder(tmp_path / "c", 12)
    for name, text in (("cats/1", '["a", "b"]'), ("cats/3", "[one"), ("dogs/0", "é")):
        (source / f"{name}.txt").write_text(text, encoding="utf-8")
    init(source, tmp_path / "work")
    direct = extract(source, None, tmp_path / "direct")
    by_table = extract(tmp_path / "work/items.csv", None, tmp_path / "table")
    assert direct.ids.tolist() == by_table.ids.tolist()
    assert direct.text.tolist() == by_table.text.tolist()
    np.testing.assert_array_equal(direct.present, by_table.present[:, [by_table.names.index(n) for n in direct.names]])
    for name in direct.names:
        np.testing.assert_array_equal(direct.z[name], by_table.z[name])


def test_a_manifest_with_a_split_and_an_odd_column(tmp_path) -> None:
    picture = Image.new("RGB", (8, 8))
    rows = []
    for i in range(30):
        picture.save(tmp_path / f"{i}.png")
        rows.append([str(i), ("train", "val", "test")[i % 3], f"{i}.png", f"text {i}", "7"])
    with open(tmp_path / "m.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["id", "split", "photo", "text", "price"], *rows])
    start = init(tmp_path / "m.csv", tmp_path / "work")
    config = load(tmp_path / "work/extract.yaml")
    assert config.encoders == {"photo": "efficientnet_lite0", "text": "use_multilingual"}
    assert config.ignore == ["price"]
    assert load(tmp_path / "work/train.yaml").sources["own"].resplit is None
    assert "items.csv" not in [file.name for file in start.files]
    assert any("train 10, val 10, test 10" in line for line in start.survey.lines())


def test_features(tmp_path, calmrl) -> None:
    rng = np.random.default_rng(0)
    z = {"a": rng.normal(size=(60, 6)), "b": rng.normal(size=(60, 5))}
    z["a"][:20] = np.nan
    write_features(tmp_path / "f", z)
    start = init(tmp_path / "f", tmp_path / "work")
    assert [file.name for file in start.files] == ["train.yaml", "compare.yaml", "impute.yaml", "notes.md"]
    assert calmrl("train", tmp_path / "work/train.yaml", "--out", tmp_path / "work/run")[0] == 0
    with pytest.raises(InputError, match="exists"):
        init(tmp_path / "f", tmp_path / "work")
    init(tmp_path / "f", tmp_path / "work", force=True)
    write_features(tmp_path / "one", {"a": z["a"][20:]})
    start = init(tmp_path / "one", tmp_path / "alone")
    assert [file.name for file in start.files] == ["notes.md"]
    assert "one modality" in start.notes[-1]


def test_names_that_yaml_reads_as_something_else(tmp_path) -> None:
    names = ["no", "a, b", "7"]
    np.savez(tmp_path / "f: g.npz", **{name: np.ones((60, 3)) for name in names})
    init(tmp_path / "f: g.npz", tmp_path / "work")
    config = load(tmp_path / "work/train.yaml")
    assert (config.modalities, config.sources["own"].features) == (names, str(tmp_path / "f: g.npz"))
    assert 'modalities: ["no"' in (tmp_path / "work/train.yaml").read_text()


def test_nothing_to_begin_with(tmp_path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        init(tmp_path / "absent", tmp_path / "work")
    (tmp_path / "a.docx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"ends in '\.docx'"):
        init(tmp_path / "a.docx", tmp_path / "work")
    (tmp_path / "m.csv").write_text("id,price\n1,2\n")
    with pytest.raises(InputError, match="no column that is called text"):
        init(tmp_path / "m.csv", tmp_path / "work")
    assert not (tmp_path / "work").exists()
    (tmp_path / "work").write_text("x")
    with pytest.raises(InputError, match="work is a file; give the name of a folder"):
        init(tmp_path, tmp_path / "work")


def test_check_shows_every_problem_of_a_collection(tmp_path, calmrl) -> None:
    source = folder(tmp_path / "c", 12)
    (source / "dogs/0.png").write_bytes(b"broken")
    (source / "dogs/0.gif").write_bytes(b"")
    (source / "cats/1.jpg").write_bytes(b"broken")
    (source / "cats/1.png").unlink(missing_ok=True)
    code, printed, told = calmrl("check", source, "--json")
    assert code == 2
    problems = json.loads(printed)["problems"]
    assert len(problems) == 2
    assert any("empty file" in line and "0.gif" in line for line in problems)
    assert any("not decodable as image" in line for line in problems)
    assert "12 items" in told
