"""ImageBind, LanguageBind and InternVideo: what they share, and stand-ins that have the functions of their packages."""

from __future__ import annotations

import csv
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from calmrl.data.features.feature_set import open_features
from calmrl.data.media.problems import Unreadable
from calmrl.encoders import ENCODERS, EncoderSet, load_encoder
from calmrl.encoders.registry import FAMILIES, full_name
from calmrl.errors import InputError
from calmrl.paper import imagebind_features
from calmrl.paper.encoders import (
    encode_arrays,
    encode_texts,
    for_files,
    must_be,
    old_integer_name,
    read_officially,
    same_draws,
    unit,
)
from tests.support.backbone_packages import calls, forget, imagebind_weights, internvideo_weights, packages  # noqa: F401
from tests.support.make_media import click, make_sound, make_video

image_module = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
OFFICIAL = [name for name, spec in ENCODERS.items() if spec.package]


@pytest.fixture
def media(tmp_path):
    """An image, audio and a video."""
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3)).astype(np.uint8)
    image_module.fromarray(pixels).save(tmp_path / "a.png")
    make_sound(tmp_path / "a.wav", click(0.2, 0.6))
    make_video(tmp_path / "a.mp4", 6, 10)
    return tmp_path


def table(folder: Path, rows: list[dict[str, str]]) -> Path:
    with open(folder / "items.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "image", "video", "audio", "text"])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "items.csv"


# ---- what is there, and what is not


def test_a_package_that_is_not_there_or_does_not_import_says_why(tmp_path, monkeypatch) -> None:
    forget()
    assert {name.split("_")[0] for name in OFFICIAL} == set(FAMILIES)
    for name in OFFICIAL:
        with pytest.raises(InputError, match=f'"{ENCODERS[name].package}", which is not installed; run: ') as wrong:
            load_encoder(f"{name}@weights" if name.startswith("internvideo") else name)
        assert ENCODERS[name].install in str(wrong.value)
    (tmp_path / "languagebind.py").write_text("import a_decoder_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="cannot be imported: No module named 'a_decoder_that_is_not_there'"):
        load_encoder("languagebind_image")
    forget()


def test_a_family_stands_for_the_side_that_a_modality_is_called_after() -> None:
    assert full_name("vision", "imagebind") == "imagebind_image"
    assert full_name("vision", "languagebind@LanguageBind_Video") == "languagebind_video@LanguageBind_Video"
    assert full_name("Subtitle", "internvideo@a.ckpt") == "internvideo_text@a.ckpt"
    assert full_name("sound", "yamnet") == "yamnet"
    with pytest.raises(InputError, match=r'internvideo has no side for a modality called "audio".*internvideo_video, '):
        full_name("audio", "internvideo")
    with pytest.raises(InputError, match="imagebind has several sides; name one: imagebind_image, imagebind_audio"):
        load_encoder("imagebind")
    with pytest.raises(InputError, match="leave out what begins with @"):
        load_encoder("yamnet@other.tflite")


# ---- ImageBind


def test_extract_runs_imagebind_on_every_kind_of_file(packages, media, calmrl) -> None:  # noqa: F811
    weights = imagebind_weights(media / "w.pth")
    rows = [
        {"id": "a", "image": "a.png", "video": "a.mp4", "audio": "a.wav", "text": "a dog"},
        {"id": "b", "text": "rain"},
    ]
    options = [f"--encoder={name}=imagebind@{weights}" for name in ("image", "video", "audio", "text")]
    code, _, err = calmrl("extract", table(media, rows), "--out", media / "f", *options, "--dtype", "float32")
    assert code == 0, err
    features = open_features(media / "f")
    assert features.present.tolist() == [[True] * 4, [False, False, False, True]]
    for name in features.names:
        np.testing.assert_allclose(np.linalg.norm(features.z[name][0]), 1, atol=1e-6)  # no temperature
        assert features.z[name].shape == (2, 1024)
    assert features.info["encoders"]["video"] == f"imagebind_image@{weights}"
    read = {(what, *paths): device for what, paths, device in calls("imagebind")}
    for what, file in (("vision", "a.png"), ("video", "a.mp4"), ("audio", "a.wav")):
        assert read[what, str(media / file)] == "cpu"
    assert read["text", "rain"] == "cpu"


@torch.inference_mode()
def test_imagebind_gives_what_the_package_gives(packages, media) -> None:  # noqa: F811
    from imagebind import data
    from imagebind.models import imagebind_model

    weights = imagebind_weights(media / "w.pth")
    model = imagebind_model.imagebind_huge(pretrained=False)
    model.load_state_dict(torch.load(weights, weights_only=True))
    inputs = {
        "vision": data.load_and_transform_vision_data([media / "a.png"], "cpu"),
        "audio": data.load_and_transform_audio_data([media / "a.wav"], "cpu"),
        "text": data.load_and_transform_text(["a dog"], "cpu"),
    }
    outputs = model(inputs)
    encoders = EncoderSet(dict.fromkeys(("image", "sound", "text"), f"imagebind@{weights}"), dtype="float32")
    z, _ = encoders.encode([{"image": media / "a.png", "sound": media / "a.wav", "text": "a dog"}])
    for name, side in (("image", "vision"), ("sound", "audio"), ("text", "text")):
        expected = torch.nn.functional.normalize(outputs[side], dim=-1)
        np.testing.assert_allclose(z[name], expected, atol=1e-6)
    in_memory, _ = encoders.encode([{"image": image_module.open(media / "a.png")}])
    np.testing.assert_array_equal(in_memory["image"], z["image"])  # a file of its own is written for the package
    as_bytes, _ = encoders.encode([{"sound": (media / "a.wav").read_bytes()}])
    np.testing.assert_array_equal(as_bytes["sound"], z["sound"])


def test_what_imagebind_cannot_decode_is_a_problem_of_that_file(packages, media, calmrl) -> None:  # noqa: F811
    weights = imagebind_weights(media / "w.pth")
    (media / "b.wav").write_bytes(b"nothing")
    path = table(media, [{"id": "a", "audio": "a.wav"}, {"id": "b", "audio": "b.wav", "text": "x"}])
    options = ["--out", media / "f", "--ignore=image", "--ignore=video", f"--encoder=audio=imagebind@{weights}"]
    options += [f"--encoder=text=imagebind@{weights}"]
    code, _, err = calmrl("extract", path, *options)
    assert code == 2
    assert "1 x not readable by imagebind: line 3, id b" in err
    assert calmrl("extract", path, *options, "--allow-missing")[0] == 0


def test_weights_are_read_as_tensors_alone(packages, tmp_path) -> None:  # noqa: F811
    with open(tmp_path / "code.pth", "wb") as file:
        pickle.dump(print, file)
    with pytest.raises(InputError, match="files that run code when opened are refused"):
        load_encoder(f"imagebind_image@{tmp_path / 'code.pth'}")
    with pytest.raises(InputError, match=r"no weights of ImageBind at .+nowhere.pth; download https"):
        load_encoder(f"imagebind_text@{tmp_path / 'nowhere.pth'}")
    torch.save({"heads.vision.weight": torch.zeros(1024, 8)}, tmp_path / "part.pth")
    with pytest.raises(InputError, match=r"does not hold the weights of ImageBindModel: .*heads.audio.weight"):
        load_encoder(f"imagebind_image@{tmp_path / 'part.pth'}")


# ---- LanguageBind


def test_languagebind_is_called_as_its_package_documents(packages, media) -> None:  # noqa: F811
    names = dict.fromkeys(("image", "video", "sound", "text"), "languagebind")
    encoders = EncoderSet(names, dtype="float32")
    item = {"image": media / "a.png", "video": media / "a.mp4", "sound": media / "a.wav", "text": "a dog"}
    z, present = encoders.encode([item])
    assert present.all()
    assert {name: rows.shape for name, rows in z.items()} == dict.fromkeys(names, (1, 768))
    for rows in z.values():
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    made = calls("languagebind")
    for side, checkpoint in (("image", "Image"), ("video", "Video_FT"), ("audio", "Audio_FT")):
        assert ("model", {side: f"LanguageBind_{checkpoint}"}, False, None) in made
    assert ("LanguageBindVideoProcessor", [str(media / "a.mp4")]) in made
    assert ("tokenizer", "LanguageBind/LanguageBind_Image", None) in made
    assert ("tokens", ["a dog"], 77, "max_length", True, "pt") in made


def test_random_crops_and_flips_are_the_same_every_time(packages, media) -> None:  # noqa: F811
    encoder = load_encoder("languagebind_video")
    state = torch.random.get_rng_state()
    one = encoder.prepare(str(media / "a.mp4"))
    assert torch.equal(state, torch.random.get_rng_state())  # the draws of others are not touched
    torch.manual_seed(5)
    np.testing.assert_array_equal(one, encoder.prepare(str(media / "a.mp4")))
    assert one.shape == encoder.item_shape == (3, 8, 224, 224)


def test_other_checkpoints_of_languagebind_are_named(packages, media) -> None:  # noqa: F811
    load_encoder("languagebind_video@LanguageBind_Video")
    assert ("model", {"video": "LanguageBind_Video"}, False, None) in calls("languagebind")
    with pytest.raises(InputError, match="weights nowhere of LanguageBind cannot be loaded"):
        load_encoder("languagebind_audio@nowhere")


@pytest.mark.parametrize(("side", "file"), [("image", "a.mp4"), ("video", "a.png"), ("audio", "a.png")])
def test_sides_of_languagebind_refuse_other_media(packages, media, side: str, file: str) -> None:  # noqa: F811
    encoder = load_encoder(f"languagebind_{side}")
    with pytest.raises(InputError, match=f"languagebind_{side} reads "):
        encoder.prepare(str(media / file))


# ---- InternVideo


def test_internvideo_reads_videos_and_texts(packages, media) -> None:  # noqa: F811
    weights = internvideo_weights(media / "L.ckpt")
    encoders = EncoderSet(dict.fromkeys(("video", "text"), f"internvideo@{weights}"), dtype="float32")
    long = "a dog, " * 40 + "a cat"
    z, _ = encoders.encode([{"video": media / "a.mp4", "text": long}])
    assert {name: rows.shape for name, rows in z.items()} == {"video": (1, 768), "text": (1, 768)}
    assert ("video", str(media / "a.mp4")) in calls("InternVideo")
    assert ("text", [long], True) in calls("InternVideo")
    assert not hasattr(np, "int")  # only there while the package reads
    small = EncoderSet({"text": f"internvideo@{internvideo_weights(media / 'B.ckpt', width=512)}"})
    assert small.width("text") == 512


def test_internvideo_says_what_its_checkpoint_lacks(packages, media) -> None:  # noqa: F811
    with pytest.raises(InputError, match=r"needs its checkpoint: internvideo_video@InternVideo-MM-L-14.ckpt"):
        load_encoder("internvideo_video")
    lacking = internvideo_weights(media / "part.ckpt", without="visual_proj")
    with pytest.raises(InputError, match=r'has no "visual_proj" .*which would be random'):
        load_encoder(f"internvideo_video@{lacking}")
    whole = internvideo_weights(media / "L.ckpt", without="text_mask_embedding")  # of masked training
    encoder = load_encoder(f"internvideo_video@{whole}")
    with pytest.raises(InputError, match="internvideo_video reads video files"):
        encoder.prepare(str(media / "a.png"))


# ---- all of them


@pytest.mark.parametrize("name", OFFICIAL)
def test_items_are_prepared_in_other_processes_and_vectors_keep_their_bits(packages, media, name: str) -> None:  # noqa: F811
    weights = {"imagebind": imagebind_weights, "internvideo": internvideo_weights}.get(name.split("_")[0])
    encoder = load_encoder(f"{name}@{weights(media / 'w')}" if weights else name)
    spec = ENCODERS[name]
    assert (encoder.kind, encoder.width) == (spec.kind, spec.width)
    file = {"image": "a.png", "audio": "a.wav", "video": "a.mp4"}.get(name.split("_")[1])
    source = str(media / file) if file else "a dog"
    items = [encoder.prepare(source), pickle.loads(pickle.dumps(encoder.prepare))(source)]
    vectors = encoder.encode(items)
    assert vectors.dtype == np.float32
    assert vectors[0].tobytes() == vectors[1].tobytes() == encoder.encode(items[:1])[0].tobytes()


# ---- without a package


def test_unit_vectors_one_by_one_on_a_cpu():
    groups = []

    def forward(batch):
        groups.append(tuple(batch.shape))
        return batch.double()

    items = [np.array([3.0, 4.0], np.float32), np.array([0.0, 2.0], np.float32)]
    found = encode_arrays(forward, "cpu", items)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 1.0]], rtol=1e-6)
    assert (groups, found.dtype) == ([(1, 2), (1, 2)], np.float32)
    groups.clear()
    encode_arrays(forward, "cpu:0", items)
    assert groups == [(2, 2)]
    groups.clear()
    np.testing.assert_allclose(
        encode_arrays(lambda batch: forward(batch)[:, :1], "cpu:0", [items[0], np.ones(3, np.float32)]), [[1.0], [1.0]]
    )
    assert groups == [(1, 2), (1, 3)]
    texts = []
    assert encode_texts(lambda one: texts.append(one) or torch.ones(1, 1), ["a", "b"]).tolist() == [[1.0], [1.0]]
    assert texts == [["a"], ["b"]]
    assert unit(torch.tensor([[[3.0, 4.0]]])).tolist() == [[[pytest.approx(0.6), pytest.approx(0.8)]]]
    encoder = for_files("audio", (2, 5), len, lambda batch: batch.flatten(1)[:, :7], "cpu")
    assert (encoder.kind, encoder.width, encoder.reads_files, encoder.item_shape) == ("audio", 7, True, (2, 5))


