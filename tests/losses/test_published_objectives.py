"""Symile, ConFu, FuseMix and STRUCTURE: their published formulas, features, parameters, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, kl_div, normalize

from calmrl.errors import InputError
from calmrl.losses import ConfuLoss, ContrastiveLoss, FuseMixLoss, StructureLoss, SymileLoss
from tests.reference import losses as slow

NAMES = ("image", "text", "audio")
WIDTHS = {"image": 5, "text": 7, "audio": 3}
FIXED = {"learn_temperature": False}


def views(seed: int, n: int = 6, d: int = 4) -> slow.Views:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(n, d, generator=generator, dtype=torch.float64) for name in NAMES}
    return {name: normalize(rows, dim=1).requires_grad_() for name, rows in made.items()}


def features(seed: int, n: int = 6) -> slow.Views:
    generator = torch.Generator().manual_seed(seed + 1)
    return {name: torch.randn(n, d, generator=generator, dtype=torch.float64) for name, d in WIDTHS.items()}


def pattern(seed: int, n: int = 6, share: float = 0.7) -> torch.Tensor:
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(seed)) < share


def whole(n: int = 6) -> torch.Tensor:
    return torch.ones(n, 3, dtype=torch.bool)


def gradients(value: torch.Tensor, of) -> list[torch.Tensor]:
    of = list(of)
    found = torch.autograd.grad(value, of, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(found, of, strict=True)]


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, of) -> None:
    """Values and gradients."""
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    for g, h in zip(gradients(ours, of), gradients(theirs, of), strict=True):
        torch.testing.assert_close(g, h, rtol=1e-6, atol=1e-8)


def symmetric(a: torch.Tensor, b: torch.Tensor, t: float) -> torch.Tensor:
    own = torch.arange(len(a))
    return (cross_entropy(a @ b.T / t, own) + cross_entropy(b @ a.T / t, own)) / 2


# ---- symile


def test_symile_of_complete_rows_is_the_published_objective() -> None:
    """All N^2 pairs of the two others compete, for each of three anchors, at the scale sqrt(d) / t."""
    z = views(0)
    scale, losses = math.sqrt(4) / 0.3, []
    for a in NAMES:
        x, (y, w) = z[a], (z[name] for name in NAMES if name != a)
        products = torch.cat([y * w.roll(shift, 0) for shift in range(6)])  # those of the same row first
        losses.append(cross_entropy(scale * x @ products.T, torch.arange(6)))
    assert_same(SymileLoss(temperature=0.3, **FIXED)(z, whole()), sum(losses) / 3, z.values())


def test_symile_sees_what_no_pair_shows() -> None:
    """Of three vectors of signs, the third is the product of the others; any two of them are independent."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(2, (200, 8), generator=generator) * 2.0 - 1 for _ in range(2))
    right = {"image": x / 8**0.5, "text": y / 8**0.5, "audio": x * y / 8**0.5}
    wrong = right | {"audio": right["audio"].roll(1, 0)}
    for loss, gain in (
        (SymileLoss(temperature=0.3, negatives="rows"), (1.0, 9.0)),
        (ContrastiveLoss(None, 0.3, label_smoothing=0.0), (-0.2, 0.2)),
    ):
        gained = float((loss(wrong, whole(200)) - loss(right, whole(200))).detach())
        assert gain[0] < gained < gain[1]


# ---- confu


def learned(seed: int = 0, **options) -> ConfuLoss:
    torch.manual_seed(seed)
    return ConfuLoss(0.3, fusion="learned", names=NAMES, width=4, **options).double()


