"""Sums over rows: shifted, in other latents, averaged, and against the rows themselves."""

from __future__ import annotations

from dataclasses import asdict

import torch

from calmrl.latent.em import Settings
from calmrl.latent.statistics import Statistics


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


RESP = torch.softmax(draw(9, 2), dim=1)  # (rows, K)
HAS = torch.tensor([[True, True]] * 4 + [[True, False]] * 3 + [[False, True]] * 2)
Z = [draw(9, 3, seed=1), draw(9, 2, seed=2)]
MEANS = draw(9, 2, 4, seed=3)  # (rows, K, L)
V = [(a @ a.mT + torch.eye(4)) for a in draw(2, 4, 4, seed=4)]


def summed(z, means, covariance):
    """The definitions, row by row."""
    k, K, L = 2, 2, 4
    new = torch.zeros
    stats = Statistics(
        n=new(k, K), m1=new(k, K, L), m2=new(k, K, L, L), zm=[new(K, 3, L), new(K, 2, L)], z1=[new(K, 3), new(K, 2)],
        z2=[new(K, 3), new(K, 2)], rows=new(K), all1=new(K, L), all2=new(K, L, L), log_likelihood=new(()),
    )  # fmt: skip
    for tensor in stats.tensors():
        tensor.data = tensor.double()
    for i in range(9):
        for c in range(K):
            r, m = RESP[i, c], means[i, c]
            second = torch.outer(m, m) + covariance[c]
            stats.rows[c] += r
            stats.all1[c] += r * m
            stats.all2[c] += r * second
            for j in range(k):
                if HAS[i, j]:
                    stats.n[j, c] += r
                    stats.m1[j, c] += r * m
                    stats.m2[j, c] += r * second
                    stats.zm[j][c] += r * torch.outer(z[j][i], m)
                    stats.z1[j][c] += r * z[j][i]
                    stats.z2[j][c] += r * z[j][i] ** 2
    return stats


def assert_same(found, want):
    for mine, theirs in zip(found.tensors(), want.tensors(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_rows_that_are_moved():
    shift = [draw(3, seed=5), draw(2, seed=6)]
    moved = [z + s for z, s in zip(Z, shift, strict=True)]
    assert_same(summed(Z, MEANS, V).moved(shift), summed(moved, MEANS, V))


def test_other_latents():
    mean, chol = draw(2, 4, seed=7), torch.linalg.cholesky(torch.stack([v + torch.eye(4) for v in V]))
    back = torch.linalg.inv(chol)
    means = torch.einsum("cab,icb->ica", back, MEANS - mean)
    covariance = [b @ v @ b.T for b, v in zip(back, V, strict=True)]
    assert_same(summed(Z, MEANS, V).rebased(mean, chol), summed(Z, means, covariance))


def test_averages():
    one, two = summed(Z, MEANS, V), summed([2 * z for z in Z], MEANS, V)
    parts = [(a.clone(), b.clone()) for a, b in zip(one.tensors(), two.tensors(), strict=True)]
    one.combine(two, keep=0.75, add=0.5)
    for mine, (a, b) in zip(one.tensors(), parts, strict=True):
        torch.testing.assert_close(mine, 0.75 * a + 0.5 * b)


def test_settings_unless_said_otherwise():
    assert asdict(Settings(3)) == {
        "latent_dim": 3, "n_components": 1, "noise": "isotropic", "prior": 0.0, "component_prior": 0.0,
        "base_iterations": None, "iterations": None, "whitening": 0.0,
    }  # fmt: skip
