"""An index of real files with fake encoders: what is encoded, what is found, what changes, what is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from PIL import Image

from calmrl import Aligner, Index
from calmrl.data import FeatureSet
from calmrl.encoders import ENCODERS, Encoder, EncoderSet, EncoderSpec, registry
from calmrl.encoders.base import same
from calmrl.errors import InputError
from tests.support.colour_world import (
    COLOUR_ENCODERS,
    ENCODED,
    FIXED,
    ITEMS,
    NAMES,
    RATE,
    TONES,
    colour,
    has,
    make_folder,
    settings,
    write_item,
    write_picture,
    write_sound,
    write_text,
)

pytestmark = pytest.mark.usefixtures("colour_encoders")


@pytest.fixture
def index(colour_index):
    return Index.open(colour_index / "ix")


@pytest.fixture
def own(tmp_path):
    """(index, folder) that may be changed; the folder is at a new place, so the items are added anew from it."""
    make_folder(tmp_path / "colours", ITEMS)
    return Index.build(tmp_path / "colours", tmp_path / "ix", NAMES, model=settings()), tmp_path / "colours"


def counted(index: Index) -> None:
    """Count anew, after the encoders were loaded and compared with the index."""
    for name in NAMES:
        if name in index.layout["modalities"]:
            index.encoders().encoder(name)
    ENCODED.clear()


def number_of(hit) -> int:
    return int(hit.id.rpartition("c")[2])


def test_any_modality_finds_any_other(index, tmp_path) -> None:
    rgb = colour(7)
    picture = write_picture(tmp_path / "q.png", rgb)
    sound = write_sound(tmp_path / "q.wav", rgb)
    words = f"the colour {' '.join(map(str, rgb))}"
    for query in [
        {"text": words},
        {"image": picture},
        {"image": str(picture)},
        {"image": picture.read_bytes()},
        {"image": Image.open(picture)},
        {"image": np.full((9, 9, 3), rgb, np.uint8)},
        {"sound": sound},
        {"sound": sound.read_bytes()},
        {
            "sound": sum(
                a / 1024 * np.sin(2 * np.pi * t * np.arange(RATE) / RATE) for a, t in zip(rgb, TONES, strict=True)
            )
        },
        {"text": words, "image": picture, "sound": sound},
    ]:
        assert number_of(index.search(**query, k=1)[0]) == 7, query


def test_distances_are_those_of_the_colours(index) -> None:
    hits = index.search(text="255 0 0", k=10)
    away = [np.abs(colour(number_of(hit)) - [255, 0, 0]).sum() for hit in hits]
    every = [np.abs(colour(i) - [255, 0, 0]).sum() for i in range(ITEMS)]
    assert np.mean(away) < np.percentile(every, 25)
    less = index.search(text=["255 0 0", (-1, "200 0 200")], k=10)
    assert np.mean([colour(number_of(hit))[2] for hit in less]) < np.mean([colour(number_of(hit))[2] for hit in hits])


def test_what_a_hit_says(index, colour_index) -> None:
    for hit in index.search(text="10 20 30", k=ITEMS):
        number = number_of(hit)
        assert set(hit.modalities) == has(number)
        assert hit.label == ("light" if number % 2 else "dark")
        assert set(hit.paths) == has(number)
        assert (hit.text is not None) == ("text" in has(number))
        for name in hit.paths:
            assert index.file(hit.id, name) == colour_index / "colours" / hit.paths[name]
            assert index.file(hit.id, name).is_file()
        picture = index.thumbnail(hit.id)
        assert (picture is not None) == ("image" in has(number))
        if picture is not None:
            assert np.abs(np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))[0, 0] - colour(number)).max() < 40
    assert all(item.label == "dark" for item in index.items(where="label = 'dark'"))


def test_items_that_lack_a_modality(index) -> None:
    rgb = " ".join(map(str, colour(7)))
    hits = index.search(text=rgb, lacking="text", having=["image"], k=ITEMS)
    assert {number_of(hit) for hit in hits} == {n for n in range(ITEMS) if "image" in has(n) and "text" not in has(n)}
    assert [item.id for item in index.items(lacking=["text", "image"], limit=ITEMS)] == [
        item.id for item in index.items(limit=ITEMS) if item.modalities == ("sound",)
    ]
    assert index.search(text=rgb, lacking="text", having="text") == []
    with pytest.raises(InputError, match="unknown modality"):
        index.search(text=rgb, lacking="smell")


def test_only_files_of_the_collection(own, tmp_path) -> None:
    index, folder = own
    with pytest.raises(InputError, match=r"no item '\.\./\.\./x'"):
        index.file("../../x", "image")
    item = next(
        item for item in index.items(limit=ITEMS) if "image" in item.modalities and "sound" not in item.modalities
    )
    with pytest.raises(InputError, match="has no file of sound"):
        index.file(item.id, "sound")
    with pytest.raises(InputError, match="unknown modality"):
        index.file(item.id, "../image")
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"x")
    (folder / item.paths["image"]).unlink()
    with pytest.raises(InputError, match="is no longer in"):
        index.file(item.id, "image")
    (folder / item.paths["image"]).symlink_to(secret)
    with pytest.raises(InputError, match="is no longer in"):
        index.file(item.id, "image")


def test_only_new_content_is_encoded(own) -> None:
    index, folder = own
    counted(index)
    assert index.add(folder).lines() == [f"0 added, 0 changed, {ITEMS} unchanged"]
    assert ENCODED == []
    assert not index.folder_changes()
    number = next(n for n in range(ITEMS) if has(n) == {"image", "text"})
    id = write_item(folder, number, {"text"}, rgb=np.array([1, 2, 3]))  # its text changes, its picture does not
    new = write_item(folder, 1000, {"image", "sound"})
    assert len(index.folder_changes().changed) == 1
    assert len(index.folder_changes().new) == 2
    change = index.add(folder)
    assert (change.added, change.changed) == ([new], [id])
    assert sorted(ENCODED) == ["hear", "read", "see"]
    assert set(index.item(id).modalities) == {"image", "text"}
    assert index.item(id).text == "the colour 1 2 3"
    assert number_of(index.search(text=f"{' '.join(map(str, colour(1000)))}", k=1)[0]) == 1000
    assert not index.folder_changes()


def test_renamed_touched_and_lost_files(own) -> None:
    index, folder = own
    numbers = [n for n in range(0, ITEMS, 2) if has(n) == {"image"}]
    moved, touched = numbers[:2]
    counted(index)
    (folder / "dark" / f"c{moved}.png").rename(folder / "light" / "moved.png")
    os.utime(folder / "dark" / f"c{touched}.png")
    change = index.add(folder)
    assert (change.added, change.changed, change.gone) == (["light/moved"], [f"dark/c{touched}"], [f"dark/c{moved}"])
    assert ENCODED == []  # their content is known
    assert index.folder_changes().gone == (f"{folder}/dark/c{moved}.png",)
    assert "--prune" in index.folder_changes().sentence("ix")
    assert index.add(folder, prune=True).removed == [f"dark/c{moved}"]
    assert len(index) == ITEMS
    number = next(n for n in range(ITEMS) if has(n) == {"image", "text", "sound"})
    id = f"{'light' if number % 2 else 'dark'}/c{number}"
    (folder / f"{id}.wav").unlink()
    assert index.add(folder).changed == [id]
    assert index.item(id).modalities == ("text", "image")
    assert ENCODED == []


def test_files_that_cannot_be_read_are_reported_once_and_missing(tmp_path, monkeypatch) -> None:
    make_folder(tmp_path / "colours", ITEMS)
    number = next(n for n in range(0, ITEMS, 2) if has(n) == {"image", "text"})
    (tmp_path / "colours" / "dark" / f"c{number}.png").write_bytes(b"no picture")
    (tmp_path / "colours" / "dark" / "alone.wav").write_bytes(b"no sound")
    (tmp_path / "colours" / "dark" / "notes.xyz").write_bytes(b"?")
    index = Index.build(tmp_path / "colours", tmp_path / "ix", NAMES, model=settings())
    problems = "\n".join(index.about()["problems"])
    assert f"dark/c{number}" in problems
    assert "no modality at all" in problems
    assert "notes.xyz" in problems
    assert index.item(f"dark/c{number}").modalities == ("text",)
    assert len(index) == ITEMS
    counted(index)
    change = index.add(tmp_path / "colours")
    assert (change.added, change.changed, ENCODED) == ([], [], [])
    assert "no modality at all" in "\n".join(change.problems)
    write_picture(tmp_path / "colours" / "dark" / f"c{number}.png", colour(number))
    assert index.add(tmp_path / "colours").changed == [f"dark/c{number}"]
    assert ENCODED == ["see"]
    assert index.item(f"dark/c{number}").modalities == ("text", "image")


def test_a_manifest(tmp_path, colour_index) -> None:
    rows = []
    for number in range(60):
        folder = "light" if number % 2 else "dark"
        row = {"id": f"n{number}", "labels": folder, "meta.number": number}
        row["image"] = f"{folder}/c{number}.png" if "image" in has(number) else ""
        row["text"] = f"the colour {' '.join(map(str, colour(number)))}" if "text" in has(number) else ""
        rows.append(row)
    rows = [row for row in rows if row["image"] or row["text"]]
    shutil.copytree(colour_index / "colours", tmp_path / "media")

    def write(some):
        with (tmp_path / "media" / "items.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(some)

    write(rows[:-3])
    names = {"image": "see", "text": "read"}
    ENCODED.clear()
    for column in ("groups", "relevant"):
        with pytest.raises(InputError, match='no column "colour"; there are text, labels, number'):
            Index.build(tmp_path / "media" / "items.csv", tmp_path / "ix", names, **{column: "colour"})
    assert ENCODED == []  # it is said before the work begins
    index = Index.build(tmp_path / "media" / "items.csv", tmp_path / "ix", names, model=settings(), groups="number")
    hit = index.search(text=f"{' '.join(map(str, colour(4)))}", k=1)[0]
    assert hit.id == "n4"
    assert index.item("n4").columns == {"number": "4"}
    write(rows)
    counted(index)
    assert len(index.add(tmp_path / "media" / "items.csv").added) == 3
    assert len(ENCODED) == sum(bool(row["image"]) + bool(row["text"]) for row in rows[-3:])
    assert not index.folder_changes()  # other files of the folder are no part of it


def test_the_model_and_its_encoders_come_back(index, monkeypatch) -> None:
    again = Index.open(index.path)
    assert again.encoders().names == NAMES
    assert again.about()["encoders"]["image"]["weights"] == "see 1"
    assert json.dumps(again.about())
    other = COLOUR_ENCODERS["see"]
    monkeypatch.setitem(ENCODERS, "see", type(other)(*[*other.__dict__.values()][:3], "see 2", "none", "", other.make))
    with pytest.raises(InputError, match="has the weights see 2, not see 1"):
        Index.open(index.path).search(image=np.zeros((4, 4, 3), np.uint8))


def test_features_that_say_which_encoders_made_them(tmp_path) -> None:
    numbers = range(60)
    cells = [{"text": f"{' '.join(map(str, colour(n)))}"} for n in numbers]
    for n, cell in zip(numbers, cells, strict=True):
        if "image" in has(n):
            cell["image"] = write_picture(tmp_path / f"{n}.png", colour(n))
    names = {"text": "read", "image": "see"}
    z, present = EncoderSet(names, dtype="float32").encode(cells)
    index = Index.build(FeatureSet(z, present, info={"encoders": names}), tmp_path / "ix", model=settings())
    assert index.modalities()["image"]["kind"] == "image"
    assert index.search(text=cells[5]["text"], k=1)[0].id == "5"
    assert index.search(image=np.full((5, 5, 3), colour(7), np.uint8), k=1)[0].id == "7"
    with pytest.raises(InputError, match='no modality "sound", nor any of that kind'):
        index.search(sound=np.ones(4000))


def test_errors(tmp_path, index) -> None:
    make_folder(tmp_path / "colours", 3)
    with pytest.raises(InputError, match="`encoders` names smell"):
        Index.build(tmp_path / "colours", tmp_path / "ix", NAMES | {"smell": "see"})
    with pytest.raises(InputError, match='unknown encoder "sea"'):
        Index.build(tmp_path / "colours", tmp_path / "ix", NAMES | {"image": "sea"})
    assert [path.name for path in tmp_path.iterdir()] == ["colours"]
    for query, reason in [
        ({"text": " "}, "a text that is not empty"),
        ({"text": 3}, "a text that is not empty"),
        ({"image": tmp_path / "nothing.png"}, "there is no file"),
        ({"image": np.zeros((4, 4))}, r"a picture is uint8 \(height, width, 3\)"),
        ({"sound": np.full(3000, np.nan)}, "a sound is finite floats"),
        ({"image": 3}, "with a file, its bytes, or an array"),
        ({"image": b"no picture"}, "cannot be used"),
    ]:
        with pytest.raises(InputError, match=reason):
            index.search(**query)
    write_text(tmp_path / "colours" / "dark" / "c0.txt", colour(0))


def test_a_model_for_more_modalities_than_the_items_have(colour_index, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("calmrl.search.build.encoders_of", lambda model: dict(NAMES))
    (tmp_path / "pictures").mkdir()
    for number in range(3):
        write_picture(tmp_path / "pictures" / f"c{number}.png", colour(number))
    index = Index.build(tmp_path / "pictures", tmp_path / "ix", model=colour_index / "aligner")
    assert len(index) == 3
    assert set(NAMES) > set(index.layout["modalities"]) == {"image"}
    with pytest.raises(InputError, match="`encoders` names sound"):
        Index.build(tmp_path / "pictures", tmp_path / "no", {"sound": NAMES["sound"]}, model=colour_index / "aligner")


def test_a_file_of_which_nothing_can_be_read_is_called_new_once(own) -> None:
    index, folder = own
    (folder / "broken.png").write_bytes(b"no picture")
    assert index.folder_changes().new == (f"{folder.resolve()}/broken.png",)
    assert index.add(folder).added == []
    assert not index.folder_changes()
    again = Index.build(folder, index.path.with_name("again"), NAMES, model=settings())
    assert not again.folder_changes()
    write_picture(folder / "broken.png", colour(1))
    assert len(again.folder_changes().new) == 1
    assert again.add(folder).added == ["broken"]


@pytest.mark.parametrize("related", [True, False])
def test_recordings_that_only_the_encoder_of_speech_relates(tmp_path, monkeypatch, related):
    """The default encoder of sounds hears nothing in them; that of speech is tried, and named where it does better."""
    hear = COLOUR_ENCODERS["hear"]

    def deaf(items):
        return np.stack(
            [np.random.default_rng(int(item[:99].view(np.uint32).sum())).normal(size=12) for item in items]
        ).astype("f4")

    def spec(encode):
        return EncoderSpec("audio", 12, "for tests", "1", "none", "", lambda: Encoder("audio", 12, same, encode))

    for name, one in {
        **COLOUR_ENCODERS,
        "deaf": spec(deaf),
        "words": hear if related else spec(lambda a: deaf(a) + 1),
    }.items():
        monkeypatch.setitem(ENCODERS, name, one)
    for kind, name in {"image": "see", "text": "read", "audio": "deaf", "speech": "words"}.items():
        monkeypatch.setitem(registry.DEFAULTS, kind, name)
        monkeypatch.setitem(registry.PACKAGES, name, ("calmrl",))
    for number in range(130):
        write_item(tmp_path / "folder", number, {"image", "sound"})
    index = Index.build(tmp_path / "folder", tmp_path / "ix", model=Aligner(**FIXED), base=None)
    assert not index.modalities()["sound"]["aligned"]
    said = [line for line in index.summary() if "relates the recordings" in line]
    assert len(said) == related
    if related:
        assert said[0].startswith("sound: words relates the recordings to the rest, deaf does not (of 120 tried")
        assert said[0].endswith('with encoders={"sound": "words"} (--encoder sound=words)')
        again = Index.build(
            tmp_path / "folder", tmp_path / "again", encoders={"sound": "words"}, model=Aligner(**FIXED)
        )
        assert again.modalities()["sound"]["aligned"]
    given = Index.build(
        tmp_path / "folder", tmp_path / "given", encoders={"sound": "deaf"}, model=Aligner(**FIXED), base=None
    )
    assert not any("relates the recordings" in line for line in given.summary())  # it was asked for by name
    monkeypatch.setitem(registry.PACKAGES, "words", ("not_there",))
    untried = Index.build(tmp_path / "folder", tmp_path / "untried", model=Aligner(**FIXED), base=None).summary()
    assert any(line.startswith("sound: if these are recordings of speech, words may relate them") for line in untried)
