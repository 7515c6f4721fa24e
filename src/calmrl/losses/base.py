"""What losses share: a batch of all modalities and rows of all processes (missing ones zero), softmax terms, temperatures."""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from calmrl._support.arguments import Count, Positive, Share
from calmrl._support.distributed import gather_headers, gather_objects, gather_rows, world
from calmrl.arrays import check, full_precision, maybe_any
from calmrl.errors import InputError

LARGEST = 1e4  # volumes of several vectors of such values are finite


@dataclass(frozen=True)
class Batch:
    names: tuple[str, ...]
    z: Tensor  # (N, k, d), float32 or float64, zero where missing
    present: Tensor  # (N, k) bool
    own: slice  # the rows of this process

    def index(self, name: str) -> int:
        """The column of a modality that the user named."""
        if name not in self.names:
            raise InputError(
                f"anchor {name!r} is not one of the modalities ({', '.join(self.names)}); name one of them, or pass "
                "anchor=None to let every modality take its turn"
            )
        return self.names.index(name)

    def split(self, anchor: int) -> tuple[Tensor, list[Tensor], Tensor]:
        """The anchor's vectors, those of each other modality, and which of the others are there (N, k - 1)."""
        vectors = list(self.z.unbind(1))
        has = torch.cat([self.present[:, :anchor], self.present[:, anchor + 1 :]], dim=1)
        return vectors.pop(anchor), vectors, has


