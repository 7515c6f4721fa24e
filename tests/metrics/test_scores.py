"""Named scores against slow twins, re-ranking, and pools of items that lack modalities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers import MeanImputer, RidgeImputer
from calmrl.losses import InstanceMatching
from calmrl.metrics import mixed_pool, retrieval, scored_retrieval
from calmrl.metrics.scores import SCORES
from tests.reference import retrieval as slow

NAMES = ("image", "speech", "sound")


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def gallery(seed, n=14, k=3, number=2, d=5):
    """Queries, a dict with NaN where missing, present; every item has `number` of k modalities."""
    rng = np.random.default_rng(seed)
    present = np.argsort(rng.random((n, k)), axis=1) < number
    shared = rng.normal(size=(n, d))
    z = {m: shared + rng.normal(size=(n, d)) for m in NAMES[:k]}
    return (
        shared + rng.normal(size=(n, d)),
        {m: np.where(present[:, [j]], v, np.nan) for j, (m, v) in enumerate(z.items())},
        present,
    )


def twin(queries, z, present, score):
    items = [[unit(v[i]) for j, v in enumerate(z.values()) if present[i, j]] for i in range(len(present))]
    return np.array(slow.scored(unit(queries), items, score))


@pytest.mark.parametrize("score", list(SCORES))
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 3), data=st.data())
def test_equals_the_twin(score, seed, k, data):
    queries, z, present = gallery(seed, k=k, number=data.draw(st.integers(1, k)))
    if score == "anchor":  # two vectors with a negative cosine have an anchor without a side: leave that out
        z = {m: np.abs(v) for m, v in z.items()}
    found = scored_retrieval(queries, z, present, score=score, per_query=True)
    expected = retrieval(scores=np.round(twin(queries, z, present, score), 9), per_query=True)
    np.testing.assert_allclose(found.pop("ranks"), expected.pop("ranks"))
    assert found.pop("hits").keys() == expected.pop("hits").keys()
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("score", ["volume", "area"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_values_of_scores(score, number):
    queries, z, present = gallery(5, number=number)
    known = [np.where(present[:, [j]], v, 1.0) for j, v in enumerate(z.values())]
    items = np.stack([unit(v) for v in known], axis=1) * present[:, :, None]
    found = SCORES[score](torch.from_numpy(items), torch.from_numpy(present))(torch.from_numpy(unit(queries)))
    np.testing.assert_allclose(found, twin(queries, z, present, score), atol=1e-6)


@pytest.mark.parametrize("score", list(SCORES))
def test_small_blocks_change_nothing_and_copies_tie(score, monkeypatch):
    queries, z, present = gallery(0, n=40)
    z = {m: np.concatenate([v, v]) for m, v in z.items()}
    arguments = (queries, z, np.concatenate([present, present]), np.arange(40), np.arange(80))
    whole = scored_retrieval(*arguments, score=score)
    monkeypatch.setattr(
        "calmrl.metrics.scores.blocks_of_rows", lambda n, _: zip(range(n), range(1, n + 1), strict=True)
    )
    assert scored_retrieval(*arguments, score=score) == whole
    assert scored_retrieval(np.concatenate([queries, queries]), *arguments[1:3], score=score)["R@1"] <= 50


class Exact:
    """A matching head that knows the answer."""

    def __init__(self, top):
        self.top, self.calls = top, 0

    def rerank(self, queries, gallery, present, scores, top):
        assert top == self.top
        assert present.shape == (scores.shape[1], len(gallery))
        out = scores.clone()
        for q in range(len(queries)):
            own = self.calls + q
            if own in scores[q].topk(top).indices:
                out[q, own] = scores[q].max() + 1
        self.calls += len(queries)
        return out


def test_reranking_sorts_the_top_again():
    queries, z, present = gallery(3, n=300, d=3)
    before = scored_retrieval(queries, z, present, ks=(1, 7))
    after = scored_retrieval(queries, z, present, ks=(1, 7), matching=Exact(7), top=7)
    assert after["R@1"] == after["R@7"] == before["R@7"] > before["R@1"]


def test_reranking_with_the_matching_head_equals_its_own_scores():
    queries, z, present = gallery(4, n=20, d=8)
    torch.manual_seed(0)
    head = InstanceMatching(["text", *NAMES], 8, hidden=16, layers=1, heads=2)
    queries, z = torch.tensor(queries).float(), {m: torch.tensor(np.nan_to_num(v)).float() for m, v in z.items()}
    present = torch.tensor(present)
    first = SCORES["cosine"](
        normalize(torch.where(present[:, :, None], torch.stack(list(z.values()), 1), 0.0).double(), dim=2),
        present,
    )
    scores = head.rerank(queries, z, present, first(normalize(queries.double(), dim=1)), 5)
    assert scored_retrieval(queries, z, present, matching=head, top=5) == retrieval(scores=scores)


def test_fifty_are_ranked_again_unless_said_otherwise():
    queries, z, present = gallery(2, n=60)
    found = scored_retrieval(queries, z, present, matching=Exact(50))
    assert found["R@1"] == pytest.approx(scored_retrieval(queries, z, present, ks=(50,))["R@50"])
    assert list(found) == ["R@1", "R@5", "R@10", "MedR", "n"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": np.ones((14, 3))}, "queries have width 3 but the items have 5"),
        ({"queries": np.zeros((14, 5)), "score": "area"}, "zero or NaN vectors"),
        ({"score": "area", "present": np.arange(14)[:, None] * [1, 0, 0] < [5, 1, 1]}, "3 and|2 and"),
    ],
)
def test_errors(change, message):
    queries, z, present = gallery(0, number=3)
    with pytest.raises(InputError, match=message):
        scored_retrieval(**{"queries": queries, "z": z, "present": present, **change})


# ---- pools of items with holes


def pool(n=60, d=8, seed=0):
    """Queries and two modalities of the same items; the modalities lie apart; missing rows hold NaN."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, d))
    queries = shared + 0.3 * rng.normal(size=(n, d))
    z = {m: shared + 0.5 * rng.normal(size=(n, d)) + gap for m, gap in (("image", 0.0), ("sound", 3.0))}
    present = rng.random((n, 2)) < 0.6
    present[~present.any(1), 0] = True
    return queries, {m: np.where(present[:, [j]], v, np.nan) for j, (m, v) in enumerate(z.items())}, present


