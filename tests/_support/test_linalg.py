"""Running moments; the leading singular pair: values, orientation, first and second derivatives, degenerate inputs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from calmrl._support.linalg import add_rows, add_summary, inverse_of, spectrum
from calmrl.losses.volume import adjugate, quadratic_forms, root


def rows(seed: int, n: int, k: int, d: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, d, generator=generator, dtype=torch.float64)
    return (z / z.norm(dim=2, keepdim=True)).to(dtype)


@given(seed=st.integers(0, 10_000), k=st.integers(2, 6), d=st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_same_as_svd_and_oriented(seed: int, k: int, d: int) -> None:
    z = rows(seed, 5, k, d)
    sigma, v, u = spectrum(z)
    expected = torch.linalg.svdvals(z)
    torch.testing.assert_close(sigma[:, : expected.shape[1]], expected, rtol=1e-7, atol=1e-7)
    assert ((u * z.sum(1)).sum(1) >= -1e-3).all()  # a tie goes to the earlier modality
    torch.testing.assert_close(u.norm(dim=1), torch.ones(5, dtype=u.dtype))
    torch.testing.assert_close((u[:, None, :] @ z.mT)[:, 0], sigma[:, :1] * v[:, :, 0], rtol=1e-7, atol=1e-7)


def test_first_and_second_derivatives() -> None:
    z = rows(0, 4, 3, 5).requires_grad_()
    z.data[0, 2] = 0  # a missing modality
    assert gradcheck(lambda x: spectrum(x).sigma[:, :2], z)
    assert gradcheck(lambda x: spectrum(x).u, z)
    assert gradgradcheck(lambda x: spectrum(x).u.sin() + spectrum(x).sigma[:, :1], z)
    agree = torch.tensor([True, False, False, False])
    z.data[0, 1] = -z.data[0, 0] + 0.6 * z.data[0, 1]  # the pair points apart
    assert gradcheck(lambda x: spectrum(x, agree).u, z)
    assert gradgradcheck(lambda x: spectrum(x, agree).u, z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["identical", "orthogonal", "repeated", "antipodal", "zero", "tiny", "huge"])
def test_finite_where_derivatives_do_not_exist(dtype: torch.dtype, case: str) -> None:
    z = rows(0, 3, 4, 6, dtype)
    if case == "identical":
        z = z[:, :1].expand(-1, 4, -1)
    elif case == "orthogonal":
        z = torch.eye(6, dtype=dtype)[:4].expand(3, -1, -1)
    elif case == "repeated":
        z = torch.eye(6, dtype=dtype)[[0, 0, 1, 1]].expand(3, -1, -1)
    elif case == "antipodal":
        z = torch.stack([z[:, 0], -z[:, 0], z[:, 1], -z[:, 1]], dim=1)
    elif case == "zero":
        z = torch.zeros_like(z)
    elif case == "tiny":
        z = z * 1e-12
    elif case == "huge":
        z = z * 1e8
    z = z.clone().requires_grad_()
    sigma, _, u = spectrum(z)
    (first,) = torch.autograd.grad(sigma.sum() + (u * torch.arange(6)).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad((first / first.detach().abs().max().clamp(min=1)).sum(), z)
    for tensor in (sigma, u, first, second):
        assert torch.isfinite(tensor).all()


def test_orthogonal_and_identical_limits() -> None:
    """Where a one-sided limit exists, the damped derivative is that limit."""
    z = torch.eye(5, dtype=torch.float64)[:1].expand(1, 3, 5).clone().requires_grad_()
    (g,) = torch.autograd.grad(spectrum(z).sigma[:, 0].sum(), z)
    torch.testing.assert_close(g, torch.eye(5, dtype=torch.float64)[:1].expand(1, 3, 5) / 3**0.5)


@given(seed=st.integers(0, 10_000), n=st.integers(1, 6))
@settings(deadline=None, max_examples=30)
def test_adjugate_and_determinant(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    b = torch.randn(3, n, n, generator=generator, dtype=torch.float64)
    b = b @ b.mT
    adj, det = adjugate(b)
    torch.testing.assert_close(det, torch.det(b), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(b @ adj, det[:, None, None] * torch.eye(n, dtype=b.dtype), rtol=1e-8, atol=1e-7)
    singular = torch.ones(1, n, n, dtype=torch.float64, requires_grad=True)
    adj, det = adjugate(singular)
    (g,) = torch.autograd.grad(adj.sum() + det.sum(), singular)
    assert torch.isfinite(g).all()


def test_quadratic_forms_and_root() -> None:
    generator = torch.Generator().manual_seed(0)
    inner = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    half = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)

    def form(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return quadratic_forms(x, y @ y.mT)

    expected = torch.einsum("can,nab,cbn->cn", inner, half @ half.mT, inner)
    torch.testing.assert_close(form(inner, half), expected)
    assert gradcheck(form, (inner, half))
    assert gradgradcheck(form, (inner, half))
    x = torch.tensor([0.0, -1e-9, 0.25, 4.0], dtype=torch.float64, requires_grad=True)
    y = root(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, torch.tensor([0.0, 0.0, 0.5, 2.0], dtype=torch.float64))
    torch.testing.assert_close(g, torch.tensor([0.0, 0.0, 1.0, 0.25], dtype=torch.float64))


LIMIT = (10 * torch.finfo(torch.float64).eps) ** 0.5  # below this part of the largest, a singular value is zero


@pytest.mark.parametrize(("value", "size"), [(1.0, 1.0), (2 * LIMIT, 1.0), (LIMIT, 1.0), (LIMIT / 2, 0.25), (0.0, 0.0)])
def test_the_derivative_of_a_value_that_is_zero_up_to_rounding(value: float, size: float) -> None:
    z = torch.diag(torch.tensor([1.0, value], dtype=torch.float64))[None].requires_grad_()
    (g,) = torch.autograd.grad(spectrum(z).sigma.sum(), z)
    torch.testing.assert_close(g.abs(), torch.diag(torch.tensor([1.0, size], dtype=torch.float64))[None])


@pytest.mark.parametrize(("length", "unit"), [(1.0, 1.0), (1e-15, 1.0), (1e-30, 0.0), (0.0, 0.0)])
def test_vectors_shorter_than_rounding_have_no_direction(length: float, unit: float) -> None:
    z = torch.tensor([[[length, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(spectrum(z).u.norm(), torch.tensor(unit, dtype=torch.float64), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("gap", "factor"), [(0.5, 2.0), (1e-2, 1e2), (1e-5, 0.5e5), (1e-7, 1e3)])
def test_the_derivative_of_the_direction_is_damped_where_two_values_are_equal(gap: float, factor: float) -> None:
    """1 / gap, but never more than 1 / (2 delta) with delta = 1e-5."""
    second = (1 - gap) ** 0.5
    z = torch.diag(torch.tensor([1.0, second], dtype=torch.float64))[None].requires_grad_()
    (g,) = torch.autograd.grad(spectrum(z).u[0, 1], z)
    torch.testing.assert_close(g[0, 1, 0].abs(), torch.tensor(second * factor, dtype=torch.float64), rtol=2e-4, atol=0)


@pytest.mark.parametrize(
    ("v", "side"),
    [([1.0, -1.0], 1), ([-1.0, 1.0], -1), ([-0.5, -0.5], -1), ([0.5, -0.5001], -1), ([0.5, -0.50004], 1)],
)
def test_the_side_of_a_vector(v: list[float], side: int) -> None:
    """That of the larger part; the first modality counts 1.0001 times."""
    z = torch.tensor(v, dtype=torch.float64)[None, :, None]
    torch.testing.assert_close(spectrum(z).v[0, :, 0], side * z[0, :, 0] / z.norm())


def test_two_vectors_that_point_apart_agree_in_the_smaller_direction() -> None:
    z = torch.tensor([[[1.0, 0.0], [-0.8, 0.6]], [[1.0, 0.0], [0.8, 0.6]]], dtype=torch.float64)
    sigma, v, u = spectrum(z, torch.tensor([True, True]))
    assert sigma[0, 0] < sigma[0, 1]
    assert sigma[1, 0] > sigma[1, 1]
    assert (v[:, :, 0] > 0).all()
    torch.testing.assert_close(u[0], torch.tensor([0.2, 0.6], dtype=torch.float64) / 0.4**0.5)
    plain, _, _ = spectrum(z)
    assert (plain[:, 0] >= plain[:, 1]).all()


@pytest.mark.parametrize("cuts", [(0, 9), (0, 4, 4, 9), (0, 1, 8, 9)])
def test_running_moments_are_those_of_all_rows(cuts):
    rows = torch.arange(18, dtype=torch.float64).reshape(9, 2).square()
    count, mean, square = torch.zeros((), dtype=torch.float64), torch.zeros(2).double(), torch.zeros(2).double()
    for start, stop in pairwise(cuts):
        add_rows(rows[start:stop], count, mean, square)
    assert count == 9
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(square, (rows - rows.mean(0)).square().sum(0))
    add_summary(torch.tensor(0.0), torch.tensor([9.0, 9.0]), torch.ones(2), count, mean, square)
    assert count == 9
    torch.testing.assert_close(mean, rows.mean(0))
    add_summary(torch.tensor(1.0).double(), rows[0], torch.zeros(2).double(), count, mean, square)  # one row is enough
    assert count == 10


@pytest.mark.parametrize("n", [1, 7, 96, 130])
def test_inverses_of_small_and_large_matrices_equal_those_of_torch(n):
    root = torch.randn(2, n + 2, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrices = root.mT @ root + torch.eye(n)
    found, logdet = inverse_of(matrices)
    assert torch.allclose(found, torch.linalg.inv(matrices))
    assert torch.equal(found, found.mT) or n < 96
    assert torch.allclose(logdet, torch.logdet(matrices))
    assert inverse_of(-matrices) is None
