"""TRIANGLE: the area of the triangle between an anchor modality and two others."""

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from calmrl._support.signatures import Positive
from calmrl.losses.base import AnchoredLoss, Batch
from calmrl.losses.gram import root


class TriangleLoss(AnchoredLoss):
    r"""Symmetric cross-entropy over -area / temperature.

    The score of anchor t_i with row j is the area of the triangle whose corners are t_i and two other modalities x_j,
    y_j,

        area_ij = sqrt(|t_i - x_j|^2 |t_i - y_j|^2 - ((t_i - x_j) . (t_i - y_j))^2) / 2,

    computed from inner products. `root=False` leaves the square root out, as the published code does.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    A row j with only one other modality is scored by the cosine instead (as in the CalMRL paper's appendix), a row
    with three or more by the mean area over the pairs of them. Areas and cosines are not comparable, so for anchor i
    only rows of the same kind compete; for the other modalities of row j all anchors compete. Rows without the anchor,
    or with nothing but the anchor, add no term of their own.

    When to use which: for exactly three modalities. Unlike a volume, an area sees the sign of the vectors.
    `anchor="text"` is the published form, `anchor=None` lets every modality take its turn.

    After each call `last` holds the detached scalars "temperature" and "terms".

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1).requires_grad_() for name in ("image", "text", "audio")}
    >>> present = torch.ones(8, 3, dtype=torch.bool)
    >>> present[0, 2] = False
    >>> TriangleLoss(anchor="text")(z, present).backward()
    """

    def __init__(
        self, anchor: str | None = "text", temperature: Positive = 0.07, *, root: bool = True, **shared: Any
    ) -> None:
        super().__init__(anchor, temperature, **shared)
        self.root = root

    def _terms(self, batch: Batch, turn: int, temperature: Tensor) -> tuple[Tensor, Tensor]:
        t, others, has = batch.split(turn)  # (N, d), p times (N, d), (N, p)
        square = (t * t).sum(1)
        norms = [(x * x).sum(1) for x in others]
        flat = torch.cat(others)  # (p N, d)
        pairs = list(combinations(range(len(others)), 2))
        products = [(others[x] * others[y]).sum(1) for x, y in pairs]
        number = has.sum(1)
        of_pairs = (number * (number - 1) // 2).clamp(min=1)
        # How much each pair's area, or the only cosine, counts in the score of row j. All scores are finite.
        shares = [(has[:, x] & has[:, y]) / (of_pairs * temperature) for x, y in pairs]
        alone = (number == 1) / temperature

        def scores(start: int, stop: int) -> Tensor:
            inner = (t[start:stop] @ flat.T).unflatten(1, (len(others), -1))  # (c, p, N)
            far = [square[start:stop, None] + norms[x] - 2 * inner[:, x] for x in range(len(others))]
            total = inner.sum(1) * alone  # the cosine, where there is only one
            for (x, y), product, share in zip(pairs, products, shares, strict=True):
                cross = square[start:stop, None] + product - inner[:, x] - inner[:, y]
                area = far[x] * far[y] - cross * cross
                total = torch.addcmul(total, root(area) if self.root else area, share, value=-0.5)
            return total

        return self._symmetric(scores, batch.present[:, turn], number >= 1, kinds=number.clamp(max=2), n_kinds=3)
