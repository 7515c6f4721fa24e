"""From a table of files to a feature directory: the same result however it is run, and nothing lost in silence."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import time
import wave
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from calmrl._support.filesystem import locked
from calmrl.data.features.feature_set import files_of, open_features
from calmrl.data.media.jobs import Job
from calmrl.data.media.manifest import SPLITS
from calmrl.data.media.public_collections import PublicCollection
from calmrl.encoders import load_encoder
from calmrl.errors import InputError
from calmrl.workflows.extract import extract
from tests.support import warm
from tests.support.make_media import click, make_sound, make_video
from tests.support.tiny_encoders import TINY, tiny  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
pytestmark = pytest.mark.usefixtures("tiny")
ENCODERS = {"image": "tiny_image", "text": "tiny_text", "audio": "tiny_audio"}


def picture(path: Path, seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (24 + seed % 5, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path.name


def collection(folder: Path, n: int = 12) -> Path:
    """n items, every third without an image, every fourth without sound; one image is a video."""
    rows = []
    for i in range(n):
        image = "" if i % 3 == 2 else picture(folder / f"{i}.png", i)
        sound = make_sound(folder / f"{i}.wav", click(0.1, 0.3 + 0.01 * i)).name if i % 4 != 3 else ""
        rows.append([f"item{i}", SPLITS[i % 3], f"class{i % 2}", image, f"text number {i}", sound, i * 10])
    rows[0][3] = make_video(folder / "v.mp4", 20).name
    with open(folder / "m.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["id", "split", "labels", "image", "text", "audio", "meta.place"], *rows])
    return folder / "m.csv"


def lines_of(file: Path) -> int:
    return len(file.read_bytes().splitlines()) if file.exists() else 0


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_features_are_those_of_the_encoder(tmp_path) -> None:
    features = extract(collection(tmp_path), ENCODERS, tmp_path / "f", dtype="float32")
    assert features.present.sum(axis=0).tolist() == [8, 12, 9]
    assert features.split.tolist() == list(SPLITS) * 4
    assert features.labels.tolist() == ["class0", "class1"] * 6
    assert features.text[5] == ["text number 5"]
    assert features.column("place").tolist() == [str(10 * i) for i in range(12)]
    assert features.info["encoders"] == ENCODERS
    assert features.column("file.image")[:3].tolist() == ["../v.mp4", "../1.png", None]
    assert files_of(features, 3) == {"image": tmp_path / "f" / "../3.png"}
    encoder = load_encoder("tiny_image")
    expected = encoder.encode([encoder.prepare(Image.open(tmp_path / "1.png").convert("RGB"))[None]])[0]
    np.testing.assert_array_equal(features.z["image"][1], expected)
    np.testing.assert_array_equal(features.z["text"][1], load_encoder("tiny_text").encode(["text number 1"])[0])
    assert np.isnan(features.z["image"][2]).all()
    features.verify()


def test_same_bytes_for_any_batch_size_and_number_of_workers(tmp_path) -> None:
    manifest = collection(tmp_path)
    extract(manifest, ENCODERS, tmp_path / "one", batch_size=1)
    for batch_size, workers in ((5, 0), (64, 2)):
        out = tmp_path / f"b{batch_size}"
        extract(manifest, ENCODERS, out, batch_size=batch_size, workers=workers)
        assert contents(out) == contents(tmp_path / "one")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_and_started_again_gives_the_same_bytes(tmp_path) -> None:
    manifest = collection(tmp_path, 60)
    encoders = ENCODERS | {"image": "slow_image"}
    command = [ROOT / "tests" / "support" / "tiny_encoders.py", "extract", manifest]
    for name, encoder in encoders.items():
        command += ["--encoder", f"{name}={encoder}"]
    command += ["--workers", "0", "--batch-size", "2", "--out", tmp_path / "killed"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(warm.PATH)}
    keys = tmp_path / "killed.vectors" / "image.sha256"
    seen = set()
    for _ in range(2):
        process = warm.start(command, environment)
        before = lines_of(keys)
        while process.poll() is None:
            if lines_of(keys) > before + 4:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "killed").exists()
        seen.add(lines_of(keys))
    assert len(seen) == 2  # each run went on from where the one before had stopped
    done = warm.run(command, environment)
    assert done.returncode == 0, done.stderr
    extract(manifest, encoders, tmp_path / "whole")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert "60 items" in done.stderr
    assert not list(tmp_path.glob("killed.*"))


class Counted:
    """Stops a run at a given point, and counts what it does."""

    def __init__(self, stop_at: str = "") -> None:
        self.stop_at, self.encoded = stop_at, {}

    def __call__(self, done: int, total: int, what: str) -> None:
        first, _ = self.encoded.get(what, (done, done))
        self.encoded[what] = (first, done)
        if what == self.stop_at and done:
            raise KeyboardInterrupt

    def number(self, what: str) -> int:
        first, last = self.encoded[what]
        return last - first


def test_only_files_written_again_are_encoded_again_when_going_on(tmp_path) -> None:
    manifest = collection(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        extract(manifest, ENCODERS, tmp_path / "f", progress=Counted("encode audio"))
    picture(tmp_path / "1.png", 99)
    counted = Counted()
    extract(manifest, ENCODERS, tmp_path / "f", progress=counted)
    assert counted.number("encode image") == 1
    assert counted.number("encode text") == 0
    extract(manifest, ENCODERS, tmp_path / "whole")
    assert contents(tmp_path / "f") == contents(tmp_path / "whole")
    assert not (tmp_path / "f.vectors").exists()


def test_going_on_with_other_settings_is_refused(tmp_path) -> None:
    manifest = collection(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        extract(manifest, ENCODERS, tmp_path / "f", progress=Counted("encode image"))
    with pytest.raises(
        InputError, match=r"f\.vectors holds vectors of a run that was begun with other encoders, frames"
    ):
        extract(manifest, ENCODERS, tmp_path / "f", frames=3)


def test_every_file_is_decoded_once_and_every_text_encoded_once(tmp_path, monkeypatch) -> None:
    manifest, decodes = collection(tmp_path), []
    plain = Job.run
    monkeypatch.setattr(Job, "run", lambda job: decodes.append(job.source) or plain(job))
    text = manifest.read_text().replace("text number 5", "text number 1")
    manifest.write_text(text.replace(",7.png,", ",1.png,"))
    counted = Counted()
    features = extract(manifest, ENCODERS, tmp_path / "f", progress=counted)
    assert sorted(Counter(decodes).values()) == [1] * (7 + 9)
    assert counted.number("encode text") == 11
    np.testing.assert_array_equal(features.z["text"][5], features.z["text"][1])
    np.testing.assert_array_equal(features.z["image"][7], features.z["image"][1])


def test_a_damaged_file_does_not_cost_what_was_encoded(tmp_path) -> None:
    manifest = collection(tmp_path)
    whole = (tmp_path / "4.png").read_bytes()
    (tmp_path / "4.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="1 problem, all"):
        extract(manifest, ENCODERS, tmp_path / "f")
    (tmp_path / "4.png").write_bytes(whole)
    counted = Counted()
    extract(manifest, ENCODERS, tmp_path / "f", progress=counted)
    assert counted.number("encode image") == 1
    assert counted.number("encode audio") == 0


def test_a_folder_is_a_collection(tmp_path) -> None:
    (tmp_path / "c/dogs").mkdir(parents=True)
    picture(tmp_path / "c/dogs/rex.png", 0)
    make_sound(tmp_path / "c/dogs/rex.wav", click(0.1, 0.4))
    (tmp_path / "c/dogs/tom.txt").write_text("a small dog")
    names = {"text": "tiny_text", "image": "tiny_image", "sound": "tiny_audio"}
    features = extract(tmp_path / "c", names, tmp_path / "f")
    assert features.ids.tolist() == ["dogs/rex", "dogs/tom"]
    assert features.labels.tolist() == ["dogs", "dogs"]
    assert features.present.tolist() == [[False, True, True], [True, False, False]]
    with pytest.raises(InputError, match="no video"):
        extract(tmp_path / "c", {"video": "tiny_image"}, tmp_path / "g")
    with pytest.raises(InputError, match="1 problem, all"):
        extract(tmp_path / "c", {"image": "tiny_image", "text": "tiny_text"}, tmp_path / "g")
    (tmp_path / "c/dogs/tom.txt").unlink()
    assert len(extract(tmp_path / "c", {"image": "tiny_image"}, tmp_path / "g", ignore=["sound"])) == 1


def test_done_already_is_not_done_again(tmp_path, monkeypatch) -> None:
    """Nor with the encoders by default, if they are the same."""
    names = {"text": "tiny_text", "image": "tiny_image", "audio": "tiny_audio"}
    monkeypatch.setattr("calmrl.encoders.registry.DEFAULTS", names)
    monkeypatch.setattr("calmrl.encoders.registry.PACKAGES", {name: () for name in TINY})
    manifest = collection(tmp_path)
    assert extract(manifest, None, tmp_path / "f").info["encoders"] == ENCODERS
    told, calls = list[str](), list[str]()
    extract(manifest, ENCODERS, tmp_path / "f", report=told.append, progress=lambda *step: calls.append(step[2]))
    assert any("nothing to do" in line for line in told)
    assert not any(what.startswith("encode") for what in calls)
    with pytest.raises(InputError, match="frames differ"):
        extract(manifest, ENCODERS, tmp_path / "f", frames=3)
    with pytest.raises(InputError, match="encoders"):
        extract(manifest, ENCODERS | {"image": "slow_image"}, tmp_path / "f")


def test_several_captions_are_all_encoded(tmp_path) -> None:
    manifest = collection(tmp_path, 4)
    (tmp_path / "c.csv").write_text("id,text\nitem1,one\nitem1,two\n")
    features = extract(manifest, ENCODERS, tmp_path / "f", captions=tmp_path / "c.csv", dtype="float32")
    captions = open_features(tmp_path / "f.captions")
    assert captions.column("item").tolist() == ["item0", "item1", "item1", "item1", "item2", "item3"]
    assert captions.text.tolist()[1:4] == ["text number 1", "one", "two"]
    np.testing.assert_allclose(features.z["text"][1], captions.z["text"][1:4].mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(features.z["text"][0], captions.z["text"][0])
    assert features.text[1] == ["text number 1", "one", "two"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--encoder image", "MODALITY=VALUE"),
        ("--encoder image=tiny_imag", 'did you mean "tiny_image"'),
        ("--encoder image=tiny_image --encoder image=tiny_image", "twice"),
        ("--encoder image=tiny_image --media a=b", "--layout"),
        ("--encoder picture=tiny_image", 'no column "picture"'),
        ("--encoder image=tiny_image", "unknown column"),  # audio has no encoder
        ("--encoder image=tiny_image --ignore audio", ""),
    ],
)
def test_wrong_use_is_named(words, told, tmp_path, calmrl) -> None:
    manifest = collection(tmp_path, 2)
    code, _, err = calmrl("extract", manifest, *words.split(), "--out", tmp_path / "f", "--workers", "0")
    assert code == (2 if told else 0)
    assert told in err


def test_a_manifest_without_any_usable_row(tmp_path) -> None:
    (tmp_path / "m.jsonl").write_text("not json\n[1]\n")
    with pytest.raises(InputError, match=r"2 problems, all of them listed in .*f\.problems\.csv"):
        extract(tmp_path / "m.jsonl", {"image": "tiny_image"}, tmp_path / "f")
    with pytest.raises(InputError, match="no item is left"):
        extract(tmp_path / "m.jsonl", {"image": "tiny_image"}, tmp_path / "f", allow_missing=True)
    picture(tmp_path / "a.png", 0)
    (tmp_path / "m.jsonl").write_text('{"id": 1, "image": "a.png"}\n')
    assert len(extract(tmp_path / "m.jsonl", {"image": "tiny_image"}, tmp_path / "f")) == 1
    assert not (tmp_path / "f.problems.csv").exists()  # the report of a collection that was repaired


def test_captions_left_from_another_run_are_not_mistaken_for_these(tmp_path) -> None:
    manifest = collection(tmp_path, 3)
    (tmp_path / "c.csv").write_text("id,text\nitem1,one\n")
    (tmp_path / "f.captions").mkdir()
    (tmp_path / "f.captions/other.txt").write_text("x")
    with pytest.raises(InputError, match=r"f\.captions exists"):
        extract(manifest, ENCODERS, tmp_path / "f", captions=tmp_path / "c.csv")


def test_annotation_layout_through_the_command(tmp_path, calmrl) -> None:
    (tmp_path / "v").mkdir()
    for i in range(3):
        make_video(tmp_path / f"v/clip{i}.mp4", 12 + i, sound=click(0.2, 1.0))
    entries = [{"video_id": f"clip{i}", "desc": [f"a {i}", f"b {i}"]} for i in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    media = [f"--media={name}={tmp_path / 'v'}" for name in ("vision", "audio")]
    encoders = [
        f"--encoder={name}=tiny_{kind}" for name, kind in (("vision", "image"), ("audio", "audio"), ("text",) * 2)
    ]
    line = ["extract", tmp_path / "a.json", "--layout", "vatex", "--workers", "0", "--frames", "4", *media, *encoders]
    assert calmrl(*line, "--out", tmp_path / "f")[0] == 0
    assert open_features(tmp_path / "f").present.all()
    assert len(open_features(tmp_path / "f.captions")) == 6


def damaged(folder: Path) -> tuple[Path, Path, set[tuple[str, str]], set[str]]:
    """A collection with more than 20 kinds of damage; which (id, modality) it spoils, and which ids."""
    good = [picture(folder / "good.png", 1), make_sound(folder / "good.wav", click(0.1, 0.4)).name]
    video = make_video(folder / "video.mp4", 30)
    fast = make_video(folder / "fast.mp4", 30, sound=click(0.1, 3.0), options={"movflags": "faststart"}).read_bytes()
    (folder / "cut.mp4").write_bytes(fast[: len(fast) // 2])
    (folder / "noise.mp4").write_bytes(bytes(range(256)) * 8)
    (folder / "zero.png").write_bytes(b"")
    (folder / "text.png").write_text("a text with the name of an image")
    (folder / "silent.mp3").write_bytes(video.read_bytes())
    (folder / "sound.mp4").write_bytes((folder / "good.wav").read_bytes())
    whole = (folder / "good.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    broken = bytearray(whole)
    broken[60:70] = bytes(10)
    (folder / "broken.png").write_bytes(bytes(broken))
    Image.new("1", (30_000, 4_000)).save(folder / "huge.png")
    (folder / "folder.png").mkdir()
    (folder / "dangling.png").symlink_to(folder / "nowhere.png")
    with wave.open(str(folder / "header.wav"), "wb") as header:
        header.setparams((1, 2, 16_000, 0, "NONE", ""))
    (folder / "noise.wav").write_bytes(bytes(range(256)) * 8)
    make_sound(folder / "nan.wav", np.full(4000, np.nan, np.float32), codec="pcm_f32le")
    image = {  # id -> a bad image
        "not found": "nowhere.png", "zero bytes": "zero.png", "wrong extension": "text.png", "cut image": "cut.png",
        "broken image": "broken.png", "huge": "huge.png", "folder": "folder.png", "dangling link": "dangling.png",
        "cut video": "cut.mp4", "not a video": "noise.mp4", "no video stream": "sound.mp4", "nul": "a\0b.png",
    }  # fmt: skip
    audio = {
        "no audio stream": "silent.mp3", "header only": "header.wav", "not audio": "noise.wav", "not finite": "nan.wav",
        "no such sound": "nowhere.wav",
    }  # fmt: skip
    lines = [b"id,split,labels,image,text,audio,notes"]
    lines += [f"{name},train,x,{file},words,{good[1]},".encode() for name, file in image.items()]
    lines += [f"{name},train,x,{good[0]},words,{file},".encode() for name, file in audio.items()]
    fine = f"{good[0]},words,{good[1]},".encode()
    lines += [b"not utf-8,test,x," + fine.replace(b"words", b"caf\xe9")]
    lines += [b"whole,test,x," + fine, b"whole,test,x," + fine]  # duplicate id
    lines += [b"odd split,tset,x," + fine, b",test,x," + fine, b"nothing,test,x,,,,", b"long,test,x," + fine + b",,"]
    lines += [b"all bad,test,x,nowhere.png,,nowhere.wav,", b"bad id \xff,test,x," + fine, b"short,test"]
    (folder / "m.csv").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "c.csv").write_text("id,text\nwhole,more words\nnobody,a caption without item\n")
    spoiled = {(name, "image") for name in image} | {(name, "audio") for name in audio} | {("not utf-8", "text")}
    kept = set(image) | set(audio) | {"not utf-8", "whole"}
    return folder / "m.csv", folder / "c.csv", spoiled, kept


def test_twenty_kinds_of_damage(tmp_path, calmrl) -> None:
    manifest, captions, spoiled, kept = damaged(tmp_path)
    arguments = ["extract", manifest, "--captions", captions, "--out", tmp_path / "f", "--workers", "0"]
    arguments += [f"--encoder={name}={encoder}" for name, encoder in ENCODERS.items()]
    code, _, told = calmrl(*arguments)
    assert code == 2
    assert not (tmp_path / "f").exists()
    assert not (tmp_path / "f.part").exists()
    assert "Traceback" not in told
    with open(tmp_path / "f.problems.csv", encoding="utf-8") as stream:
        listed = list(csv.DictReader(stream))
    kinds = {row["kind"] for row in listed}
    assert kinds == {
        "bad path", "caption without item", "cut off", "damaged image", "directory instead of a file", "duplicate id",
        "empty file", "empty id", "file not found", "huge image", "id is not UTF-8", "no audio stream", "no modality at all",
        "no sound in the audio track", "no video stream", "not a text", "not decodable as audio", "not decodable as image",
        "not decodable as video", "sound with values that are not finite", "unknown column", "unknown split",
        "wrong number of fields",
    }  # fmt: skip
    for kind in kinds:  # one line for each
        assert sum(line.partition(" x ")[2].startswith(f"{kind}: ") for line in told.splitlines()) == 1
    assert {
        (row["id"], row["column"]) for row in listed if row["scope"] == "cell" and row["id"] != "all bad"
    } == spoiled

    code, _, told = calmrl(*arguments, "--allow-missing")
    assert code == 0
    features = open_features(tmp_path / "f")
    assert set(features.ids) == kept
    missing = {(features.ids[i], features.names[j]) for i, j in np.argwhere(~features.present)}
    assert missing == spoiled
    assert "-> this modality counts as missing" in told
    features.verify()


def test_one_run_at_a_time(tmp_path):
    """Two would append to the same vectors."""
    (tmp_path / "items.csv").write_text("id,text\na,hello\n")
    with (
        locked(tmp_path / "features.vectors"),
        pytest.raises(InputError, match=r"another run is writing .*features; wait until it has ended"),
    ):
        extract(tmp_path / "items.csv", {"text": "tiny_text"}, tmp_path / "features")
    assert len(extract(tmp_path / "items.csv", {"text": "tiny_text"}, tmp_path / "features")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features", "items.csv"]


MANIFEST_ONLY = "layout, media, captions and root go with a manifest; a collection has its own media"
NOT_ANNOTATED = "captions and root go with a manifest; an annotation file holds texts and paths itself"
IS_FOLDER = "is a folder: captions, root and layout go with a table; name the table instead"


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("collection", {"layout": "msrvtt"}, MANIFEST_ONLY),
        ("collection", {"media": {"v": "x"}}, MANIFEST_ONLY),
        ("collection", {"captions": "c"}, MANIFEST_ONLY),
        ("collection", {"root": "r"}, MANIFEST_ONLY),
        ("a.csv", {"media": {"vision": "v"}}, "`media` goes with `layout`"),
        ("a.csv", {"layout": "msrvtt", "captions": "c"}, NOT_ANNOTATED),
        ("a.csv", {"layout": "msrvtt", "root": "r"}, NOT_ANNOTATED),
        (".", {"captions": "c"}, IS_FOLDER),
        (".", {"root": "r"}, IS_FOLDER),
        (".", {"layout": "msrvtt"}, IS_FOLDER),
        (
            "a.csv",
            {"layout": "msrvtt"},
            "an annotation file needs its encoders named, for instance `encoders={'vision': NAME}`",
        ),
        (
            "a.csv",
            {},
            "has no column that is called text or holds names of pictures, videos or sounds; it has id, number",
        ),
        ("f.npz", {}, "holds features, not files to encode"),
    ],
)
def test_options_of_extract_that_do_not_fit_its_source(source, options, reason, tmp_path):
    (tmp_path / "a.csv").write_text("id,number\n1,2\n")
    np.savez(tmp_path / "f.npz", image=np.ones((2, 3)))
    given = PublicCollection("msrvtt", tmp_path) if source == "collection" else tmp_path / source
    with pytest.raises(InputError, match=reason):
        extract(given, None, tmp_path / "out", **options)