def test_confu_of_complete_rows_is_twice_the_published_loss() -> None:
    z, loss = views(2), learned(weight=0.3)
    pairs = [symmetric(z[a], z[b], 0.3) for a, b in (("image", "text"), ("image", "audio"), ("text", "audio"))]
    fused = [
        symmetric(normalize(mixer(torch.cat([z[a], z[b]], 1)), dim=1), z[c], 0.3)
        for mixer, (a, b, c) in zip(
            loss.mixers, (NAMES, ("image", "audio", "text"), ("text", "audio", "image")), strict=True
        )
    ]
    published = (0.3 * sum(fused) + 0.7 * sum(pairs)) / 6
    assert_same(loss(z, whole()), 2 * published, [*z.values(), *loss.parameters()])
    assert len(list(loss.parameters())) == 12


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.5, 0.8]))
@settings(deadline=None, max_examples=10)
def test_confu_with_weights_is_its_slow_twin(seed: int, share: float) -> None:
    z, present, loss = views(seed), pattern(seed, share=share), learned(seed)
    place = {("image", "text"): 0, ("image", "audio"): 1, ("text", "audio"): 2}

    def fuse(a: str, b: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss.mixers[place[a, b]](torch.cat([x, y]))

    assert_same(loss(z, present), slow.confu(z, present, 0.3, fuse=fuse), [*z.values(), *loss.parameters()])
    spoilt = {name: torch.where(present[:, [j]], rows, torch.nan) for j, (name, rows) in enumerate(z.items())}
    assert loss(spoilt, present) == loss(z, present)
    assert all(torch.isfinite(g).all() for g in gradients(loss(spoilt, present), loss.parameters()))
    order = ["audio", "image", "text"]  # weights go by name
    again = loss({name: z[name] for name in order}, present[:, [2, 0, 1]])
    torch.testing.assert_close(again, loss(z, present), rtol=1e-9, atol=1e-12)


def test_confu_tells_its_parts_and_can_do_without_the_second() -> None:
    z, present = views(3), whole()
    loss, plain = ConfuLoss(0.3, weight=0.25), ConfuLoss(0.3, weight=0.0)
    value = loss(z, present)
    assert float(value.detach()) == pytest.approx(0.75 * float(loss.last["pairs"]) + 0.25 * float(loss.last["fused"]))
    pairs = ContrastiveLoss(None, 0.3, label_smoothing=0.0, **FIXED)
    assert_same(plain(z, present), pairs(z, present), z.values())
    assert plain.last["terms"] == pairs.last["terms"] == 18
    assert loss.last["terms"] == 18 + 18


def test_confu_refuses() -> None:
    with pytest.raises(InputError, match=r'^fusion "learned" has weights: pass names, the modalities, and width'):
        ConfuLoss(fusion="learned", names=NAMES)
    with pytest.raises(InputError, match=r"^two modalities are fused; got 3"):
        ConfuLoss().fuse(views(0))
    depth = {"depth": torch.randn(6, 4, dtype=torch.float64), **views(0)}
    with pytest.raises(InputError, match=r"^modality 'depth' is not one of image, text, audio, which this loss fuses"):
        learned()(depth, torch.ones(6, 4, dtype=torch.bool))


# ---- fusemix


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(seed=st.integers(0, 10_000), n=st.integers(1, 9))
@settings(deadline=None, max_examples=25)
def test_rows_are_mixed_with_partners_that_have_the_same(seed: int, n: int) -> None:
    """The identity as features shows what was drawn; everything else follows the formula, in value and in gradient."""
    x, present = features(seed, n), pattern(seed, n)
    loss = FuseMixLoss(temperature=0.3, **FIXED)
    shown = loss.mix({"shown": torch.eye(n, dtype=torch.float64)} | x, present, generator=seeded(seed))
    drawn = shown.pop("shown")
    torch.testing.assert_close(drawn.sum(1), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(drawn.sum(0), torch.ones(n, dtype=torch.float64))  # everyone is a partner once
    shares = [sorted(row[row > 0].tolist()) for row in drawn]
    mixed = [pair for pair in shares if len(pair) == 2]
    assert all(pair == pytest.approx(mixed[0]) for pair in mixed)  # one share for all rows
    for i in range(n):
        for j in drawn[i].nonzero()[:, 0].tolist():
            assert torch.equal(present[i], present[j])
    heads = {name: torch.randn(d, 4, generator=seeded(3), dtype=torch.float64) for name, d in WIDTHS.items()}
    heads = {name: weight.requires_grad_() for name, weight in heads.items()}
    ours = {name: normalize(shown[name] @ heads[name], dim=1) for name in NAMES}
    theirs = {}
    for name in NAMES:
        made = [sum(drawn[i, j] * x[name][j] for j in range(n)) @ heads[name] for i in range(n)]
        theirs[name] = torch.stack([row / row.norm() for row in made])
    assert_same(loss(ours, present), slow.contrastive(theirs, present, None, 0.3, 0.0), heads.values())


def test_values_of_missing_rows_are_not_mixed_in() -> None:
    x, present = features(0, 12), pattern(0, 12)
    spoilt = {name: torch.where(present[:, [j]], rows, torch.nan) for j, (name, rows) in enumerate(x.items())}
    mixed, again = (FuseMixLoss().mix(rows, present, generator=seeded(0)) for rows in (x, spoilt))
    for j, name in enumerate(NAMES):
        assert torch.equal(mixed[name][present[:, j]], again[name][present[:, j]])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 10.0])
