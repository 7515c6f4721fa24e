"""Values that are not real numbers: simulated data whose truth is known."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from calmrl.errors import InputError
from calmrl.imputers import MixedImputer

ROWS, GONE = 600, 200


def simulated(kind, seed=0):
    """(z with the modality `odd` missing in some rows and with holes in others, all its values)."""
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=(ROWS, 2))
    score = cause @ rng.normal(size=(2, 8)) + rng.normal(size=8)
    if kind == "binary":
        odd = (rng.random(score.shape) < expit(2 * score - 1)) * 1.0
    elif kind == "count":
        odd = rng.poisson(np.exp(1 + 0.7 * score)) * 1.0
    elif kind == "category":
        p = softmax(2 * score[:, :4], axis=1)
        odd = np.eye(4)[[rng.choice(4, p=row) for row in p]]
    else:
        odd = score
    z = {"real": cause @ rng.normal(size=(2, 6)) + 0.2 * rng.normal(size=(ROWS, 6)), "odd": odd.copy()}
    z["odd"][:GONE] = np.nan
    if kind != "category":
        z["odd"][GONE:][rng.random((ROWS - GONE, odd.shape[1])) < 0.2] = np.nan
    return z, odd


def log_likelihood(p, x, kind):
    return (np.log(p) * x).sum(1).mean() if kind == "category" else (np.log(p) * x + np.log(1 - p) * (1 - x)).mean()


@pytest.mark.parametrize("kind", ["binary", "category"])
def test_probabilities_beat_the_base_rate_and_are_calibrated(kind, tmp_path):
    z, odd = simulated(kind)
    imputer = MixedImputer({"odd": kind}, "gaussian").fit(z)
    filled, std = imputer.impute(z, return_std=True)
    p, x = filled["odd"][:GONE], odd[:GONE]
    base = np.broadcast_to(np.nanmean(z["odd"], axis=0), p.shape)
    assert log_likelihood(p, x, kind) > log_likelihood(base, x, kind) + 0.1
    assert imputer.choice_["odd"]["log_likelihood"] > imputer.choice_["odd"]["base_rate"] + 0.1
    for low, high in ((0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1)):
        inside = (p >= low) & (p <= high)
        assert inside.sum() > 50
        spread = np.sqrt((p * (1 - p))[inside].mean() / inside.sum())
        assert abs(p[inside].mean() - x[inside].mean()) < 3 * spread + 0.02
    if kind == "category":
        np.testing.assert_allclose(p.sum(axis=1), 1)
    seen = ~np.isnan(z["odd"])
    assert (filled["odd"][seen] == z["odd"][seen]).all()
    assert (std["odd"][seen] == 0).all()
    np.testing.assert_allclose(std["odd"][:GONE], np.sqrt(p * (1 - p)))
    imputer.save(tmp_path / "saved")
    again = MixedImputer.load(tmp_path / "saved").transform(z)
    np.testing.assert_array_equal(again["odd"], filled["odd"])


def test_counts_are_transformed_and_their_intervals_hold_what_they_claim():
    z, odd = simulated("count")
    imputer = MixedImputer({"odd": "count"}, "gaussian").fit(z)
    assert imputer.choice_["odd"]["transform"] in ("log1p", "sqrt")  # plain counts of this width are far from normal
    gone = np.isnan(z["odd"])
    mean = imputer.transform(z)["odd"]
    plain = np.broadcast_to(np.nanmean(z["odd"], axis=0), odd.shape)
    assert np.square(mean - odd)[gone].sum() < 0.7 * np.square(plain - odd)[gone].sum()
    low, high = (end["odd"] for end in imputer.interval(z, level=0.9))
    assert (low >= 0).all()
    assert 0.86 < ((low <= odd) & (odd <= high))[gone].mean() < 0.95
    assert (low[~gone] == odd[~gone]).all()
    assert (high[~gone] == odd[~gone]).all()


def test_real_numbers_are_left_to_the_imputer():
    from calmrl.imputers import RidgeImputer

    z, _ = simulated("real")
    want, spread = RidgeImputer().fit(z).impute(z, return_std=True)
    got, std = MixedImputer({}, "ridge").fit(z).impute(z, return_std=True)
    for name in z:
        np.testing.assert_allclose(got[name], want[name])
        np.testing.assert_allclose(std[name], spread[name])


WRONG = {
    "no such kind": ({"odd": "bool"}, 0.0, r"kinds\['odd'\] must be one of real, count, binary, category; got 'bool'"),
    "no such modality": (
        {"text": "binary"},
        0.0,
        "kinds names 'text', which is no modality of the input; it has real, odd",
    ),
    "not 0 or 1": ({"odd": "binary"}, 2.0, "whose values are 0 and 1; got 2"),
    "not whole": ({"odd": "count"}, 0.5, "whose values are whole numbers from 0; got 0.5"),
    "no category": ({"odd": "category"}, 0.0, "one of which is 1 in each row; a row has 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    kinds, value, message = WRONG[case]
    z = {"real": np.random.default_rng(0).normal(size=(30, 2)), "odd": np.full((30, 3), value)}
    with pytest.raises(InputError, match=message):
        MixedImputer(kinds, "mean").fit(z)
