"""The losses as they are when nothing is said, what they tell about their last call, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from calmrl.errors import InputError
from calmrl.losses import LOSSES, ContrastiveLoss, GramLoss, PMRLLoss, TriangleLoss
from tests.reference import losses as slow

NAMES = ("image", "text", "audio", "depth")
ROOT_HALF = 0.5**0.5


def views(n: int = 5, k: int = 4, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return {
        name: normalize(torch.randn(n, 6, generator=generator, dtype=torch.float64), dim=1).to(dtype)
        for name in NAMES[:k]
    }


PATTERN = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 1], [0, 1, 0, 0]], dtype=torch.bool)
FIXED = ("pmrl", "confu", "structure")
TWINS = {
    "pmrl": lambda z, p: slow.pmrl(z, p, 0.05, 0.1),
    "contrastive": lambda z, p: slow.contrastive(z, p, "text", 0.07, 0.1),
    "vast": lambda z, p: slow.contrastive(z, p, "text", 0.07, 0.1),
    "gram": lambda z, p: slow.gram(z, p, "text", 0.07, 0.1, guard=True),
    "symile": lambda z, p: slow.symile(z, p, None, 0.07),
    "confu": lambda z, p: slow.confu(z, p, 0.07),
    "fusemix": lambda z, p: slow.contrastive(z, p, None, 0.07, 0.0),
    "structure": lambda z, p: slow.contrastive(z, p, None, 0.05, 0.0),
    "triangle": lambda z, p: slow.triangle(z, p, "text", 0.07, 0.1, root=True),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_defaults_are_the_documented_ones(kind: str) -> None:
    z, loss = views(), LOSSES[kind]()
    assert loss.last == {}
    torch.testing.assert_close(loss(z, PATTERN), TWINS[kind](z, PATTERN), rtol=1e-6, atol=0)
    assert len(list(loss.parameters())) == (kind not in FIXED)  # the temperature is learned
    assert loss.chunk_size is None


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
    loss(views(), PATTERN)
    assert loss.last["terms"] == terms + (kind in ("contrastive", "vast"))
    assert float(loss.last["temperature"]) == pytest.approx(0.5)
    assert not loss.last["temperature"].requires_grad


@pytest.mark.parametrize("kind", LOSSES)
def test_one_row_and_one_pair(kind: str) -> None:
    """A mean over a single term is that term."""
    z, present = views(1, 2), torch.ones(1, 2, dtype=torch.bool)
    torch.testing.assert_close(LOSSES[kind]()(z, present), TWINS[kind](z, present), rtol=1e-6, atol=1e-12)


def test_mixed_dtypes_are_raised_to_the_widest() -> None:
    z = views()
    mixed = {name: v.float() if name == "image" else v for name, v in z.items()}
    assert PMRLLoss()(mixed, PATTERN).dtype == torch.float64
    assert PMRLLoss()({name: v.half() for name, v in z.items()}, PATTERN).dtype == torch.float32


@pytest.mark.parametrize("size", [1e4, 10000.5])
def test_vectors_that_are_too_long(size: float) -> None:
    z, present = views(3, 2), torch.ones(3, 2, dtype=torch.bool)
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
