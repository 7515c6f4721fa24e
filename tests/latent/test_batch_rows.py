"""A training batch as one matrix: against plain autograd row by row, and its sums against those of sorted rows."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.arrays import check
from calmrl.errors import InputError
from calmrl.latent import online as batch_rows
from calmrl.latent.model import KEPT, Expectation, Parameters, random_parameters
from calmrl.latent.online import BatchPosterior, Recent, Running, absorb, completed
from calmrl.latent.rows import pack
from calmrl.latent.statistics import Statistics, add_pack

EQUAL, UNEQUAL = (4, 4, 4), (3, 5, 2)


def model(widths: tuple[int, ...], latent_dim: int = 2) -> Parameters:
    generator = torch.Generator().manual_seed(0)
    mean = [torch.randn(d, generator=generator, dtype=torch.float64) for d in widths]
    variance = [1 + torch.rand(d, generator=generator, dtype=torch.float64) for d in widths]
    return random_parameters([f"m{j}" for j in range(len(widths))], mean, variance, latent_dim, generator)


def values(n: int, widths: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=generator, dtype=torch.float64).requires_grad_() for d in widths]


def row_by_row(params: Parameters, z: list[Tensor], present: Tensor, unit: bool) -> Tensor:
    """The formulas as they are written, for one row at a time."""
    rows = []
    for i, has in enumerate(present.tolist()):
        precision, evidence = torch.eye(params.latent_dim, dtype=torch.float64), torch.zeros(params.latent_dim).double()
        for m in range(len(z)):
            if has[m]:
                weighted = params.W[m][0].T / params.noise[m][0]
                precision = precision + weighted @ params.W[m][0]
                evidence = evidence + weighted @ (z[m][i] - params.mu[m][0])
        mean = torch.linalg.inv(precision) @ evidence
        blocks = []
        for m in range(len(z)):
            y = params.W[m][0] @ mean + params.mu[m][0]
            blocks.append(z[m][i] if has[m] else y / y.norm() if unit else y)
        rows.append(torch.cat(blocks))
    return torch.stack(rows)


def masks(n: int) -> dict[str, Tensor]:
    mixed = torch.rand(n, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    mixed[:, 1] |= ~mixed.any(1)
    one_pattern = torch.tensor([[True, False, True]]).expand(n, 3)
    single = torch.eye(3, dtype=torch.bool)[torch.arange(n) % 3]
    return {"mixed": mixed, "one pattern": one_pattern, "one modality": single, "complete": torch.ones_like(mixed)}


@pytest.mark.parametrize("case", masks(1))
@pytest.mark.parametrize("widths", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("unit", [True, False])
def test_completion_and_its_derivatives(
    case: str, widths: tuple[int, ...], unit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    present, params, z = masks(7)[case], model(widths), values(7, widths)
    expect = Expectation.of(params, torch.float64)

    def ours(*z: Tensor) -> Tensor:
        with torch.no_grad():
            posterior = BatchPosterior(expect, z, present)
        return completed(z, posterior, unit)

    expected = row_by_row(params, z, present, unit)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradient = torch.autograd.grad((expected * weight).sum(), z, materialize_grads=True)
    for padded in (batch_rows.PADDED, -(10**9)):  # all patterns in one product, and one after the other
        monkeypatch.setattr(batch_rows, "PADDED", padded)
        found = ours(*z)
        torch.testing.assert_close(found, expected)
        for got, wanted in zip(torch.autograd.grad((found * weight).sum(), z), gradient, strict=True):
            torch.testing.assert_close(got, wanted)
    assert torch.autograd.gradcheck(ours, z)
    assert torch.autograd.gradgradcheck(ours, z)


@pytest.mark.parametrize("widths", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_values_of_missing_rows_are_never_used(widths: tuple[int, ...]) -> None:
    present, params, z = masks(7)["mixed"], model(widths), values(7, widths)
    expect = Expectation.of(params, torch.float64)
    spoilt = [torch.where(present[:, m, None], v.detach(), torch.nan).requires_grad_() for m, v in enumerate(z)]
    filled, again = (completed(v, BatchPosterior(expect, [t.detach() for t in v], present), True) for v in (z, spoilt))
    assert torch.equal(filled, again)
    for m, (g, h) in enumerate(
        zip(torch.autograd.grad(filled.sum(), z), torch.autograd.grad(again.sum(), spoilt), strict=True)
    ):
        assert torch.equal(g, h)
        assert not h[~present[:, m]].any()


def test_nothing_of_a_batch_outlives_its_backward_pass() -> None:
    present, params, z = masks(7)["mixed"], model(EQUAL), values(7, EQUAL)
    posterior = BatchPosterior(Expectation.of(params, torch.float64), [v.detach() for v in z], present)
    held = weakref.ref(posterior)
    gc.disable()  # what is left then is what only a garbage collection would free
    try:
        filled = completed(z, posterior, True)
        filled.sum().backward()
        del posterior, filled
        assert held() is None
    finally:
        gc.enable()


def many_patterns(n: int, k: int) -> Tensor:
    present = torch.rand(n, k, generator=torch.Generator().manual_seed(3)) < 0.5
    present[:, 0] |= ~present.any(1)
    return present


@pytest.mark.parametrize(("n", "k"), [(9, 3), (300, 8)], ids=["few", "more patterns than are kept"])
def test_sums_of_batches_are_those_of_sorted_rows(n: int, k: int) -> None:
    widths = tuple(3 + j % 2 for j in range(k))
    params, present = model(widths), many_patterns(n, k)
    expect = Expectation.of(params, torch.float64)
    if n == 300:
        assert len(torch.unique(present, dim=0)) > KEPT
    wanted, recent = Statistics.zeros(params), Recent.nothing(params, torch.float64)
    for seed in (0, 1):
        z = [v.detach() + 100 for v in values(n, widths, seed)]
        batch = Statistics.zeros(params)
        add_pack(batch, pack(z, present, widths, torch.float64), expect)
        wanted.combine(batch, keep=0.7, add=0.2)
        recent.add(BatchPosterior(expect, z, present), present, keep=0.7, add=0.2)
    assert recent.kept == pytest.approx(0.49)
    for got, want in zip(recent.statistics().tensors(), wanted.tensors(), strict=True):
        torch.testing.assert_close(got, want)


def test_a_batch_of_another_dtype_settles_what_is_recent() -> None:
    params, present = model(EQUAL), masks(9)["mixed"]
    running: Running | None = None
    for dtype in (torch.float64, torch.float32, torch.float64):
        z = [v.detach().to(dtype) for v in values(9, EQUAL)]
        expect = Expectation.of(params, dtype)
        running = absorb(expect, BatchPosterior(expect, z, present), present, running, 0.5)
    wanted, batch = Statistics.zeros(params), Statistics.zeros(params)
    add_pack(batch, pack(z, present, EQUAL, torch.float64), Expectation.of(params, torch.float64))
    for _ in range(3):
        wanted.combine(batch, keep=0.5, add=0.5 / 9)
    nothing = [v.detach() for v in values(0, EQUAL)]  # a process without rows adds nothing
    running = absorb(expect, BatchPosterior(expect, nothing, present[:0]), present[:0], running, 0.5)
    running.settle()
    assert running.rows == 27
    for got, want in zip(running.average.tensors(), wanted.tensors(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_state_between_two_m_steps_goes_on_to_the_bit() -> None:
    def batch(seed: int) -> tuple[dict[str, Tensor], Tensor]:
        return {f"m{j}": v.float() for j, v in enumerate(values(16, EQUAL, seed))}, masks(16)["mixed"]

    align = CalibratedAlignment("pmrl", imputer=GaussianImputer(latent_dim=2), m_every=8)
    for seed in range(28):
        align(*batch(seed))
    assert align.imputer._running.recent is not None
    other = CalibratedAlignment("pmrl", imputer=GaussianImputer(latent_dim=2), m_every=8)
    other.load_state_dict(deepcopy(align.state_dict()))
    for seed in range(28, 36):  # an M-step is among them
        assert align(*batch(seed)) == other(*batch(seed))
    for name in align.imputer.W_:
        assert torch.equal(align.imputer.W_[name], other.imputer.W_[name])


def test_observed_values_are_checked() -> None:
    z = {f"m{j}": v.detach() for j, v in enumerate(values(9, EQUAL))}
    imputer = GaussianImputer.from_parameters(model(EQUAL))
    present = masks(9)["one pattern"].clone()
    for wrong, said in ((float("nan"), "has NaN in row 4"), (1e200, "too large")):
        spoilt = {**z, "m2": z["m2"].index_fill(0, torch.tensor([4]), wrong)}
        with pytest.raises(InputError, match=said):
            imputer.complete_batch(check(spoilt, present, values=False))
    swapped = {name: z[name] for name in ("m2", "m1", "m0")}  # the same rows in another order of modalities
    torch.testing.assert_close(
        imputer.complete_batch(check(swapped, present)), imputer.complete_batch(check(z, present))
    )
    with pytest.raises(InputError, match="width 3 but the model was fitted with 4"):
        imputer.complete_batch(check({**z, "m0": z["m0"][:, :3]}, present))
