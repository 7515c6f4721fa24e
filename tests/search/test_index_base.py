"""An index beside a base: pictures without a text are found by texts, and joint encoders are their own base."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Aligner, Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.encoders.registry import joint_space
from calmrl.errors import InputError
from calmrl.search import space
from tests.aligner.test_base import FAST, items

MADE_BY = {"image": "efficientnet_lite0", "text": "use_multilingual"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base as `load_base` reads it, with the names of real encoders for vectors that are made up."""
    aligner = Aligner(**FAST).fit(items(400, 1))
    entries = {name: {"name": encoder, "width": aligner.widths_[name]} for name, encoder in MADE_BY.items()}
    aligner.encoders_ = {"encoders": entries}
    path = tmp_path_factory.mktemp("base") / "base"
    aligner.save(path, compact=True)
    return path


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(space, "is_installed", lambda name: True)


def features(z, encoders=None, what="item"):
    n = len(next(iter(z.values())))
    meta = meta_table(n, ids=[f"{what} {i}" for i in range(n)])
    present = np.stack([~np.isnan(values).any(1) for values in z.values()], axis=1)
    z = {name: values.astype(np.float32) for name, values in z.items()}
    return FeatureSet(z, present, meta, name=f"{what}s", info={"encoders": encoders or {n: MADE_BY[n] for n in z}})


def share_found(index, texts):
    hits = [index.search(text=text, k=1)[0].id for text in texts]
    return np.mean([hit == f"item {i}" for i, hit in enumerate(hits)])


def test_pictures_alone_are_found_by_texts(base, tmp_path):
    new = items(80, 9)
    index = Index.build(features({"image": new["image"]}), tmp_path / "ix", base=base)
    assert index.modalities()["text"] == {
        "kind": "text", "n": 0, "searchable": True, "encoder": "use_multilingual", "aligned": True, "why": None,
    }  # fmt: skip
    assert share_found(index, new["text"]) > 0.4
    assert f"{base} (weight 1.00), alone, for too few rows have two modalities" in "\n".join(index.summary())
    assert [one["name"] for one in index.about()["base"]] == [str(base)]
    again = Index.open(tmp_path / "ix")
    assert share_found(again, new["text"]) == share_found(index, new["text"])
    bare = Index.build(features({"image": new["image"]}), tmp_path / "bare", base=None)
    assert list(bare.modalities()) == ["image"]
    assert "it is the only modality" in bare.modalities()["image"]["why"]


def test_texts_that_come_later_are_placed(base, tmp_path):
    new = items(40, 9)
    index = Index.build(features({"image": new["image"]}), tmp_path / "ix", base=base)
    late = {"image": np.full_like(new["image"], np.nan), "text": new["text"]}
    added = features(late)
    added = FeatureSet(
        added.z, added.present, meta_table(40, ids=[f"text {i}" for i in range(40)]), name="later", info=added.info
    )
    index.add(added)
    assert len(index) == 80
    assert index.modalities()["text"]["n"] == 40
    hits = [index.search(image=image, k=1, lacking="image")[0].id for image in new["image"]]
    assert np.mean([hit == f"text {i}" for i, hit in enumerate(hits)]) > 0.4


def test_own_pairs_stand_beside_the_base(base, tmp_path):
    z = items(120, 3)
    index = Index.build(features(z), tmp_path / "ix", model=Aligner(**FAST), base=base)
    assert 0 < index.aligner.own_weight_ < 1
    assert f"features (weight {index.aligner.own_weight_:.2f}), beside {base} (weight" in "\n".join(index.summary())
    assert share_found(index, z["text"]) > 0.8
    assert index.layout["metric"] == "dot"


def test_vectors_that_are_less_certain_are_shorter_and_come_later(base, tmp_path):
    z = items(150, 3, ("image", "text", "sound"))
    z["image"][100:], z["text"][100:] = np.nan, np.nan
    made = features(z, {**MADE_BY, "sound": "yamnet"})
    index = Index.build(made, tmp_path / "ix", model=Aligner(**FAST), base=base)
    places = index.aligner.embed(z)
    similar = index.aligner.similarity({"text": z["text"][:1]}, z)[0]
    wanted = [f"item {i}" for i in np.argsort(-similar)[:20]]
    assert [hit.id for hit in index.search(text=z["text"][0], k=20)] == wanted
    assert np.linalg.norm(places[100:], axis=1).max() < 1


def test_the_base_of_the_package_is_taken_where_its_encoders_are(monkeypatch, base):
    monkeypatch.setattr("calmrl.aligner.base.BASES", {"named-things": SimpleNamespace(path=base)})
    from calmrl.aligner.base import fitting_base

    assert fitting_base({"photo": 24}, {"photo": "efficientnet_lite0"}) == "named-things"
    assert fitting_base({"photo": 25}, {"photo": "efficientnet_lite0"}) is None
    assert fitting_base({"image": 24}, {}) is None  # names alone are not enough
    assert fitting_base({"image": 24}, {"image": "mobilenet_v2"}) is None


