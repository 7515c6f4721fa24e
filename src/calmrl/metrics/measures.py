"""What lies behind retrieval: errors of imputation, calibration, anchor shift, and the geometry of the modalities.

Every function returns tidy rows, a list of {"task", "metric", "value", "n"}; the caller adds dataset, method and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypedDict

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.text import plural
from calmrl.anchors import anchor_shift, completion_bounds, completion_shift, shift_bounds
from calmrl.arrays import Array, Views, blocks_of_rows, check, to_tensor
from calmrl.errors import InputError
from calmrl.latent.held_out import coverage as share_inside
from calmrl.latent.held_out import coverage_fault

LEVELS = (50, 80, 90, 95)
RATES = tuple(round(0.1 * step, 1) for step in range(10))


class Measurement(TypedDict):
    """A tidy row: the value of a metric for a task, on n items."""

    task: str
    metric: str
    value: float
    n: int


class TidyRow(Measurement, total=False):
    """A measurement and what it was made on, as results.json has it; from `setting` on, keys may be absent."""

    dataset: str
    method: str
    seed: int
    setting: str
    rate: float  # missing
    complete: int  # training rows that lack nothing


def row(task: str, metric: str, value: float | Tensor, n: int) -> Measurement:
    """One measurement.

    Examples
    --------
    >>> row("image->text", "R@1", 41.5, 200)
    {'task': 'image->text', 'metric': 'R@1', 'value': 41.5, 'n': 200}
    """
    return {"task": task, "metric": metric, "value": float(value), "n": int(n)}


@torch.no_grad()
def imputation_error(
    imputer: Any,
    z: Mapping[str, Array],
    present: Array | None = None,
    directions: Sequence[tuple[Sequence[str], str]] | None = None,
) -> list[Measurement]:
    """Error of a fitted imputer on rows it has not seen, per direction (sources -> target).

    Over the n rows that have the sources and the target z (width d), the imputer sees the sources alone and gives zhat:

        mse        = mean |zhat_i - z_i|^2 / d,
        nmse       = sum |zhat_i - z_i|^2 / sum |mean z - z_i|^2: 0 is perfect, 1 as good as the best constant (no such
                     row where all z_i are the same),
        mse_random = mean over i != j of |z_j - z_i|^2 / d: a random other item in place of zhat_i, without drawing.

    Tasks are "text->image" and "image,text->speech". Without `directions`: every single source and, from three
    modalities on, all the others together. A direction that fewer than two rows can measure has no row in the result
    when it comes by default, and is an error when it was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(80, 2))
    >>> z = {"image": shared @ rng.normal(size=(2, 4)), "text": shared @ rng.normal(size=(2, 3))}
    >>> z["text"][:20] = np.nan
    >>> from calmrl.imputers import MeanImputer
    >>> rows = imputation_error(MeanImputer().fit(z), {name: values[20:] for name, values in z.items()})
    >>> sorted({row["task"] for row in rows})
    ['image->text', 'text->image']
    """
    views = check(z, present)
    rows = []
    for sources, target in _directions(views.names, directions):
        columns = [views.names.index(name) for name in (*sources, target)]
        rows_with_all = views.present[:, columns].all(1).nonzero()[:, 0]
        task = f"{','.join(sources)}->{target}"
        n = len(rows_with_all)
        if n < 2:
            if directions is None:
                continue
            rows_have = plural(n, "row has", "rows have")
            raise InputError(f"{task}: {rows_have} all of these modalities; at least two are needed to measure it")
        part = views.take(rows_with_all)
        filled = to_tensor(imputer.transform({name: part.arrays[name] for name in sources})[target]).double()
        truth = to_tensor(part.arrays[target]).double()
        d = truth.shape[1]
        error, spread = (filled - truth).square().sum(), (truth - truth.mean(0)).square().sum()
        rows += [row(task, "mse", error / (n * d), n), row(task, "mse_random", 2 * spread / ((n - 1) * d), n)]
        if spread > 0:
            rows.append(row(task, "nmse", error / spread, n))
    return rows


def _directions(
    names: Sequence[str], wanted: Sequence[tuple[Sequence[str], str]] | None
) -> Iterable[tuple[tuple[str, ...], str]]:
    if wanted is None:
        for target in names:
            others = tuple(name for name in names if name != target)
            yield from (((source,), target) for source in others)
            if len(others) > 1:
                yield others, target
        return
    for sources, target in wanted:
        sources = (sources,) if isinstance(sources, str) else tuple(sources)
        unknown = [name for name in (*sources, target) if name not in names]
        if unknown or not sources or target in sources:
            raise InputError(
                f"direction {sources} -> {target!r} cannot be measured; sources and target must be different "
                f"modalities among {', '.join(names)}"
            )
        yield sources, target


def coverage(
    imputer: Any, z: Mapping[str, Array], present: Array | None, hidden: Array, levels: Sequence[float] = LEVELS
) -> list[Measurement]:
    """Percent of the hidden entries inside their predicted interval mean ± q std, q the normal quantile of the level.

    `z` has the true values of the `hidden` blocks, a bool (N, k); the imputer, any with `impute(..., return_std=True)`,
    sees what is present and not hidden. Task is the level. Above it: too wide. Below: too sure.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(80, 2))
    >>> z = {"image": shared @ rng.normal(size=(2, 4)), "text": shared @ rng.normal(size=(2, 3))}
    >>> z["text"][:20] = np.nan
    >>> from calmrl import GaussianImputer
    >>> held = {name: values[20:] for name, values in z.items()}
    >>> hidden = np.tile([False, True], (60, 1))
    >>> [row["task"] for row in coverage(GaussianImputer(2).fit(z), held, None, hidden, levels=(0.5, 0.9))]
    ['0.5', '0.9']
    """
    views = check(z, present)
    if tuple(hidden.shape) != tuple(views.present.shape):
        raise InputError(f"hidden has shape {tuple(hidden.shape)}; pass {tuple(views.present.shape)}, as present")
    hide = to_tensor(hidden).to(views.present.device) & views.present
    left = views.present & ~hide
    as_given = left if isinstance(views.given(), Tensor) else left.numpy()
    filled, std = imputer.impute(views.arrays, as_given, return_std=True)
    n = int(hide.sum(0).cpu() @ torch.tensor(views.widths))
    return [
        row(f"{level:g}", "coverage", 100 * share_inside(views, hide, filled, std, level / 100)["all"], n)
        for level in levels
    ]


@torch.no_grad()
def anchor_shift_rows(
    z_complete: Mapping[str, Array], present: Array, completed: Any, *, renormalize: bool = True
) -> list[Measurement]:
    """Mean anchor shift before ("observed") and after ("calibrated") completing, each with the means of its bounds.

    `z_complete` are held-out items with everything, `present` says what to leave of them, `completed` is a fitted imputer
    or the dict that its `transform` returned; None measures "observed" alone. With `renormalize` all vectors are brought to
    length 1 first, imputed ones too, as `CalibratedAlignment` does by default; without, all stay as they are, and an imputed
    vector counts the less the shorter it is, that is, the less the imputer knows. Rows in which something is missing count;
    the bounds of `calmrl.anchors` hold row by row, and so for the means. Shifts lie between 0 and 2.

    Examples
    --------
    >>> import numpy as np
    >>> z = {name: np.random.default_rng(seed).normal(size=(40, 5)) for seed, name in enumerate(("image", "text", "audio"))}
    >>> present = np.tile([True, True, False], (40, 1))
    >>> sorted({row["task"] for row in anchor_shift_rows(z, present, z)})
    ['calibrated', 'observed']
    """
    mask = check(z_complete, present, values=False).present
    incomplete = (~mask).any(1).nonzero()[:, 0]
    if not len(incomplete):
        raise InputError("present is True everywhere: nothing is missing, so no anchor moves; hide something first")
    left = mask[incomplete].numpy(force=True)

    def chosen(side: Mapping[str, Array]) -> dict[str, Tensor]:
        values = {name: to_tensor(side[name])[incomplete].double() for name in z_complete}
        return {name: normalize(x, dim=1) for name, x in values.items()} if renormalize else values

    whole = chosen(z_complete)
    measured = {"observed": (anchor_shift(whole, left), *shift_bounds(whole, left))}
    if completed is not None:
        filled = chosen(completed if isinstance(completed, Mapping) else completed.transform(z_complete, present))
        measured["calibrated"] = (completion_shift(whole, filled, left)[1], *completion_bounds(whole, filled, left))
    return [
        row(task, f"anchor_shift{end}", values.mean(), len(incomplete))
        for task, shift_and_bounds in measured.items()
        for end, values in zip(("", "_low", "_high"), shift_and_bounds, strict=True)
    ]


@torch.no_grad()
def modality_gap(
    z: Mapping[str, Array], present: Array | None = None, *, separability: bool = False
) -> list[Measurement]:
    """Distance between the centroids of two modalities' unit vectors, from 0 to 2, over the rows that have both.

    Task "image|text", one per pair that some row has. With `separability` also `modality_separability`: percent of
    vectors whose modality a logistic regression names rightly, on items that it did not see (5 folds; both vectors of an
    item are in the same fold). 50 is chance; the gap can be small and the modalities still separable.

    Examples
    --------
    >>> import numpy as np
    >>> z = {"image": np.eye(3), "text": np.eye(3)}
    >>> [(row["task"], round(row["value"], 2)) for row in modality_gap(z)]
    [('image|text', 0.0)]
    """
    rows = []
    for task, x, y in _pairs(check(z, present)):
        rows.append(row(task, "modality_gap", (x.mean(0) - y.mean(0)).norm(), len(x)))
        if separability:
            rows.append(row(task, "modality_separability", _separability(x, y), len(x)))
    return rows


@torch.no_grad()
def alignment(z: Mapping[str, Array], present: Array | None = None) -> list[Measurement]:
    """mean |x_i - y_i|^2 of unit vectors of the same item (Wang and Isola), 0 to 4, per pair, over rows that have both.

    Examples
    --------
    >>> import numpy as np
    >>> z = {"image": np.eye(3), "text": np.eye(3)}
    >>> alignment(z)
    [{'task': 'image|text', 'metric': 'alignment', 'value': 0.0, 'n': 3}]
    """
    return [row(task, "alignment", (x - y).square().sum(1).mean(), len(x)) for task, x, y in _pairs(check(z, present))]


@torch.no_grad()
def uniformity(z: Mapping[str, Array], present: Array | None = None) -> list[Measurement]:
    """log mean over i != j of exp(-2 |x_i - x_j|^2), unit vectors (Wang and Isola): lower is more evenly spread.

    0 means that all vectors are the same; the least possible is near -4 in many dimensions. Task is the modality; one
    that fewer than two rows have has no row.

    Examples
    --------
    >>> import numpy as np
    >>> z = {"image": np.eye(3), "text": np.eye(3)}
    >>> [(row["task"], round(row["value"], 2)) for row in uniformity(z)]
    [('image', -4.0), ('text', -4.0)]
    """
    views = check(z, present)
    rows = []
    for j, (name, array) in enumerate(views.arrays.items()):
        x = _unit(array, views.present[:, j])
        n = len(x)
        if n < 2:
            continue
        total = x.new_zeros(())
        for start, stop in blocks_of_rows(n, 8 * n):
            near = (4 * (x[start:stop] @ x.T) - 4).exp_()  # -2 |x - y|^2 = 4 x . y - 4
            near[torch.arange(stop - start), torch.arange(start, stop)] = 0
            total += near.sum()
        rows.append(row(name, "uniformity", (total / (n * (n - 1))).log(), n))
    return rows


def robustness(
    measure: Callable[[float, int], Iterable[Mapping[str, Any]]],
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0,),
) -> list[dict[str, Any]]:
    """The rows of `measure(rate, seed)` for every missing rate and seed, with "rate" and "seed" added.

    `measure` hides that share of the modalities (`calmrl.data.hiding.hide`), trains or completes, and measures.

    Examples
    --------
    >>> [row["rate"] for row in robustness(lambda rate, seed: [row("all", "R@1", 100 * rate, 10)], rates=(0.1, 0.5))]
    [0.1, 0.5]
    """
    bad = [rate for rate in rates if not 0 <= rate < 1]
    if bad:
        raise InputError(f"missing rates lie between 0 and 1 (1 excluded: something must be left); got {bad[0]}")
    return [
        dict(one) | {"rate": float(rate), "seed": seed}
        for rate in rates
        for seed in seeds
        for one in measure(rate, seed)
    ]


def _unit(array: Array, rows: Tensor) -> Tensor:
    return normalize(to_tensor(array)[rows].detach().double(), dim=1)


def _pairs(views: Views) -> Iterable[tuple[str, Tensor, Tensor]]:
    """("image|text", unit vectors of one, of the other) over the rows that have both, for each pair with such rows."""
    for (i, a), (j, b) in combinations(enumerate(views.names), 2):
        if views.widths[i] != views.widths[j]:
            raise InputError(
                f"{a} has width {views.widths[i]} and {b} {views.widths[j]}; this compares vectors of one space. Project "
                "them first"
            )
        both = views.present[:, i] & views.present[:, j]
        if bool(both.any()):
            yield f"{a}|{b}", _unit(views.arrays[a], both), _unit(views.arrays[b], both)


def _separability(x: Tensor, y: Tensor) -> float:
    n = len(x)
    if n < 5:
        raise InputError(f"separability is measured in 5 folds of items; {n} rows have both modalities")
    vectors = torch.cat([x, y]).numpy(force=True)
    side, item = np.repeat([0, 1], n), np.tile(np.arange(n), 2)
    guess = cross_val_predict(LogisticRegression(C=100.0, max_iter=1000), vectors, side, groups=item, cv=GroupKFold(5))
    return 100 * float((guess == side).mean())


FEW = 50  # queries of a direction, below which one of them is more than 2 points of recall
LEVEL = "95"  # of intervals, in percent


def remarks(rows: Sequence[Measurement]) -> list[str]:
    """Warnings about measurements: imputation worse than the mean, intervals that do not cover, too few queries.

    Examples
    --------
    >>> remarks([{"task": "text->image", "metric": "nmse", "value": 1.2, "n": 50}])
    ['imputing is worse than the column means for text->image (normalised error 1.20): do not use these imputed vectors']
    """
    sentences = []
    worse = [f"{row['task']} ({row['value']:.2f})" for row in rows if row["metric"] == "nmse" and row["value"] > 1]
    if worse:
        worse[0] = worse[0].replace("(", "(normalised error ", 1)
        sentences.append(
            f"imputing is worse than the column means for {', '.join(worse)}: do not use these imputed vectors"
        )
    for row in rows:
        if (row["metric"], row["task"]) == ("coverage", LEVEL) and (fault := coverage_fault(row["value"])):
            sentences.append(
                f"{LEVEL} % intervals of imputed values hold {row['value']:.0f} % of the true values: they are {fault}"
            )
    few = {row["task"]: row["n"] for row in rows if row["metric"] == "R@1" and "->" in row["task"] and row["n"] < FEW}
    if few:
        listed = ", ".join(f"{task} ({n})" for task, n in few.items())
        least = min(few.values())
        sentences.append(
            f"few queries: {listed}; with {least}, one hit more or less moves R@1 by {100 / least:.0f} points"
        )
    return sentences
