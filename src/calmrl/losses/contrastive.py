"""Contrastive alignment of pairs of modalities (InfoNCE)."""

from collections.abc import Sequence
from itertools import combinations

from torch import Tensor

from calmrl.losses.anchored import AnchoredLoss
from calmrl.losses.batch import Batch


class ContrastiveLoss(AnchoredLoss):
    r"""Symmetric cross-entropy over cosine similarities of one anchor modality with each other one, or of all pairs.

    For a pair of modalities (a, b), over the rows i that have both:

        L_ab = mean_i ( -log softmax_j(a_i . b_j / t)_i - log softmax_j(b_i . a_j / t)_i ) / 2

    where j runs over all rows that have the other modality, whether or not they have this one. The loss is the mean
    over all (pair, row) terms, so a pair that few rows have counts for few rows.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    When to use which: `anchor="text"` is the form of VAST (learned temperature from 0.07, label smoothing 0.1) and of
    LanguageBind, `anchor="image"` that of ImageBind; a fused vector of several modalities is one more entry of `z`.
    `anchor=None` takes all pairs and is the choice when the anchor itself may be missing. It aligns from scratch, which
    PMRL does not; it aligns pairs, not the whole set.

    After each call `last` holds the detached scalars "temperature" and "terms" (number of (pair, row) terms).

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1).requires_grad_() for name in ("image", "text", "audio")}
    >>> present = torch.rand(8, 3) < 0.8
    >>> loss = ContrastiveLoss(anchor=None)
    >>> optimiser = torch.optim.Adam([*z.values(), *loss.parameters()])
    >>> loss(z, present).backward()
    >>> optimiser.step()
    """

    def _turns(self, batch: Batch) -> Sequence[tuple[int, int]]:
        columns = range(len(batch.names))
        if self.anchor is None:
            return list(combinations(columns, 2))
        anchor = batch.index(self.anchor)
        return [(anchor, other) for other in columns if other != anchor]

    def _terms(self, batch: Batch, turn: tuple[int, int], temperature: Tensor) -> tuple[Tensor, Tensor]:
        a, b = turn
        rows, columns = batch.z[:, a] / temperature, batch.z[:, b]
        both = batch.present[:, a], batch.present[:, b]
        return self._symmetric(lambda start, stop: rows[start:stop] @ columns.T, *both)


class VastLoss(ContrastiveLoss):
    """Text with each other modality, as VAST does: `ContrastiveLoss` with `anchor="text"`.

    Examples
    --------
    >>> import torch
    >>> z = {name: torch.randn(8, 16, requires_grad=True) for name in ("image", "text", "audio")}
    >>> VastLoss()(z, torch.ones(8, 3, dtype=torch.bool)).backward()
    """