def test_the_draws_of_others_are_not_touched():
    def seed(number):
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        torch.manual_seed(number)

    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(1))  # noqa: NPY002

    seed(5)
    plain = [draw(), draw()]
    seed(5)
    first = draw()
    with same_draws():
        inside = draw()
    assert [first, draw()] == plain
    seed(0)
    assert draw() == inside


def test_faults_of_a_package_are_not_faults_of_a_file():
    def broken(path):
        raise AttributeError("a function is gone")

    with pytest.raises(AttributeError, match="a function is gone"):
        read_officially("p", broken, "a.wav")

    def undecodable(path):
        raise RuntimeError("no header")

    with pytest.raises(Unreadable, match=r"a\.wav: no header \(not readable by p\)"):
        read_officially("p", undecodable, "a.wav")
    found = read_officially("p", lambda path: torch.ones(2, dtype=torch.float64), "a.wav")
    assert (found.tolist(), found.dtype) == ([1.0, 1.0], np.float32)


def test_the_suffix_says_which_medium_a_file_is():
    for medium, path in (
        ("image", "a.PNG"),
        ("video", "a.MP4"),
        ("audio", "a.wav"),
        ("audio", "a.mp4"),
        ("video", "a.x"),
    ):
        must_be(medium, path, "entry", "take another")  # of a video there is the audio track
    for medium, path in (("image", "a.mp4"), ("video", "a.wav"), ("audio", "a.png")):
        said = rf"{path}: entry reads {medium} files; take another \(\w+, not {medium}\)"
        with pytest.raises(Unreadable, match=said):
            must_be(medium, path, "entry", "take another")


def test_the_old_name_of_integers_is_there_for_a_call():
    assert "int" not in vars(np)

    def fail():
        with old_integer_name():
            assert vars(np)["int"] is int
            with old_integer_name():  # it is there already
                pass
            assert vars(np)["int"] is int
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "int" not in vars(np)


def test_imagebind_loses_its_temperatures() -> None:
    rng = np.random.default_rng(0)
    exact = {name: rng.normal(size=(6, 5)).astype(np.float32) for name in ("vision", "audio", "text")}
    exact = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in exact.items()}
    scaled = {"vision": exact["vision"], "audio": 20 * exact["audio"], "text": 87.5 * exact["text"]}
    scaled["audio"][2] = np.nan
    found = imagebind_features(scaled)
    assert np.isnan(found["audio"][2]).all()
    for name in exact:
        there = np.isfinite(found[name]).all(axis=1)
        np.testing.assert_allclose(found[name][there], exact[name][there], atol=1e-6)
    tensors = imagebind_features({name: torch.from_numpy(rows) for name, rows in scaled.items()})
    assert isinstance(tensors["text"], torch.Tensor)
    scaled["vision"][4] = 0
    with pytest.raises(InputError, match="vision of row 4 is all 0"):
        imagebind_features(scaled)
