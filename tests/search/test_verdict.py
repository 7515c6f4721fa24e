"""What a search says about its hits: why each was found, and whether any is close."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Aligner, Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from tests.aligner.test_base import FAST, items


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
