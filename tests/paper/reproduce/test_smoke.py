"""The tiny data and weights that tables are tried on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calmrl.data.features.feature_set import open_features
from calmrl.paper.reproduce.smoke import (
    CHARACTERS,
    SIZES,
    official_name,
    smoke_changes,
    write_checkpoint,
    write_smoke_data,
    write_tokenizer,
)
from calmrl.paper.reproduce.tables import RUNS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    root = tmp_path_factory.mktemp("smoke") / "data"
    write_smoke_data(root)
    return root


def test_runs_that_are_made_tiny():
    changes = smoke_changes(RUNS["calmrl-both"])
    assert changes[:4] == ["stages.0.epochs=null", "stages.0.steps=1", "stages.1.epochs=null", "stages.1.steps=1"]
    assert changes[4:9] == [
        "batch_size=4",
        "log_every=1",
        "model.width=8",
        "precision=fp32",
        "calibration.imputer.latent_dim=4",
    ]
    assert changes[-3:] == ["model.image_size=28", "model.frames=2", "model.workers=1"]
    assert smoke_changes(RUNS["vast-start"])[0] == "batch_size=4"
    assert len([c for c in smoke_changes(RUNS["gram-complete"]) if c.startswith("stages")]) == 2
    classes = smoke_changes(RUNS["gram-classes"])
    assert not any(change.startswith("model.sizes") for change in classes)
    assert not any("latent_dim" in change for change in classes)


def test_tiny_weights_have_published_names(tmp_path):
    assert official_name("heads.vision.weight") == "contra_head_v.linear.weight"
    assert official_name("fused.va.bias") == "contra_head_va.bias"
    assert official_name("bert.encoder.x") == "multimodal_encoder.bert.encoder.x"
    write_checkpoint(tmp_path / "a" / "w.pt")
    state = torch.load(tmp_path / "a" / "w.pt", weights_only=True)
    write_checkpoint(tmp_path / "b" / "w.pt")
    again = torch.load(tmp_path / "b" / "w.pt", weights_only=True)
    assert all(torch.equal(state[name], again[name]) for name in state)
    matrices = torch.cat([value.flatten() for value in state.values() if value.ndim > 1 and value.is_floating_point()])
    assert float(matrices.std()) == pytest.approx(0.3, rel=0.05)
    assert float(matrices.mean()) == pytest.approx(0.0, abs=0.02)
    assert state["contra_head_v.linear.weight"].shape == (8, 16)
    assert state["vision_encoder.visual.pos_embed"].shape == (1, 5, 16)
    assert state["vision_frame_embedding"].shape == (1, 2, 16)


def test_a_tokenizer_of_single_characters(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    write_tokenizer(tmp_path / "new" / "t")
    write_tokenizer(tmp_path / "new" / "t")  # into a folder that is there
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "new" / "t")
    assert tokenizer("ab")["input_ids"] == [2, 4, 5, 3]
    assert tokenizer("é")["input_ids"] == [2, 1, 3]
    assert len(CHARACTERS) + 4 <= SIZES["vocabulary"]


def test_annotations_of_six_and_four_items(data):
    folders = {
        "msrvtt/videos": [f"video{i}.mp4" for i in range(10)],
        "didemo/videos": [f"film{i}.mp4" for i in range(6, 10)],
        "vast150k/videos": [f"clip{i}.mp4" for i in range(6)],
        "audiocaps/train": [f"sound{i}_0.wav" for i in range(6)],
        "audiocaps/test": [f"sound{i}_0.wav" for i in range(6, 10)],
        "clotho/evaluation": [f"sound{i}.wav" for i in range(6, 10)],
    }
    assert {folder: sorted(path.name for path in (data / folder).iterdir()) for folder in folders} == folders
    same = ["msrvtt/videos/video7.mp4", "didemo/videos/film7.mp4", "vatex/videos/film7_000000_000010.mp4"]
    assert len({(data / file).read_bytes() for file in same}) == 1  # one item, whatever it is called
    assert (data / "audiocaps/test/sound8_0.wav").read_bytes() == (data / "clotho/evaluation/sound8.wav").read_bytes()
    sentences = json.loads((data / "msrvtt/MSRVTT_data.json").read_text())["sentences"]
    assert sentences[:3] == [
        {"video_id": "video0", "caption": "a film 0"},
        {"video_id": "video0", "caption": "the film 0"},
        {"video_id": "video1", "caption": "a film 1"},
    ]
    assert (data / "msrvtt/MSRVTT_JSFUSION_test.csv").read_text().splitlines()[1] == "ret6,msr6,video6,a film 6"
    lines = (data / "audiocaps/dataset/train.csv").read_text().splitlines()
    assert (len(lines), lines[1]) == (7, "100,sound0,0,a sound 0")
    clotho = (data / "clotho/clotho_captions_evaluation.csv").read_text().splitlines()
    assert clotho[1] == "sound6.wav," + ",".join(f"caption {n} of 6" for n in range(5))


def test_every_item_has_a_grey_level_and_a_tone(data):
    import av

    with av.open(str(data / "msrvtt/videos/video3.mp4")) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        assert float(video.streams.video[0].average_rate) == 10.0
    assert [frame.shape for frame in frames] == [(32, 32, 3)] * 4
    assert [round(float(frame.mean())) for frame in frames] == pytest.approx([60, 65, 70, 75], abs=3)
    with av.open(str(data / "audiocaps/train/sound3_0.wav")) as audio:
        parts = [frame.to_ndarray().ravel() for frame in audio.decode(audio=0)]
        assert (audio.streams.audio[0].rate, audio.streams.audio[0].channels) == (16_000, 1)
    samples = np.concatenate(parts).astype(float) / 32768
    assert len(samples) == 8000
    assert int(np.abs(np.fft.rfft(samples)).argmax()) * 2 == 320  # 200 + 40 * 3 Hz
    assert np.abs(samples).max() == pytest.approx(0.3, abs=0.01)


def test_tiny_features_of_others(data):
    home = data / "features" / "imagebind"
    assert sorted(path.name for path in home.iterdir()) == sorted(
        ["vggsound", "ucf101", "audioset", "audioset-classes", "esc50", "msrvtt", "audiocaps", "clotho"]
    )
    sounds = open_features(home / "esc50")
    assert sounds.names == ("audio", "text")
    assert sounds.split.tolist() == ["train"] * 8 + ["val"] * 2 + ["test"] * 4
    assert sounds.labels.tolist() == ["class 0", "class 1"] * 7
    assert sounds.z["audio"].shape == (14, 12)
    np.testing.assert_array_equal(sounds.z["text"][0], sounds.z["text"][2])
    assert not np.array_equal(sounds.z["text"][0], sounds.z["text"][1])
    several = open_features(home / "audioset").labels
    assert [list(map(str, label)) for label in several[:2]] == [["class 0"], ["class 1", "class 0"]]
    assert open_features(home / "msrvtt").split.tolist() == ["test"] * 4
