"""Cross-entropy over an N x N score matrix that is never held whole."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from calmrl.convention import maybe_any

SCORES_AT_ONCE = 1 << 22  # entries of the score matrix held at once, unless the caller says how many rows

Block = Callable[[int, int], Tensor]


def chunks(n: int, chunk_size: int | None) -> list[tuple[int, int]]:
    """(start, stop) pairs that cover the n rows of an n x n score matrix."""
    step = max(1, SCORES_AT_ONCE // max(1, n)) if chunk_size is None else chunk_size
    return [(start, min(n, start + step)) for start in range(0, n, step)] or [(0, 0)]


def row_terms(block: Block, candidates: Tensor, chunk_size: int | None = None) -> Tensor:
    """(N,) log-probabilities log softmax_j(s_ij)_i over the columns j that are `candidates` (N, bool).

    `block(start, stop)` gives the scores of the rows start:stop against all N columns. Where row i is no candidate
    itself the value is finite but means nothing.
    """
    some_out = maybe_any(~candidates)

    def part(start: int, stop: int) -> Tensor:
        s = block(start, stop)
        masked = s.masked_fill(~candidates[None, :], torch.finfo(s.dtype).min) if some_out else s
        return _own(s, start) - masked.logsumexp(1)

    return torch.cat(_each(part, chunks(len(candidates), chunk_size)))


def symmetric_terms(
    block: Block,
    queries: Tensor,
    candidates: Tensor,
    *,
    kinds: Tensor | None = None,
    n_kinds: int = 1,
    smoothing: float,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """(sum over rows, number of rows) of the cross-entropy in both directions, halved.

    Row i is a term iff it is in `queries` (its row of scores exists) and in `candidates` (its column exists). Forward,
    its right column competes with all candidates, of the same kind if `kinds` (N, in range(n_kinds)) is given;
    backward, its right row competes with all queries. Label smoothing spreads its share evenly over those that
    compete. Without kinds, `queries` and `candidates` may be (P, N) and the scores (P, c, N): P matrices at once.
    """
    of_kind = candidates[..., None]  # (..., N, n_kinds)
    if kinds is not None:
        of_kind = of_kind & (kinds[:, None] == torch.arange(n_kinds, device=kinds.device))

    def part(start: int, stop: int) -> tuple[Tensor, ...]:
        s = block(start, stop)  # (..., c, N)
        row_out = ~candidates[..., None, :]
        if kinds is not None:
            row_out = row_out | (kinds[start:stop, None] != kinds)
        return _Reduce.apply(s, row_out, ~queries[..., start:stop, None], of_kind, start, bool(smoothing))

    parts = list(zip(*_each(part, chunks(queries.shape[-1], chunk_size)), strict=True))
    rows, own = torch.cat(parts[0], dim=-1), torch.cat(parts[2], dim=-1)
    columns = parts[1][0] if len(parts[1]) == 1 else torch.stack(parts[1]).logsumexp(0)
    terms = rows + columns - 2 * own
    if smoothing:
        means = torch.cat(parts[3], dim=-2) / of_kind.sum(-2, keepdim=True).clamp(min=1)  # (..., N, n_kinds)
        row_mean = means[..., 0] if kinds is None else means.gather(1, kinds[:, None])[:, 0]
        column_mean = torch.stack(parts[4]).sum(0) / queries.sum(-1, keepdim=True).clamp(min=1)
        terms = terms + smoothing * (2 * own - row_mean - column_mean)
    valid = queries & candidates
    return torch.where(valid, terms, 0.0).sum() / 2, valid.sum()


def masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """The mean of the values that count; 0, with a gradient, when none does."""
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


class _Reduce(torch.autograd.Function):
    """All that the cross-entropy needs of a block of scores, with one gradient of the block's size instead of five.

    log-sum-exp of its rows and columns, its part of the diagonal, and (for label smoothing) the sums of its rows by
    kind of column and of its columns.
    """

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, row_out: Tensor, column_out: Tensor, of_kind: Tensor, start: int, sums: bool
    ) -> tuple[Tensor, ...]:
        low = torch.finfo(s.dtype).min
        rows = s.masked_fill(row_out, low).logsumexp(-1)
        columns = s.masked_fill(column_out, low).logsumexp(-2)
        ctx.save_for_backward(s, row_out, column_out, of_kind, rows, columns)
        ctx.start = start
        terms = (rows, columns, _own(s, start).clone())
        if not sums:
            return terms
        return (*terms, s @ of_kind.to(s.dtype), ((~column_out).to(s.dtype).mT @ s)[..., 0, :])

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        s, row_out, column_out, of_kind, rows, columns = ctx.saved_tensors
        total = (s - rows[..., None]).masked_fill_(row_out, -torch.inf).exp_() * g[0][..., None]
        total.addcmul_((s - columns[..., None, :]).masked_fill_(column_out, -torch.inf).exp_(), g[1][..., None, :])
        if len(g) == 5:
            total += g[3] @ of_kind.mT.to(s.dtype)
            total += (~column_out).to(s.dtype) * g[4][..., None, :]
        _own(total, ctx.start).add_(g[2])
        return total, None, None, None, None, None


def _own(s: Tensor, start: int) -> Tensor:
    return s[..., start : start + s.shape[-2]].diagonal(dim1=-2, dim2=-1)


def _each(part: Callable[[int, int], object], spans: list[tuple[int, int]]) -> list:
    """`part` of every chunk; with several, their inner tensors are computed again in the backward pass."""
    if len(spans) == 1 or not torch.is_grad_enabled():
        return [part(*span) for span in spans]
    return [
        checkpoint(
            part,
            *span,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing is drawn
        )
        for span in spans
    ]
