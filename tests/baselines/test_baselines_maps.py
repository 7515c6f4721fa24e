"""Regression and rotation onto a hub, and relative representations, against scikit-learn, SciPy and a twin."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge

from calmrl.baselines import ASIF, ProcrustesMap, RidgeMap
from calmrl.errors import InputError
from tests.baselines.baseline_rows import rows_of, scores
from tests.reference import baselines as slow

PLAIN = {"features": "linear", "unit_rows": False, "whitening": 0.0}


def centred(z, present):
    """Each modality around its mean, as its features are: these are turned and scaled as a whole only."""
    return {name: x - x[present[:, m]].mean(0) for m, (name, x) in enumerate(z.items())}


def regression(x, y, ridge):
    strength = ridge * x.var(0).mean() * len(x)
    return Ridge(alpha=strength, solver="svd", tol=1e-12).fit(x, y)


def test_ridge_predicts_the_hub_as_scikit_learn_does():
    z, present = rows_of()
    x = centred(z, present)
    fitted = RidgeMap(ridge=0.5, hub="m2", **PLAIN).fit(z, present)
    predicted = {"m2": x["m2"]}
    for name in ("m0", "m1"):
        both = present[:, int(name[1])] & present[:, 2]
        predicted[name] = regression(x[name][both], x["m2"][both], 0.5).predict(x[name])
    for a, b in (("m0", "m2"), ("m0", "m1"), ("m2", "m1")):
        got = fitted.similarity({a: z[a]}, {b: z[b]})
        np.testing.assert_allclose(got, scores((predicted[a], predicted[b])), atol=1e-6)
    unit = [predicted[name] / np.linalg.norm(predicted[name], axis=1, keepdims=True) for name in ("m0", "m1")]
    got = fitted.similarity({"m0": z["m0"], "m1": z["m1"]}, {"m2": z["m2"]})
    np.testing.assert_allclose(got, scores((unit[0] + unit[1], x["m2"])), atol=1e-6)


def test_procrustes_turns_as_scipy_does():
    z, present = rows_of(widths=(5, 5))
    x = centred(z, present)
    fitted = ProcrustesMap(directions=5, hub="m1", **PLAIN).fit(z, present)
    both = present.all(1)
    size = {name: np.sqrt(values[present[:, m]].var(0).mean()) for m, (name, values) in enumerate(x.items())}
    a, b = x["m0"] / size["m0"], x["m1"] / size["m1"]  # features have mean variance one
    turn, _ = orthogonal_procrustes(a[both] - a[both].mean(0), b[both] - b[both].mean(0))
    turned = (a - a[both].mean(0)) @ turn + b[both].mean(0)
    np.testing.assert_allclose(fitted.similarity({"m0": z["m0"]}, {"m1": z["m1"]}), scores((turned, b)), atol=1e-6)


def test_a_modality_that_never_meets_the_hub_is_predicted_link_by_link():
    z, _ = rows_of(n=90)
    present = np.ones((90, 3), dtype=bool)
    present[:50, 2] = False
    present[50:, 0] = False
    x = centred(z, present)
    with pytest.warns(UserWarning, match="fewer than 2 rows have both m0 and m2"):
        fitted = RidgeMap(ridge=0.2, hub="m2", **PLAIN).fit(z, present)
    middle = regression(x["m0"][:50], x["m1"][:50], 0.2).predict(x["m0"])
    predicted = regression(x["m1"][50:], x["m2"][50:], 0.2).predict(middle)
    got = fitted.similarity({"m0": z["m0"]}, {"m2": z["m2"]})
    np.testing.assert_allclose(got, scores((predicted, x["m2"])), atol=1e-6)
    with pytest.warns(UserWarning, match="m0 and m2"):
        assert RidgeMap(**PLAIN).fit(z, present).hub_ == "m1"  # meets both others


@pytest.mark.parametrize("nearest", [4, 800])
@pytest.mark.parametrize("power", [1.0, 8.0])
def test_asif_is_its_definition_over_k_minus_one(nearest, power):
    z, present = rows_of()
    x = centred(z, present)
    fitted = ASIF(nearest=nearest, power=power, **PLAIN).fit(z, present)
    both = present[:, 0] & present[:, 1]
    expected = slow.asif(x["m0"][:9], x["m1"][:7], (x["m0"][both], x["m1"][both]), nearest, power)
    got = fitted.similarity({"m0": z["m0"][:9]}, {"m1": z["m1"][:7]})
    np.testing.assert_allclose(2 * got, expected, atol=1e-6)


def test_asif_without_a_common_row_goes_on_as_the_mean_of_its_anchors():
    z, _ = rows_of(n=90)
    present = np.ones((90, 3), dtype=bool)
    present[:60, 2] = False
    present[60:, 0] = False
    x = centred(z, present)
    with pytest.warns(UserWarning, match="fewer than 2 rows have both m0 and m2"):
        fitted = ASIF(power=2.0, **PLAIN).fit(z, present)
    unit = {name: values / np.linalg.norm(values, axis=1, keepdims=True) for name, values in x.items()}
    weights = np.maximum(unit["m2"][:9] @ unit["m2"][60:].T, 0) ** 2
    moved = weights @ unit["m1"][60:]
    expected = slow.asif(x["m0"][:7], moved, (x["m0"][:60], x["m1"][:60]), 800, 2.0)
    np.testing.assert_allclose(2 * fitted.similarity({"m0": z["m0"][:7]}, {"m2": z["m2"][:9]}), expected, atol=1e-6)


def test_more_rows_than_anchors_are_drawn_from_by_the_seed():
    z, present = rows_of()
    first, again, other = (ASIF(anchors=10, random_state=seed, **PLAIN).fit(z, present) for seed in (0, 0, 1))
    assert first.width_ == 3 * 10 + 3
    a, b, c = (model.embed(z, present) for model in (first, again, other))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 0.01


def test_a_hub_that_is_not_there():
    z, present = rows_of()
    with pytest.raises(InputError, match="hub is 'speech', which is no modality of z; there are m0, m1, m2"):
        RidgeMap(hub="speech").fit(z, present)
    with pytest.raises(InputError, match="hub must be the name of a modality or None; got 3"):
        ProcrustesMap(hub=3).fit(z, present)
