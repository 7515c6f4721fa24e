"""The default encoders as they are installed: raw files give the features that `extract` writes."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calmrl.data.features.feature_set import open_features
from calmrl.encoders import EncoderSet, default_encoders
from calmrl.errors import MissingExtraError
from calmrl.workflows import extract, init

EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = {"text": "text", "image": "image", "sound": "audio"}


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    try:
        default_encoders(KINDS)
    except MissingExtraError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("real")
    runpy.run_path(str(EXAMPLES / "make_collection.py"))["main"](folder / "c", items=10)
    return folder


def test_raw_files_give_the_features_of_extract(collection) -> None:
    start = init(collection / "c", collection / "work")
    assert start.notes == []
    features = extract(collection / "work/items.csv", None, collection / "f")
    assert features.info["encoders"] == default_encoders(KINDS)
    cells = [item.cells for item in start.survey.manifest.items]
    encoders = EncoderSet.from_description(open_features(collection / "f").info["encoding"])
    z, present = encoders.encode(cells)
    order = [encoders.modalities.index(name) for name in features.names]
    np.testing.assert_array_equal(present[:, order], features.present)
    for name in features.names:
        np.testing.assert_array_equal(z[name], features.z[name])


def test_the_sound_encoder_starts_in_silence() -> None:
    try:
        default_encoders({"sound": "audio"})
    except MissingExtraError as error:
        pytest.skip(str(error))
    code = "from calmrl.encoders.packaged import yamnet; yamnet()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_transparency_put_on_black_by_hand_is_another_vector(collection) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = next((collection / "c").rglob("*.png"))
    encoders = EncoderSet({"image": "efficientnet_lite0"}, dtype="float32")
    z, _ = encoders.encode([{"image": picture}, {"image": image.open(picture).convert("RGB")}])
    right, wrong = z["image"] / np.linalg.norm(z["image"], axis=1, keepdims=True)
    assert right @ wrong < 0.9
