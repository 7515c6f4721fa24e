"""The imports, calls and commands that others rely on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl.cli.registry import COMMANDS


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(60, 3))
    z = {name: shared @ rng.normal(size=(3, 6)) + 0.1 * rng.normal(size=(60, 6)) for name in ("image", "text", "sound")}
    present = rng.random((60, 3)) < 0.8
    present[:, 0] |= ~present.any(axis=1)
    for column, name in enumerate(z):
        z[name][~present[:, column]] = np.nan
    return z, present


@pytest.fixture(scope="module")
def fitted(rows):
    from calmrl import GaussianImputer

    return GaussianImputer(
        latent_dim=3, n_components=1, noise="isotropic", m_step="joint", max_iter=20, tol=1e-6, random_state=0
    ).fit(*rows)


def test_the_names():
    from calmrl import CalibratedAlignment, GaussianImputer, load
    from calmrl.anchors import anchor, anchor_shift, shift_bounds
    from calmrl.datasets import DATASETS, load_dataset
    from calmrl.evaluate import retrieval
    from calmrl.imputers import IMPUTERS
    from calmrl.losses import LOSSES, ContrastiveLoss, GramLoss, PMRLLoss, TriangleLoss

    assert all(map(callable, (CalibratedAlignment, GaussianImputer, load, anchor, anchor_shift, shift_bounds)))
    assert all(map(callable, (load_dataset, retrieval)))
    assert {ContrastiveLoss, GramLoss, PMRLLoss, TriangleLoss} <= set(LOSSES.values())
    assert {"gaussian", "mvae", "mopoe", "smil", "knowledge_bridger", "mean", "knn", "ridge"} <= set(IMPUTERS)
    assert {"stamps", "digits", "mfeat", "world"} <= set(DATASETS)


def test_the_latent_model(rows, fitted, tmp_path):
    from calmrl import GaussianImputer

    z, present = rows
    completed = fitted.transform(z, present)
    assert list(completed) == list(z)
    for column, name in enumerate(z):
        seen = present[:, column]
        assert np.array_equal(completed[name][seen], z[name][seen])
        assert np.isfinite(completed[name]).all()
    again, std = fitted.impute(z, present, return_std=True)
    assert all(np.allclose(again[name], completed[name], rtol=0, atol=1e-9) for name in z)
    assert set(std) == set(z)
    assert fitted.embed(z, present).shape == (60, 3)
    assert np.isfinite(fitted.score(z, present))
    assert np.all(np.diff(fitted.log_likelihood_) >= -1e-9)
    assert set(fitted.W_) == set(fitted.mu_) == set(fitted.sigma2_) == set(z)
    fitted.save(tmp_path / "model")
    loaded = GaussianImputer.load(tmp_path / "model").transform(z, present)
    assert all(np.array_equal(loaded[name], completed[name]) for name in z)
    assert set(fitted.as_heads()) == set(z)


def test_other_ways_to_fit(rows):
    from calmrl import GaussianImputer

    z, present = rows
    halves = [({name: x[part] for name, x in z.items()}, present[part]) for part in (slice(0, 30), slice(30, 60))]
    imp = GaussianImputer(latent_dim=3, max_iter=3, random_state=0)
    assert imp.fit(halves) is imp
    assert imp.partial_fit(*halves[0]) is imp
    automatic = GaussianImputer(latent_dim="auto", n_components="auto", max_iter=3, random_state=0).fit(z)
    assert np.isfinite(automatic.score(z))


def test_losses_and_alignment(rows, fitted):
    from calmrl import CalibratedAlignment
    from calmrl.losses import LOSSES, PMRLLoss

    z, present = rows
    tensors = {name: torch.from_numpy(np.nan_to_num(x)).float() for name, x in z.items()}
    mask = torch.from_numpy(present)
    assert PMRLLoss(temperature=0.05, anchor_temperature=0.1)(tensors, mask).ndim == 0
    for name in LOSSES:
        assert torch.isfinite(LOSSES[name]()(tensors, mask))
    align = CalibratedAlignment(objective="pmrl", imputer=fitted, impute_grad=True, renormalize=True)
    assert torch.isfinite(align(tensors, mask))


def test_anchors(rows):
    from calmrl.anchors import anchor, anchor_shift, shift_bounds

    z, present = rows
    assert anchor(z, present).shape == (60, 6)
    rng = np.random.default_rng(1)
    complete = {name: rng.normal(size=(60, 6)) for name in z}
    shift = anchor_shift(complete, present)
    low, high = shift_bounds(complete, present)
    assert np.all(low <= shift + 1e-9)
    assert np.all(shift <= high + 1e-9)


def test_retrieval_and_data():
    from calmrl.datasets import load_dataset
    from calmrl.evaluate import retrieval

    vectors = np.eye(12)
    measured = retrieval(vectors, vectors, query_ids=None, gallery_ids=None, ks=(1, 5, 10))
    assert (measured["R@1"], measured["MedR"], measured["n"]) == (100.0, 1.0, 12)
    assert {"R@5", "R@10"} <= set(measured)
    data = load_dataset("stamps")
    for attribute in ("z", "present", "ids", "split", "labels", "text", "source"):
        assert getattr(data, attribute) is not None


NAMES = "demo ls cp check train evaluate compare extract impute diagnose report doctor"


def test_every_command_of_the_contract_is_there():
    assert set(COMMANDS) >= set(NAMES.split())
