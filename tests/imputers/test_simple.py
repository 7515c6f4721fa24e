"""The simple imputers from their definitions: values, deviations, and what is used where rows are few."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from calmrl.imputers import KNNImputer, MeanImputer, RidgeImputer
from calmrl.imputers.simple import KnowledgeBridgerImputer


def rows(n=40, seed=0, widths=(3, 2, 4)):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 2))
    return {
        f"m{j}": shared @ rng.normal(size=(2, width)) + 0.3 * rng.normal(size=(n, width)) + j
        for j, width in enumerate(widths)
    }


def asked(z, *held):
    """Rows with these modalities alone, and the whole ones."""
    new = rows(5, seed=1)
    return {name: new[name] for name in held}


def test_the_mean_and_its_deviation():
    z, present = rows(), np.ones((40, 3), bool)
    present[:30, 1] = False
    filled, std = MeanImputer().fit(z, present).impute(z, present, return_std=True)
    np.testing.assert_allclose(filled["m1"][:30], np.tile(z["m1"][30:].mean(0), (30, 1)))
    np.testing.assert_allclose(std["m1"][:30], np.tile(z["m1"][30:].std(0), (30, 1)))
    assert not std["m1"][30:].any()
    assert filled["m1"][30:].tobytes() == z["m1"][30:].tobytes()
    present[:, 1] = False
    filled, std = MeanImputer().fit(z, present).impute(z, present, return_std=True)
    assert not filled["m1"].any()  # of what nobody has, nothing is known
    assert not std["m1"].any()


@pytest.mark.parametrize(("neighbours", "used"), [({}, 10), ({"n_neighbors": 3}, 3), ({"n_neighbors": 99}, 36)])
def test_neighbours(neighbours, used):
    """Distances per entry, over what both have; rows that share nothing or lack the modality do not count."""
    z, present = rows(), np.ones((40, 3), bool)
    present[:2, 2] = False  # without what is asked for
    present[2:4, :2] = False  # nothing in common with the query
    present[4:20, 0] = False
    query = asked(z, "m0", "m1")
    filled, std = KNNImputer(**neighbours).fit(z, present).impute(query, return_std=True)
    for i in range(5):
        distances = []
        for r in range(4, 40):
            shared = [name for j, name in enumerate(("m0", "m1")) if present[r, j]]
            gaps = np.concatenate([query[name][i] - z[name][r] for name in shared])
            distances.append((gaps**2).mean())
        nearest = z["m2"][4 + np.argsort(distances)[:used]]
        np.testing.assert_allclose(filled["m2"][i], nearest.mean(0))
        np.testing.assert_allclose(std["m2"][i], nearest.std(0))


def test_without_any_neighbour_the_mean():
    z, present = rows(), np.zeros((40, 3), bool)
    present[:20, 0], present[20:, 2] = True, True
    filled, std = KNNImputer().fit(z, present).impute(asked(z, "m0"), return_std=True)
    np.testing.assert_allclose(filled["m2"], np.tile(z["m2"][20:].mean(0), (5, 1)))
    np.testing.assert_allclose(std["m2"], np.tile(z["m2"][20:].std(0), (5, 1)))


@pytest.mark.parametrize(("common", "used"), [(10, ["m0", "m1"]), (9, ["m0"])])
def test_ridge_uses_a_pattern_that_ten_rows_have(common, used):
    """The modality that fewest rows have goes first."""
    z, present = rows(), np.ones((40, 3), bool)
    present[common:, 1] = False
    query = asked(z, "m0", "m1")
    filled, std = RidgeImputer().fit(z, present).impute(query, return_std=True)
    has = present[:, [0, 1]].all(1) if len(used) == 2 else np.ones(40, bool)
    given, target = np.concatenate([z[name][has] for name in used], axis=1), z["m2"][has]
    model = RidgeCV(alphas=[0.1, 1, 10, 100, 1e3, 1e4, 1e5]).fit(given, target)
    np.testing.assert_allclose(filled["m2"], model.predict(np.concatenate([query[name] for name in used], axis=1)))
    residual = (target - model.predict(given)).std(0)
    np.testing.assert_allclose(std["m2"], np.tile(residual, (5, 1)))


def test_ridge_without_enough_rows_is_the_mean():
    z, present = rows(), np.ones((40, 3), bool)
    present[9:, 2] = False
    filled = RidgeImputer().fit(z, present).transform(asked(z, "m0", "m1"))
    np.testing.assert_allclose(filled["m2"], np.tile(z["m2"][:9].mean(0), (5, 1)))
    one = {name: values[:, :1] for name, values in z.items()}  # a single column keeps its shape
    assert RidgeImputer().fit(one).transform({"m0": one["m0"]})["m2"].shape == (40, 1)


def unit(x):
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def profile(cosines):
    return unit(cosines - cosines.mean(-1, keepdims=True))


@pytest.mark.parametrize(("structure", "landmarks"), [(0.0, 256), (0.3, 256), (1.0, 256), (0.3, 7), (1.0, 7), (0.3, 1)])
def test_bridges_by_likeness_and_structure(structure, landmarks):
    z, present = rows(), np.ones((40, 3), bool)
    present[:2, 2] = False
    present[5:15, 1] = False
    query = asked(z, "m0", "m1")
    options = {"n_candidates": 4, "structure": structure, "temperature": 0.2, "landmarks": landmarks}
    imputer = KnowledgeBridgerImputer(**options).fit(z, present)
    filled, std = imputer.impute(query, return_std=True)
    pool = np.arange(2, 40)
    mean = {name: values[present[:, j]].mean(0) for j, (name, values) in enumerate(z.items())}
    target = unit(z["m2"][pool] - mean["m2"])
    for i in range(5):
        likeness, agreement = np.zeros(38), np.zeros(38)
        for j, name in enumerate(("m0", "m1")):
            mine = unit(query[name][i] - mean[name])
            theirs = unit(z[name][pool] - mean[name]) * present[pool, j][:, None]
            likeness += theirs @ mine
            marks = np.flatnonzero(present[pool, j])
            if len(marks) > landmarks:
                marks = marks[np.linspace(0, len(marks) - 1, landmarks).round().astype(int)]
            agreement += profile(target @ target[marks].T) @ profile(theirs[marks] @ mine) / 2
        score = (1 - structure) * likeness / present[pool][:, :2].sum(1) + structure * agreement
        best = np.argsort(-score)[:4]
        weight = np.exp(score[best] / 0.2)
        weight /= weight.sum()
        candidates = z["m2"][pool[best]]
        np.testing.assert_allclose(filled["m2"][i], weight @ candidates)
        spread = weight @ (candidates - weight @ candidates) ** 2
        np.testing.assert_allclose(std["m2"][i], np.sqrt(spread))


def test_bridges_need_somebody_who_has_it():
    z, present = rows(), np.ones((40, 3), bool)
    present[:, 2] = False
    filled = KnowledgeBridgerImputer().fit(z, present).transform(asked(z, "m0"))
    assert not filled["m2"].any()
    present[:3, 2] = True
    filled = KnowledgeBridgerImputer().fit(z, present).transform(asked(z, "m0"))  # fewer than the candidates
    assert np.isfinite(filled["m2"]).all()
