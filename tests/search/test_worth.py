"""What each modality is worth: unrelated ones are left out, repeated files stay together, unlike additions are noticed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Aligner, Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.search.collection import Collection, ItemRecord
from calmrl.search.worth import AT_CHANCE, with_repeats
from tests.aligner.test_base import FAST, items

MADE_BY = {"encoders": {"image": "efficientnet_lite0"}}


def features(z, what="item", first=0, info=None):
    n = len(next(iter(z.values())))
    meta = meta_table(n, ids=[f"{what} {first + i}" for i in range(n)])
    z = {name: values.astype(np.float32) for name, values in z.items()}
    return FeatureSet(z, np.ones((n, len(z)), bool), meta, name="items", info=info or {})


def unrelated(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 12))


def test_a_modality_at_chance_is_left_out_and_said(tmp_path):
    z = items(200, 3)
    model = Aligner(**FAST)
    index = Index.build(features(z | {"speech": unrelated(200)}), tmp_path / "ix", model=model)
    assert index.modalities()["speech"]["why"] == AT_CHANCE
    assert [name for name, entry in index.modalities().items() if entry["aligned"]] == ["image", "text"]
    assert "in short: image and text find each other well; speech is unrelated to the rest" in index.summary()
    (hit,) = index.search(speech=unrelated(200)[4], k=1)
    assert (hit.id, [(one.query, one.item) for one in hit.why]) == ("item 4", [])  # it still finds itself
    same = Index.build(features(z), tmp_path / "without", model=model)
    asked = items(5, 8)["text"]
    for text in asked:  # it says nothing about where items lie
        assert [hit.id for hit in index.search(text=text)] == [hit.id for hit in same.search(text=text)]


@pytest.mark.parametrize(("pairs", "aligned"), [(25, True), (200, False)])
def test_few_pairs_call_nothing_useless(tmp_path, pairs, aligned):
    z = {"image": items(pairs, 3)["image"], "speech": unrelated(pairs)}
    index = Index.build(features(z), tmp_path / "ix", model=Aligner(**FAST))
    assert {entry["aligned"] for entry in index.modalities().values()} == {aligned}
    if not aligned:
        assert index.search(image=items(1, 5)["image"][0])  # within its own modality


def test_items_with_one_file_stay_together(tmp_path):
    """Fifty pictures, each in six items that say much the same: held-out items promise what pictures never seen reach."""
    n, each = 50, 6
    z = {name: np.repeat(values, each, axis=0) for name, values in items(n, 3, noise=3.0).items()}
    z["text"] += 0.3 * np.random.default_rng(0).normal(size=z["text"].shape)
    index = Index.build(features(z, info=MADE_BY), tmp_path / "ix", model=Aligner(**FAST), base=None)
    assert "image: 300 items with 50 different files; those of one file count as one in estimates" in index.summary()
    fresh = items(n, 4, noise=3.0)
    scores = index.aligner.embed({"image": fresh["image"]}) @ index.aligner.embed({"text": fresh["text"]}).T
    measured = 100 * float((scores.argmax(1) == np.arange(n)).mean())
    expected, loose = (one.expected(n)["image->text"] for one in (index.aligner, Aligner(**FAST).fit(z)))
    assert expected["low"] <= measured <= expected["high"]
    assert measured < loose["low"]  # what it would promise if pictures were seen on both sides of a fold


@pytest.mark.parametrize(
    ("siblings", "files", "labels", "counts"),
    [
        (None, "abcd", None, {}),
        (["x", "y", "y", "z"], "abcd", ["x", "y", "y", "z"], {}),
        (None, "abca", [0, 1, 2, 0], {"image": [4, 3]}),
        (["x", "y", "y", "z"], "abca", [0, 1, 1, 0], {"image": [4, 3]}),
        (["x", "y", "y", "z"], "abba", [0, 1, 1, 0], {"image": [4, 2]}),
        ([1, "1", 2, 3], "abca", [0, 1, 2, 0], {"image": [4, 3]}),
        (["x", "y", "y", "z"], "ab a", [0, 1, 1, 0], {"image": [3, 2]}),
    ],
)
def test_groups_and_repeated_files(siblings, files, labels, counts):
    records = [ItemRecord(str(i), fingerprints={} if c == " " else {"image": [c, 0, 0]}) for i, c in enumerate(files)]
    texts = [ItemRecord(one.id, fingerprints={**one.fingerprints, "text": ["same", 0, 0]}) for one in records]
    collection = Collection(texts, {}, np.ones((4, 2), bool), {"image": "image", "text": "text"}, "root")
    found, repeated = with_repeats(collection, siblings)
    assert repeated == counts
    alike = None if labels is None else [[a == b for b in labels] for a in labels]
    assert (None if found is None else [[a == b for b in found] for a in found]) == alike


@pytest.mark.parametrize(("shift", "said"), [(0.0, False), (8.0, True)])
def test_added_items_unlike_the_rest_are_noticed(tmp_path, shift, said):
    index = Index.build(features(items(200, 3)), tmp_path / "ix", model=Aligner(**FAST))
    new = items(20, 5)
    new["image"] = new["image"] + shift * np.random.default_rng(1).normal(size=new["image"].shape[1])
    change = index.add(features(new, first=200))
    assert len(change.added) == 20
    assert [line.partition(":")[0] for line in change.unlike] == ["image"] * said
    assert ("unlike all that was there; `refit=True` (--refit) fits" in "\n".join(change.lines())) is said
