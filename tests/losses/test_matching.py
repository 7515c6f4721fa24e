"""Instance matching: the drawn negatives, observed modalities only, re-ranking."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from calmrl.errors import InputError
from calmrl.losses import InstanceMatching
from calmrl.losses.matching import draw, floored, promote

NAMES = ("image", "text", "audio")


def views(n: int, seed: int = 0, noise: float = 0.5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, 8, generator=generator)
    return {name: normalize(shared + noise * torch.randn(n, 8, generator=generator), dim=1) for name in NAMES}


def small(seed: int = 0) -> InstanceMatching:
    torch.manual_seed(seed)
    return InstanceMatching(NAMES, 8, hidden=16, layers=1, heads=2)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_negatives_follow_the_softmax_and_are_never_the_own_row() -> None:
    scores = torch.tensor([[9.0, 1.0, 0.0, 2.0]]).repeat(20_000, 1)
    allowed = torch.tensor([True, True, False, True])
    found = torch.stack([draw(scores[i : i + 4], allowed, slice(0, 4), seeded(i)) for i in range(0, 20_000, 4)])
    assert (found[..., 1] == 1).all()
    columns = found[..., 0]  # (5000, 4), own rows 0..3
    assert (columns != torch.arange(4)).all()
    assert (columns != 2).all()
    share = (columns[:, 0] == 3).float().mean()  # row 0 chooses between 1 and 3: softmax(1, 2)
    assert share == pytest.approx(torch.softmax(torch.tensor([1.0, 2.0]), 0)[1].item(), abs=0.03)


def test_missing_modalities_change_nothing() -> None:
    z, matching = views(6), small()
    present = torch.ones(6, 3, dtype=torch.bool)
    present[:3, 2] = False
    present[5, 1] = False  # no anchor: no term, though its others may be drawn
    value = matching(z, present, generator=seeded())
    spoilt = {n: torch.where(present[:, j, None], v, torch.nan).requires_grad_() for j, (n, v) in enumerate(z.items())}
    again = matching(spoilt, present, generator=seeded())
    assert again == value
    again.backward()
    assert all(torch.isfinite(v.grad).all() for v in spoilt.values())
    assert all(torch.isfinite(p.grad).all() for p in matching.parameters() if p.grad is not None)


def test_rows_that_cannot_contribute_add_zero_with_a_gradient() -> None:
    z, matching = views(3), small()
    for present in (torch.zeros(3, 3, dtype=torch.bool), torch.tensor([[False, True, False]] * 3)):
        value = matching(z, present, generator=seeded())
        assert value == 0
        value.backward()
    lone = matching({n: v[:1] for n, v in z.items()}, torch.ones(1, 3, dtype=torch.bool), generator=seeded())
    assert lone > 0  # the positive only: there is nothing to draw
    empty = matching({n: v[:0] for n, v in z.items()}, torch.ones(0, 3, dtype=torch.bool), generator=seeded())
    assert empty == 0


def test_learns_to_match_and_reranks() -> None:
    z, matching = views(64, noise=0.2), small()
    present = torch.ones(64, 3, dtype=torch.bool)
    present[::3, 2] = False
    optimiser = torch.optim.Adam(matching.parameters(), 5e-3)
    generator = seeded()
    for _ in range(150):
        optimiser.zero_grad()
        value = matching(z, present, generator=generator)
        value.backward()
        optimiser.step()
    assert value < 0.35
    gallery = {name: z[name] for name in ("image", "audio")}
    rough = z["text"] @ z["image"].T + 0.6 * torch.randn(64, 64, generator=generator)
    mask = present[:, [0, 2]]
    final = matching.rerank(z["text"], gallery, mask, rough, top=8)
    own = torch.arange(64)
    assert (final.argmax(1) == own).float().mean() > (rough.argmax(1) == own).float().mean() + 0.1
    best = rough.topk(8, dim=1).indices
    assert torch.equal(final.topk(8, dim=1).indices.sort(1).values, best.sort(1).values)  # the same eight, first
    rest = torch.ones_like(rough, dtype=torch.bool).scatter(1, best, False)
    assert torch.equal(final[rest], rough[rest])
    assert torch.equal(matching.rerank(z["text"], gallery, mask, rough, top=1).argmax(1), rough.argmax(1))


def test_every_row_is_read_by_itself() -> None:
    z, matching = views(5), small()
    others, has = {"image": z["image"], "audio": z["audio"]}, torch.ones(5, 2, dtype=torch.bool)
    has[1, 0] = False
    together = matching.train().logits(z["text"], others, has)
    torch.testing.assert_close(matching.eval().logits(z["text"], others, has), together)  # nothing is dropped at random
    for row in range(5):
        alone = matching.logits(z["text"][[row]], {n: v[[row]] for n, v in others.items()}, has[[row]])
        torch.testing.assert_close(alone[0], together[row])
    fewer = matching.logits(z["text"][[1]], {"audio": z["audio"][[1]]}, has[[1], 1:])
    torch.testing.assert_close(fewer[0], together[1])  # a missing modality is as good as none
    assert matching.logits(z["text"][:0], {n: v[:0] for n, v in others.items()}, has[:0]).shape == (0, 2)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_loss_of_the_drawn_pairs(n: int) -> None:
    z, matching = views(n), small()
    present = torch.ones(n, 3, dtype=torch.bool)
    present[: n // 2, 2] = False
    if n == 6:
        present[4, 1], present[5, [0, 2]] = False, False  # no anchor; nothing but the anchor
    seen = {name: torch.where(present[:, j, None], v, 0.0) for j, (name, v) in enumerate(z.items())}
    has = present[:, [0, 2]]
    mean = (seen["image"] + seen["audio"]) / has.sum(1, keepdim=True).clamp(min=1)
    scores, generator = seen["text"] @ mean.T / 0.07, seeded(3)
    wrong = draw(scores, has.any(1), slice(0, n), generator)
    lone = draw(scores.T, present[:, 1], slice(0, n), generator)
    terms = []
    for row in range(n):
        if not (present[row, 1] and has[row].any()):
            continue
        pairs = [(row, row, 1)]
        pairs += [(row, int(wrong[row, 0]), 0)] if wrong[row, 1] else []
        pairs += [(int(lone[row, 0]), row, 0)] if lone[row, 1] else []
        for i, j, target in pairs:
            others = {name: seen[name][[j]] for name in ("image", "audio")}
            terms.append(-matching.logits(seen["text"][[i]], others, has[[j]]).log_softmax(1)[0, target])
    assert len(terms) == {1: 1, 2: 6, 6: 12}[n]
    torch.testing.assert_close(matching(z, present, generator=seeded(3)), torch.stack(terms).mean())


def test_how_many_are_ranked_again() -> None:
    matching, n = small(), 53
    z = views(n)
    scores = torch.arange(n, dtype=torch.float32).flip(0)[None]
    for top, expected in (({}, 50), ({"top": 1}, 1), ({"top": 60}, n), ({"top": 0}, 0)):
        final = matching.rerank(z["text"][:1], {"image": z["image"]}, None, scores, **top)
        lifted = final[0] > scores[0, 0]
        assert int(lifted.sum()) == expected
        assert sorted(final[0][lifted].tolist()) == [n - 1.0 + step for step in range(1, expected + 1)]
    nothing = matching.rerank(z["text"][:2], {"image": z["image"][:0]}, None, torch.zeros(2, 0))
    assert nothing.shape == (2, 0)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"must hold the anchor 'text' and another modality at least; got \['text'\]"):
        InstanceMatching(["text"], 8)
    with pytest.raises(InputError, match="must hold the anchor 'text'"):
        InstanceMatching(["image", "audio"], 8)
    matching, z = small(), views(4)
    with pytest.raises(InputError, match="'smell' is not one of"):
        matching({"text": z["text"], "smell": z["image"]}, torch.ones(4, 2, dtype=torch.bool))
    with pytest.raises(InputError, match="pass \\(4, 4\\)"):
        matching.rerank(z["text"], {"image": z["image"]}, torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, 3))


# ---- negatives


def test_a_negative_is_allowed_and_not_the_own_one():
    scores = torch.zeros(3, 5)
    scores[:, 4] = 50.0
    allowed = torch.tensor([True, True, True, False, True])
    drawn = draw(scores, allowed, slice(1, 4), torch.Generator().manual_seed(0))
    assert drawn.tolist() == [[4, 1]] * 3  # by far the most likely
    alone = torch.tensor([False, True, False, False, False])
    drawn = draw(scores, alone, slice(1, 4), torch.Generator().manual_seed(0))
    assert drawn[:, 1].tolist() == [0, 1, 1]  # the first has none but its own
    assert drawn[1:, 0].tolist() == [1, 1]
    assert draw(scores[:0], allowed, slice(0, 0), None).shape == (0, 2)
    assert draw(scores[:0], allowed, slice(0, 0), None).dtype == torch.long


def test_a_floor_makes_the_others_nearly_equal():
    scores = torch.tensor([[100.0, 1.0, 0.0]])
    out = torch.tensor([[False, False, True]])
    torch.testing.assert_close(floored(scores, out, 0.25), torch.tensor([[1.25, 0.25, 0.25]]))
    torch.testing.assert_close(floored(scores, torch.ones(1, 3, dtype=torch.bool), 0.25), torch.full((1, 3), 0.25))
    one = torch.zeros(1, 402)
    one[0, 0], one[0, 400] = 100.0, 5.0  # its own, and one of two others
    allowed = torch.zeros(402, dtype=torch.bool)
    allowed[[0, 400, 401]] = True
    generator = torch.Generator().manual_seed(0)
    free = [int(draw(one, allowed, slice(0, 1), generator)[0, 0]) for _ in range(60)]
    floor = [int(draw(one, allowed, slice(0, 1), generator, floor=1.0)[0, 0]) for _ in range(60)]
    assert free.count(400) > 55  # softmax of 5 and 0
    assert 15 < floor.count(400) < 45
    assert set(floor) == {400, 401}


def test_the_best_items_are_put_in_a_new_order():
    scores = torch.tensor([5.0, 1.0, 4.0, 3.0])
    promote(scores, torch.tensor([0, 2, 3]), torch.tensor([0.1, 0.9, 0.9]))
    assert scores.tolist() == [6.0, 1.0, 8.0, 7.0]
