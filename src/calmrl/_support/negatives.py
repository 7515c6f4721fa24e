"""What all matching heads share: negatives are drawn from a softmax, and the best items are put in a new order."""

import torch


def draw(
    scores: torch.Tensor,
    allowed: torch.Tensor,
    own: slice,
    generator: torch.Generator | None,
    floor: float | None = None,
) -> torch.Tensor:
    """(n, 2): a column drawn for each row among the allowed ones but its own, and whether there is one.

    Without `floor` the weights are the softmax over those columns. With it they are the softmax over all allowed columns,
    the own one too, plus the floor: where the own column takes nearly everything, the others are nearly equal.
    """
    out = ~allowed[None, :].expand_as(scores).clone()
    weights = floored(scores, out, floor) if floor is not None else None
    out[:, own].fill_diagonal_(True)
    possible = ~out.all(1)
    if weights is None:
        weights = scores.masked_fill(out, -torch.inf).softmax(1)
    weights = weights.masked_fill(out, 0.0)
    weights = torch.where(possible[:, None], weights, 1.0)
    if not len(weights):
        return scores.new_zeros(0, 2, dtype=torch.long)
    return torch.stack([torch.multinomial(weights, 1, generator=generator)[:, 0], possible.long()], dim=1)


def floored(scores: torch.Tensor, out: torch.Tensor, floor: float) -> torch.Tensor:
    """Softmax of each row over the columns that are not `out`, plus the floor; of a row without any, the floor."""
    return torch.nan_to_num(scores.masked_fill(out, -torch.inf).softmax(1)) + floor


def promote(scores: torch.Tensor, best: torch.Tensor, match: torch.Tensor) -> None:
    """Lift one query's scores (G,) of the items `best` to the highest plus 1, 2, ..., in the order of `match`."""
    order = match.argsort(descending=True, stable=True)
    lift = torch.arange(len(best), 0, -1, device=scores.device, dtype=scores.dtype)
    scores[best[order]] = scores.max() + lift
