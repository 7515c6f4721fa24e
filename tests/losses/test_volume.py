"""Determinants, adjugates and roots from their definitions."""

from __future__ import annotations

import pytest
import torch

from calmrl.losses.volume import adjugate, quadratic_forms, root


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_adjugate_and_determinant(n):
    matrix = torch.randn(3, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    adjoint, determinant = adjugate(matrix)
    torch.testing.assert_close(determinant, torch.linalg.det(matrix))
    torch.testing.assert_close(matrix @ adjoint, determinant[:, None, None] * torch.eye(n, dtype=torch.float64))
    single = adjugate(matrix.float())
    assert single[0].dtype == single[1].dtype == torch.float32


def test_adjugate_of_a_singular_matrix():
    adjoint, determinant = adjugate(torch.ones(1, 2, 2, dtype=torch.float64))
    assert adjoint.tolist() == [[[1, -1], [-1, 1]]]
    assert determinant.tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_derivative_of_the_root_is_damped_by_ten_rounding_units(dtype):
    delta = 10 * torch.finfo(dtype).eps
    x = torch.tensor([-1.0, 0.0, delta, 4.0], dtype=dtype, requires_grad=True)
    y = root(x)
    torch.testing.assert_close(y, torch.tensor([0.0, 0.0, delta**0.5, 2.0], dtype=dtype))
    (slope,) = torch.autograd.grad(3 * y.sum(), x)
    expected = torch.tensor([0.0, 0.0, 3 * 0.5 * delta**0.5 / (2 * delta), 3 * 0.25], dtype=dtype)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_quadratic_forms(p):
    generator = torch.Generator().manual_seed(p)
    inner = torch.randn(3, p, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    half = torch.randn(5, p, p, generator=generator, dtype=torch.float64)
    weights = (half + half.mT).requires_grad_()
    expected = torch.einsum("cpn,npq,cqn->cn", inner, weights, inner)
    found = quadratic_forms(inner, weights)
    torch.testing.assert_close(found, expected)
    pushed = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    for g, h in zip(*(torch.autograd.grad(v, (inner, weights), pushed) for v in (found, expected)), strict=True):
        torch.testing.assert_close(g, h)