JOINT = [
    ("hf:models/clip#image", "hf:models/clip"),
    ("hf:models/clip#text", "hf:models/clip"),
    ("hf:models/bert#cls", None),
    ("imagebind_audio@weights.pth", "imagebind@weights.pth"),
    ("minilm", None),
]


@pytest.mark.parametrize(("name", "space"), JOINT)
def test_sides_of_joint_models(name, space):
    assert joint_space(name) == space


def test_both_sides_of_a_joint_model_are_their_own_base(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(50, 1024))
    z = {"image": vectors.copy(), "sound": vectors + np.random.default_rng(1).normal(size=(50, 1024))}
    z["image"][25:], z["sound"][:25] = np.nan, np.nan
    made = features(z, {"image": "imagebind_image", "sound": "imagebind_audio"})
    index = Index.build(made, tmp_path / "ix")
    assert index.aligner.base_[0].name == "image+sound"
    assert index.search(sound=vectors[3], k=1)[0].id == "item 3"


def test_a_base_that_does_not_fit(base, tmp_path):
    with pytest.raises(InputError, match="none is of the same name and width, or made by the same encoder"):
        Index.build(features({"other": np.ones((30, 7))}, {"x": "y"}), tmp_path / "ix", base=base)


def test_hubs_are_corrected_for_where_the_aligner_says_so(base, tmp_path):
    z = items(120, 3)
    index = Index.build(features(z), tmp_path / "ix", model=Aligner(**FAST, hubs="always"), base=base)
    assert index.layout["hubs"] == ["image", "text"]
    assert "corrected for hubs" in "\n".join(index.summary())
    new = items(8, 4)
    for i in range(8):
        scores = index.aligner.similarity({"text": new["text"][[i]]}, z)[0]
        hits = index.search(text=new["text"][i], k=5)
        assert [hit.id for hit in hits] == [f"item {j}" for j in np.argsort(-scores)[:5]]
        np.testing.assert_allclose([hit.similarity for hit in hits], -np.sort(-scores)[:5], atol=1e-5)
    index.add(features({"text": new["text"], "image": new["image"]}, what="later"))
    plain = Index.build(features(z), tmp_path / "plain", model=Aligner(**FAST, hubs="never"), base=base)
    assert plain.layout["hubs"] == []
    scores = index.aligner.similarity({"text": new["text"][:1]}, {name: np.r_[z[name], new[name]] for name in z})[0]
    names = [*(f"item {i}" for i in range(120)), *(f"later {i}" for i in range(8))]
    assert [hit.id for hit in index.search(text=new["text"][0], k=9)] == [names[j] for j in np.argsort(-scores)[:9]]
    assert len(index.search(like="item 3", k=4)) == 4


def test_items_with_and_without_a_caption_are_ranked_each_by_what_is_usual(base, tmp_path):
    n, captions = 80, 12  # too few pairs to learn from or to try it with
    z = items(n, 9)
    asked = z["text"].copy()
    z["text"][captions:] = np.nan
    index = Index.build(features(z), tmp_path / "ix", base=base)
    assert index.layout["apart"] == ["image", "text"]
    sentence = "for queries of image or text, items that have it and items that lack it are ranked side by side"
    assert sentence in index.summary()
    has = np.arange(n) < captions
    moved = 0
    for text in asked[:20]:
        similar = index.aligner.similarity({"text": text[None]}, z)[0]
        variance = {side: similar[has == side].var() for side in (True, False)}
        above = np.empty(n)
        for side, count in ((True, captions), (False, n - captions)):
            few = (10 / count) ** 2
            spread = np.sqrt((variance[side] + few * variance[not side]) / (1 + few))
            above[has == side] = (similar[has == side] - similar[has == side].mean()) / spread
        hits = index.search(text=text, k=n)
        order = np.argsort(-above)
        assert [hit.id for hit in hits] == [f"item {i}" for i in order]
        np.testing.assert_allclose([hit.similarity for hit in hits], similar[order], atol=1e-5)
        moved += not np.array_equal(order, np.argsort(-similar))
    assert moved  # by similarity alone the order is another


def test_where_modalities_meet_closely_items_are_ranked_by_similarity(base, tmp_path):
    z = items(150, 9, noise=0.05)
    z["text"][100:] = np.nan
    index = Index.build(features(z), tmp_path / "ix", base=base)
    assert index.layout["apart"] == []
    hits = index.search(image=z["image"][120], k=20)
    assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
