"""What a search says about its hits: why each was found, and whether any is close."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Aligner, Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.search.levels import close_levels, judged
from tests.aligner.test_base import FAST, items
from tests.reference.retrieval import slow_close_levels


def features(n: int, seed: int, what: str = "item") -> FeatureSet:
    """Pictures, texts and sounds of the same things, a fifth of each missing."""
    z = items(n, seed)
    rng = np.random.default_rng(seed)
    z["sound"] = z["image"] @ np.random.default_rng(7).normal(size=(z["image"].shape[1], 10))
    present = rng.random((n, len(z))) < 0.8
    present[~present.any(axis=1), 0] = True
    z = {
        name: np.where(present[:, [j]], values, np.nan).astype(np.float32) for j, (name, values) in enumerate(z.items())
    }
    return FeatureSet(z, present, meta_table(n, ids=[f"{what} {i}" for i in range(n)]), name=f"{what}s")


@pytest.fixture(scope="module", params=["own", "own, hubs", "beside a base, hubs"])
def index(request, tmp_path_factory):
    """The base knows no sounds, so that items with a sound alone have a bridge to it."""
    base = Aligner(**FAST).fit(items(400, 1)) if "base" in request.param else None
    model = Aligner(**FAST, base=base, hubs="always" if "hubs" in request.param else "never")
    made = Index.build(features(150, 2), tmp_path_factory.mktemp("index") / "ix", model=model)
    if base is not None:
        assert made.aligner.base_[0].bridge is not None
    return made


@pytest.mark.parametrize("csls", [False, True])
def test_contributions_sum_to_the_similarity(index, csls):
    new = {name: values[0] for name, values in items(3, 5).items()}
    other = items(3, 6)["text"][1]
    for query in (
        {"text": new["text"]},
        new,
        {"text": [(2.0, new["text"]), (-0.5, other)], "image": new["image"]},
        {"like": "item 3"},
    ):
        asked = set(index.features_of("item 3")) if "like" in query else set(query)
        for hit in index.search(**query, k=40, hubs=csls, why=True):
            met = {(one.query, one.item): one.share for one in hit.why}
            assert sum(met.values()) == pytest.approx(hit.similarity, abs=2e-6)
            corrected = csls or bool(index.layout["hubs"])
            assert set(met) - {(None, None)} == {(a, b) for a in asked for b in hit.modalities}
            assert ((None, None) in met) is corrected
            shares = [one.share for one in hit.why]
            assert shares == sorted(shares, reverse=True)
    assert index.search(text=new["text"])[0].why == ()


def test_what_hubs_took_off_is_what_the_aligner_says(index):
    text = items(3, 5)["text"][0]
    for hit in index.search(text=text, k=40, why=True):
        place = index.aligner.embed({name: x[None] for name, x in index.features_of(hit.id).items()})
        levels = index.aligner.hub_levels(place)
        taken = sum(one.share for one in hit.why if one.query is None)
        assert taken == pytest.approx(-float(levels["text"][0]) / 2 if levels else 0.0, abs=1e-5)


def test_levels_keep_their_error_on_new_pairs(tmp_path):
    """Texts that were never seen, of items that have a picture alone: one in ten is called weak, by both kinds of level."""
    pairs, alone = 300, 300
    z = items(pairs + alone, 3)
    z["text"][pairs:] = np.nan
    z = {name: values.astype(np.float32) for name, values in z.items()}
    present = np.stack([~np.isnan(values).any(1) for values in z.values()], axis=1)
    ids = [f"item {i}" for i in range(pairs + alone)]
    index = Index.build(
        FeatureSet(z, present, meta_table(len(ids), ids=ids), name="x"), tmp_path / "ix", model=Aligner(**FAST)
    )
    level = index.layout["levels"]["text"]["image"]
    assert level["n"] == pairs
    foreign = [
        index.search(text=text).verdict for text in items(900, 3)["text"][600:]
    ]  # of the same sort, but not there
    assert 0.0 < foreign.count("close") / len(foreign) < 0.17
    texts = items(pairs + alone, 3)["text"][pairs:]
    weak = [index.search(text=text, where=f"id = '{id}'")[0].weak for id, text in zip(ids[pairs:], texts, strict=True)]
    assert 0.03 < np.mean(weak) < 0.17  # four standard errors of both samples around 0.1
    noise = np.random.default_rng(0).normal(size=(100, texts.shape[1]))
    answers = [index.search(text=one) for one in noise]
    assert np.mean([answer.nothing_close for answer in answers]) > 0.8
    assert {hit.weak for answer in answers if answer.nothing_close for hit in answer} == {True}
    (mixed,) = index.search(text=[texts[0], texts[1]], k=1)
    (by_csls,) = index.search(text=texts[0], k=1, hubs=True)
    (like,) = index.search(like="item 0", k=1)
    for hit in (mixed, by_csls, like):
        assert (hit.weak, hit.close) == (None, None)  # no pairs were held out that ask like this
    assert index.search(like="item 0").verdict is None


def test_no_level_no_verdict(tmp_path):
    """Indexes of earlier versions, and modalities of which too few items say what is usual."""
    index = Index.build(features(60, 2), tmp_path / "ix", model=Aligner(**FAST))
    text = items(3, 5)["text"][0]
    assert index.search(text=text).nothing_close is not None
    del index.layout["levels"]
    assert "which hits are weak is not known: the index is of an earlier version; make it again" in index.summary()
    assert {hit.weak for hit in index.search(text=text)} == {None}
    few = items(8, 2)
    ids = meta_table(8, ids=[str(i) for i in range(8)])
    z = {name: values.astype(np.float32) for name, values in few.items()}
    index = Index.build(FeatureSet(z, np.ones((8, 2), bool), ids, name="x"), tmp_path / "few", base=None)
    assert index.layout["levels"] == {}
    assert "text: which hits are weak is not known, for fewer than 9 items have it" in index.summary()
    assert index.search(text=text).nothing_close is None


def test_what_is_called_or_says_just_that_is_never_weak(tmp_path):
    """Words decide where an item has all of them; a file that is in the index, likewise."""
    index = Index.build(features(60, 2), tmp_path / "ix", model=Aligner(**FAST))
    texts = np.nan_to_num(features(60, 2).z["text"])
    strange = np.linalg.svd(texts)[2][-1].astype(np.float64)  # as far across all of them as there is
    index.layout["modalities"]["text"] |= {"kind": "text", "encoder": "strange"}  # as if an encoder had made it
    index.encoders = lambda: SimpleNamespace(encode=lambda rows: ({"text": strange[None]}, np.ones((1, 1), bool)))
    found = {hit.id: hit for hit in index.search(text="item 7", k=60)}
    assert found["item 7"].found[0] == "name"
    assert (found["item 7"].weak, found["item 7"].close) == (False, True)
    assert found["item 9"].weak is True
    assert index.search(text="xyzzy qwrt").nothing_close is True


@pytest.mark.parametrize(
    ("similarity", "nearest", "has", "weak"),
    [
        (0.3, 0.6, ("image",), False),
        (0.1, 0.6, ("image",), True),
        (0.3, 0.4, ("image",), True),
        (0.3, 0.45, ("image", "text"), True),  # what the item has besides the modality of the query
        (0.0, 0.45, ("text",), False),  # only whether the query is like the others
        (0.0, 0.45, ("sound",), False),  # a pattern without a level of its own: likewise
    ],
)
def test_which_level_counts(similarity, nearest, has, weak):
    levels = {"text": {"": level(None, 0.42), "image": level(0.2, 0.5)}}
    layout = {"levels": levels, "close": {"text": {"image": 0.3, "image + text": 0.2}}}
    known = "image" in has
    assert judged(layout, "text", has, similarity, nearest) == (
        weak,
        (not weak and similarity >= 0.3) if known else None,
    )
    assert judged(layout, "image", has, similarity, nearest) == (None, None)


def level(similarity, nearest):
    return {"similarity": similarity, "nearest": nearest, "n": 100}


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 400), st.integers(1, 4), st.sampled_from([1.0, 0.5]), st.integers(0, 2**32 - 1))
def test_levels_of_what_is_close(n, patterns, share, seed):
    """As the slow twin says; and no more rows than promised have anything above any level, ties included."""
    best = np.random.default_rng(seed).integers(0, 30, (n, patterns)).astype(float)
    best[:, -1] = -np.inf if seed % 2 else best[:, -1]
    keys = [f"pattern {p}" for p in range(patterns)]
    levels = close_levels(best, keys, share)
    assert levels == pytest.approx(slow_close_levels(best, keys, share), abs=1e-4)
    above = [any(key in levels and row[p] >= levels[key] for p, key in enumerate(keys)) for row in best]
    assert sum(above) <= share * 0.1 * (n + 1)
