"""Mixed-pool retrieval: vectors of items by hand and by a slow twin, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers import MeanImputer, RidgeImputer
from calmrl.metrics import mixed_pool, retrieval


def pool(n=60, d=8, seed=0):
    """Queries and two modalities of the same items; the modalities lie apart; missing rows hold NaN."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, d))
    queries = shared + 0.3 * rng.normal(size=(n, d))
    z = {m: shared + 0.5 * rng.normal(size=(n, d)) + gap for m, gap in (("image", 0.0), ("sound", 3.0))}
    present = rng.random((n, 2)) < 0.6
    present[~present.any(1), 0] = True
    return queries, {m: np.where(present[:, [j]], v, np.nan) for j, (m, v) in enumerate(z.items())}, present


def unit(v):
    return v / np.linalg.norm(v)


def twin(queries, z, present, scoring):
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
def test_equals_the_twin(scoring, tensors):
    queries, z, present = pool()
    if scoring == "anchor":  # two vectors with a negative cosine have an anchor without a side: leave that out
        queries, z = np.abs(queries), {m: np.abs(v) for m, v in z.items()}
    expected = twin(queries, z, present, scoring)
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
def test_errors(change, message):
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
