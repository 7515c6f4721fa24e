"""Symile: InfoNCE over multilinear inner products, the sum over dimensions of the product of all vectors of a row."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from calmrl._support.signatures import Positive, Share
from calmrl.losses.base import AnchoredLoss, Batch, chunks, each_chunk

Turn = tuple[tuple[int, ...], int]  # (the columns that a row has, which of them is the anchor)


class SymileLoss(AnchoredLoss):
    r"""Cross-entropy of an anchor's vector with the products of the other modalities, for the set S that a row has.

    With the multilinear inner product <x, y, ...> = sum_d x_d y_d ..., for every row i that has exactly the modalities S,
    two at least, and every anchor a in S:

        L_i,a = -log softmax(<a_i, others> d^((|S| - 2) / 2) / t) at the others of row i itself

    and the loss is the mean of these terms. What competes depends on `negatives`:

    - "mixed": others of any rows, one row for each modality of S but a, as in the published code with `n_squared`. That is N^2
      of them for each row of three modalities; with batches of thousands take "rows". Larger sets always do.
    - "rows": the others of one row at a time, from all rows that have them.

    Rows with more modalities than S compete with what S has, so a pair competes with all vectors of the other modality, as
    in `ContrastiveLoss`; with two modalities in all and `anchor=None`, the two losses are the same. Rows of one modality only
    compete.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    The power of d gives products of any number of random unit vectors the spread of a cosine, so that one temperature
    serves sets of different sizes. With three modalities in every row the published objective is that at a scale of
    sqrt(d) / t.

    When to use which: for what only shows in three modalities together (one is the XOR of two others). Two vectors of a row
    need not be similar for their product with a third to be large: to search one modality by another, take
    `ContrastiveLoss`. The published code can also draw N - 1 of the mixed negatives; here nothing is drawn.

    After each call `last` holds the detached scalars "temperature" and "terms" (number of (row, anchor) terms).

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1).requires_grad_() for name in ("image", "text", "audio")}
    >>> present = torch.ones(8, 3, dtype=torch.bool)
    >>> present[0, 2] = False
    >>> SymileLoss()(z, present).backward()
    """

    def __init__(
        self,
        anchor: str | None = None,
        temperature: Positive = 0.07,
        *,
        negatives: Literal["mixed", "rows"] = "mixed",
        label_smoothing: Share = 0.0,
        **shared: Any,
    ) -> None:
        super().__init__(anchor, temperature, label_smoothing=label_smoothing, **shared)
        self.negatives = negatives

    def _turns(self, batch: Batch) -> Sequence[Turn]:
        """Every set of modalities that some row has, with each of its anchors."""
        only = None if self.anchor is None else batch.index(self.anchor)
        patterns = batch.present.unique(dim=0).tolist() if len(batch.present) else []
        sets = [tuple(j for j, has in enumerate(pattern) if has) for pattern in patterns]
        turns = [(s, a) for s in sets if len(s) >= 2 for a in s if only in (None, a)]
        return turns or [((0, 1), 0)]  # without a row, but with a gradient

    def _terms(self, batch: Batch, turn: Turn, temperature: Tensor) -> tuple[Tensor, Tensor]:
        columns, anchor = turn
        others = [j for j in columns if j != anchor]
        pattern = torch.zeros_like(batch.present[:1]).index_fill(1, torch.tensor(columns, device=batch.z.device), True)
        own = (batch.present == pattern).all(1)
        spread = batch.z.shape[2] ** ((len(columns) - 2) / 2)
        scaled = batch.z[own, anchor] * (spread / temperature)  # (n, d)
        right = scaled
        for j in others:
            right = right * batch.z[own, j]
        if len(others) == 2 and self.negatives == "mixed":
            first, second = (batch.z[batch.present[:, j], j] for j in others)  # (A, d), (B, d)
            size = len(first) * max(len(second), first.shape[1])
        else:
            first, second = None, batch.z[batch.present[:, others].all(1)][:, others].prod(1)
            size = len(second)

        def part(start: int, stop: int) -> Tensor:
            s = scaled[start:stop]
            if first is not None:
                s = (s[:, None] * first).flatten(0, 1)  # (c A, d)
            s = s @ second.T
            if first is not None:
                s = s.view(stop - start, -1)  # (c, A B)
            total = s.logsumexp(1)
            return total - self.label_smoothing * s.mean(1) if self.label_smoothing else total

        totals = torch.cat(each_chunk(part, chunks(len(scaled), self.chunk_size, size)))
        terms = totals - (1 - self.label_smoothing) * right.sum(1)
        return terms.sum(), own.sum()
