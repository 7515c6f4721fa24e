"""Candidates and states: what is fitted with which settings, and what comes back from a state."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from calmrl.arrays import check
from calmrl.errors import InputError
from calmrl.imputers import AutoImputer, KernelImputer, KNNImputer, MeanImputer
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.stacking import CANDIDATES, Fitter, try_candidate
from tests.support.three_modalities import three

# ---- state


def test_a_kernel_comes_back_as_it_was():
    z, present = three()
    z |= {"b": np.ones((60, 4))}  # nothing is learned about it
    imputer = KernelImputer("mean", False, 0.8, 0.5, 0.3, landmarks=20).fit(z, present)
    assert [model is None for model in imputer.models_] == [False, True, False]
    back = KernelImputer().set_state(imputer.get_state())
    for one, two in zip(imputer.impute(z, present, True), back.impute(z, present, True), strict=True):
        for name in z:
            np.testing.assert_array_equal(one[name], two[name])
    assert [model is None for model in back.models_] == [False, True, False]


def test_what_was_saved_is_not_overwritten_by_chance(tmp_path):
    z = {"a": np.arange(4.0)[:, None]}
    imputer = MeanImputer().fit(z)
    imputer.save(tmp_path / "saved")
    with pytest.raises((InputError, FileExistsError)):
        imputer.save(tmp_path / "saved")
    imputer.save(tmp_path / "saved", overwrite=True)
    with pytest.raises(InputError, match="holds a 'MeanImputer' imputer, not KNNImputer"):
        KNNImputer.load(tmp_path / "saved")


def test_one_row_is_enough_to_begin():
    one = {"a": np.ones((1, 2)), "b": np.ones((1, 1))}
    with pytest.warns(UserWarning, match="only 0 blocks of rows"):
        imputer = AutoImputer().fit(one)
    assert list(imputer.refit(one).models_) == ["mean"]
    none = {name: values[:0] for name, values in one.items()}
    for call in (AutoImputer().fit, imputer.refit, MeanImputer().fit):
        with pytest.raises(InputError):
            call(none)


# ---- candidates


def test_a_candidate_is_fitted_quietly_and_with_the_seed(monkeypatch):
    class Loud(MeanImputer):
        def __init__(self, random_state=None):
            super().__init__()
            self.random_state = random_state

        def fit(self, z, present=None):
            warnings.warn("not converged", ConvergenceWarning, stacklevel=2)
            return super().fit(z, present)

    monkeypatch.setitem(CANDIDATES, "mean", Loud)
    z, present = three(12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Fitter(7).fit("mean", z, torch.from_numpy(present), {})
    assert model.random_state == 7
    views = check(z, present)
    visible = views.present.clone()
    visible[0, 0] = False
    tried = try_candidate("mean", Fitter(7), views, visible, torch.tensor([0, 3]), {})
    np.testing.assert_allclose(tried.guess[0][0], z["a"][1:].mean(0))
    np.testing.assert_allclose(tried.std[0][0], z["a"][1:].std(0))
    assert [len(guess) for guess in tried.guess] == [2, 2, 2]
    assert 0 < tried.seconds < 60


def test_the_kernel_shares_what_completes_its_sources(monkeypatch):
    made = []

    def gaussian(self, z, mask, engine):
        made.append(sorted(self.settled))
        return MeanImputer().fit(z, mask)

    monkeypatch.setattr(Fitter, "_gaussian", gaussian)
    z, present = three(12)
    mask = torch.from_numpy(present)
    shared = MeanImputer().fit(z, present)
    assert Fitter(0).fit("kernel", z, mask, {"gaussian": shared}).base_ is shared
    assert made == []
    Fitter(0).fit("kernel", z, mask, {})
    assert made == [[]]
    apart = torch.zeros(12, 3, dtype=torch.bool)
    apart[:6, :2] = True
    apart[6:, 2] = True
    assert type(Fitter(0).fit("kernel", z, apart, {}).base_) is MeanImputer
    assert made == [[]]  # nothing links all modalities


def test_settings_that_were_chosen_are_kept(monkeypatch):
    calls = []
    monkeypatch.setattr(GaussianImputer, "set_state", lambda self, state: calls.append(state) or self)
    monkeypatch.setattr(GaussianImputer, "refit", lambda self, z, mask: calls.append("refit") or self)
    monkeypatch.setattr(GaussianImputer, "fit_with", lambda self, z, mask, engine, ready: calls.append(engine) or self)
    z, present = three(12)
    model = Fitter(4).fit("gaussian", z, torch.from_numpy(present), {}, "engine")
    assert (model.latent_dim, model.n_components, model.noise, model.random_state) == ("auto", "auto", "auto", 4)
    assert model.whitening == "auto"
    assert Fitter(4, plain=True).fit("gaussian", z, torch.from_numpy(present), {}).whitening == 0.0
    calls.pop()
    settled = SimpleNamespace(get_state=lambda: "state")
    Fitter(4, {"gaussian": settled}).fit("gaussian", z, torch.from_numpy(present), {})
    assert calls == ["engine", "state", "refit"]


def test_deviations_are_averaged_as_variances():
    z, present = three(12)
    imputer = AutoImputer()
    imputer.names_, imputer.widths_ = ("a", "b", "c"), (4, 4, 4)
    imputer.chosen_, imputer.weight_ = ["knn", "mean"], np.array([[0.25, 0.5, 1.0], [0.75, 0.5, 0.0]])
    imputer.models_ = {"knn": KNNImputer(3).fit(z, present), "mean": MeanImputer().fit(z, present)}
    imputer.scale_ = np.arange(12.0).reshape(4, 3)
    filled, std = imputer.impute(z, present, return_std=True)
    parts = [model.impute(z, present, return_std=True) for model in imputer.models_.values()]
    for m, name in enumerate(z):
        gone = ~present[:, m]
        weights = imputer.weight_[:, m]
        want = sum(w * part[0][name] for w, part in zip(weights, parts, strict=True))
        np.testing.assert_allclose(filled[name][gone], want[gone])
        variance = sum(w * part[1][name] ** 2 for w, part in zip(weights, parts, strict=True))
        scale = imputer.scale_[present.sum(1), m][:, None]
        np.testing.assert_allclose(std[name][gone], (scale * np.sqrt(variance))[gone])
        assert not std[name][~gone].any()
