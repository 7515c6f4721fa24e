"""Held-out blocks: hide observed modalities, measure how well a model brings them back, and stop trials early by that.

Where rows have holes inside a modality, single entries are hidden too: what other rows lack is laid over rows that have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.registry import lookup
from calmrl.arrays import Array, Views, check, to_tensor
from calmrl.data.hiding import hide
from calmrl.errors import InputError
from calmrl.latent.em import Settings, fit_settings
from calmrl.latent.model import Expectation, Parameters
from calmrl.latent.predict import by_pattern, posterior_means, predictive_mean, predictive_variance
from calmrl.latent.rows import Pack, Source, open_source, pack
from calmrl.latent.whitening import Whitening, principal_axes

LEAST_ROWS = 3
HELD_OUT = 0.1  # share of the observed blocks that is hidden
LEAST_BLOCKS = 0.1  # share of the error that is that of blocks, where nearly all that is missing are single entries


@dataclass
class HeldOut:
    """Rows with some observed blocks hidden, and the means to measure how well these come back."""

    source: Source  # what may be seen
    views: Views
    hidden: Tensor  # (N, k) bool: blocks to be guessed
    weight: list[Tensor]  # (d_m,) of a squared error in each column: they sum to the normalised error
    beyond: float = 0.0  # the part of the error that no model of these columns can bring back
    holes: Holes | None = None  # where rows have holes inside a modality

    @torch.no_grad()
    def error(self, params: Parameters) -> float:
        """Normalised squared error of the hidden blocks (1.0 = the column mean), modalities weighted by entries."""
        if self.holes is not None:
            return self._error_with_holes(params, self.holes)
        errors = self._single_errors(params) if params.n_components == 1 else self._errors(params, with_variance=False)
        wrong = (error.square().sum(0, dtype=torch.float64) @ self.weight[m] for m, error, *_ in errors)
        return self.beyond + float(sum(wrong))

    def inside(self, whitening: Whitening) -> HeldOut:
        """The same rows and hidden blocks in whitened coordinates, where a model has the error of what it turns back into."""
        weight = [w[0] * scale**2 for w, scale in zip(self.weight, whitening.scale, strict=True)]
        held = HeldOut(whitening.inner, whitening.inside(self.views), self.hidden, weight)
        inside = [inner + mean for inner, mean in zip(held._guessed[2], held.source.mean, strict=True)]
        whole, kept = self._of_mean(self._guessed[2]), held._of_mean(inside)
        return replace(held, beyond=max(0.0, whole - kept))

    def _of_mean(self, truth: list[Tensor]) -> float:
        """The error of guessing zero for these values."""
        hidden = self._guessed[1]
        squares = (values[hidden[:, m]].square().sum(0, dtype=torch.float64) for m, values in enumerate(truth))
        return float(sum(square @ weight for square, weight in zip(squares, self.weight, strict=True)))

    @torch.no_grad()
    def miss(self, params: Parameters) -> float:
        """1 - mean reciprocal rank with which hidden blocks find their row among the rows that lost the same modality.

        Both sides by cosine of posterior means: the row from what is visible, the block alone. 0 is perfect.
        """
        missed = queries = 0.0
        for m in range(len(params.names)):
            rows = self.hidden[:, m].nonzero()[:, 0]
            if len(rows) < 2:
                continue
            taken = self.views.take(rows)
            alone = torch.zeros_like(taken.present)
            alone[:, m] = True
            sides = [taken.present & ~self.hidden[rows], alone]
            left, right = (
                normalize(posterior_means(params, replace(taken, present=side), self.source.mean), dim=1)
                for side in sides
            )
            scores = left @ right.T
            own = scores.diagonal()[:, None]
            rank = 1 + (scores > own).sum(1).double() + 0.5 * ((scores == own).sum(1) - 1)
            missed += float((1 - 1 / rank).sum())
            queries += len(rows)
        return missed / queries if queries else 1.0

    @torch.no_grad()
    def std_scale(self, params: Parameters, level: float = 0.9) -> list[float]:
        """Per modality, the factor on the predicted deviation with which `level` intervals cover `level` of the blocks."""
        ratios: list[list[Tensor]] = [[] for _ in params.names]
        for m, error, variance in self._errors(params, with_variance=True):
            ratio = (error.abs() / variance.sqrt()).reshape(-1).double()
            ratios[m].append(ratio if self.holes is None else ratio[~torch.isnan(ratio)])
        return _reaches(ratios, level)

    @torch.no_grad()
    def hole_scale(self, params: Parameters, level: float = 0.9) -> list[float]:
        """As `std_scale`, for hidden entries of modalities that are visible otherwise."""
        ratios: list[list[Tensor]] = [[] for _ in params.names]
        if self.holes is not None:
            for m, error, variance in self._entry_errors(params, self.holes, with_variance=True):
                ratios[m].append(error.abs() / variance.sqrt())
        return _reaches(ratios, level)

    def _error_with_holes(self, params: Parameters, holes: Holes) -> float:
        wrong = 0.0
        for m, error, *_ in self._errors(params, with_variance=False):
            wrong += float(error.nan_to_num(0.0).square().sum(0, dtype=torch.float64) @ self.weight[m])
        for m, error, _ in self._entry_errors(params, holes, with_variance=False):
            wrong += holes.weight[m] * float(error.square().sum(dtype=torch.float64))
        return wrong

    def _entry_errors(
        self, params: Parameters, holes: Holes, with_variance: bool
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(modality, errors of hidden entries (n,), their predicted variance if `with_variance`) chunk by chunk."""
        packed, _, truth = self._guessed
        for index, _, post in by_pattern(params, packed):
            for m, hidden in enumerate(holes.hidden):
                ask = hidden[self._rows[index]]
                if bool(ask.any()):
                    error = (predictive_mean(params, m, post) - truth[m][index])[ask]
                    yield m, error, predictive_variance(params, m, post)[ask] if with_variance else error

    @cached_property
    def _rows(self) -> Tensor:
        """The rows of which something is hidden."""
        some = self.hidden.any(1)
        if self.holes is not None:
            some = some | torch.stack([entries.any(1) for entries in self.holes.hidden]).any(0)
        return some.nonzero()[:, 0]

    @cached_property
    def _guessed(self) -> tuple[Pack, Tensor, list[Tensor]]:
        """Of the rows with a hidden block, centred: what is visible, (n, k) which blocks are hidden, and all values."""
        rows = self._rows
        visible, hidden = (self.views.present & ~self.hidden)[rows], self.hidden[rows]
        z = [values[rows] for values in self.views.rows(0, len(self.views)) if values is not None]
        dtype = self.source.dtype
        seen, torn = z, [False] * len(z)
        if self.holes is not None:
            hidden_entries = zip(z, self.holes.hidden, strict=True)
            seen = [torch.where(entries[rows], float("nan"), v) for v, entries in hidden_entries]
            torn = [True] * len(z)
        packed = pack(seen, visible, self.source.widths, dtype, self.source.mean, torn)
        return packed, hidden, [v.to(dtype) - c.to(dtype) for v, c in zip(z, self.source.mean, strict=True)]

    def _single_errors(self, params: Parameters) -> Iterator[tuple[int, Tensor]]:
        """(modality, errors of hidden blocks) for one component.

        The factors of the patterns stay with the parameters, for the E-step that follows.
        """
        packed, hidden, truth = self._guessed
        expect = Expectation.of(params, self.source.dtype)
        means = expect.means(packed)[1]
        for m, (W, mu) in enumerate(zip(expect.loadings, expect.centre, strict=True)):
            ask = hidden[packed.order, m]
            yield m, torch.addmm(mu[0], means[ask], W[0].T) - truth[m][packed.order[ask]]

    def _errors(self, params: Parameters, with_variance: bool) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(modality, errors of hidden blocks, their predicted variance if `with_variance`) pattern by pattern."""
        packed, hidden, truth = self._guessed
        for index, _, post in by_pattern(params, packed):
            for m in range(len(truth)):
                ask = hidden[index, m]
                if not bool(ask.any()):
                    continue
                part = replace(post, mean=post.mean[ask], log_joint=post.log_joint[ask])
                if post.covariance.ndim == 4:
                    part = replace(part, covariance=post.covariance[ask])
                error = predictive_mean(params, m, part) - truth[m][index[ask]]
                yield m, error, predictive_variance(params, m, part) if with_variance else error


def _reaches(ratios: list[list[Tensor]], level: float) -> list[float]:
    """Per modality, the `level` quantile of errors in units of their deviations, relative to that of a normal one."""
    joined = [torch.cat(parts).cpu().numpy() if parts else np.zeros(0) for parts in ratios]
    return [float(np.quantile(part, level)) / normal_reach(level) if len(part) else 1.0 for part in joined]


@dataclass(frozen=True)
class Holes:
    """Hidden entries of modalities that are visible otherwise."""

    hidden: list[Tensor]  # (N, d_m) bool
    weight: list[float]  # of a squared error in each modality


def nothing_to_hide(present: Tensor, torn: bool = False) -> str:
    """Why no block, nor an entry of rows that have holes, can be held out to choose on; empty where one can."""
    if len(present) < LEAST_ROWS:
        return f"choosing on held-out blocks needs at least {LEAST_ROWS} rows; got {len(present)}"
    return "" if torn or bool((present.sum(1) > 1).any()) else "no row has two modalities, so that none can be held out"


def hold_out(z: dict[str, Any], present: Tensor, seed: int) -> HeldOut:
    """Hide about a tenth of the observed blocks; every row keeps one. `nothing_to_hide` says whether that is possible.

    Where rows have holes, about a tenth of the observed entries is hidden as well.
    """
    observed = int(present.sum())
    spare = observed - len(present)
    share = min(max(HELD_OUT, 1 / observed), spare / observed)
    generator = np.random.default_rng(seed)
    hidden = present & ~hide(present, share, generator)
    checked = check(z, present, holes=True)
    if checked.holes:
        return _hold_out_with_holes(checked, hidden, generator)
    source = open_source(z, present & ~hidden, shared=False)
    views = Views(z, present, source.widths)
    entries = int((hidden.sum(0) * torch.tensor(source.widths, device=hidden.device)).sum())
    total = [v.mean().clamp(min=torch.finfo(torch.float64).tiny) for v in source.variance]
    weight = [(1 / (entries * t)).expand(d) for t, d in zip(total, source.widths, strict=True)]
    return HeldOut(source, views, hidden, weight)


def _hold_out_with_holes(views: Views, hidden: Tensor, generator: np.random.Generator) -> HeldOut:
    """Blocks and entries count by how many values of either kind the rows lack, blocks for at least LEAST_BLOCKS."""
    values = [v for v in views.rows(0, len(views)) if v is not None]
    observed = [column[:, None] & ~torch.isnan(v) for v, column in zip(values, views.present.unbind(1), strict=True)]
    entries = [
        hidden_entries(seen, has & ~gone, generator)
        for seen, has, gone in zip(observed, views.present.unbind(1), hidden.unbind(1), strict=True)
    ]
    names = zip(views.names, values, entries, strict=True)
    z = {name: torch.where(gone, float("nan"), v.detach()) for name, v, gone in names}
    source = open_source(z, views.present & ~hidden, shared=False, holes=True)
    total = [v.mean().clamp(min=torch.finfo(torch.float64).tiny) for v in source.variance]
    in_blocks = sum(int(seen[gone].sum()) for seen, gone in zip(observed, hidden.unbind(1), strict=True))
    in_holes = sum(int(gone.sum()) for gone in entries)
    width = torch.tensor(views.widths, device=hidden.device)
    lacking = int((~views.present).sum(0) @ width)
    torn = sum(int((has[:, None] & ~seen).sum()) for seen, has in zip(observed, views.present.unbind(1), strict=True))
    share = max(LEAST_BLOCKS, lacking / (lacking + torn)) if in_blocks else 0.0
    share = share if in_holes else 1.0
    weight = [(share / (max(in_blocks, 1) * t)).expand(d) for t, d in zip(total, views.widths, strict=True)]
    holes = Holes(entries, [float((1 - share) / (max(in_holes, 1) * t)) for t in total])
    return HeldOut(source, views, hidden, weight, holes=holes)


def hidden_entries(seen: Tensor, rows: Tensor, generator: np.random.Generator) -> Tensor:
    """(N, d) bool: entries to hide, about a tenth of those that are `seen`, in at most half of the `rows`.

    What one row lacks is laid over another, so that hidden entries fall as holes do: single ones, or a group of columns.
    """
    device = seen.device
    mask, at = seen.cpu().numpy(), rows.cpu().numpy()
    donors = np.flatnonzero(at & mask.any(axis=1) & ~mask.all(axis=1))
    hidden = np.zeros_like(mask)
    targets = generator.permutation(np.flatnonzero(at))
    targets = targets[: (len(targets) + 1) // 2]
    if len(donors):
        gone = mask[targets] & ~mask[generator.choice(donors, len(targets))]
        gone[~(mask[targets] & ~gone).any(axis=1)] = False  # a row keeps an entry
        gone[np.cumsum(gone.sum(axis=1)) > max(HELD_OUT * mask[at].sum(), 1)] = False
        hidden[targets] = gone
    return torch.from_numpy(hidden).to(device)


def coverage(
    views: Views, hidden: Tensor, guess: dict[str, Array], std: dict[str, Array], level: float
) -> dict[str, float]:
    """Share of the true values in hidden blocks that lie in their central `level` interval, per modality and in "all"."""
    inside = {}
    for j, (name, array) in enumerate(views.arrays.items()):
        rows = hidden[:, j]
        if bool(rows.any()):
            error = (to_tensor(array)[rows] - to_tensor(guess[name])[rows]).abs()
            hits = error <= normal_reach(level) * to_tensor(std[name])[rows]
            inside[name] = hits[~torch.isnan(error)].double()  # of a hole in a hidden block nobody knows the truth
    if not inside:
        raise InputError("nothing is hidden: hidden must mark blocks that are present")
    shares = {name: float(hits.mean()) for name, hits in inside.items()}
    return {"all": float(torch.cat([hits.reshape(-1) for hits in inside.values()]).mean()), **shares}


def normal_reach(level: float) -> float:
    """How many deviations on either side hold `level` of a normal distribution."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))


