"""Choosing on held-out blocks."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from calmrl import GaussianImputer
from calmrl.latent.held_out import hold_out
from tests.support.latent_data import from_model, normalised_error


def test_finds_the_size_of_the_model_and_prints_the_search(capsys):
    z, present = from_model(n=1500, widths=(20, 16, 18), latents=4, noise=0.4)
    imp = GaussianImputer("auto", "auto", "auto", verbose=True).fit(z, present)
    assert imp.settings_.latent_dim == 4
    assert imp.settings_.n_components == 1
    printed = capsys.readouterr().err
    assert "held-out error" in printed
    assert " *" in printed
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert len(imp.search_) >= 8
    chosen = next(row for row in imp.search_ if {**row, "error": 0} == {**asdict(imp.settings_), "error": 0})
    assert chosen["error"] <= 1.005 * min(row["error"] for row in imp.search_)
    assert all(0.9 < scale < 1.1 for scale in imp.std_scale_)
    fixed = GaussianImputer(4).fit(z, present)
    ratio = normalised_error(imp.transform(z, present), z, ~present) / normalised_error(
        fixed.transform(z, present), z, ~present
    )
    assert ratio < 1.01


def test_mixture_and_prior_beat_maximum_likelihood_on_real_data():
    images = load_digits().images
    z = {}
    for name, (r, c) in {"nw": (0, 0), "ne": (0, 4), "sw": (4, 0), "se": (4, 4)}.items():
        flat = images[:, r : r + 4, c : c + 4].reshape(len(images), -1)
        flat = flat[:, flat.std(0) > 0.05]
        z[name] = (flat - flat.mean(0)) / flat.std(0)
    rng = np.random.default_rng(1)
    present = rng.random((len(images), 4)) > 0.4
    present[np.arange(len(images)), rng.integers(0, 4, len(images))] = True
    auto = GaussianImputer("auto", "auto", "auto").fit(z, present)
    likelihood = GaussianImputer(12).fit(z, present)
    assert auto.settings_.n_components > 1
    assert normalised_error(auto.transform(z, present), z, ~present) < 0.75
    assert normalised_error(likelihood.transform(z, present), z, ~present) > 0.8


def test_values_under_held_out_blocks_do_not_leak():
    z, present = from_model(n=200)
    z = {n: torch.tensor(a) for n, a in z.items()}
    one = hold_out(z, torch.tensor(present), seed=0)
    poisoned = {n: torch.where(one.hidden[:, [j]], 1e6, a) for j, (n, a) in enumerate(z.items())}
    two = hold_out(poisoned, torch.tensor(present), seed=0)
    for a, b in zip(one.source.mean, two.source.mean, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_retrieval_criterion_is_the_mean_reciprocal_rank():
    z, present = from_model(n=200, latents=3, noise=0.5)
    z = {n: torch.tensor(a) for n, a in z.items()}
    held = hold_out(z, torch.tensor(present), seed=0)
    model = GaussianImputer(3).fit(z, torch.tensor(present) & ~held.hidden)
    params = model.parameters_.moved([-mean for mean in held.source.mean])
    reciprocal = []
    for m, name in enumerate(z):
        rows = held.hidden[:, m].nonzero()[:, 0].tolist()
        blocks = model.embed({name: z[name][rows]})
        for position, i in enumerate(rows):
            seen = (torch.tensor(present[i]) & ~held.hidden[i])[None]
            row = model.embed({n: a[i : i + 1] for n, a in z.items()}, seen)
            scores = torch.nn.functional.cosine_similarity(row, blocks)
            reciprocal.append(1 / (1 + int((scores > scores[position]).sum())))
    assert held.miss(params) == pytest.approx(1 - np.mean(reciprocal), abs=1e-9)


def test_retrieval_criterion_wants_what_finds_items():
    z, present = from_model(n=400, widths=(30, 30), latents=6, noise=1.0)
    imp = GaussianImputer("auto", criterion="retrieval").fit(z, present)
    assert imp.settings_.latent_dim >= 4