class Stacked(Mapping[str, Tensor]):
    """Modalities that are one tensor (N, k, d) already: `joined` takes it as it is; to all others it is a dict of columns."""

    def __init__(self, names: Sequence[str], stacked: Tensor) -> None:
        self.stacked = stacked
        self._columns = {name: j for j, name in enumerate(names)}

    def __getitem__(self, name: str) -> Tensor:
        return self.stacked[:, self._columns[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def joined(z: Mapping[str, Tensor], present: Tensor | None) -> Batch:
    """Check, stack and gather: the rows of all processes in the order of the ranks, with gradient.

    Half precision is raised to float32. Values of missing rows are never used, in value or in gradient. A modality
    that the dict of one process lacks altogether counts as missing there.
    """
    names, stacked, mask = _taken(z, present) or _stacked(z, present)
    if maybe_any(~mask):
        stacked = torch.where(mask[:, :, None], stacked, 0.0)  # (N, k, d)
    _check_size(stacked, names)
    own = slice(0, len(mask))
    if world()[0] > 1:
        names, stacked, mask, own = _gather(names, stacked, mask)
    if len(names) < 2:
        raise InputError(f"a loss needs at least two modalities; z has only {names[0]!r}")
    return Batch(names, stacked, mask, own)


def _taken(z: Mapping[str, Tensor], present: Tensor | None) -> tuple[tuple[str, ...], Tensor, Tensor] | None:
    """(names, tensor, mask) of what is stacked already, if the mask fits; None otherwise."""
    if not isinstance(z, Stacked) or present is None or present.dtype != torch.bool:
        return None
    return (tuple(z), z.stacked, present) if present.shape == z.stacked.shape[:2] else None


def _stacked(z: Mapping[str, Tensor], present: Tensor | None) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """(names, tensor, mask) of a dict, checked."""
    views = check(z, present, values=present is None, empty_rows=True)
    first = views.given()
    if not isinstance(first, Tensor):
        raise InputError("losses take torch tensors; got NumPy arrays: convert them with torch.from_numpy")
    width = views.widths[0]
    for name, other in zip(views.names, views.widths, strict=True):
        if other != width:
            raise InputError(
                f"z[{views.names[0]!r}] has width {width} but z[{name!r}] has {other}; an alignment loss compares "
                "modalities in one space: project them to the same width first"
            )
    double = any(tensor.dtype == torch.float64 for tensor in z.values())
    stacked = torch.stack([tensor.to(torch.float64 if double else torch.float32) for tensor in z.values()], dim=1)
    return views.names, stacked, views.present


def _check_size(stacked: Tensor, names: tuple[str, ...]) -> None:
    """Refuse vectors whose products overflow, where that is free to see: on the CPU. Elsewhere the loss is not finite."""
    if stacked.device.type != "cpu" or not stacked.numel():
        return
    sizes = stacked.detach().abs().amax((0, 2))  # (k,)
    if bool((sizes > LARGEST).any()):
        raise InputError(
            f"z[{names[int(sizes.argmax())]!r}] has values of up to {float(sizes.max()):.3g}; an alignment loss compares "
            "directions: divide every vector by its length first"
        )


def _gather(names: tuple[str, ...], z: Tensor, present: Tensor) -> tuple[tuple[str, ...], Tensor, Tensor, slice]:
    """Agree on names and sizes in one small message, then exchange rows of one fixed shape."""
    digest = zlib.crc32("/".join(names).encode())
    headers = gather_headers([len(z), z.shape[2], z.element_size(), digest], z.device)
    counts, widths, sizes, digests = zip(*headers, strict=True)
    if len(set(widths)) > 1 or len(set(sizes)) > 1:
        raise InputError(
            f"the processes differ in width or dtype (widths {list(widths)}, bytes per value {list(sizes)}, in the "
            "order of the ranks); every process must pass the same"
        )
    if len(set(digests)) > 1:
        every = gather_objects(names)
        union = tuple(dict.fromkeys(name for part in every for name in part))
        column = [names.index(name) if name in names else None for name in union]
        z = torch.stack([torch.zeros_like(z[:, 0]) if j is None else z[:, j] for j in column], dim=1)
        nowhere = torch.zeros_like(present[:, 0])
        present = torch.stack([nowhere if j is None else present[:, j] for j in column], dim=1)
        names = union
    start = sum(counts[: world()[1]])
    every_present = gather_rows(present.to(torch.uint8), counts).bool()
    return names, gather_rows(z, counts), every_present, slice(start, start + len(z))


SCORES_AT_ONCE = 1 << 22  # entries of the score matrix held at once, unless the caller says how many rows

Block = Callable[[int, int], Tensor]


def chunks(n: int, chunk_size: int | None, columns: int | None = None) -> list[tuple[int, int]]:
    """(start, stop) pairs that cover the rows of a score matrix, n x n unless `columns` says otherwise."""
    step = max(1, SCORES_AT_ONCE // max(1, n if columns is None else columns)) if chunk_size is None else chunk_size
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

    return torch.cat(each_chunk(part, chunks(len(candidates), chunk_size)))


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

    parts = list(zip(*each_chunk(part, chunks(queries.shape[-1], chunk_size)), strict=True))
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


def each_chunk(part: Callable[[int, int], object], spans: list[tuple[int, int]]) -> list:
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


def positive(name: str, value: float) -> float:
    """`value`, or an error when a temperature is not a positive finite number."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a positive number; got {value}")
    return float(value)


class Temperature(nn.Module):
    """A fixed number, or exp(log_value) with a parameter `log_value` that has to be given to the optimiser."""

    def __init__(self, value: float, learn: bool) -> None:
        super().__init__()
        self.fixed = None if learn else positive("temperature", value)
        if learn:
            self.log_value = nn.Parameter(torch.tensor(math.log(positive("temperature", value))))

    def forward(self, like: torch.Tensor) -> torch.Tensor:
        """The temperature as a scalar of the dtype and on the device of `like`."""
        if self.fixed is not None:
            return torch.full((), self.fixed, dtype=like.dtype, device=like.device)
        return self.log_value.to(like.dtype).exp()


class AnchoredLoss(nn.Module, ABC):
    """The mean over terms in which modalities take turns; a subclass says which (`_turns`) and computes them (`_terms`).

    Parameters
    ----------
    anchor : str or None
        The modality that the others are compared with; None lets every modality take its turn.
    temperature : float
        Of the softmax over rows.
    learn_temperature : bool
        Whether the temperature is a parameter, to be given to the optimiser, that starts at `temperature`.
    label_smoothing : float
        Share of the target spread evenly over all competing rows.
    chunk_size : int or None
        Rows of the score matrix computed at once; None chooses by memory.
    """

    def __init__(
        self,
        anchor: str | None = "text",
        temperature: Positive = 0.07,
        *,
        learn_temperature: bool = True,
        label_smoothing: Share = 0.1,
        chunk_size: Count | None = None,
    ) -> None:
        super().__init__()
        self.anchor = anchor
        self.temperature = Temperature(temperature, learn_temperature)
        self.label_smoothing = label_smoothing
        self.chunk_size = chunk_size

    def forward(self, z: Mapping[str, Tensor], present: Tensor | None = None) -> Tensor:
        batch = joined(z, present)
        with full_precision(batch.z):
            temperature = self.temperature(batch.z)
            value, terms = self._mean(batch, self._turns(batch), temperature)
            self._remember(batch, temperature.detach(), terms)
            return value

    def _mean(self, batch: Batch, turns: Sequence[Any], temperature: Tensor) -> tuple[Tensor, Tensor]:
        """(mean over the terms of some turns, their number)."""
        totals, counts = zip(*(self._terms(batch, turn, temperature) for turn in turns), strict=True)
        terms = torch.stack(counts).sum()
        return torch.stack(totals).sum() / terms.clamp(min=1), terms

    def _turns(self, batch: Batch) -> Sequence[Any]:
        """The columns that are the anchor, one after the other."""
        return range(len(batch.names)) if self.anchor is None else [batch.index(self.anchor)]

    @abstractmethod
    def _terms(self, batch: Batch, turn: Any, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """(sum of the terms of a turn, their number)."""

    def _symmetric(self, scores: Block, queries: Tensor, candidates: Tensor, **kinds: Any) -> tuple[Tensor, Tensor]:
        """`symmetric_terms` with the options of this loss."""
        options: dict[str, Any] = {"smoothing": self.label_smoothing, "chunk_size": self.chunk_size}
        return symmetric_terms(scores, queries, candidates, **options, **kinds)

    def _remember(self, batch: Batch, temperature: Tensor, terms: Tensor) -> None:
        self._scalars = {"temperature": temperature, "terms": terms}

    @property
    def last(self) -> dict[str, Tensor]:
        """Detached scalars of the last call: "temperature" and "terms", the number of terms."""
        return getattr(self, "_scalars", {})
