"""ConFu: pairs of modalities, and two of them fused with a third one."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl._support.signatures import Count, Fraction, Positive, Share
from calmrl.arrays import full_precision
from calmrl.errors import InputError
from calmrl.losses.base import Batch, joined
from calmrl.losses.contrastive import ContrastiveLoss

NO_DIRECTION = 1e-2  # a sum of two unit vectors that is shorter is not scaled to length one


class ConfuLoss(ContrastiveLoss):
    r"""(1 - weight) times InfoNCE over all pairs, plus weight times InfoNCE of two fused modalities with a third.

    The first part is `ContrastiveLoss` with `anchor=None`. In the second, for two modalities a, b and a third one c, over the
    rows i that have all three:

        L_abc = mean_i ( -log softmax_j(f_i . c_j / t)_i - log softmax_j(c_i . f_j / t)_i ) / 2,    f_i = fuse(a_i, b_i)

    where c_j runs over all rows that have c, and f_j over all that have a and b. Each part is the mean over its (pair, row) or
    (triple, row) terms, so that a part without any is 0.

    - `fusion="mean"`: f is the mean of the two, scaled to length one.
    - `fusion="learned"`: f is an MLP of the two side by side (Linear - GELU - Linear, one per pair), scaled to length one, as
      in the paper, where it sees what goes into the heads. It needs the `names` of the modalities and their `width`, and its
      parameters belong to the optimiser. `calmrl train` fills in both.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |

    With three modalities in every row the published loss is half of it: it divides the weighted sum of the six terms by six.

    When to use which: queries of two modalities at once, for which `fuse` gives the vector; otherwise `ContrastiveLoss`.

    After each call `last` holds the detached scalars "temperature", "terms", "pairs" and "fused" (the two parts).

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> z = {name: normalize(torch.randn(8, 16), dim=1).requires_grad_() for name in ("image", "text", "audio")}
    >>> present = torch.ones(8, 3, dtype=torch.bool)
    >>> present[0, 2] = False
    >>> loss = ConfuLoss(fusion="learned", names=list(z), width=16)
    >>> loss(z, present).backward()
    >>> loss.fuse({"text": z["text"], "image": z["image"]}).shape
    torch.Size([8, 16])
    """

    def __init__(
        self,
        temperature: Positive = 0.07,
        *,
        weight: Fraction = 0.5,
        fusion: Literal["mean", "learned"] = "mean",
        names: Sequence[str] | None = None,
        width: int | None = None,
        learn_temperature: bool = False,
        label_smoothing: Share = 0.0,
        chunk_size: Count | None = None,
    ) -> None:
        options: dict[str, Any] = {"label_smoothing": label_smoothing, "chunk_size": chunk_size}
        super().__init__(None, temperature, learn_temperature=learn_temperature, **options)
        self.weight = weight
        self.names, self.mixers = tuple(names or ()), None
        if fusion == "learned":
            if names is None or width is None:
                raise InputError(
                    'fusion "learned" has weights: pass names, the modalities, and width, that of their vectors'
                )
            pairs = list(combinations(self.names, 2))
            self.mixers = nn.ModuleList(
                nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width)) for _ in pairs
            )
            self._place = {pair: j for j, pair in enumerate(pairs)}

    def forward(self, z: Mapping[str, Tensor], present: Tensor | None = None) -> Tensor:
        batch = joined(z, present)
        with full_precision(batch.z):
            temperature = self.temperature(batch.z)
            pairs, terms = self._mean(batch, self._turns(batch), temperature)
            fused, more = self._fused(batch, temperature) if self.weight else (torch.zeros_like(pairs), 0)
            self._remember(batch, temperature.detach(), terms + more)
            self._scalars |= {"pairs": pairs.detach(), "fused": fused.detach()}
            return (1 - self.weight) * pairs + self.weight * fused

    def fuse(self, two: Mapping[str, Tensor]) -> Tensor:
        """(N, d) unit vectors of two modalities, a dict of name -> (N, d), together."""
        if len(two) != 2:
            raise InputError(f"two modalities are fused; got {len(two)} ({', '.join(two)})")
        if self.mixers is None:
            first, second = two.values()
            return normalize(first + second, dim=1, eps=NO_DIRECTION)
        unknown = [name for name in two if name not in self.names]
        if unknown:
            raise InputError(f"modality {unknown[0]!r} is not one of {', '.join(self.names)}, which this loss fuses")
        a, b = sorted(two, key=self.names.index)
        mixer: Any = self.mixers[self._place[a, b]]
        side = torch.cat([two[a], two[b]], dim=1)
        return normalize(mixer(side.to(mixer[0].weight.dtype)), dim=1).to(side.dtype)

    def _fused(self, batch: Batch, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """(mean over the terms of the second part, their number)."""
        columns = range(len(batch.names))
        totals, counts = [batch.z.sum() * 0], [torch.zeros_like(batch.present.sum())]
        for a, b in combinations(columns, 2):
            others = [c for c in columns if c not in (a, b)]
            if not others:
                continue
            two = {batch.names[a]: batch.z[:, a], batch.names[b]: batch.z[:, b]}
            f, has = self.fuse(two) / temperature, batch.present[:, a] & batch.present[:, b]
            for c in others:
                total, count = self._with_third(f, has, batch, c)
                totals.append(total)
                counts.append(count)
        terms = torch.stack(counts).sum()
        return torch.stack(totals).sum() / terms.clamp(min=1), terms

    def _with_third(self, f: Tensor, has: Tensor, batch: Batch, c: int) -> tuple[Tensor, Tensor]:
        return self._symmetric(lambda start, stop: f[start:stop] @ batch.z[:, c].T, has, batch.present[:, c])
