"""Contrastive alignment of pairs of modalities (InfoNCE)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import nn

from calmrl.convention import full_precision
from calmrl.losses.batch import joined
from calmrl.losses.softmax import symmetric_terms
from calmrl.losses.temperature import Temperature


class ContrastiveLoss(nn.Module):
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

    def __init__(
        self,
        anchor: str | None = "text",
        temperature: float = 0.07,
        *,
        learn_temperature: bool = True,
        label_smoothing: float = 0.1,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        self.anchor = anchor
        self.temperature = Temperature(temperature, learn_temperature)
        self.label_smoothing = label_smoothing
        self.chunk_size = chunk_size
        self.last: dict[str, torch.Tensor] = {}

    def forward(self, z: Mapping[str, torch.Tensor], present: torch.Tensor | None = None) -> torch.Tensor:
        batch = joined(z, present)
        with full_precision(batch.z):
            temperature = self.temperature(batch.z)
            columns = range(len(batch.names))
            if self.anchor is None:
                pairs = list(combinations(columns, 2))
            else:
                anchor = batch.index(self.anchor)
                pairs = [(anchor, other) for other in columns if other != anchor]
            totals, counts = zip(
                *(self._pair(batch.z, batch.present, a, b, temperature) for a, b in pairs), strict=True
            )
            terms = torch.stack(counts).sum()
            self.last = {"temperature": temperature.detach(), "terms": terms}
            return torch.stack(totals).sum() / terms.clamp(min=1)

    def _pair(
        self, z: torch.Tensor, present: torch.Tensor, a: int, b: int, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = z[:, a] / temperature, z[:, b]
        return symmetric_terms(
            lambda start, stop: rows[start:stop] @ columns.T,
            present[:, a],
            present[:, b],
            smoothing=self.label_smoothing,
            chunk_size=self.chunk_size,
        )
