"""Holes inside a modality: for `AutoImputer` an average of guesses, for who needs whole rows (`Within`) the latent model.

`AutoImputer` averages four guesses:

guess_j = w^m_1 latent_j + w^m_2 mean of the nearest rows in which column j was observed + w^m_3 factors_j + w^m_4 alone_j

Weights, w >= 0 with sum 1, are chosen on held-out entries. `factors` is group factor analysis (`GFAImputer`), which has a prior
for every modality and latent, where the latent model has one for all. `alone` is a latent model of modality m and nothing else:
its number of latents is what this modality needs, which can be many more than what the modalities share. Rows are near as the
latent model completes them, so that what they lack does not hide how alike they are. Deviations are those of the latent model,
times a factor per modality with which 90 % intervals cover 90 % of the held-out entries.

`Aligner` and the baselines complete a modality from what it has itself, by a latent model of that modality alone: a picture
that was completed from its caption would be found by it for that reason, and the recall to expect would promise too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl.arrays import Array, Views, like_input, to_tensor
from calmrl.errors import InputError
from calmrl.imputers.base import fit_latent, state_of, with_state
from calmrl.imputers.gfa import GFAImputer, Loadings, torn_latents
from calmrl.imputers.registry import IMPUTERS
from calmrl.imputers.stacking import SHARED, Fitter, simplex_weights
from calmrl.latent.held_out import hidden_entries, normal_reach

NEIGHBOURS = 10
LOOKED_AT = 40  # nearest rows among which those with the entry are taken
MOST_ROWS = 10_000  # rows that can be neighbours, evenly spaced
LEAST_ENTRIES = 30  # held-out entries of a modality, below which the latent model stands alone
DISTANCE_BYTES = 1 << 26
FACTORS, FACTOR_STEPS = 32, 50  # of group factor analysis: latents at the start, iterations
FACTOR_VALUES = 2 * 10**6  # values that it is fitted on, rows evenly spaced
GUESSES = ("gaussian", "neighbours", "factors", "alone")


@dataclass(frozen=True)
class Neighbours:
    """Rows as the latent model completes them, all modalities side by side, and what held-out entries say of them."""

    rows: Tensor  # (n, D) float64
    seen: Tensor  # (n, D) bool: what was observed of them
    length: Tensor  # (D,) what columns are divided by before distances are taken: one deviation per modality
    weight: Tensor  # (k, 4) of GUESSES
    factor: Tensor  # (k,) on the deviations of the latent model
    centre: Tensor  # (D,) what the factors know of each column
    loadings: Tensor  # (D, L); L is 0 where no modality uses them
    covariance: Tensor  # (D, L, L)
    precision: Tensor  # (D,)
    alone: Within = field(default_factory=lambda: Within())  # of modalities that use it

    def guesses(self, names: Sequence[str], done: Sequence[Tensor], known: Sequence[Tensor]) -> list[Tensor]:
        """What each of GUESSES says of some rows, (4, n, d_m) per modality: those without weight what another one says.

        `done` is what the latent model says, `known` is NaN where nothing was observed.
        """
        widths = [block.shape[1] for block in done]
        near = self.guess(torch.cat(list(done), dim=1)).split(widths, dim=1)
        used = self.loadings.shape[1] > 0
        factors = self.by_factors(torch.cat(list(known), dim=1)).split(widths, dim=1) if used else near
        said = []
        for m, (name, rows) in enumerate(zip(names, known, strict=True)):
            alone, gap = done[m].clone(), torch.isnan(rows)
            lacking = gap.any(1) & ~gap.all(1)
            if name in self.alone.models:
                alone[lacking] = self.alone.complete(name, rows[lacking])
            said.append(torch.stack([done[m], near[m], factors[m], alone]))
        return said

    def by_factors(self, x: Tensor) -> Tensor:
        """What the factors say of rows that are NaN where nothing was observed, (N, D)."""
        parts = []
        known = Loadings(
            self.centre, self.loadings, self.covariance, self.precision, self.loadings.new_ones(self.loadings.shape[1])
        )
        for block in x.split(max(1, DISTANCE_BYTES // (16 * max(1, self.loadings.shape[1]) ** 2))):
            seen = ~torch.isnan(block)
            means, _ = torn_latents([known], [torch.where(seen, block, 0.0)], [seen.double()])
            parts.append(means @ self.loadings.T + self.centre)
        return torch.cat(parts) if parts else x

    def guess(self, x: Tensor) -> Tensor:
        """Means of the nearest rows in which an entry was observed, (N, D); those of all nearest rows where it was in none."""
        rows, parts = self.rows / self.length, []
        step = max(1, DISTANCE_BYTES // (8 * (len(rows) + LOOKED_AT * x.shape[1])))
        for block in x.split(step):
            distance = torch.cdist(block / self.length, rows)
            near = distance.topk(min(LOOKED_AT, len(rows)), largest=False).indices
            values, seen = self.rows[near], self.seen[near]  # (n, LOOKED_AT, D)
            taken = seen & (seen.cumsum(1) <= NEIGHBOURS)
            count = taken.sum(1)
            known = torch.where(taken, values, 0.0).sum(1) / count.clamp(min=1)
            parts.append(torch.where(count > 0, known, values[:, :NEIGHBOURS].mean(1)))
        return torch.cat(parts) if parts else x


@dataclass(frozen=True)
class HoleCompletion:
    """A latent model and neighbours, with the `impute` that completes holes."""

    latent: Any
    neighbours: Neighbours

    @torch.no_grad()
    def impute(self, z: Mapping[str, Array], present: Array, return_std: bool = False) -> Any:
        """As the latent model does; in holes of modalities that are present, averaged with the neighbours."""
        filled, std = self.latent.impute(z, present, return_std=True)
        names = self.latent.names_
        done = [_double(filled[name]) for name in names]
        columns = dict(zip(z, to_tensor(present).cpu()[..., None].unbind(1), strict=True))
        has = [columns.get(name, torch.zeros(len(done[0]), 1, dtype=torch.bool)) for name in names]
        held = zip(names, done, has, strict=True)
        known = [torch.where(mask, _double(z.get(name, block)), float("nan")) for name, block, mask in held]
        holes = [mask & torch.isnan(block) for mask, block in zip(has, known, strict=True)]
        rows = torch.stack([gone.any(1) for gone in holes]).any(0).nonzero()[:, 0]
        said = self.neighbours.guesses(names, [block[rows] for block in done], [block[rows] for block in known])
        for m, name in enumerate(names):
            if name in z:
                mixed, spread = done[m].clone(), _double(std[name])
                mixed[rows] = (self.neighbours.weight[m, :, None, None] * said[m]).sum(0)
                filled[name] = like_input(torch.where(holes[m], mixed, done[m]), z[name])
                scaled = float(self.neighbours.factor[m]) * spread
                std[name] = like_input(torch.where(holes[m], scaled, spread), z[name])
        return (filled, std) if return_std else filled


def _double(values: Array) -> Tensor:
    return to_tensor(values).detach().double().cpu()


def neighbours_of(latent: Any, views: Views, weight: Tensor, factor: Tensor, alone: Within) -> Neighbours:
    """Rows of the input, at most MOST_ROWS, as the latent model completes them; factors and models that have a weight."""
    used = {
        name for name, share in zip(views.names, weight[:, 3].tolist(), strict=True) if share and name in alone.models
    }
    alone = Within({n: alone.models[n].refit({n: rows}) for n, rows in _observed_rows(views).items() if n in used})
    wanted = bool(weight[:, 2].any())
    centre, W, covariance, precision = _factors_of(latent, views) if wanted else _no_factors(sum(views.widths))
    if len(views) > MOST_ROWS:
        views = views.take(torch.linspace(0, len(views) - 1, MOST_ROWS).round().long())
    filled = latent.transform(dict(views.arrays), views.mask())
    rows = torch.cat([_double(filled[name]) for name in latent.names_], dim=1)
    observed = zip(views.observed(0, len(views)), views.widths, strict=True)
    seen = torch.cat([part.cpu().expand(-1, width) for part, width in observed], dim=1)
    blocks = zip(rows.split(views.widths, dim=1), views.widths, strict=True)
    length = torch.cat([block.std(0, correction=0).square().mean().sqrt().expand(width) for block, width in blocks])
    return Neighbours(
        rows, seen, torch.where(length > 0, length, 1.0), weight, factor, centre, W, covariance, precision, alone
    )


def _observed_rows(views: Views) -> dict[str, Tensor]:
    """Of every modality the rows that have it, NaN in their holes."""
    held = zip(views.names, views.rows(0, len(views)), views.present.unbind(1), strict=True)
    return {name: values.detach()[has] for name, values, has in held if values is not None and bool(has.any())}


def _factors_of(latent: Any, views: Views) -> tuple[Tensor, ...]:
    """Centre, loadings, their covariance and precision of all columns side by side."""
    most = max(1, FACTOR_VALUES // sum(views.widths))
    if len(views) > most:
        views = views.take(torch.linspace(0, len(views) - 1, most).round().long())
    model = GFAImputer(FACTORS, FACTOR_STEPS, random_state=latent.random_state).fit(dict(views.arrays), views.mask())
    parts = zip(*((p.mean, p.W, p.covariance, p.precision) for p in model.loadings_), strict=True)
    return tuple(torch.cat(part).cpu() for part in parts)


def _no_factors(columns: int) -> tuple[Tensor, ...]:
    return tuple(
        torch.zeros(shape, dtype=torch.float64) for shape in ((columns,), (columns, 0), (columns, 0, 0), (columns,))
    )


def choose_holes(views: Views, fitter: Fitter) -> tuple[Tensor, Tensor, Within, dict[str, Any]]:
    """(weights of GUESSES, factors on the deviations, models of modalities alone, what was measured), on hidden entries.

    The latent model is fitted without them, with the settings that are settled.
    """
    generator = np.random.default_rng(fitter.seed)
    k = len(views.names)
    seen = [part.expand(-1, width) for part, width in zip(views.observed(0, len(views)), views.widths, strict=True)]
    hidden = [hidden_entries(part, views.present[:, m], generator) for m, part in enumerate(seen)]
    truth = [to_tensor(views.arrays[name]).detach() for name in views.names]
    arrays = {
        name: like_input(torch.where(gone, float("nan"), values), views.arrays[name])
        for name, values, gone in zip(views.names, truth, hidden, strict=True)
    }
    torn = replace(views, arrays=arrays, holes=frozenset(views.names))
    latent = fitter.fit("gaussian", arrays, views.present, {})
    one = torch.ones(k, dtype=torch.float64)
    near = neighbours_of(latent, torn, one[:, None].expand(k, 4), one, Within())
    near = replace(near, alone=fit_within(_observed_rows(torn), fitter.seed))
    values, std = latent.impute(arrays, torn.mask(), return_std=True)
    columns = zip(views.names, views.present.cpu()[..., None].unbind(1), strict=True)
    known = [torch.where(has, _double(arrays[name]), float("nan")) for name, has in columns]
    said = near.guesses(views.names, [_double(values[name]) for name in views.names], known)
    errors, spreads = [], []
    for name, right, gone, guesses in zip(views.names, truth, hidden, said, strict=True):
        at = gone.cpu()
        errors.append((guesses - right.double().cpu())[:, at].numpy())  # (4, entries)
        spreads.append(_double(std[name])[at].numpy())
    units = [max(float(np.square(error[0]).sum()), np.finfo(float).tiny) / max(1, error.shape[1]) for error in errors]
    grams = [e @ e.T / unit for e, unit in zip(errors, units, strict=True)]  # a modality counts by its entries
    pooled = sum(grams) / max(1, sum(error.shape[1] for error in errors))  # per entry
    weight, factor = one[:, None] * torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64), one.clone()
    for m, (error, spread) in enumerate(zip(errors, spreads, strict=True)):
        if error.shape[1] < LEAST_ENTRIES:
            continue
        weight[m] = torch.from_numpy(simplex_weights(grams[m] + SHARED * pooled))
        ratio = np.abs(weight[m].numpy() @ error) / np.maximum(spread, 1e-300)
        factor[m] = float(np.quantile(ratio, 0.9)) / normal_reach(0.9)
    return weight, factor, near.alone, _measured(views, hidden, truth, seen, errors, weight)


def _measured(
    views: Views,
    hidden: list[Tensor],
    truth: list[Tensor],
    seen: list[Tensor],
    errors: list[np.ndarray],
    weight: Tensor,
) -> dict[str, Any]:
    """Held-out entries, and normalised errors (1.0 is the column mean) of the guesses and of their average."""
    names = (*GUESSES, "average")
    total, parts = 0.0, np.zeros(len(names))
    for m, error in enumerate(errors):
        gone, known = hidden[m].cpu(), (seen[m] & ~hidden[m]).cpu()
        values = torch.where(seen[m].cpu(), truth[m].double().cpu(), 0.0)
        centre = torch.where(known, values, 0.0).sum(0) / known.sum(0).clamp(min=1)
        variance = float(torch.where(known, (values - centre).square(), 0.0).sum() / known.sum().clamp(min=1))
        if variance > 0:
            total += float((values - centre)[gone].square().sum()) / variance
            mixed = weight[m].numpy() @ error
            parts += np.array([np.square(part).sum() for part in (*error, mixed)]) / variance
    shares = parts / total if total > 0 else np.full(len(names), np.nan)
    return {
        "held_out": sum(error.shape[1] for error in errors),
        "errors": {name: float(share) for name, share in zip(names, shares, strict=True)} if total > 0 else {},
        "weights": {
            m: dict(zip(GUESSES, row, strict=True)) for m, row in zip(views.names, weight.tolist(), strict=True)
        },
    }


# ---- for who needs whole rows


@dataclass(frozen=True)
class Within:
    """Modality -> the latent model of it alone, a fitted `GaussianImputer`, for those whose rows had holes."""

    models: Mapping[str, Any] = field(default_factory=dict)

    def whole(self, views: Views) -> Views:
        """The rows with each hole completed from the other entries of its modality; observed entries stay as they are."""
        unknown = sorted(views.holes - set(self.models))
        if unknown:
            raise InputError(
                f"some rows have holes inside a modality ({', '.join(unknown)}), but it was fitted on whole rows of it; fit it "
                "on rows with holes, or complete these first with a GaussianImputer"
            )
        arrays = dict(views.arrays)
        for name in views.holes:
            values, has = to_tensor(arrays[name]).detach(), views.present[:, views.names.index(name)]
            torn = (has & torch.isnan(values).any(1)).nonzero()[:, 0]
            done = self.complete(name, values[torn])
            arrays[name] = like_input(values.index_put((torn,), done), arrays[name])
        return Views(arrays, views.present, views.widths)

    def complete(self, name: str, rows: Tensor) -> Tensor:
        """Rows (n, d) of one modality without their holes."""
        done: Tensor = self.models[name].transform({name: rows})[name]
        return done

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(json-able, tensors): what `from_state` reads."""
        states = {name: state_of(model, f"alone.{name}.") for name, model in self.models.items()}
        tensors = dict(pair for _, own in states.values() for pair in own.items())
        return {name: meta for name, (meta, _) in states.items()}, tensors

    @classmethod
    def from_state(cls, meta: dict[str, Any], tensors: Mapping[str, Tensor]) -> Within:
        """The inverse of `state`; tensors of others are passed over."""
        latent = IMPUTERS["gaussian"]
        return cls({name: with_state(latent(), about, tensors, f"alone.{name}.") for name, about in meta.items()})


def fit_within(rows: Mapping[str, Tensor], seed: int | None) -> Within:
    """Latent models, everything on "auto", of the rows (n, d) that have each modality; none for those without holes."""
    torn = {name: values for name, values in rows.items() if bool(torch.isnan(values).any())}
    return Within({name: fit_latent({name: values}, None, seed) for name, values in torn.items()})
