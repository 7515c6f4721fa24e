"""Instance matching: the drawn negatives, observed modalities only, re-ranking."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from calmrl._support.negatives import draw as draw_negatives
from calmrl.errors import InputError
from calmrl.losses import InstanceMatching

NAMES = ("image", "text", "audio")


def views(n: int, seed: int = 0, noise: float = 0.5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, 8, generator=generator)
    return {name: normalize(shared + noise * torch.randn(n, 8, generator=generator), dim=1) for name in NAMES}


def small(seed: int = 0) -> InstanceMatching:
    torch.manual_seed(seed)
    return InstanceMatching(NAMES, 8, hidden=16, layers=1, heads=2)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_negatives_follow_the_softmax_and_are_never_the_own_row() -> None:
    scores = torch.tensor([[9.0, 1.0, 0.0, 2.0]]).repeat(20_000, 1)
    allowed = torch.tensor([True, True, False, True])
    found = torch.stack([draw_negatives(scores[i : i + 4], allowed, slice(0, 4), draw(i)) for i in range(0, 20_000, 4)])
    assert (found[..., 1] == 1).all()
    columns = found[..., 0]  # (5000, 4), own rows 0..3
    assert (columns != torch.arange(4)).all()
    assert (columns != 2).all()
    share = (columns[:, 0] == 3).float().mean()  # row 0 chooses between 1 and 3: softmax(1, 2)
    assert share == pytest.approx(torch.softmax(torch.tensor([1.0, 2.0]), 0)[1].item(), abs=0.03)
    nobody = draw_negatives(scores[:1], torch.tensor([True, False, False, False]), slice(0, 1), draw())
    assert nobody[0, 1] == 0


def test_missing_modalities_change_nothing() -> None:
    z, matching = views(6), small()
    present = torch.ones(6, 3, dtype=torch.bool)
    present[:3, 2] = False
    present[5, 1] = False  # no anchor: no term, though its others may be drawn
    value = matching(z, present, generator=draw())
    spoilt = {n: torch.where(present[:, j, None], v, torch.nan).requires_grad_() for j, (n, v) in enumerate(z.items())}
    again = matching(spoilt, present, generator=draw())
    assert again == value
    again.backward()
    assert all(torch.isfinite(v.grad).all() for v in spoilt.values())
    assert all(torch.isfinite(p.grad).all() for p in matching.parameters() if p.grad is not None)


def test_rows_that_cannot_contribute_add_zero_with_a_gradient() -> None:
    z, matching = views(3), small()
    for present in (torch.zeros(3, 3, dtype=torch.bool), torch.tensor([[False, True, False]] * 3)):
        value = matching(z, present, generator=draw())
        assert value == 0
        value.backward()
    lone = matching({n: v[:1] for n, v in z.items()}, torch.ones(1, 3, dtype=torch.bool), generator=draw())
    assert lone > 0  # the positive only: there is nothing to draw
    empty = matching({n: v[:0] for n, v in z.items()}, torch.ones(0, 3, dtype=torch.bool), generator=draw())
    assert empty == 0


def test_the_same_generator_draws_the_same() -> None:
    z, matching = views(12), small()
    present = torch.ones(12, 3, dtype=torch.bool)
    assert matching(z, present, generator=draw(3)) == matching(z, present, generator=draw(3))


def test_learns_to_match_and_reranks() -> None:
    z, matching = views(64, noise=0.2), small()
    present = torch.ones(64, 3, dtype=torch.bool)
    present[::3, 2] = False
    optimiser = torch.optim.Adam(matching.parameters(), 5e-3)
    generator = draw()
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


def test_errors_say_what_to_do() -> None:
    with pytest.raises(InputError, match="must hold the anchor 'text'"):
        InstanceMatching(["image", "audio"], 8)
    matching, z = small(), views(4)
    with pytest.raises(InputError, match="'smell' is not one of"):
        matching({"text": z["text"], "smell": z["image"]}, torch.ones(4, 2, dtype=torch.bool))
    with pytest.raises(InputError, match="pass \\(4, 4\\)"):
        matching.rerank(z["text"], {"image": z["image"]}, torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, 3))
