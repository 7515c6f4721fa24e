"""FuseMix: InfoNCE on rows that are mixed with others before the heads."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.signatures import Positive, Share
from calmrl.losses.contrastive import ContrastiveLoss


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
