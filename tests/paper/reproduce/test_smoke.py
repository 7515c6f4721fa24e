"""The tiny data and weights that tables are tried on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl.data.features.feature_set import open_features
from calmrl.paper.reproduce.smoke import (
    CHARACTERS,
    SIZES,
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
    assert smoke_changes(RUNS["calmrl-both"])[:9] == [
        *("stages.0.epochs=null", "stages.0.steps=1", "stages.1.epochs=null", "stages.1.steps=1", "batch_size=4"),
        *("log_every=1", "model.width=8", "precision=fp32", "calibration.imputer.latent_dim=4"),
    ]
    assert smoke_changes(RUNS["calmrl-both"])[-3:] == ["model.image_size=28", "model.frames=2", "model.workers=1"]
    assert smoke_changes(RUNS["vast-start"])[0] == "batch_size=4"
    assert len([c for c in smoke_changes(RUNS["gram-complete"]) if c.startswith("stages")]) == 2
    assert not any("sizes" in change or "latent_dim" in change for change in smoke_changes(RUNS["gram-classes"]))


def test_tiny_weights_have_published_names(tmp_path):
    for folder in "ab":
        write_checkpoint(tmp_path / folder / "w.pt")
    state, again = (torch.load(tmp_path / folder / "w.pt", weights_only=True) for folder in "ab")
    assert all(torch.equal(state[name], again[name]) for name in state)
    matrices = torch.cat([value.flatten() for value in state.values() if value.ndim > 1 and value.is_floating_point()])
    assert float(matrices.std()) == pytest.approx(0.3, rel=0.05)  # so that items differ
    shapes = {"contra_head_v.linear.weight": (8, 16), "vision_frame_embedding": (1, 2, 16)}
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


def test_a_tokenizer_of_single_characters(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    for _ in range(2):  # also into a folder that is there
        write_tokenizer(tmp_path / "new" / "t")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "new" / "t")
    assert [tokenizer(text)["input_ids"] for text in ("ab", "é")] == [[2, 4, 5, 3], [2, 1, 3]]
    assert len(CHARACTERS) + 4 <= SIZES["vocabulary"]


def test_every_item_is_the_same_in_all_collections_and_has_a_grey_level_and_a_tone(data):
    av = pytest.importorskip("av")
    same = ["msrvtt/videos/video7.mp4", "didemo/videos/film7.mp4", "vatex/videos/film7_000000_000010.mp4"]
    assert len({(data / file).read_bytes() for file in same}) == 1
    assert (data / "audiocaps/test/sound8_0.wav").read_bytes() == (data / "clotho/evaluation/sound8.wav").read_bytes()
    with av.open(str(data / "msrvtt/videos/video3.mp4")) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert [frame.shape for frame in frames] == [(32, 32, 3)] * 4
    assert [round(float(frame.mean())) for frame in frames] == pytest.approx([60, 65, 70, 75], abs=3)
    with av.open(str(data / "audiocaps/train/sound3_0.wav")) as audio:
        samples = np.concatenate([frame.to_ndarray().ravel() for frame in audio.decode(audio=0)]).astype(float) / 32768
        assert (audio.streams.audio[0].rate, audio.streams.audio[0].channels) == (16_000, 1)
    assert len(samples) == 8000
    assert int(np.abs(np.fft.rfft(samples)).argmax()) * 2 == 320  # 200 + 40 * 3 Hz
    assert np.abs(samples).max() == pytest.approx(0.3, abs=0.01)


def test_tiny_features_of_others(data):
    home = data / "features" / "imagebind"
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
