"""Holes inside a modality: every imputer completes them, with the deviations of the latent model."""

import warnings

import numpy as np
import pytest
import torch

from calmrl.errors import InputError
from calmrl.imputers import AutoImputer, GaussianImputer, KernelImputer, KNNImputer, MeanImputer, RidgeImputer
from calmrl.imputers.gfa import GFAImputer
from calmrl.imputers.neural import SMILImputer
from calmrl.imputers.variational import MoPoEImputer
from tests.support.latent_data import from_model, stacked, torn, with_nan

MAKERS = {
    "mean": MeanImputer,
    "knn": KNNImputer,
    "ridge": RidgeImputer,
    "kernel": KernelImputer,
    "gfa": lambda: GFAImputer(latent_dim=2, max_iter=20),
    "mopoe": lambda: MoPoEImputer(epochs=2),
    "smil": lambda: SMILImputer(epochs=2),
    "auto": lambda: AutoImputer(["gaussian", "ridge", "mean"]),
    "auto without gaussian": lambda: AutoImputer(["ridge", "mean"]),
}


@pytest.fixture(scope="module")
def data():
    return torn(n=150, holes=0.15, noise=0.5)


@pytest.mark.parametrize("name", MAKERS)
def test_every_imputer_completes_holes(name, data, tmp_path):
    z, truth = data
    imputer = MAKERS[name]().fit(z)
    filled, std = imputer.impute(z, return_std=True)
    x, values, deviations = stacked(z), stacked(filled), stacked(std)
    gone = np.isnan(x)
    np.testing.assert_array_equal(values[~gone], x[~gone])
    assert (deviations[~gone] == 0).all()
    assert np.isfinite(values).all()
    assert (deviations[gone] > 0).all()
    holes = gone & ~absent(z)
    mean = np.broadcast_to(np.nanmean(x, axis=0), x.shape)
    assert squared(values, truth, holes) < 0.5 * squared(mean, truth, holes)
    inside = np.abs(values - stacked(truth)) <= 1.6448536 * deviations
    assert 0.82 < inside[holes].mean() < 0.97
    if name != "gfa" and not name.startswith("auto"):  # what is in holes comes from the latent model
        latent, spread = imputer.within_.impute(z, return_std=True)
        np.testing.assert_array_equal(values[holes], stacked(latent)[holes])
        np.testing.assert_array_equal(deviations[holes], stacked(spread)[holes])
    imputer.save(tmp_path / "saved")
    again = type(imputer).load(tmp_path / "saved")
    np.testing.assert_allclose(stacked(again.transform(z)), values, atol=1e-6)


def absent(z):
    return np.concatenate([np.isnan(a).all(1, keepdims=True).repeat(a.shape[1], 1) for a in z.values()], axis=1)


def squared(values, truth, where):
    return float(np.square((values - stacked(truth))[where]).sum())


def test_observed_is_the_same_as_nan(data):
    z, truth = data
    observed = {name: ~np.isnan(array) for name, array in z.items()}
    present = np.stack([seen.any(1) for seen in observed.values()], axis=1)
    for make in (lambda: GaussianImputer(2, max_iter=300), RidgeImputer):
        by_nan = make().fit(z).impute(z, return_std=True)
        for mask in (None, present):
            by_mask = make().fit(truth, mask, observed=observed).impute(truth, mask, True, observed=observed)
            for mine, theirs in zip(by_nan, by_mask, strict=True):
                np.testing.assert_array_equal(stacked(mine), stacked(theirs))


def test_observed_for_one_array(data):
    z, truth = data
    rows = ~absent(z).any(1)
    x, full = stacked(z)[rows], stacked(truth)[rows]
    model = GaussianImputer(2, max_iter=300, blocks=[6, 5, 4])
    done = model.fit(full, observed=~np.isnan(x)).transform(full, observed=~np.isnan(x))
    np.testing.assert_array_equal(done, model.fit(x).transform(x))
    with pytest.raises(InputError, match="in chunks mark single entries by NaN"):
        GaussianImputer(2).fit([(z, None)], observed={"m0": ~np.isnan(z["m0"])})


