"""STRUCTURE: InfoNCE, and similarities within each modality that stay what they were before the heads."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.distributed import gather_headers, gather_rows, world
from calmrl._support.signatures import NotNegative, Positive, Share
from calmrl.arrays import full_precision
from calmrl.errors import InputError
from calmrl.losses.base import Batch, chunks, each_chunk, joined
from calmrl.losses.contrastive import ContrastiveLoss


class StructureLoss(ContrastiveLoss):
    r"""`ContrastiveLoss` over all pairs, plus a weight times the change of each modality's neighbourhoods.

    For a modality m, over the n rows that have it, whatever else they have or lack, with x the unit vectors before the head
    and z those behind it, each minus their mean over the n rows:

        P_ij = softmax_j(x_i . x_j / t),    Q_ij = softmax_j(z_i . z_j / t),
        S_m = mean_i JS(P_i, Q_i),          JS(p, q) = (KL(p | (p + q) / 2) + KL(q | (p + q) / 2)) / 2

    and L = InfoNCE + w mean_m S_m, over the modalities that two rows or more have. The weight w grows linearly from 0 to
    `weight` over the first `warmup` calls in training; their number is part of the state.

    | input | meaning |
    |---|---|
    | z | dict of modality name -> (N, d) tensor of unit vectors, the same d for all; k >= 2 modalities |
    | present | (N, k) bool; None: rows that are NaN throughout are missing |
    | features | dict of the same names -> (N, d_m) vectors before the heads, without gradient; None: InfoNCE alone |

    When to use which: few pairs and many rows of a single modality, on features of frozen encoders: such rows take part in
    the second term. The defaults follow a public fork of the paper's code, which was read instead of the authors' own, for one
    level of neighbourhoods. That code takes the divergences from the mean of the two, KL((p + q) / 2 | p), where the definition
    above has those to it. `calmrl train` passes the features.

    After each call `last` holds the detached scalars "temperature", "terms" and, with features, "structure" (the mean of S_m)
    and "weight".

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> x = {"image": torch.randn(8, 5), "text": torch.randn(8, 7)}
    >>> present = torch.ones(8, 2, dtype=torch.bool)
    >>> present[:3, 0] = False
    >>> heads = {name: torch.nn.Linear(rows.shape[1], 4) for name, rows in x.items()}
    >>> z = {name: normalize(heads[name](rows), dim=1) for name, rows in x.items()}
    >>> StructureLoss(warmup=0)(z, present, features=x).backward()
    """

    calls: Tensor

    def __init__(
        self,
        anchor: str | None = None,
        temperature: Positive = 0.05,
        *,
        weight: NotNegative = 10.0,
        warmup: Annotated[int, Ge(0)] = 500,
        learn_temperature: bool = False,
        label_smoothing: Share = 0.0,
        **shared: Any,
    ) -> None:
        options: dict[str, Any] = {"learn_temperature": learn_temperature, "label_smoothing": label_smoothing}
        super().__init__(anchor, temperature, **options, **shared)
        self.weight, self.warmup = weight, warmup
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(
        self, z: Mapping[str, Tensor], present: Tensor | None = None, features: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        batch = joined(z, present)
        with full_precision(batch.z):
            temperature = self.temperature(batch.z)
            aligned, terms = self._mean(batch, self._turns(batch), temperature)
            self._remember(batch, temperature.detach(), terms)
            if features is None:
                return aligned
            before = _gathered(features, batch)
            changes = [
                self._change(rows[has], batch.z[has, j], temperature)
                for j, rows in enumerate(before)
                if int((has := batch.present[:, j]).sum()) > 1
            ]
            change = torch.stack(changes).mean() if changes else torch.zeros_like(aligned)
            weight = self.weight * min(1.0, int(self.calls) / self.warmup) if self.warmup else self.weight
            if self.training and torch.is_grad_enabled():
                self.calls += 1
            self._scalars |= {"structure": change.detach(), "weight": torch.tensor(weight)}
            return aligned + weight * change

    def _change(self, before: Tensor, after: Tensor, temperature: Tensor) -> Tensor:
        """S_m of the rows (n, d_m), (n, d) of one modality."""
        x, z = (normalize(rows, dim=1) for rows in (before.to(after.dtype), after))
        x, z = x - x.mean(0), z - z.mean(0)

        def part(start: int, stop: int) -> Tensor:
            p = (x[start:stop] @ x.T / temperature).log_softmax(1)  # (c, n)
            q = (z[start:stop] @ z.T / temperature).log_softmax(1)
            middle = torch.logaddexp(p, q) - math.log(2)
            return (p.exp() * (p - middle) + q.exp() * (q - middle)).sum(1) / 2

        return torch.cat(each_chunk(part, chunks(len(x), self.chunk_size))).mean()


def _gathered(features: Mapping[str, Tensor], batch: Batch) -> list[Tensor]:
    """For each modality of the batch, the rows (N, d_m) of all processes; zero in a process whose dict lacks it."""
    own = batch.own.stop - batch.own.start
    for name, rows in features.items():
        if rows.ndim != 2 or len(rows) != own:
            raise InputError(f"features[{name!r}] has shape {tuple(rows.shape)} but z has {own} rows; pass one per row")
    for j, name in enumerate(batch.names):
        if name not in features and bool(batch.present[batch.own, j].any()):
            raise InputError(
                f"features has no {name!r}; pass what goes into the head of every modality of z ({', '.join(batch.names)})"
            )
    mine = [features[name].shape[1] if name in features else 0 for name in batch.names]
    headers = gather_headers([own, *mine], batch.z.device)
    counts, *widths = zip(*headers, strict=True)
    gathered = []
    with torch.no_grad():
        for name, width in zip(batch.names, widths, strict=True):
            rows = features[name].detach() if name in features else batch.z.new_zeros(own, max(width))
            rows = rows.to(batch.z.dtype)
            gathered.append(gather_rows(rows, counts) if world()[0] > 1 else rows)
    return gathered
