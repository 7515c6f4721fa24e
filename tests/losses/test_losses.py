"""Every loss against its slow twin, and what must hold for any pattern of missing modalities."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from calmrl.errors import InputError
from calmrl.losses import (
    LOSSES,
    ConfuLoss,
    ContrastiveLoss,
    FuseMixLoss,
    GramLoss,
    PMRLLoss,
    StructureLoss,
    SymileLoss,
    TriangleLoss,
)
from calmrl.losses.base import chunks
from calmrl.losses.volume import root
from tests.reference import losses as slow

NAMES = ("image", "text", "audio", "depth", "touch")
FIXED = {"learn_temperature": False}

# name -> (loss, the same as its slow twin); temperatures that leave every term a gradient
CASES = {
    "pmrl": (PMRLLoss(0.5, 0.2), lambda z, p: slow.pmrl(z, p, 0.5, 0.2)),
    "pmrl as published": (PMRLLoss(0.5, 0.2, sign_guard=False), lambda z, p: slow.pmrl(z, p, 0.5, 0.2, guard=False)),
    "pmrl as printed": (PMRLLoss(0.5, 0.2, log=False), lambda z, p: slow.pmrl(z, p, 0.5, 0.2, log=False)),
    "contrastive, text": (ContrastiveLoss("text", 0.2, **FIXED), lambda z, p: slow.contrastive(z, p, "text", 0.2)),
    "contrastive, all pairs": (
        ContrastiveLoss(None, 0.2, label_smoothing=0.0, **FIXED),
        lambda z, p: slow.contrastive(z, p, None, 0.2, 0.0),
    ),
    "gram, text": (GramLoss("text", 0.2, **FIXED), lambda z, p: slow.gram(z, p, "text", 0.2)),
    "gram, every anchor": (GramLoss(None, 0.2, **FIXED), lambda z, p: slow.gram(z, p, None, 0.2)),
    "gram as published": (
        GramLoss("text", 0.2, sign_guard=False, label_smoothing=0.0, **FIXED),
        lambda z, p: slow.gram(z, p, "text", 0.2, 0.0, guard=False),
    ),
    "triangle, text": (TriangleLoss("text", 0.2, **FIXED), lambda z, p: slow.triangle(z, p, "text", 0.2)),
    "triangle, no root": (
        TriangleLoss("text", 0.2, root=False, label_smoothing=0.0, **FIXED),
        lambda z, p: slow.triangle(z, p, "text", 0.2, 0.0, root=False),
    ),
    "symile": (SymileLoss(None, 0.2, **FIXED), lambda z, p: slow.symile(z, p, None, 0.2)),
    "symile, rows": (
        SymileLoss(None, 0.2, negatives="rows", label_smoothing=0.1, **FIXED),
        lambda z, p: slow.symile(z, p, None, 0.2, 0.1, mixed=False),
    ),
    "symile, text": (
        SymileLoss("text", 0.2, label_smoothing=0.1, **FIXED),
        lambda z, p: slow.symile(z, p, "text", 0.2, 0.1),
    ),
    "confu": (ConfuLoss(0.2), lambda z, p: slow.confu(z, p, 0.2)),
    "confu, mostly fused": (
        ConfuLoss(0.2, weight=0.9, label_smoothing=0.1),
        lambda z, p: slow.confu(z, p, 0.2, 0.1, 0.9),
    ),
    "fusemix": (FuseMixLoss(None, 0.2, **FIXED), lambda z, p: slow.contrastive(z, p, None, 0.2, 0.0)),
    "structure": (StructureLoss(None, 0.2), lambda z, p: slow.contrastive(z, p, None, 0.2, 0.0)),
    "triangle, every anchor": (TriangleLoss(None, 0.2, **FIXED), lambda z, p: slow.triangle(z, p, None, 0.2)),
}
DEFAULTS = [PMRLLoss(), ContrastiveLoss(**FIXED), GramLoss(**FIXED), TriangleLoss(**FIXED)]
DEFAULTS += [SymileLoss(**FIXED), ConfuLoss(), FuseMixLoss(**FIXED), StructureLoss()]


def views(seed: int, n: int, k: int, d: int = 6, dtype: torch.dtype = torch.float64) -> slow.Views:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(n, d, generator=generator, dtype=torch.float64) for name in NAMES[:k]}
    return {name: normalize(vectors, dim=1).to(dtype).requires_grad_() for name, vectors in made.items()}


def pattern(seed: int, n: int, k: int, share: float = 0.7) -> torch.Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed)) < share


def gradients(value: torch.Tensor, z: slow.Views) -> list[torch.Tensor]:
    found = torch.autograd.grad(value, list(z.values()), allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(found, z.values(), strict=True)]


def gaps_are_clear(z: slow.Views, present: torch.Tensor) -> bool:
    """No row's leading singular value is so close to the next that its twin's derivative means nothing."""
    for i in range(len(present)):
        if present[i].sum() >= 2:
            sigma = torch.linalg.svdvals(slow.stacked(z, present, i).detach())
            if sigma[0] ** 2 - sigma[1] ** 2 < 0.05 * sigma[0] ** 2:
                return False
    return True


def signs_are_clear(z: slow.Views, present: torch.Tensor) -> bool:
    """No row is a pair that points apart: its published anchor z1 - z2 is at right angles to z1 + z2, with no side."""
    for i in range(len(present)):
        if present[i].sum() == 2:
            a, b = slow.stacked(z, present, i).detach().T
            if a @ b < 0.01:
                return False
    return True


FEW_ARE_CLEAR = [HealthCheck.filter_too_much]  # signs of random vectors, for "pmrl as published"


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 5), k=st.integers(2, 4), share=st.sampled_from([0.4, 0.7, 1.0]))
@settings(deadline=None, max_examples=12, suppress_health_check=FEW_ARE_CLEAR)
def test_value_and_gradient_of_the_slow_twin(name: str, seed: int, n: int, k: int, share: float) -> None:
    loss, twin = CASES[name]
    z, present = views(seed, n, k), pattern(seed, n, k, share)
    assume(not name.startswith("pmrl") or gaps_are_clear(z, present))
    assume(name != "pmrl as published" or signs_are_clear(z, present))
    ours, theirs = loss(z, present), twin(z, present)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    for g, h in zip(gradients(ours, z), gradients(theirs, z), strict=True):
        torch.testing.assert_close(g, h, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=10, suppress_health_check=FEW_ARE_CLEAR)
def test_the_order_of_rows_and_of_modalities_does_not_matter(name: str, seed: int) -> None:
    loss, _ = CASES[name]
    z, present = views(seed, 5, 4), pattern(seed, 5, 4)
    assume(name != "pmrl as published" or signs_are_clear(z, present))
    generator = torch.Generator().manual_seed(seed)
    columns, rows = torch.randperm(4, generator=generator), torch.randperm(5, generator=generator)
    moved = {list(z)[j]: z[list(z)[j]][rows] for j in columns.tolist()}
    again = loss(moved, present[rows][:, columns])
    torch.testing.assert_close(again, loss(z, present), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fill", [math.nan, math.inf, 1e30])
def test_values_of_missing_rows_change_nothing(name: str, fill: float) -> None:
    loss, _ = CASES[name]
    z, present = views(1, 6, 4), pattern(2, 6, 4)
    value = loss(z, present)
    expected = gradients(value, z)
    spoilt = {
        n: torch.where(present[:, j, None], v.detach(), fill).requires_grad_() for j, (n, v) in enumerate(z.items())
    }
    again = loss(spoilt, present)
    assert again == value
    for j, (g, h) in enumerate(zip(gradients(again, spoilt), expected, strict=True)):
        assert torch.equal(g, h)
        assert not g[~present[:, j]].any()
    if math.isnan(fill):
        assert loss(spoilt) == value  # present=None reads it off the NaN rows


@pytest.mark.parametrize("loss", DEFAULTS, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["identical", "orthogonal", "antipodal", "two equal one not", "zero", "all the same"])
def test_degenerate_rows_stay_finite(loss: torch.nn.Module, dtype: torch.dtype, case: str) -> None:
    for k in (2, 3, 4):
        base = normalize(torch.randn(4, 8, generator=torch.Generator().manual_seed(k)), dim=1)
        vectors = [base.clone() for _ in range(k)]
        if case == "orthogonal":
            vectors = [torch.eye(8)[[j, (j + 4) % 8, j, (j + 4) % 8]] for j in range(k)]
        elif case == "antipodal":
            vectors[1] = -vectors[1]
        elif case == "two equal one not":
            vectors[-1] = base.flip(0)
        elif case == "zero":
            vectors[0] = torch.zeros_like(base)
        elif case == "all the same":
            vectors = [base[:1].expand(4, -1).clone() for _ in range(k)]
        z = {name: v.to(dtype).requires_grad_() for name, v in zip(NAMES, vectors, strict=False)}
        for present in (torch.ones(4, k, dtype=torch.bool), pattern(k, 4, k)):
            value = loss(z, present)
            assert torch.isfinite(value)
            assert all(torch.isfinite(g).all() for g in gradients(value, z))


@pytest.mark.parametrize("loss", DEFAULTS, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("n", [0, 3])
def test_rows_that_cannot_contribute_add_zero_with_a_gradient(loss: torch.nn.Module, n: int) -> None:
    z = views(0, n, 3, dtype=torch.float32)
    value = loss(z, torch.zeros(n, 3, dtype=torch.bool))
    assert value == 0
    assert not any(g.any() for g in gradients(value, z))
    lone = torch.zeros(n, 3, dtype=torch.bool)
    lone[:, 1] = True  # one modality each: nothing to align
    if not isinstance(loss, PMRLLoss):
        assert loss(z, lone) == 0
    else:
        loss(z, lone)
        assert loss.last["align"] == 0


@pytest.mark.parametrize("name", CASES)
def test_chunks_give_the_same(name: str) -> None:
    loss, _ = CASES[name]
    z, present = views(4, 7, 4), pattern(4, 7, 4)
    value = loss(z, present)
    expected = gradients(value, z)
    loss.chunk_size = 3
    try:
        again = loss(z, present)
        torch.testing.assert_close(again, value, rtol=1e-12, atol=1e-13)
        for g, h in zip(gradients(again, z), expected, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-10, atol=1e-12)
    finally:
        loss.chunk_size = None


class Largest(TorchDispatchMode):
    """Remembers the number of entries of the largest tensor any operation gave."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.numel())
        return out