def test_tensors_come_back_as_tensors(data):
    z, _ = data
    tensors = {name: torch.tensor(array) for name, array in z.items()}
    done, std = RidgeImputer().fit(tensors).impute(tensors, return_std=True)
    for name, tensor in tensors.items():
        assert isinstance(done[name], torch.Tensor)
        assert bool(torch.isfinite(done[name]).all())
        assert bool((std[name][torch.isnan(tensor)] > 0).all())


def test_fitted_on_whole_rows(data):
    z, truth = data
    with pytest.raises(
        InputError, match=r"holes inside a modality \(m0, m1, m2\), but this RidgeImputer was fitted on whole"
    ):
        RidgeImputer().fit(truth).transform(z)
    kernel = KernelImputer().fit({name: array[:60] for name, array in truth.items()})
    assert kernel.within_ is None
    if not kernel.base_.settings_.whitening:
        assert np.isfinite(stacked(kernel.transform(z))).all()  # its base knows the columns


def test_auto_where_only_entries_are_missing():
    z, truth = torn(n=150, widths=(9,), rate=0.0, holes=0.2)
    imputer = AutoImputer().fit(z)
    assert imputer.chosen_ == ["gaussian"]
    filled = imputer.transform(z)
    gone = np.isnan(z["m0"])
    mean = np.broadcast_to(np.nanmean(z["m0"], axis=0), gone.shape)
    assert squared(filled["m0"], truth, gone) < 0.5 * squared(mean, truth, gone)


def test_auto_where_no_row_links_the_modalities():
    truth, _ = from_model(n=60, widths=(6, 5))
    whole = with_nan(truth, np.arange(60)[:, None] % 2 == np.arange(2))
    torn_rows = {name: array.copy() for name, array in whole.items()}
    torn_rows["m0"][::6, 1] = np.nan
    imputer = AutoImputer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="no row links m1 with m0"):
            imputer.fit(torn_rows)
        filled = imputer.fit(whole).transform(whole)
    assert imputer.chosen_ == ["mean"]
    np.testing.assert_allclose(filled["m1"][0], whole["m1"][1::2].mean(0))


def test_auto_leans_on_neighbours_where_the_relation_is_curved():
    rng = np.random.default_rng(0)
    angle, centre = rng.uniform(0, 2 * np.pi, 500), rng.integers(0, 6, 500)
    curve = np.stack([np.cos(k * angle + centre) for k in range(1, 7)], axis=1)
    truth = {
        "m0": curve + 0.05 * rng.normal(size=curve.shape),
        "m1": curve[:, ::-1] ** 2 + 0.05 * rng.normal(size=curve.shape),
    }
    z = {name: np.where(rng.random(array.shape) < 0.1, np.nan, array) for name, array in truth.items()}
    imputer = AutoImputer(["gaussian", "mean"]).fit(z)
    filled, std = imputer.impute(z, return_std=True)
    gone = np.isnan(stacked(z))
    latent = stacked(imputer.within_.transform(z))
    assert squared(stacked(filled), truth, gone) < 0.8 * squared(latent, truth, gone)
    inside = np.abs(stacked(filled) - stacked(truth)) <= 1.6448536 * stacked(std)
    assert 0.86 < inside[gone].mean() < 0.94


def test_auto_measures_blocks_by_what_is_known_of_them(data):
    z, _ = data
    imputer = AutoImputer(["gaussian", "ridge", "mean"]).fit(z)
    choice = imputer.choice_
    assert choice["errors"]["mean"]["all"] == pytest.approx(1.0, abs=0.05)
    assert choice["error"] < 0.7
    assert all(85 <= covered <= 99 for covered in choice["coverage_by_modality"].values())
    holes = choice["holes"]
    assert holes["held_out"] > 50
    assert holes["errors"]["average"] <= 1.02 * min(holes["errors"]["gaussian"], holes["errors"]["neighbours"])
    assert all(sum(weights.values()) == pytest.approx(1.0) for weights in holes["weights"].values())
    refitted = imputer.refit(z)
    assert np.isfinite(stacked(refitted.transform(z))).all()
