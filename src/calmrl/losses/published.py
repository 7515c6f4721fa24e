"""Published objectives that look at more than pairs.

Symile: InfoNCE over multilinear inner products, the sum over dimensions of the product of all vectors of a row. ConFu: pairs of
modalities, and two of them fused with a third one. STRUCTURE: InfoNCE, and similarities within each modality that stay what
they were before the heads.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import normalize

from calmrl._support.arguments import Count, Fraction, NotNegative, Positive, Share
from calmrl._support.distributed import gather_headers, gather_rows
from calmrl.arrays import full_precision
from calmrl.errors import InputError
from calmrl.losses.base import AnchoredLoss, Batch, chunks, each_chunk, joined
from calmrl.losses.contrastive import ContrastiveLoss

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
            gathered.append(gather_rows(rows.to(batch.z.dtype), counts))
    return gathered