def pool_twin(queries, z, present, scoring):
    """One vector per item, item by item."""
    names, middle = list(z), {}
    asked = [unit(q) for q in queries]
    for j, m in enumerate(names):
        rows = [unit(z[m][i]) for i in range(len(present)) if present[i, j]]
        middle[m] = np.mean(rows, axis=0)
    items = []
    for i, row in enumerate(present):
        parts = [unit(z[m][i]) for m, there in zip(names, row, strict=True) if there]
        if scoring == "centred":
            parts = [unit(unit(z[m][i]) - middle[m]) for m, there in zip(names, row, strict=True) if there]
        if scoring == "anchor":
            u = np.linalg.svd(np.stack(parts, axis=1))[0][:, 0]
            items.append(u if u @ np.sum(parts, axis=0) >= 0 else -u)
        else:
            items.append(np.mean(parts, axis=0))
    if scoring == "centred":
        asked = [q - np.mean(asked, axis=0) for q in asked]
    return retrieval(np.array(asked), np.array(items))


@pytest.mark.parametrize("scoring", ["raw", "centred", "anchor"])
@pytest.mark.parametrize("tensors", [False, True])
def test_pools_equal_the_twin(scoring, tensors):
    queries, z, present = pool()
    if scoring == "anchor":  # two vectors with a negative cosine have an anchor without a side: leave that out
        queries, z = np.abs(queries), {m: np.abs(v) for m, v in z.items()}
    expected = pool_twin(queries, z, present, scoring)
    kind = torch.from_numpy if tensors else np.asarray
    found = mixed_pool(kind(queries), {m: kind(v) for m, v in z.items()}, kind(present), scoring=scoring)
    assert found == pytest.approx(expected)
    assert mixed_pool(queries, z, scoring=scoring) == pytest.approx(expected)  # NaN rows say the same as present


