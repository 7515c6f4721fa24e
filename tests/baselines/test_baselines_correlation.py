"""CCA, MCCA and GCCA against scikit-learn and against twins that write out every row."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cross_decomposition import CCA as IterativeCCA

from calmrl.baselines import CCA, GCCA, MCCA
from tests.baselines.baseline_rows import rows_of, scores
from tests.reference import baselines as slow

PLAIN = {"features": "linear", "unit_rows": False}


def test_without_ridge_the_correlations_and_coordinates_are_those_of_scikit_learn():
    z, _ = rows_of(n=80, widths=(5, 4))
    fitted = CCA(ridge=0.0, directions=3, **PLAIN).fit(z)
    other = IterativeCCA(n_components=3, scale=False, max_iter=20_000, tol=1e-15).fit(z["m0"], z["m1"])
    u, v = other.transform(z["m0"], z["m1"])
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(u.T, v.T, strict=True)]
    np.testing.assert_allclose(fitted.correlations_["m0|m1"].numpy(), expected, atol=1e-6)
    u, v = u / u.std(0), v / v.std(0)
    weighted = [side / np.linalg.norm(side, axis=1, keepdims=True) * np.sqrt(expected) for side in (u, v)]
    got = fitted.similarity({"m0": z["m0"]}, {"m1": z["m1"]})
    np.testing.assert_allclose(got, weighted[0] @ weighted[1].T, atol=1e-6)


@pytest.mark.parametrize("ridge", [0.0, 0.3, 3.0])
def test_cca_of_a_pair_is_the_generalised_eigenproblem_over_k_minus_one(ridge):
    z, present = rows_of()
    fitted = CCA(ridge=ridge, directions=3, **PLAIN).fit(z, present)
    both = present[:, 0] & present[:, 2]
    expected = slow.csa(z["m0"][both], z["m2"][both], ridge, 3, z["m0"][:9], z["m2"][:7])
    got = 2 * fitted.similarity({"m0": z["m0"][:9]}, {"m2": z["m2"][:7]})
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(("twin", "kind"), [(slow.mcca, MCCA), (slow.gcca, GCCA)])
@pytest.mark.parametrize("ridge", [0.1, 1.0])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_one_space_is_that_of_the_twin_with_masks(twin, kind, ridge, rate):
    z, present = rows_of(rate=rate)
    fitted = kind(ridge=ridge, directions=3, **PLAIN).fit(z, present)
    maps = twin(list(z.values()), present, ridge, 3)
    means = [x[present[:, m]].mean(0) for m, x in enumerate(z.values())]
    coordinates = [(x - mean) @ matrix for x, mean, matrix in zip(z.values(), means, maps, strict=True)]
    for a, b in ((0, 1), (2, 0)):
        got = fitted.similarity({f"m{a}": z[f"m{a}"]}, {f"m{b}": z[f"m{b}"]})
        np.testing.assert_allclose(got, scores((coordinates[a], coordinates[b])), atol=1e-6)
    # an item with two modalities is the mean of both, not of unit vectors
    got = fitted.similarity({"m0": z["m0"], "m1": z["m1"]}, {"m2": z["m2"]})
    np.testing.assert_allclose(got, scores((coordinates[0] + coordinates[1], coordinates[2])), atol=1e-6)


def test_scales_of_modalities_do_not_matter():
    z, present = rows_of()
    for kind in (CCA, MCCA, GCCA):
        plain = kind(directions=3, **PLAIN).fit(z, present)
        larger = kind(directions=3, **PLAIN).fit({"m0": 100 * z["m0"], "m1": z["m1"], "m2": z["m2"]}, present)
        a = plain.similarity({"m0": z["m0"]}, {"m1": z["m1"]})
        b = larger.similarity({"m0": 100 * z["m0"]}, {"m1": z["m1"]})
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_cca_without_a_common_row_goes_through_the_modality_that_has_some():
    z, _ = rows_of(n=90, widths=(5, 4, 6))
    present = np.ones((90, 3), dtype=bool)
    present[:60, 2] = False  # m0 and m1, in the most rows
    present[60:, 0] = False  # m1 and m2
    with pytest.warns(UserWarning, match="fewer than 2 rows have both m0 and m2: they are aligned through other"):
        fitted = CCA(ridge=0.5, directions=3, **PLAIN).fit(z, present)
    m1, m2 = z["m1"][60:], z["m2"][60:]
    weights = np.linalg.solve(slow.with_ridge(slow.cov(m2, m2), 0.5), slow.cov(m2, m1))
    predicted = (z["m2"][:9] - m2.mean(0)) @ weights + m1.mean(0)
    expected = slow.csa(z["m0"][:60], z["m1"][:60], 0.5, 3, z["m0"][:7], predicted)
    np.testing.assert_allclose(2 * fitted.similarity({"m0": z["m0"][:7]}, {"m2": z["m2"][:9]}), expected, atol=1e-6)
