"""Instance matching: does a pair belong together? Negatives are drawn from a softmax, and the best items can be re-ranked."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from calmrl._support.distributed import all_sum, world
from calmrl.arrays import check, full_precision
from calmrl.errors import InputError
from calmrl.losses.base import joined


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


@torch.no_grad()
def hard_pairs(
    anchors: Tensor,
    others: Tensor,
    has_anchor: Tensor,
    has_others: Tensor,
    own: slice,
    temperature: float | Tensor,
    generator: torch.Generator | None,
    floor: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rows of the anchors, rows of the others, which of these pairs count, 1 for those that belong together).

    For each own row: itself, its anchor with the others of a row that is drawn, and its others with an anchor that is drawn.
    `anchors` and `others` (N, d) are what similarities are made of.
    """
    with full_precision(anchors):
        wrong = draw(anchors[own] @ others.T / temperature, has_others, own, generator, floor)
        lone = draw(others[own] @ anchors.T / temperature, has_anchor, own, generator, floor)
    mine = torch.arange(len(anchors), device=anchors.device)[own]
    valid = (has_anchor & has_others)[own]
    counts = torch.cat([valid, valid & (wrong[:, 1] > 0), valid & (lone[:, 1] > 0)])
    target = (torch.arange(len(counts), device=mine.device) < len(mine)).long()
    return torch.cat([mine, mine, lone[:, 0]]), torch.cat([mine, wrong[:, 0], mine]), counts, target


def promote(scores: torch.Tensor, best: torch.Tensor, match: torch.Tensor) -> None:
    """Lift one query's scores (G,) of the items `best` to the highest plus 1, 2, ..., in the order of `match`."""
    order = match.argsort(descending=True, stable=True)
    lift = torch.arange(len(best), 0, -1, device=scores.device, dtype=scores.dtype)
    scores[best[order]] = scores.max() + lift


class InstanceMatching(nn.Module):
    r"""Cross-entropy of "matched or not" for each row's own modalities and two hard negatives.

    A small transformer reads one token per modality (Linear + LayerNorm of its vector, plus a type embedding) and a
    summary token; Linear - GELU - LayerNorm - Linear(2) on the summary decides. Per row with the anchor and at least
    one other modality: the true set; the anchor with the others of a row j drawn from softmax_j(sim_ij / temperature);
    the others with the anchor of a row drawn from the softmax of the other direction; the own row is never drawn.
    sim_ij is the mean cosine of anchor i with the others that row j has. Only observed modalities take part, also when
    an alignment loss beside it uses imputed ones; add it with a weight of 0.1.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor; names among those given at construction |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |
    | generator | of the draws; None uses torch's global one |

    Several processes draw negatives from the rows of all of them; each works on its own rows, and the average of their
    gradients is that of the mean over all rows.

    When to use which: it costs a transformer pass over three pairs per row and pays at test, where `rerank` sorts the
    best candidates of a retrieval again.

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1) for name in ("image", "text", "audio")}
    >>> matching = InstanceMatching(["image", "text", "audio"], width=16, hidden=32, layers=1, heads=2)
    >>> matching(z, torch.ones(8, 3, dtype=torch.bool), generator=torch.Generator().manual_seed(0)).backward()
    """

    def __init__(
        self,
        names: Sequence[str],
        width: int,
        anchor: str = "text",
        *,
        hidden: int = 256,
        layers: int = 2,
        heads: int = 4,
        temperature: float = 0.07,
    ) -> None:
        super().__init__()
        if anchor not in names or len(names) < 2:
            raise InputError(f"names must hold the anchor {anchor!r} and another modality at least; got {list(names)}")
        self.names, self.anchor, self.temperature = tuple(names), anchor, temperature
        self.arguments = {"names": list(names), "width": width, "anchor": anchor, "hidden": hidden}
        self.arguments |= {"layers": layers, "heads": heads, "temperature": temperature}
        projections = {name: nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden)) for name in names}
        self.project = nn.ModuleDict(projections)
        self.kind = nn.Parameter(torch.randn(1 + len(names), hidden) * 0.02)  # the summary token and the types
        layer = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, 2))

    def forward(
        self, z: Mapping[str, Tensor], present: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        batch = joined(z, present)
        t, others, has = batch.split(batch.index(self.anchor))
        names = [name for name in batch.names if name != self.anchor]
        o = torch.stack(others, dim=1)  # (N, k - 1, d)
        mean = o.sum(1) / has.sum(1, keepdim=True).clamp(min=1)
        marks = batch.present[:, batch.index(self.anchor)], has.any(1)
        i, j, counts, target = hard_pairs(t, mean, *marks, batch.own, self.temperature, generator)
        logits = self.logits(t[i], dict(zip(names, o[j].unbind(1), strict=True)), has[j])
        terms = cross_entropy(logits, target, reduction="none")
        (number,) = all_sum([counts.sum()])
        return torch.where(counts, terms, 0.0).sum() * world()[0] / number.clamp(min=1)

    def logits(self, t: Tensor, others: Mapping[str, Tensor], has: Tensor) -> Tensor:
        """(M, 2) scores of "does not match" and "matches" for M anchors, each with its row of the other modalities."""
        place = {name: 1 + self.names.index(name) for name in self.names}
        unknown = [name for name in others if name not in place]
        if unknown:
            raise InputError(f"modality {unknown[0]!r} is not one of {', '.join(self.names)}")
        kind = self.kind[[0, place[self.anchor], *(place[name] for name in others)]]
        own = self.kind.dtype  # whatever dtype the vectors have
        vectors = [self.project[self.anchor](t.to(own))]
        vectors += [
            self.project[name](torch.where(has[:, j, None], vector, 0.0).to(own))
            for j, (name, vector) in enumerate(others.items())
        ]
        tokens = torch.stack([torch.zeros_like(vectors[0]), *vectors], dim=1) + kind
        if not len(t):
            return tokens.sum((1, 2))[:, None].expand(-1, 2)
        hidden = torch.cat([has.new_zeros(len(has), 2), ~has], dim=1)
        return self.head(self.encoder(tokens, src_key_padding_mask=hidden)[:, 0])

    @torch.no_grad()
    def rerank(
        self, queries: Tensor, gallery: Mapping[str, Tensor], present: Tensor | None, scores: Tensor, top: int = 50
    ) -> Tensor:
        """(Q, G) scores in which the `top` best items of every query come first, in the order of the matching head.

        `queries` are anchor vectors (Q, d), `gallery` the other modalities of the G items, `scores` (Q, G) those of the
        first stage. Items below the top keep their score; the top ones get that of the best plus 1, 2, ...
        """
        views = check(gallery, present, values=present is None)
        if scores.shape != (len(queries), len(views)):
            raise InputError(f"scores has shape {tuple(scores.shape)}; pass ({len(queries)}, {len(views)})")
        top = min(top, scores.shape[1])
        if top == 0:
            return scores.clone()
        reranked = scores.clone()
        for q in range(len(queries)):
            best = scores[q].topk(top).indices
            logits = self.logits(
                queries[q].expand(top, -1),
                {name: tensor[best] for name, tensor in gallery.items()},
                views.present[best],
            )
            promote(reranked[q], best, logits[:, 1] - logits[:, 0])
        return reranked
