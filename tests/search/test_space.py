"""Which modalities are aligned, which values say what is relevant, and placing items block by block."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.data import FeatureSet
from calmrl.data.features.feature_set import ROW
from calmrl.datasets import load_dataset
from calmrl.errors import InputError
from calmrl.search import space as align
from calmrl.search.build import build
from calmrl.search.collection import Collection, ItemRecord, from_features
from calmrl.search.space import MIN_PAIRS, check_aligner, linked, place, relevance_of_items
from calmrl.sources import open_source
from tests.support.colour_world import settings

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Aligner, Index
from calmrl.data.features.directory import meta_table
from calmrl.search.space import AT_CHANCE, with_repeats
from tests.aligner.test_base import FAST, items

NAMES = ("a", "b", "c")


def mask(**counts: int) -> np.ndarray:
    """So many rows of each pattern: `ab=20` has a and b."""
    return np.array([[name in pattern for name in NAMES] for pattern, count in counts.items() for _ in range(count)])


@pytest.mark.parametrize(
    ("present", "inside", "why"),
    [
        (mask(ab=20, c=50), ["a", "b"], {"c": "no item has both c and another modality; 20 are needed to align"}),
        (mask(ab=20, bc=20), ["a", "b", "c"], {}),
        (mask(ab=20, bc=19), ["a", "b"], {"c": "19 items have both c and b; 20 are needed to align"}),
        (mask(ab=20), ["a", "b"], {"c": "no item has it"}),
        (mask(ab=20, bc=1), ["a", "b"], {"c": "1 item has both c and b; 20 are needed to align"}),
        (mask(ac=20, b=99), ["a", "c"], {"b": "no item has both b and another modality; 20 are needed to align"}),
    ],
)
def test_modalities_that_enough_items_link(present, inside, why):
    assert MIN_PAIRS == 20
    assert linked(NAMES, present) == (inside, why)


def test_nothing_is_linked_by_too_few():
    inside, why = linked(NAMES, mask(ab=19, c=5))
    assert inside == []
    assert why["a"] == "19 items have both a and b; 20 are needed to align"
    assert linked(("a",), np.ones((30, 1), bool)) == ([], {"a": "it is the only modality, so nothing else can find it"})


def test_of_two_groups_the_larger_is_aligned():
    names = ("a", "b", "c", "d")
    present = np.zeros((50, 4), bool)
    present[:20, :2] = True
    present[20:, 2:] = True
    assert linked(names, present)[0] == ["c", "d"]
    assert linked(names, present[:, [2, 3, 0, 1]])[0] == ["a", "b"]


def collection(n=6, **columns) -> Collection:
    known = [
        ItemRecord(str(i), texts=(f"t{i}",), labels=(f"l{i % 2}",), columns={name: v[i] for name, v in columns.items()})
        for i in range(n)
    ]
    return Collection(known, {"a": np.ones((n, 2))}, np.ones((n, 1), bool), {"a": "vector"}, "root")


def test_values_that_say_what_is_relevant():
    items = collection(3, colour=["red", None, "red"], empty=[None] * 3)
    assert relevance_of_items(items, None) is None
    assert relevance_of_items(items, ROW) is None
    assert relevance_of_items(items, "text") == [("t0",), ("t1",), ("t2",)]
    assert relevance_of_items(items, "labels") == [("l0",), ("l1",), ("l0",)]
    assert relevance_of_items(items, "colour") == ["red", None, "red"]
    assert relevance_of_items(items, (1, 2, 3)) == [1, 2, 3]
    with pytest.raises(InputError, match="no item has a value in the column 'empty'"):
        relevance_of_items(items, "empty")
    with pytest.raises(InputError, match='no column "nowhere"; there are text, labels, colour, empty'):
        relevance_of_items(items, "nowhere")
    with pytest.raises(InputError, match="relevant has 2 values but there are 3 items; pass one per item"):
        relevance_of_items(items, [1, 2])


@pytest.fixture(scope="module")
def fitted():
    """(an aligner, the items that it was fitted on)"""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(60, 3))
    z = {name: (shared @ rng.normal(size=(3, width))).astype(np.float32) for name, width in (("a", 9), ("b", 8))}
    present = rng.random((60, 2)) < 0.8
    present[:, 0] |= ~present.any(axis=1)
    z = {name: np.where(present[:, [j]], values, np.nan) for j, (name, values) in enumerate(z.items())}
    features = FeatureSet(z, present)
    return settings().fit(features), from_features(open_source(features))


@pytest.mark.parametrize("rows", [60, 59, 7])
def test_items_are_placed_block_by_block(rows, fitted, monkeypatch):
    aligner, items = fitted
    whole, certainty = place(aligner, items)
    assert whole.shape == (60, aligner.space_.latent_dim)
    np.testing.assert_allclose(whole, aligner.embed(items.z, items.present), atol=1e-6)
    monkeypatch.setattr(align, "PLACE_ROWS", rows)
    again, again_certainty = place(aligner, items)
    np.testing.assert_allclose(again, whole, atol=1e-6)
    np.testing.assert_allclose(again_certainty, certainty, atol=1e-6)


def test_a_modality_that_no_item_has_and_one_that_the_aligner_does_not_know(fitted):
    aligner, items = fitted
    rows = np.flatnonzero(items.present[:, 1])
    few = items.take(rows.tolist())
    only = Collection(
        few.records, {"x": np.ones((len(rows), 3)), "b": few.z["b"]}, np.ones((len(rows), 2), bool), {}, "root"
    )
    vectors, _ = place(aligner, only)
    np.testing.assert_allclose(vectors, aligner.embed({"b": few.z["b"]}), atol=1e-6)
    assert check_aligner(aligner, only) == (["b"], {"x": "the model does not know it"})
    only.z["b"] = np.ones((len(rows), 3))
    with pytest.raises(InputError, match="b has width 3 but the model was fitted on width 8; use the encoder"):
        check_aligner(aligner, only)
    del only.z["b"]
    with pytest.raises(InputError, match="the model knows a, b, the collection has x"):
        check_aligner(aligner, only)


def test_what_no_item_of_these_modalities_has_is_left_out_of_the_fit(fitted, tmp_path, monkeypatch):
    """Labels and values stay with their rows."""
    _, items = fitted
    seen = {}

    class Fake:
        def fit(self, z, present, groups, relevant, encoders):
            seen.update(z=z, present=present, groups=groups, relevant=relevant)
            return self

        def save(self, path, overwrite):
            seen["overwrite"] = overwrite

    monkeypatch.setattr(align, "clone", lambda made: Fake())
    rows = np.flatnonzero(items.present[:, 1])
    numbers = list(range(60))
    align.fit(items, ["b"], numbers, tmp_path, settings(), numbers)
    assert seen["groups"] == seen["relevant"] == rows.tolist()
    assert seen["present"].shape == (len(rows), 1)
    assert seen["present"].all()
    np.testing.assert_array_equal(seen["z"]["b"], items.z["b"][rows])
    assert seen["overwrite"] is False
    (tmp_path / "aligner").mkdir()
    align.fit(items, ["a", "b"], None, tmp_path, settings())
    assert seen["overwrite"] is True
    assert seen["z"]["b"] is items.z["b"]  # all rows: not copied


def test_a_model_of_another_kind_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(align, "load", lambda path: SimpleNamespace(model=SimpleNamespace(kind="heads")))
    with pytest.raises(InputError, match="holds a model of kind 'heads'; an index takes a saved Aligner"):
        align.load_aligner(tmp_path)
    monkeypatch.setattr(align, "load", lambda path: SimpleNamespace(model=SimpleNamespace(aligner="its aligner")))
    assert align.load_aligner(tmp_path) == "its aligner"
    assert align.encoders_of(tmp_path) == {}
    described = {"encoders": {"a": {"name": "minilm"}}}
    monkeypatch.setattr(align, "load", lambda path: SimpleNamespace(encoders_=described))
    assert align.encoders_of(tmp_path) == {"a": "minilm"}
    assert align.encoders_of(None) == align.encoders_of(settings()) == {}
    (tmp_path / "aligner.json").touch()
    assert align.encoders_of(tmp_path) == {}


@pytest.mark.parametrize(("bundled", "base"), [(True, None), (False, "named-things")])
def test_a_bundled_data_set_is_not_put_beside_the_base_that_was_learned_from_it(bundled, base, tmp_path, monkeypatch):
    def stop(collection, names, groups, keep, settings, *more):
        raise InterruptedError(settings.base)

    monkeypatch.setattr(align, "fit", stop)
    source = "stamps" if bundled else load_dataset("stamps", standardize=False)
    encoders = {"image": "efficientnet_lite0", "text": "minilm"}
    with pytest.raises(InterruptedError) as stopped:
        build(source, tmp_path / "index", align.BuildOptions(None if bundled else encoders))
    assert stopped.value.args == (base,)


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
