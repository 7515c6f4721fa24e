"""What all matching heads share: negatives are drawn from a softmax, and the best items are put in a new order."""

import torch


def draw(scores: torch.Tensor, allowed: torch.Tensor, own: slice, generator: torch.Generator | None) -> torch.Tensor:
    """(n, 2): a column drawn from each row's softmax over the allowed columns but its own, and whether there is one."""
    out = ~allowed[None, :].expand_as(scores).clone()
    out[:, own].fill_diagonal_(True)
    possible = ~out.all(1)
    weights = scores.masked_fill(out, -torch.inf).softmax(1)
    weights = torch.where(possible[:, None], weights, 1.0)
    if not len(weights):
        return scores.new_zeros(0, 2, dtype=torch.long)
    return torch.stack([torch.multinomial(weights, 1, generator=generator)[:, 0], possible.long()], dim=1)


def promote(scores: torch.Tensor, best: torch.Tensor, match: torch.Tensor) -> None:
    """Lift one query's scores (G,) of the items `best` to the highest plus 1, 2, ..., in the order of `match`."""
    order = match.argsort(descending=True, stable=True)
    lift = torch.arange(len(best), 0, -1, device=scores.device, dtype=scores.dtype)
    scores[best[order]] = scores.max() + lift