def test_imputed_takes_an_imputer_or_what_it_returned():
    queries, z, present = pool()
    imputer = RidgeImputer().fit({**z, "text": queries}, np.column_stack([present, np.ones(len(present), bool)]))
    filled = imputer.transform(z, present)
    assert set(filled) == {"image", "sound", "text"}
    items = np.array([np.sum([unit(v[i]) for v in filled.values()], axis=0) for i in range(len(queries))])
    for completed in (imputer, filled):
        assert mixed_pool(queries, z, scoring="imputed", completed=completed) == pytest.approx(
            retrieval(queries, items)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scoring": "centered"}, 'unknown scoring "centered"; did you mean "centred"'),
        ({"scoring": "imputed"}, "scoring 'imputed' needs completed="),
        ({"completed": MeanImputer()}, "scoring 'raw' does not read completed="),
        ({"scoring": "imputed", "completed": 3}, "completed must be a fitted imputer or a dict of arrays; got int"),
        ({"scoring": "imputed", "completed": {"image": np.full((60, 8), np.nan)}}, "NaN in row 0"),
        ({"scoring": "imputed", "completed": {"image": np.ones((5, 8))}}, "60 rows but z has 5"),
        ({"queries": np.ones(8)}, "queries must have two dimensions"),
        ({"queries": np.ones((60, 3))}, "queries have width 3 but the gallery has 8"),
        ({"z": {"image": np.ones((60, 8)), "sound": np.ones((60, 3))}}, "one width; got image: 8, sound: 3"),
    ],
)
def test_errors_of_pools(change, message):
    queries, z, _ = pool()
    with pytest.raises(InputError, match=message):
        mixed_pool(**{"queries": queries, "z": z, **change})


def test_posterior_goes_through_embed_on_both_sides():
    rng = np.random.default_rng(0)
    _, z, present = pool(n=200)
    text = np.nan_to_num(z["image"], nan=0.0) @ rng.normal(size=(8, 3)) + rng.normal(size=(200, 3))  # another width
    imputer = GaussianImputer(latent_dim=4, tol=1e-3, random_state=0)
    imputer.fit({**z, "text": text}, np.column_stack([present, np.ones(200, bool)]))
    found = mixed_pool({"text": text}, z, present, scoring="posterior", completed=imputer)
    expected = retrieval(imputer.embed({"text": text}), imputer.embed(z, present))
    assert found == expected
    assert found["R@10"] > 3 * 100 * 10 / 200
    with pytest.raises(InputError, match="needs queries as a dict"):
        mixed_pool(text, z, present, scoring="posterior", completed=imputer)
    with pytest.raises(InputError, match="needs an imputer with embed"):
        mixed_pool({"text": text}, z, present, scoring="posterior", completed=MeanImputer())


@pytest.mark.parametrize("same", [False, True])
def test_centring_leaves_no_zero_vector(same):
    """One item alone has a sound, or all that have one have the same: minus the mean, nothing would be left."""
    queries, _, _ = pool(n=7)
    present = np.tile([True, False], (7, 1))
    present[3] = [False, True]
    sound = np.full((7, 8), np.nan)
    sound[3] = np.arange(8.0) + 1
    if same:
        present[5], sound[5] = [False, True], sound[3]
    image = np.where(present[:, [0]], np.random.default_rng(1).normal(size=(7, 8)), np.nan)
    measured = mixed_pool(queries, {"image": image, "sound": sound}, present, scoring="centred")
    assert measured["n"] == 7
    assert np.isfinite(measured["R@1"])
    alone = mixed_pool(
        queries[:1], {"image": image[:1]}, present[:1, :1], scoring="centred"
    )  # a query that is its mean
    assert alone["R@1"] == 100
