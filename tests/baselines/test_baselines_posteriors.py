"""Posterior means as vectors: those of the group factor model and of the VAE that impute, on the features of the baselines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl.baselines import GFA, MoPoE
from calmrl.imputers import GFAImputer, MoPoEImputer
from calmrl.imputers.gfa import expected_latents, pattern_groups
from tests.baselines.baseline_rows import rows_of


def features_of(model, z, present):
    """Leading features of every modality, 0 where it is missing, float64."""
    found = {}
    for m, (name, feature_map) in enumerate(zip(model.names_, model.feature_maps_, strict=True)):
        projection = feature_map.projection * feature_map.scale(model.whitening)
        f = feature_map.project(torch.from_numpy(z[name]), projection)[:, : model.directions]
        found[name] = torch.where(torch.from_numpy(present[:, [m]]), f, 0.0)
    return found


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("features", ["linear", "kernel"])
def test_vectors_are_the_latents_of_the_group_factor_model(features):
    z, present = rows_of()
    model = GFA(latent_dim=5, directions=3, max_iter=30, features=features).fit(z, present)
    f = features_of(model, z, present)
    turned = {name: torch.where(x.pow(3).sum(0) < 0, -x, x) for name, x in f.items()}
    imputer = GFAImputer(5, 30, random_state=0).fit(turned, torch.from_numpy(present))
    latents, _, _ = expected_latents(
        imputer.loadings_, list(turned.values()), pattern_groups(torch.from_numpy(present))
    )
    np.testing.assert_allclose(model.embed(z, present), unit(latents.numpy()), atol=1e-6)
    imputed = imputer.impute(turned, torch.from_numpy(present))
    for m, (name, part) in enumerate(zip(model.names_, imputer.loadings_, strict=True)):  # these latents impute
        torch.testing.assert_close((latents @ part.W.T + part.mean)[~present[:, m]], imputed[name][~present[:, m]])


def test_vectors_are_the_product_of_the_experts_of_the_vae():
    z, present = rows_of()
    model = MoPoE(latent_dim=4, directions=3, hidden=8, beta=0.2, epochs=2).fit(z, present)
    f = features_of(model, z, present)
    imputer = MoPoEImputer(4, 8, 0.2, 2, random_state=0).fit(f, torch.from_numpy(present))
    expected = []
    for i, has in enumerate(present):
        precision, weighted = np.ones(4), np.zeros(4)
        for m in np.flatnonzero(has):
            seen = f[f"m{m}"][present[:, m]].numpy()
            scaled = (f[f"m{m}"][i].numpy() - seen.mean(0)) / np.sqrt(seen.var(0).mean())
            centre, log_variance = imputer.network_.encoders[m](torch.from_numpy(scaled).float()).split(4)
            precision += np.exp(-log_variance.numpy())
            weighted += np.exp(-log_variance.numpy()) * centre.numpy()
        expected.append(weighted / precision)
    np.testing.assert_allclose(model.embed(z, present), unit(np.array(expected)), atol=1e-5)


def test_the_vae_has_another_start_with_another_seed_and_leaves_the_global_generator_alone():
    z, present = rows_of()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, same, other = (
        MoPoE(latent_dim=4, epochs=1, random_state=seed).fit(z, present).embed(z, present) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01
