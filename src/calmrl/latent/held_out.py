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

TOO_LOW, TOO_HIGH = 90.0, 98.0  # percent inside the 95 % interval that are still called right
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
        if self.holes is None and params.n_components == 1:
            errors = self._single_errors(params)
            return self.beyond + float(sum(e.square().sum(0, dtype=torch.float64) @ self.weight[m] for m, e in errors))
        blocks = entries = 0.0
        for m, hole, error, _ in self._errors(params):
            if hole and self.holes is not None:
                entries += self.holes.weight[m] * float(error.square().sum(dtype=torch.float64))
            else:
                blocks += float(error.nan_to_num(0.0).square().sum(0, dtype=torch.float64) @ self.weight[m])
        return self.beyond + blocks + entries

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
    def scales(self, params: Parameters, level: float = 0.9) -> tuple[list[float], list[float]]:
        """The factors on predicted deviations with which `level` intervals cover `level` of what was hidden, per modality:

        those of hidden blocks, and those of hidden entries of modalities that are visible otherwise.
        """
        ratios: list[list[list[Tensor]]] = [[[] for _ in params.names] for _ in range(2)]
        for m, hole, error, variance in self._errors(params, with_variance=True):
            ratio = (error.abs() / variance.sqrt()).reshape(-1).double()
            ratios[hole][m].append(ratio if self.holes is None else ratio[~torch.isnan(ratio)])
        blocks, entries = ([_reach(parts, level) for parts in kind] for kind in ratios)
        return blocks, entries

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

    def _errors(self, params: Parameters, with_variance: bool = False) -> Iterator[tuple[int, bool, Tensor, Tensor]]:
        """(modality, whether single entries were hidden, errors, their predicted variances if asked for), by pattern."""
        packed, hidden, truth = self._guessed
        for index, _, post in by_pattern(params, packed):
            for m, values in enumerate(truth):
                ask = hidden[index, m]
                if bool(ask.any()):
                    part = replace(post, mean=post.mean[ask], log_joint=post.log_joint[ask])
                    if post.covariance.ndim == 4:
                        part = replace(part, covariance=post.covariance[ask])
                    error = predictive_mean(params, m, part) - values[index[ask]]
                    yield m, False, error, predictive_variance(params, m, part) if with_variance else error
                entries = None if self.holes is None else self.holes.hidden[m][self._rows[index]]
                if entries is not None and bool(entries.any()):
                    error = (predictive_mean(params, m, post) - values[index])[entries]
                    yield m, True, error, predictive_variance(params, m, post)[entries] if with_variance else error


def _reach(ratios: list[Tensor], level: float) -> float:
    """The `level` quantile of errors in units of their deviations, relative to that of a normal one."""
    joined = torch.cat(ratios).cpu().numpy() if ratios else np.zeros(0)
    return float(np.quantile(joined, level)) / normal_reach(level) if len(joined) else 1.0


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

    Where rows have holes, about a tenth of the observed entries is hidden as well. Blocks and entries then count by how many
    values of either kind the rows lack, blocks for at least LEAST_BLOCKS.
    """
    observed = int(present.sum())
    share = min(max(HELD_OUT, 1 / observed), (observed - len(present)) / observed)
    generator = np.random.default_rng(seed)
    hidden = present & ~hide(present, share, generator)
    views = check(z, present, holes=True)
    seen = [part.expand(-1, width) for part, width in zip(views.observed(0, len(views)), views.widths, strict=True)]
    left = (present & ~hidden).unbind(1)
    entries = [hidden_entries(*part, generator) for part in zip(seen, left, strict=True)] if views.holes else []
    shown = {name: torch.where(gone, float("nan"), z[name].detach()) for name, gone in zip(z, entries, strict=False)}
    source = open_source(shown or z, present & ~hidden, shared=False, holes=bool(views.holes))
    total = [v.mean().clamp(min=torch.finfo(torch.float64).tiny) for v in source.variance]
    in_blocks = sum(int(part[gone].sum()) for part, gone in zip(seen, hidden.unbind(1), strict=True))
    in_holes = sum(int(gone.sum()) for gone in entries)
    lacking = int((~present).sum(0) @ torch.tensor(views.widths, device=hidden.device))
    torn = sum(int((has[:, None] & ~part).sum()) for part, has in zip(seen, present.unbind(1), strict=True))
    share = max(LEAST_BLOCKS, lacking / max(1, lacking + torn)) if in_blocks else 0.0
    share = share if in_holes else 1.0
    weight = [(share / (max(in_blocks, 1) * t)).expand(d) for t, d in zip(total, views.widths, strict=True)]
    holes = Holes(entries, [float((1 - share) / (max(in_holes, 1) * t)) for t in total]) if views.holes else None
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


def coverage_fault(covered: float) -> str | None:
    """What is wrong with 95 % intervals that hold so many percent of the true values; None if nothing is."""
    if TOO_LOW <= covered <= TOO_HIGH:
        return None
    return "too narrow" if covered < TOO_LOW else "too wide"


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