def test_shares_follow_a_beta_distribution(alpha: float) -> None:
    loss, generator = FuseMixLoss(alpha=alpha), seeded(0)
    x, present = {"a": torch.tensor([[0.0], [1.0]])}, torch.ones(2, 1, dtype=torch.bool)
    moves = torch.stack([loss.mix(x, present, generator=generator)["a"][0, 0] for _ in range(4000)])
    moved = moves[moves > 0]  # with the other one as partner, 1 - share
    assert len(moved) / 4000 == pytest.approx(0.5, abs=0.04)
    assert float(moved.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(moved.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


# ---- structure


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.3, 0.7, 1.0]))
@settings(deadline=None, max_examples=15)
def test_structure_is_its_slow_twin(seed: int, share: float) -> None:
    z, x, present = views(seed), features(seed), pattern(seed, share=share)
    loss = StructureLoss(temperature=0.3, weight=4.0, warmup=0)
    theirs = slow.structure(z, present, x, 4.0, 0.3)
    assert_same(loss(z, present, features=x), theirs, z.values())
    loss.chunk_size = 2
    assert_same(loss(z, present, features=x), theirs, z.values())
    order = torch.randperm(6, generator=seeded(seed))
    moved = [{name: rows[order] for name, rows in part.items()} for part in (z, x)]
    torch.testing.assert_close(loss(moved[0], present[order], features=moved[1]), theirs, rtol=1e-8, atol=1e-10)


def test_structure_of_complete_rows_is_the_published_loss_with_the_divergence_of_the_definition() -> None:
    z, x = views(4), features(4)
    pairs = [symmetric(z[a], z[b], 0.05) for a, b in (("image", "text"), ("image", "audio"), ("text", "audio"))]
    changes = []
    for name in NAMES:
        before, after = (normalize(rows, dim=1) for rows in (x[name], z[name]))
        before, after = before - before.mean(0, keepdim=True), after - after.mean(0, keepdim=True)
        p, q = (torch.softmax(rows @ rows.T / 0.05, dim=-1) for rows in (before, after))
        m = ((p + q) / 2).log()
        changes.append((kl_div(m, p, reduction="batchmean") + kl_div(m, q, reduction="batchmean")) / 2)
    published = sum(pairs) / 3 + 10 * sum(changes) / 3
    assert_same(StructureLoss(warmup=0)(z, whole(), features=x), published, z.values())


def test_rows_without_a_partner_take_part_in_the_second_term_only() -> None:
    z, x, present = views(5), features(5), torch.zeros(6, 3, dtype=torch.bool)
    present[:, 1] = True
    loss = StructureLoss(warmup=0)
    value = loss(z, present, features=x)
    assert float(loss.last["terms"]) == 0
    assert float(value.detach()) == pytest.approx(10 * float(loss.last["structure"]))
    (gradient,) = torch.autograd.grad(value, [z["text"]])
    assert gradient.abs().sum() > 0


def test_values_of_missing_rows_change_nothing_before_and_behind_the_heads() -> None:
    z, x, present, loss = views(6), features(6), pattern(6), StructureLoss(warmup=0)
    spoilt, before = (
        {name: torch.where(present[:, [j]], rows.detach(), torch.nan) for j, (name, rows) in enumerate(part.items())}
        for part in (z, x)
    )
    spoilt = {name: rows.requires_grad_() for name, rows in spoilt.items()}
    value, again = loss(z, present, features=x), loss(spoilt, present, features=before)
    assert again == value
    for g, h in zip(gradients(again, spoilt.values()), gradients(value, z.values()), strict=True):
        assert torch.equal(g, h)


def test_the_weight_grows_while_it_trains_and_is_saved() -> None:
    z, x, present = views(7), features(7), whole()
    loss, seen = StructureLoss(weight=8.0, warmup=4), []
    for _ in range(6):
        loss(z, present, features=x)
        seen.append(float(loss.last["weight"]))
    assert seen == [0.0, 2.0, 4.0, 6.0, 8.0, 8.0]
    resumed = StructureLoss(weight=8.0, warmup=10)
    resumed.load_state_dict(loss.state_dict())
    for training in (False, True):
        resumed.train(training)(z, present, features=x)
        assert float(resumed.last["weight"]) == pytest.approx(4.8)  # six calls; one in evaluation does not count
    with torch.no_grad():
        resumed(z, present, features=x)
        resumed(z, present, features=x)
    assert float(resumed.last["weight"]) == pytest.approx(5.6)


def test_structure_refuses() -> None:
    z, x = views(0), features(0)
    with pytest.raises(InputError, match=r"^features\['text'\] has shape \(5, 7\) but z has 6 rows; pass one per row"):
        StructureLoss()(z, whole(), features=x | {"text": x["text"][:5]})
    with pytest.raises(
        InputError, match=r"^features has no 'audio'; pass what goes into the head of every modality of z"
    ):
        StructureLoss()(z, whole(), features={name: x[name] for name in ("image", "text")})
