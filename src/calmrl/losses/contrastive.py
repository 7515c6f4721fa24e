"""Contrastive alignment of pairs of modalities (InfoNCE), and FuseMix: the same on rows mixed with others before the heads."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.arguments import Positive, Share
from calmrl.losses.base import AnchoredLoss, Batch

AT_ONCE = 1 << 19  # entries of the score matrices of all pairs, up to which one call for all of them is cheaper


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

    def _turns(self, batch: Batch) -> Sequence[list[tuple[int, int]]]:
        """Pairs of columns: all of them at once where they are small, else one after the other."""
        columns = range(len(batch.names))
        if self.anchor is None:
            pairs = list(combinations(columns, 2))
        else:
            anchor = batch.index(self.anchor)
            pairs = [(anchor, other) for other in columns if other != anchor]
        n = len(batch.present)
        small = len(pairs) * n * n <= AT_ONCE and (self.chunk_size is None or self.chunk_size >= n)
        return [pairs] if small else [[pair] for pair in pairs]

    def _terms(self, batch: Batch, turn: list[tuple[int, int]], temperature: Tensor) -> tuple[Tensor, Tensor]:
        if len(turn) == 1:
            ((a, b),) = turn
            rows, columns = batch.z[:, a] / temperature, batch.z[:, b]  # (N, d) each
            both = batch.present[:, a], batch.present[:, b]
        else:
            first, second = zip(*turn, strict=True)
            z, scaled, has = batch.z.unbind(1), (batch.z / temperature).unbind(1), batch.present.unbind(1)
            rows, columns = torch.stack([scaled[a] for a in first]), torch.stack([z[b] for b in second])  # (P, N, d)
            both = torch.stack([has[a] for a in first]), torch.stack([has[b] for b in second])
        return self._symmetric(lambda start, stop: rows[..., start:stop, :] @ columns.mT, *both)


class VastLoss(ContrastiveLoss):
    """Text with each other modality, as VAST does: `ContrastiveLoss` with `anchor="text"`.

    Examples
    --------
    >>> import torch
    >>> z = {name: torch.randn(8, 16, requires_grad=True) for name in ("image", "text", "audio")}
    >>> VastLoss()(z, torch.ones(8, 3, dtype=torch.bool)).backward()
    """


class FuseMixLoss(ContrastiveLoss):
    r"""`ContrastiveLoss` over all pairs, on features that `mix` has mixed: in a step, mix, then heads, then this loss.

    `mix` draws one number lambda ~ Beta(alpha, alpha) and for every row i a partner p(i), and gives for every modality m

        x_i^m <- lambda x_i^m + (1 - lambda) x_p(i)^m

    with the same lambda and partner in all modalities, so that mixed rows match as the rows did. The partners of the rows that
    have the same modalities are these rows in another order: a mixed row has what both have. A row that is the only one with
    its modalities stays as it is. The published code mixes the two halves of a batch; here all rows stay.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    When to use which: few pairs on features of frozen encoders. Without `mix` it is `ContrastiveLoss`. `calmrl train` mixes
    what goes into the heads in each training batch, in every process its own rows; negatives are those of all.

    After each call `last` holds the detached scalars "temperature" and "terms" (number of (pair, row) terms).

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> x = {"image": torch.randn(8, 5), "text": torch.randn(8, 7)}
    >>> present = torch.ones(8, 2, dtype=torch.bool)
    >>> heads = {name: torch.nn.Linear(rows.shape[1], 4) for name, rows in x.items()}
    >>> loss = FuseMixLoss()
    >>> mixed = loss.mix(x, present, generator=torch.Generator().manual_seed(0))
    >>> loss({name: normalize(heads[name](rows), dim=1) for name, rows in mixed.items()}, present).backward()
    """

    def __init__(
        self,
        anchor: str | None = None,
        temperature: Positive = 0.07,
        *,
        alpha: Positive = 1.0,
        label_smoothing: Share = 0.0,
        **shared: Any,
    ) -> None:
        super().__init__(anchor, temperature, label_smoothing=label_smoothing, **shared)
        self.alpha = alpha

    def mix(
        self, features: Mapping[str, Tensor], present: Tensor, *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The features (N, ...) of each modality, mixed; `present` (N, k) stays what it is."""
        device = "cpu" if generator is None else generator.device
        seed = torch.randint(2**62, (), generator=generator, device=device)
        draws = np.random.default_rng(int(seed))
        share = float(draws.beta(self.alpha, self.alpha))
        partner = torch.from_numpy(_partners(present.cpu().numpy(), draws)).to(present.device)
        return {name: torch.lerp(rows[partner], rows, share) for name, rows in features.items()}


def _partners(present: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """(N,) a row for every row, drawn without replacement among those with the same modalities."""
    partner = np.arange(len(present))
    _, pattern = np.unique(present, axis=0, return_inverse=True)
    for kind in range(pattern.max(initial=-1) + 1):
        rows = np.flatnonzero(pattern == kind)
        partner[rows] = draws.permutation(rows)
    return partner