PATIENCE = 3
RISE = 0.005  # share by which the error of a mixture rises once it is past its best
TAIL, FALL = 5, 0.001  # a trial ends where so many iterations lower the error by less than this share
FIRST = 3  # iterations from a random start that are not judged: the first ones still show the start
CRITERIA: dict[str, Callable[[HeldOut, Parameters], float]] = {"imputation": HeldOut.error, "retrieval": HeldOut.miss}

Ended = tuple[float, int, Parameters]  # held-out error, iterations, parameters: the best of a trial


@dataclass
class Trials:
    """Fits on rows of which some blocks are hidden; whitenings share their principal directions."""

    held: HeldOut
    criterion: str
    seed: int
    max_iter: int
    whitenings: dict[float, tuple[Whitening, HeldOut]] = field(default_factory=dict)

    def run(self, settings: Settings, base: Parameters | None) -> Ended:
        """Fit with early stopping on the held-out error, and keep the best number of iterations."""
        measure = lookup(CRITERIA, self.criterion, "criterion")
        track: list[Ended] = []
        first = FIRST if base is None else 1
        whitening, held = self._whitened(settings.whitening) if settings.whitening else (None, self.held)

        def best_step() -> Ended:
            return min([entry for entry in track if entry[1] >= first] or track[-1:], key=lambda entry: entry[0])

        def watch(step: int, params: Parameters, _: float) -> bool:
            track.append((measure(held, params), step, params))
            error, best = track[-1][0], best_step()
            if step - best[1] >= PATIENCE or (base is not None and error > (1 + RISE) * best[0]):
                return True
            return len(track) >= first + TAIL and track[-1 - TAIL][0] - error < FALL * error

        options: dict[str, Any] = {"seed": self.seed, "max_iter": self.max_iter, "tol": 1e-5, "after_step": watch}
        fit_settings(held.source, settings, base=base, **options)
        error, step, params = best_step()
        return error, step, params if whitening is None else whitening.back(params)

    def _whitened(self, power: float) -> tuple[Whitening, HeldOut]:
        if power not in self.whitenings:
            earlier = next(iter(self.whitenings.values()), None)
            axes = principal_axes(self.held.source) if earlier is None else earlier[0].axes
            whitening = Whitening(self.held.source, axes, power)
            self.whitenings[power] = whitening, self.held.inside(whitening)
        return self.whitenings[power]


@torch.no_grad()
def run_trial(settings: Settings, rows: tuple[dict[str, Any], Tensor], base: Parameters | None, *rest: Any) -> Ended:
    """One trial, wherever the engine works; which blocks are hidden follows from the seed."""
    criterion, seed, max_iter = rest
    return Trials(hold_out(*rows, seed), criterion, seed, max_iter).run(settings, base)
