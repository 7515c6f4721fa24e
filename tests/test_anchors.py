"""Anchors, anchor shift, and bounds that hold in every trial."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from calmrl.anchors import (
    anchor,
    anchor_shift,
    calibration_helps,
    calibration_threshold,
    completion_bounds,
    completion_shift,
    printed_calibration_threshold,
    printed_shift_bounds,
    shift_bounds,
)
from calmrl.errors import InputError

Trial = tuple[dict[str, torch.Tensor], torch.Tensor]


def trials(n: int, k: int, d: int, shared: float, generator: torch.Generator) -> Trial:
    """Unit vectors with a common part, and random patterns in which something is there and something is missing."""
    common = torch.randn(n, 1, d, generator=generator, dtype=torch.float64)
    own = torch.randn(n, k, d, generator=generator, dtype=torch.float64)
    z = normalize(shared**0.5 * common + (1 - shared) ** 0.5 * own, dim=2)
    present = torch.rand(n, k, generator=generator) < 0.6
    keep = torch.randint(k, (n,), generator=generator)
    drop = (keep + torch.randint(1, k, (n,), generator=generator)) % k
    present[torch.arange(n), keep] = True
    present[torch.arange(n), drop] = False
    return {str(m): z[:, m] for m in range(k)}, present


def all_trials() -> list[Trial]:
    generator = torch.Generator().manual_seed(0)
    sizes = [(k, d) for k in (2, 3, 4, 6, 8) for d in (2, 4, 8, 32)]
    return [trials(1250, k, d, shared, generator) for k, d in sizes for shared in (0.0, 0.3, 0.7, 0.95)]


def test_corrected_bounds_hold_in_100_000_trials() -> None:
    """Zero violations; and the printed bounds fail as often as docs/results.md says."""
    total = violations = undefined = beyond = above = 0
    tightness = []
    for z, present in all_trials():
        delta = anchor_shift(z, present)
        low, high = shift_bounds(z, present)
        total += len(delta)
        violations += int(((low > delta) | (delta > high + 1e-9)).sum())
        tightness.append((low / delta)[delta > 1e-6])
        printed_low, printed_high = printed_shift_bounds(z, present)
        undefined += int(printed_low.isnan().sum())
        beyond += int((delta > printed_high + 1e-9).sum())
        assert not (printed_low > delta + 1e-9).any()  # for unit vectors, where it is defined
        short = {name: 0.2 * vectors for name, vectors in z.items()}
        above += int((printed_shift_bounds(short, present)[0] > delta + 1e-9).sum())
    assert total == 100_000
    assert violations == 0
    assert undefined / total == pytest.approx(0.815, abs=0.001)
    assert beyond / total == pytest.approx(0.009, abs=0.001)
    assert above / total == pytest.approx(0.651, abs=0.001)
    assert torch.cat(tightness).median() == pytest.approx(0.88, abs=0.005)


def test_bounds_of_completed_anchors_hold() -> None:
    """Zero violations with imputation errors from none to larger than the vectors, and they are not empty."""
    generator = torch.Generator().manual_seed(7)
    certain = 0
    for z, present in all_trials()[::11]:
        scale = 1.5 * torch.rand(len(present), 1, generator=generator, dtype=torch.float64) ** 3
        filled = {
            name: torch.where(
                present[:, [m]], v, v + scale * normalize(torch.randn(v.shape, generator=generator), dim=1)
            )
            for m, (name, v) in enumerate(z.items())
        }
        after = completion_shift(z, filled, present)[1]
        low, high = completion_bounds(z, filled, present)
        assert not ((low > after + 1e-12) | (after > high + 1e-9)).any()
        certain += int((high < 1).sum())
    assert certain > 500


def test_printed_condition_is_neither_necessary_nor_sufficient() -> None:
    """As often as docs/results.md says; the corrected one is never wrong."""
    generator = torch.Generator().manual_seed(5)
    rows: dict[str, list[torch.Tensor]] = {"threshold": [], "error": [], "helped": [], "certain": []}
    for z, present in all_trials():
        error = torch.rand(len(present), generator=generator, dtype=torch.float64)
        before, after = completion_shift(z, completed(z, present, error, generator), present)
        rows["threshold"].append(printed_calibration_threshold(z, present))
        rows["error"].append(error)
        rows["helped"].append(after < before)
        rows["certain"].append(calibration_helps(z, present, error))
    threshold, error, helped, certain = (torch.cat(part) for part in rows.values())
    assert helped[certain].all()
    assert certain.float().mean() == pytest.approx(0.090, abs=0.001)
    assert helped[threshold.isnan()].float().mean() == pytest.approx(0.57, abs=0.005)
    assert helped[error >= threshold].float().mean() == pytest.approx(0.70, abs=0.005)
    below = error < threshold
    assert int(below.sum()) == pytest.approx(727, abs=5)
    assert int((below & ~helped).sum()) == pytest.approx(43, abs=3)


def completed(z: dict, present: torch.Tensor, error: torch.Tensor, generator: torch.Generator) -> dict:
    """The missing vectors moved by `error` in random directions."""
    found = {}
    for m, (name, vectors) in enumerate(z.items()):
        step = normalize(torch.randn(vectors.shape, generator=generator, dtype=torch.float64), dim=1) * error[:, None]
        found[name] = torch.where(present[:, m, None], vectors, vectors + step)
    return found


def test_certified_calibration_always_helps() -> None:
    """Where calibration_helps says so, no completion within the error moves the anchor further away."""
    generator = torch.Generator().manual_seed(1)
    certain = 0
    for z, present in all_trials()[::11]:
        share = torch.rand(len(present), generator=generator, dtype=torch.float64)
        error = calibration_threshold(z, present) * share
        filled = completed(z, present, error, generator)
        before, after = completion_shift(z, filled, present)
        sure = calibration_helps(z, present, error)
        certain += int(sure.sum())
        assert (after[sure] < before[sure]).all()
        useful = ((anchor(z) * anchor(filled)).sum(1) >= 0) & (error > 1e-6)
        assert (after[useful] < before[useful]).all()
    assert certain > 5_000


def test_known_cases() -> None:
    one = torch.eye(4, dtype=torch.float64)
    same = {name: one[:1] for name in ("a", "b", "c")}
    present = torch.tensor([[True, True, False]])
    # equal modalities: the lost one contributed (eta = 1), the singular value fell, and the anchor stayed where it was
    assert anchor_shift(same, present) == 0
    low, high = shift_bounds(same, present)
    assert low == 0
    assert high >= 0
    # e1, e1, e2 with e2 missing: u = e1 before and after
    mixed = {"a": one[:1], "b": one[:1], "c": one[1:2]}
    torch.testing.assert_close(anchor(mixed), one[:1])
    assert anchor_shift(mixed, present) == pytest.approx(0)
    # e2 seen alone: u^Omega = e2, at right angles, and the lower bound is what |Z^T e2| = 1 leaves of sigma_1 = sqrt(2)
    alone = torch.tensor([[False, False, True]])
    assert anchor_shift(mixed, alone) == pytest.approx(2**0.5)
    low, high = shift_bounds(mixed, alone)
    assert low == pytest.approx((2 * (1 - 0.5**0.5)) ** 0.5)
    assert high == pytest.approx(2**0.5)
    everything = torch.ones(1, 3, dtype=torch.bool)
    assert anchor_shift(mixed, everything) == 0
    assert [float(b) for b in shift_bounds(mixed, everything)] == [0, 0]
    assert calibration_threshold(mixed, everything) == 0
    assert not calibration_helps(mixed, everything, 0.0)


def test_anchor_is_oriented_and_ignores_missing_values() -> None:
    z, present = trials(50, 4, 6, 0.2, torch.Generator().manual_seed(0))
    u = anchor(z, present)
    stacked = torch.where(present[:, :, None], torch.stack(list(z.values()), dim=1), 0.0)
    assert ((u * stacked.sum(1)).sum(1) >= -1e-3).all()  # a tie goes to the earlier modality
    spoilt = {name: torch.where(present[:, m, None], v, torch.nan) for m, (name, v) in enumerate(z.items())}
    assert torch.equal(anchor(spoilt, present), u)
    assert torch.equal(anchor(spoilt), u)


def _twin(z, filled, present):
    """Every quantity of one row (k, d) from its definition, by singular value decompositions."""
    sides = {}
    earlier = np.linspace(1.0001, 1, len(z))  # decides where the modalities point apart
    for name, rows in (("all", z), ("seen", z * present[:, None]), ("filled", filled)):
        u, sigma, v = np.linalg.svd(rows.T, full_matrices=False)
        sides[name] = np.sign(v[0] @ earlier) * u[:, 0], sigma
    (u, s), (v, t), (w, f) = sides.values()
    lost, error = np.linalg.norm(z[~present], 2), np.linalg.norm(filled - z, 2)
    eta, gap, missing = ((z[~present] @ v) ** 2).sum(), s[0] - s[1], (~present).sum()
    turn = 1 - (t[0] ** 2 + eta) / s[0] ** 2
    printed = 1 - (t[0] + eta) / s[0]
    wide = max(s[0] - f[1], f[0] - s[1])
    return {
        "shift": np.linalg.norm(u - v),
        "after": np.linalg.norm(u - w),
        "low": (2 * (1 - (t[0] ** 2 + eta) ** 0.5 / s[0])) ** 0.5,
        "high": 2**0.5 * min(1, lost / gap) if u @ v >= 0 else 2.0,
        "completed low": (2 * (1 - np.linalg.norm(z @ w) / s[0])) ** 0.5,
        "completed high": 2**0.5 * min(1, error / wide if wide > 0 else 1.0) if u @ w >= 0 else 2.0,
        "printed low": (2 * printed) ** 0.5 if printed >= 0 else np.nan,
        "printed high": 2**0.5 * lost / gap,
        "threshold": gap / missing**0.5 * turn**0.5 / (1 + turn**0.5),
        "printed threshold": gap / missing**0.5 * printed**0.5 if printed >= 0 else np.nan,
    }


@pytest.mark.parametrize(("k", "d", "length"), [(2, 3, 0.2), (3, 5, 1.0), (4, 2, 0.4), (6, 8, 1.0)])
def test_everything_is_as_defined(k: int, d: int, length: float) -> None:
    z, present = trials(40, k, d, 0.1, torch.Generator().manual_seed(k))
    scale = length * (1 + torch.arange(40, dtype=torch.float64) / 40)[:, None]
    z = {name: vectors * scale for name, vectors in z.items()}
    filled = completed(z, present, 0.5 * scale[:, 0], torch.Generator().manual_seed(0))
    shift, after = completion_shift(z, filled, present)
    bounds = [shift_bounds, printed_shift_bounds]
    found = {"shift": shift, "after": after}
    found |= dict(zip(("low", "high"), bounds[0](z, present), strict=True))
    found |= dict(zip(("completed low", "completed high"), completion_bounds(z, filled, present), strict=True))
    found |= dict(zip(("printed low", "printed high"), bounds[1](z, present), strict=True))
    found |= {"threshold": calibration_threshold(z, present)}
    found |= {"printed threshold": printed_calibration_threshold(z, present)}
    assert torch.equal(shift, anchor_shift(z, present))
    stacked, imputed = (torch.stack(list(part.values()), 1).numpy() for part in (z, filled))
    twins = [_twin(stacked[i], imputed[i], present[i].numpy()) for i in range(40)]
    for name, values in found.items():
        np.testing.assert_allclose(values, [twin[name] for twin in twins], rtol=1e-6, atol=2e-6, err_msg=name)
    # an error at the threshold is not below it
    assert not calibration_helps(z, present, found["threshold"]).any()


def test_rows_at_the_edge() -> None:
    one, eps = torch.eye(3, dtype=torch.float64), torch.finfo(torch.float64).eps
    everything = torch.ones(1, 2, dtype=torch.bool)
    first = torch.tensor([[True, False]])
    # equal singular values, or nothing but zeros, and all of it there: no shift, and nothing is divided by 0
    for z in ({"a": one[:1], "b": one[1:2]}, {"a": 0 * one[:1], "b": 0 * one[:1]}):
        assert [float(bound) for bound in shift_bounds(z, everything)] == [0, 0]
    # vectors of length 1 and 2 at right angles, the longer one missing: what 16 k eps take off the lower bound
    long = {"a": one[:1], "b": 2 * one[1:2]}
    low, high = shift_bounds(long, first)
    assert float(low) == (2 * (0.5 - 32 * eps)) ** 0.5
    assert float(high) == 2**0.5
    # the completed anchor lies at right angles too, and the upper bound is that of u . u^completed >= 0
    low, high = completion_bounds(long, {"a": 2 * one[:1], "b": one[1:2]}, first)
    assert float(low) == (2 * (0.5 - 32 * eps)) ** 0.5
    assert float(high) == 2**0.5
    # and where it points away, nothing better than 2 holds
    assert float(completion_bounds(long, {"a": one[:1], "b": -2 * one[1:2]}, first)[1]) == 2.0
    z, _ = trials(50, 3, 4, 0.3, torch.Generator().manual_seed(0))
    assert not calibration_threshold(z, torch.ones(50, 3, dtype=torch.bool)).any()


def test_precision_is_that_of_the_input() -> None:
    z, _ = trials(20, 3, 5, 0.3, torch.Generator().manual_seed(0))
    exact = anchor(z)
    u = np.linalg.svd(torch.stack(list(z.values()), 2).numpy(), full_matrices=False)[0][:, :, 0]
    np.testing.assert_allclose(np.abs((u * exact.numpy()).sum(1)), 1, rtol=0, atol=1e-14)
    half = anchor({name: vectors.half() for name, vectors in z.items()})
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=3e-3)


def test_errors_say_what_to_do() -> None:
    z, present = trials(3, 2, 4, 0.5, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="NaN"):
        anchor_shift({"a": z["0"], "b": z["1"] * torch.nan}, present)
    with pytest.raises(InputError, match="one width"):
        anchor({"a": z["0"], "b": z["1"][:, :2]})
    with pytest.raises(InputError, match="at least two"):
        anchor_shift({"a": z["0"]}, present[:, :1] | True)
    with pytest.raises(
        InputError, match="z_completed has the modalities 1, 0 but z_complete has 0, 1; pass the same ones"
    ):
        completion_shift(z, {"1": z["1"], "0": z["0"]}, present)
    with pytest.raises(InputError, match="present is None; pass a bool array"):
        anchor_shift(z, None)