@pytest.mark.parametrize("kind", LOSSES)
def test_memory_never_grows_with_n_squared_times_d(kind: str) -> None:
    n, k, d = 48, 4, 256
    z = {name: v.detach().requires_grad_() for name, v in views(0, n, k, d).items()}
    with Largest() as seen:
        LOSSES[kind]()(z, torch.ones(n, k, dtype=torch.bool)).backward()
    wide = k * (k - 1) // 2 if kind in ("confu", "fusemix", "structure") else k  # all pairs, side by side
    assert seen.entries <= max(n * wide * d, n * n * wide)
    n, d = 96, 4
    z = views(0, n, k, d)
    with Largest() as seen:
        LOSSES[kind](chunk_size=8)(z, torch.ones(n, k, dtype=torch.bool)).backward()
    assert seen.entries < n * n / 2  # in chunks, not even the scores are held


@pytest.mark.parametrize("kind", LOSSES)
def test_bfloat16_autocast(kind: str) -> None:
    z, present = views(0, 8, 4, 32, torch.float32), pattern(0, 8, 4)
    loss = LOSSES[kind]()
    value = loss(z, present)
    expected = gradients(value, z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = loss(z, present)
    assert again.dtype == torch.float32
    assert again == value
    for g, h in zip(gradients(again, z), expected, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-5, atol=1e-6)
    half = {name: v.detach().bfloat16().requires_grad_() for name, v in z.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = loss(half, present)
    rough.backward()
    assert all(v.grad.dtype == torch.bfloat16 and torch.isfinite(v.grad).all() for v in half.values())
    widened = {name: v.detach().float() for name, v in half.items()}
    assert rough == loss(widened, present)  # half precision in, float32 inside


@pytest.mark.parametrize("kind", ["contrastive", "gram", "triangle", "symile", "fusemix"])
def test_temperature_is_learned_or_fixed(kind: str) -> None:
    z, present = views(0, 6, 3), pattern(0, 6, 3, 1.0)
    learned = LOSSES[kind](temperature=0.1)
    learned(z, present).backward()
    (parameter,) = learned.parameters()
    assert parameter.grad != 0
    assert math.isclose(learned.last["temperature"], 0.1, rel_tol=1e-6)
    fixed = LOSSES[kind](temperature=0.1, learn_temperature=False)
    assert not list(fixed.parameters())
    torch.testing.assert_close(fixed(z, present), learned(z, present), rtol=1e-6, atol=0)


def descend(loss: torch.nn.Module, cosine: float, steps: int = 300) -> float:
    """The cosine of a lone pair after gradient steps on one vector."""
    a = torch.tensor([[1.0, 0.0]])
    angle = torch.tensor(math.acos(cosine), requires_grad=True)
    for _ in range(steps):
        b = torch.stack([angle.cos(), angle.sin()])[None]
        loss({"text": a, "image": b}, torch.ones(1, 2, dtype=torch.bool)).backward()
        with torch.no_grad():
            angle -= 0.05 * angle.grad
            angle.grad = None
    return float(angle.detach().cos())


def test_guard_of_the_sign_blind_pair() -> None:
    """The published objective pushes a pair with a negative cosine apart; the guarded one pulls it together."""
    assert descend(PMRLLoss(0.5, sign_guard=False), -0.2) < -0.9
    assert descend(PMRLLoss(0.5), -0.2) > 0.9


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("anchor", [None, "text"])
def test_pairs_at_once_are_the_pairs_one_by_one(anchor, smoothing, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4, 12, 6, generator=generator, dtype=torch.float64)
    present = torch.rand(12, 4, generator=generator) < 0.7
    values, gradients = [], []
    for entries in (1 << 19, 0):
        monkeypatch.setattr("calmrl.losses.contrastive.AT_ONCE", entries)
        z = {name: draws[j].clone().requires_grad_() for j, name in enumerate(("image", "text", "audio", "depth"))}
        loss = ContrastiveLoss(anchor, temperature=0.3, label_smoothing=smoothing)
        value = loss(z, present)
        value.backward()
        values.append(value.detach())
        gradients.append(torch.stack([rows.grad for rows in z.values()]))
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().sum() > 0


def test_guard_of_gram_falls_with_the_cosine() -> None:
    angles = torch.linspace(0, math.pi, 41, dtype=torch.float64)
    others = torch.stack([angles.cos(), angles.sin()], dim=1)
    anchors = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(41, 2)
    seen: list[torch.Tensor] = []

    def remember(block, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
        seen.append(-block(0, 1)[0])
        return torch.zeros(()), torch.zeros(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calmrl.losses.base.symmetric_terms", remember)
        for guard in (True, False):
            loss = GramLoss(temperature=1.0, sign_guard=guard, **FIXED)
            loss({"text": anchors, "image": others}, torch.ones(41, 2, dtype=torch.bool))
    assert (seen[0].diff() > 0).all()  # grows with the angle all the way to 180 degrees
    assert seen[0][-1] == pytest.approx(2)
    assert seen[1][-1] == pytest.approx(0, abs=1e-7)  # the published volume takes opposite vectors for equal ones


# ---- what they tell about their last call, and what they refuse


PATTERN = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 1], [0, 1, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        *(("contrastive", 5), ("vast", 5), ("gram", 3), ("triangle", 3)),
        *(("symile", 4 + 2 + 3 + 2), ("confu", 11 + 12 + 3), ("fusemix", 11), ("structure", 11)),
    ],
)
def test_number_of_terms(kind: str, terms: int) -> None:
    """(pair, row) terms of the contrastive loss, rows with text and something else of the others."""
    loss = LOSSES[kind](temperature=0.5)
    loss(views(5, 5, 4), PATTERN)
    assert loss.last["terms"] == terms + (kind in ("contrastive", "vast"))
    assert float(loss.last["temperature"]) == pytest.approx(0.5)
    assert not loss.last["temperature"].requires_grad


def test_mixed_dtypes_are_raised_to_the_widest() -> None:
    z = views(5, 5, 4)
    mixed = {name: v.float() if name == "image" else v for name, v in z.items()}
    assert PMRLLoss()(mixed, PATTERN).dtype == torch.float64
    assert PMRLLoss()({name: v.half() for name, v in z.items()}, PATTERN).dtype == torch.float32


@pytest.mark.parametrize("size", [1e4, 10000.5])
def test_vectors_that_are_too_long(size: float) -> None:
    z, present = {n: v.detach() for n, v in views(3, 3, 2).items()}, torch.ones(3, 2, dtype=torch.bool)
    z["text"][1, 2] = -size
    if size == 1e4:
        assert torch.isfinite(PMRLLoss()(z, present))
    else:
        with pytest.raises(InputError, match=r"z\['text'\] has values of up to 1e\+04; an alignment loss compares"):
            PMRLLoss()(z, present)


def unit(*angles: float) -> torch.Tensor:
    turned = torch.tensor(angles, dtype=torch.float64)
    return torch.stack([turned.cos(), turned.sin()], dim=1)


def test_what_gram_tells() -> None:
    """Two pairs at 30 and 120 degrees, a row of three, a row of one."""
    z = {
        "text": torch.cat([unit(0, 0, 0, 0), torch.zeros(4, 1)], 1),
        "image": torch.cat([unit(math.pi / 6, 2 * math.pi / 3, math.pi / 2, 0), torch.zeros(4, 1)], 1),
        "audio": torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64).expand(4, 3).clone(),
    }
    present = torch.tensor([[True, True, False], [True, True, False], [True, True, True], [True, False, False]])
    loss = GramLoss()
    loss(z, present)
    told = {name: float(value) for name, value in loss.last.items()}
    assert told["volume"] == pytest.approx((0.5 + 0.75**0.5 + 1) / 3)
    assert told["sign_conflict"] == pytest.approx(0.5)
    assert told["terms"] == 3


def test_a_pair_at_right_angles_is_not_in_conflict() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    for loss in (GramLoss(), PMRLLoss()):
        loss({"text": eye[:1], "image": eye[1:]}, torch.ones(1, 2, dtype=torch.bool))
        assert float(loss.last["sign_conflict"]) == 0
    assert float(loss.last["guarded"]) == 0


@pytest.mark.parametrize(("cosine", "conflict"), [(-5e-4, 0.0), (-2e-3, 1.0)])
def test_when_a_third_modality_points_away(cosine: float, conflict: float) -> None:
    """Its weight in the leading direction is sqrt(2) times its cosine with the two others, and -0.001 is the limit."""
    two, third = unit(0.0), unit(math.acos(cosine))
    loss = PMRLLoss()
    loss({"a": two, "b": two, "c": third}, torch.ones(1, 3, dtype=torch.bool))
    assert float(loss.last["sign_conflict"]) == conflict
    assert float(loss.last["guarded"]) == 0


def test_shares_are_of_rows_with_two_or_more() -> None:
    z = {"a": unit(0.0, 0.0, 0.0), "b": unit(2.0, 1.0, 2.0)}
    loss = PMRLLoss()
    loss(z, torch.tensor([[True, True], [True, True], [True, False]]))
    assert float(loss.last["sign_conflict"]) == 0.5
    assert float(loss.last["guarded"]) == 0.5
    values = [[(1 + math.cos(x)) ** 0.5, (1 - math.cos(x)) ** 0.5] for x in (2.0, 1.0)]
    shares = [math.exp(x / 0.05) / (math.exp(x / 0.05) + math.exp(y / 0.05)) for x, y in values]
    assert float(loss.last["saturation"]) == pytest.approx(sum(shares) / 2)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_temperatures_that_cannot_be(value: float) -> None:
    for make in (ContrastiveLoss, GramLoss, TriangleLoss, PMRLLoss):
        for options in ({}, {"learn_temperature": False}) if make is not PMRLLoss else ({},):
            with pytest.raises(InputError, match=f"^temperature must be a positive number; got {value}"):
                make(temperature=value, **options)
    with pytest.raises(InputError, match=f"^anchor_temperature must be a positive number; got {value}"):
        PMRLLoss(anchor_temperature=value)


def test_errors_say_what_to_do() -> None:
    z = views(0, 3, 3)
    with pytest.raises(InputError, match="anchor 'speech' is not one of the modalities"):
        GramLoss("speech")(z, pattern(0, 3, 3))
    with pytest.raises(InputError, match="project them to the same width"):
        PMRLLoss()({"a": torch.zeros(2, 3), "b": torch.zeros(2, 4)}, torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(InputError, match="at least two modalities"):
        PMRLLoss()({"a": torch.zeros(2, 3)}, torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(InputError, match="torch tensors"):
        PMRLLoss()({"a": torch.zeros(2, 3).numpy(), "b": torch.zeros(2, 3).numpy()}, torch.ones(2, 2).bool())
    with pytest.raises(InputError, match="columns"):
        PMRLLoss()(z, pattern(0, 3, 2))


# ---- their parts


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [
        (0, None, [(0, 0)]),
        (1, None, [(0, 1)]),
        (4, None, [(0, 2), (2, 4)]),
        (5, None, [(0, 2), (2, 4), (4, 5)]),
        (11, None, [(row, row + 1) for row in range(11)]),  # one row at least
        (5, 3, [(0, 3), (3, 5)]),
        (0, 3, [(0, 0)]),
    ],
)
def test_rows_at_once(monkeypatch, n, size, expected):
    monkeypatch.setattr("calmrl.losses.base.SCORES_AT_ONCE", 10)
    assert chunks(n, size) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_derivative_of_the_root_is_damped_by_ten_rounding_units(dtype):
    delta = 10 * torch.finfo(dtype).eps
    x = torch.tensor([-1.0, 0.0, delta, 4.0], dtype=dtype, requires_grad=True)
    y = root(x)
    torch.testing.assert_close(y, torch.tensor([0.0, 0.0, delta**0.5, 2.0], dtype=dtype))
    (slope,) = torch.autograd.grad(3 * y.sum(), x)
    expected = torch.tensor([0.0, 0.0, 3 * 0.5 * delta**0.5 / (2 * delta), 3 * 0.25], dtype=dtype)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=0)
