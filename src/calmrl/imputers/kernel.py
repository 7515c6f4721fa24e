"""`KernelImputer`: kernel ridge regression of each modality on the others, with leave-one-out errors and deviations.

k(x, y) = exp(-gamma |x - y|^2) + linear x.y,    f(x) = k(x, X) (K + alpha I)^-1 Y.
With features p(x), p(x).p(y) = k(x, y) (on landmarks: its Nystrom approximation), chosen so that P^T P = diag(e),
    hat_i = sum_j P_ij^2 / (e_j + alpha),    leave-one-out residual_i = (Y - P (diag(e) + alpha)^-1 P^T Y)_i / (1 - hat_i).
As a Gaussian process, Var f(x) = s^2 (alpha + k(x, x) - |p(x)|^2 + alpha sum_j p_j(x)^2 / (e_j + alpha)), one s per column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calmrl._support.arguments import Auto, Count, NotNegative, Positive, check_choice, check_number, check_whole
from calmrl.arrays import Array, Views, to_tensor
from calmrl.data.features.distributed_rows import DistributedRows
from calmrl.data.patterns import connected, rows_together
from calmrl.errors import InputError
from calmrl.imputers.base import BlockImputer, Blocks, fit_latent, state_of, with_state
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.simple import MeanImputer, fewer_columns
from calmrl.latent.held_out import normal_reach
from calmrl.latent.rows import open_source

SMALLEST = 1e-10  # eigenvalues of the kernel below this, relative to the largest, are rounding
SAFE_ALPHA = 1e-3  # with which K + alpha I has a Cholesky factor, whatever rounding does


@dataclass(frozen=True)
class Kernel:
    """RBF of width `gamma` plus `linear` times the inner product."""

    gamma: float
    linear: float

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        inner = left @ right.T
        square = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * inner
        return torch.exp(-self.gamma * square.clamp(min=0)) + self.linear * inner

    def self_value(self, x: Tensor) -> Tensor:
        """k(x, x) for every row."""
        return 1 + self.linear * x.square().sum(1)


@dataclass(frozen=True)
class Features:
    """p(x) = T^T k(landmarks, x), with P^T P = diag(energy) over the training rows.

    Of a regression with one alpha, T^T T may be (K + alpha I)^-1 instead: then the energy is infinite.
    """

    kernel: Kernel
    landmarks: Tensor  # (l, D)
    turn: Tensor  # (l, r) T
    energy: Tensor  # (r,)

    def of(self, x: Tensor) -> Tensor:
        return self.kernel.between(x, self.landmarks) @ self.turn


def make_features(kernel: Kernel, x: Tensor, landmarks: int) -> tuple[Features, Tensor]:
    """(features, P of the training rows); exact for at most `landmarks` rows, which are evenly spaced otherwise."""
    exact = len(x) <= landmarks
    points = x.contiguous() if exact else x[torch.linspace(0, len(x) - 1, landmarks).round().long()]
    energy, axes = torch.linalg.eigh(kernel.between(points, points))
    kept = energy > SMALLEST * energy[-1]
    energy, axes = energy[kept], axes[:, kept]
    turn = axes / energy.sqrt()
    if exact:
        return Features(kernel, points, turn.contiguous(), energy), axes * energy.sqrt()
    p = kernel.between(x, points) @ turn
    energy, axes = torch.linalg.eigh(p.T @ p)
    energy = energy.clamp(min=0)
    return Features(kernel, points, (turn @ axes).contiguous(), energy), p @ axes


def leave_one_out(
    p: Tensor, energy: Tensor, y: Tensor, alpha: float, along: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(residuals (n, d) of every row predicted from the others, 1 - hat (n,)); `along` is P^T Y if that is there."""
    shrink = 1 / (energy + alpha)
    left = (1 - p.square() @ shrink).clamp(min=1e-8)
    along = p.T @ y if along is None else along
    return (y - p @ (shrink[:, None] * along)) / left[:, None], left


def best_alpha(p: Tensor, energy: Tensor, y: Tensor, alphas: tuple[float, ...]) -> tuple[float, float]:
    """(squared leave-one-out residual, summed; alpha) of the best alpha."""
    along = p.T @ y
    return min((float(leave_one_out(p, energy, y, alpha, along)[0].square().sum()), alpha) for alpha in alphas)


@dataclass(frozen=True)
class Regression:
    """A fitted kernel ridge regression."""

    features: Features
    alpha: float
    weights: Tensor  # (r, d)
    centre: Tensor  # (d,) mean of the targets
    variance: Tensor  # (d,) s^2

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, deviation), each (n, d)."""
        p = self.features.of(x)
        unsure = self.features.kernel.self_value(x) - p.square().sum(1)
        unsure = unsure.clamp(min=0) + self.alpha * p.square() @ (1 / (self.features.energy + self.alpha))
        deviation = ((self.alpha + unsure)[:, None] * self.variance).sqrt()
        return p @ self.weights + self.centre, deviation


@dataclass(frozen=True)
class LeftOut:
    """What leaving out each training row in turn showed."""

    ratio: Tensor  # (n, d) residuals in units of their predicted deviations
    error: float  # squared residuals over squared deviations from the mean


def fit_regression(
    kernel: Kernel, x: Tensor, y: Tensor, alphas: tuple[float, ...], landmarks: int
) -> tuple[Regression, LeftOut]:
    """The regression with the best alpha, and what it does on rows that are left out."""
    centre = y.mean(0)
    y = y - centre
    if len(alphas) == 1 and alphas[0] >= SAFE_ALPHA and len(x) <= landmarks:
        alpha = alphas[0]
        features, weights, residual, unit = _by_cholesky(kernel, x, y, alpha)
    else:
        features, p = make_features(kernel, x, landmarks)
        alpha = best_alpha(p, features.energy, fewer_columns(y), alphas)[1] if len(alphas) > 1 else alphas[0]
        along = p.T @ y
        residual, left = leave_one_out(p, features.energy, y, alpha, along)
        unit = alpha / left  # variance of a left-out row, up to the scale of its column
        weights = along / (features.energy + alpha)[:, None]
    variance = (residual.square() / unit[:, None]).mean(0)
    floor = torch.finfo(torch.float64).tiny
    ratio = residual / (unit[:, None] * variance + floor).sqrt()
    total = float(y.square().sum())
    error = float(residual.square().sum()) / total if total > 0 else 1.0
    return Regression(features, alpha, weights.contiguous(), centre, variance), LeftOut(ratio, error)


def _by_cholesky(kernel: Kernel, x: Tensor, y: Tensor, alpha: float) -> tuple[Features, Tensor, Tensor, Tensor]:
    """(features, weights, leave-one-out residuals, their variances) with A = (K + alpha I)^-1: A Y / A_ii and 1 / A_ii.

    A fifth of what the eigenvectors of K cost, which serve every alpha.
    """
    x = x.contiguous()
    eye = torch.eye(len(x), dtype=x.dtype)
    root = torch.linalg.cholesky(kernel.between(x, x) + alpha * eye)
    turn = torch.linalg.solve_triangular(root, eye, upper=False).T.contiguous()  # A = turn turn^T
    unit = 1 / turn.square().sum(1)
    weights = turn.T @ y
    features = Features(kernel, x, turn, torch.full_like(unit, float("inf")))
    return features, weights, (turn @ weights) * unit[:, None], unit


GAMMAS = (0.5, 1.0, 2.0)
LINEAR = (0.0, 0.5)
ALPHAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CHOICE_ROWS = 400  # rows on which the form of the kernel is chosen; alpha is chosen on all
MOST_ROWS = 20_000  # rows that one regression uses at most, evenly spaced
BLOCK_ROWS = 4096  # rows that are predicted at once
LEAST_ROWS = 10  # rows with a modality and another one, below which its mean is imputed
BASES = ("gaussian", "mean")
TENSORS = ("landmarks", "turn", "energy", "weights", "centre", "variance")


class KernelImputer(BlockImputer):
    """Kernel ridge regression (a Gaussian process) of each modality on the others, fitted on all rows that have it.

    f(x) = k(x, X) (K + alpha I)^-1 Y,    k(x, y) = exp(-gamma |x - y|^2) + linear x.y

    x are the other modalities side by side, each centred and scaled to mean square length 1. Sources that a row lacks
    are imputed first by `base`, which never sees the modality to be predicted. So one regression serves every pattern
    of missing modalities and learns from every row, where one regression per pattern learns from few rows each.
    gamma, linear, alpha and whether x is scaled to unit length are chosen by leave-one-out error, per modality.

    Deviations are those of the Gaussian process, its scale per column, per pattern of observed sources and finally
    per modality such that 90 % intervals cover 90 % of the training rows, each left out.

    Holes inside a modality are completed first, by the latent model (`GaussianImputer`), with its deviations.

    Parameters
    ----------
    base : {"gaussian", "mean"}
        What imputes the sources: a `GaussianImputer` with everything on "auto", or column means.
    unit_rows : {"auto", True, False}
        Whether x is scaled to unit length (embeddings) or not (measurements).
    gamma, linear, alpha : float or "auto"
        Numbers >= 0 (alpha > 0).
    landmarks : int
        With more rows than this, the kernel is approximated on so many, evenly spaced (Nystrom).
    random_state : int or None
        Seed of the base.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Attributes
    ----------
    choice_ : dict
        Per modality what was chosen and its leave-one-out error (1.0 is the column mean).

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> KernelImputer().fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """

    def __init__(
        self,
        base: Literal["gaussian", "mean"] = "gaussian",
        unit_rows: bool | Auto = "auto",
        gamma: NotNegative | Auto = "auto",
        linear: NotNegative | Auto = "auto",
        alpha: Positive | Auto = "auto",
        landmarks: Count = 1500,
        random_state: int | None = 0,
        *,
        blocks: Blocks = None,
    ) -> None:
        self.blocks = blocks
        self.base = base
        self.unit_rows = unit_rows
        self.gamma = gamma
        self.linear = linear
        self.alpha = alpha
        self.landmarks = landmarks
        self.random_state = random_state

    def fit(self, z: Any, present: Array | None = None, observed: Any = None) -> KernelImputer:
        """Fit the base, then one regression per modality, in float64."""
        self._check_arguments()
        views = self._training_rows(z, present, observed)
        return self.fit_on(views, self._fitted_base(views))

    def fit_on(self, views: Views, base: Any, forms: dict[str, dict[str, Any]] | None = None) -> KernelImputer:
        """As `fit`, with a base that is fitted already and, if given, forms of the kernel as in another's `choice_`."""
        self.names_, self.widths_, self.base_ = views.names, views.widths, base
        self._measure(views)
        k = len(self.names_)
        self.models_: list[Regression | None] = [None] * k
        self.unit_ = [False] * k
        self.factors_: list[dict[str, float]] = [
            {} for _ in self.names_
        ]  # per modality, pattern of sources -> factor on the deviation
        self.choice_: dict[str, dict[str, Any]] = {}
        for m, name in enumerate(self.names_):
            self._fit_modality(views, m, name, (forms or {}).get(name, {}))
        return self

    def _latent_model(self) -> Any:
        return self.base_ if self.within_ is None and isinstance(self.base_, GaussianImputer) else self.within_

    def _check_arguments(self) -> None:
        check_choice("base", self.base, BASES)
        if self.unit_rows not in (True, False, "auto"):
            raise InputError(f"unit_rows must be True, False or 'auto'; got {self.unit_rows!r}")
        for name, least in (("gamma", 0.0), ("linear", 0.0), ("alpha", 1e-12)):
            if getattr(self, name) != "auto":
                check_number(name, getattr(self, name), least, also=", or 'auto'")
        check_whole("landmarks", self.landmarks)

    def _fitted_base(self, views: Views) -> Any:
        """The imputer of the sources; the mean where nothing links all modalities or rows are too few to search."""
        z, present = views.arrays, views.present
        if self.within_ is not None and self.base == "gaussian":
            return self.within_
        if self.base == "mean" or not linked(present) or int((present.sum(1) > 1).sum()) < 2 * LEAST_ROWS:
            return MeanImputer().fit(z, present)
        return fit_latent(z, present, self.random_state)

    def _measure(self, views: Views) -> None:
        """Mean per column, deviation per column, and root mean square length per modality."""
        if isinstance(views.arrays, DistributedRows):
            source = open_source(views.arrays, None)
            self.mean_, self.std_ = list(source.mean), [variance.sqrt() for variance in source.variance]
        else:
            blocks = [self._observed(views, m) for m in range(len(self.names_))]
            self.mean_, self.std_ = [b.mean(0) for b in blocks], [b.std(0, correction=0) for b in blocks]
        lengths = [std.square().sum().sqrt() for std in self.std_]
        self.length_ = [torch.where(length > 0, length, 1.0) for length in lengths]

    def _observed(self, views: Views, m: int) -> Tensor:
        """The observed values of modality m, (n, d) float64; a row of zeros where there are none."""
        block = to_tensor(views.arrays[self.names_[m]]).detach()[views.present[:, m]].double().cpu()
        return block if len(block) else torch.zeros(1, self.widths_[m], dtype=torch.float64)

    def _inputs(self, views: Views, rows: Tensor, m: int) -> Tensor:
        """The other modalities of these rows, completed without modality m, centred and scaled, (n, D)."""
        taken = views.take(rows)
        present = taken.present.clone()
        present[:, m] = False
        arrays = {name: a for name, a in taken.arrays.items() if a is not None}
        columns = [taken.names.index(name) for name in arrays]
        completed = self.base_.transform(arrays, present[:, columns])
        parts = []
        for j, name in enumerate(self.names_):
            if j != m:
                block = torch.as_tensor(completed[name]).detach().double().cpu()
                parts.append((block - self.mean_[j]) / self.length_[j])
        return torch.cat(parts, dim=1) / len(parts) ** 0.5

    def _fit_modality(self, views: Views, m: int, name: str, form: dict[str, Any]) -> None:
        others = views.present.clone()
        others[:, m] = False
        rows = (views.present[:, m] & others.any(1)).nonzero()[:, 0].cpu()
        if len(rows) < LEAST_ROWS or float(self.std_[m].sum()) == 0:
            self.choice_[name] = {"rows": len(rows), "error": 1.0}
            return
        rows = _evenly(rows, MOST_ROWS)
        x = self._inputs(views, rows, m)
        y = to_tensor(views.take(rows).arrays[name]).detach().double().cpu()
        given = (form["unit_rows"], Kernel(form["gamma"], form["linear"])) if "gamma" in form else None
        unit, kernel = given or self._choose(x, y)
        alphas = (form["alpha"],) if "alpha" in form and self.alpha == "auto" else self._alphas()
        model, left_out = fit_regression(kernel, _unit(x) if unit else x, y, alphas, self.landmarks)
        keys = _keys(others[rows.to(others.device)])
        self.factors_[m] = _factors(left_out.ratio, keys)
        factor = torch.tensor([self.factors_[m][key] for key in keys], dtype=torch.float64)
        reach = np.quantile((left_out.ratio.abs() / factor[:, None]).numpy(), 0.9) / normal_reach(0.9)
        self.models_[m], self.unit_[m] = replace(model, variance=model.variance * reach**2), unit
        self.choice_[name] = {
            "rows": len(rows),
            "unit_rows": unit,
            "gamma": kernel.gamma,
            "linear": kernel.linear,
            "alpha": model.alpha,
            "error": left_out.error,
        }

    def _alphas(self) -> tuple[float, ...]:
        return ALPHAS if self.alpha == "auto" else (float(self.alpha),)

    def _choose(self, x: Tensor, y: Tensor) -> tuple[bool, Kernel]:
        """Form of the kernel with the least leave-one-out error on some of the rows: first whether rows have unit length
        and how much is linear, at the middle gamma, then gamma."""
        units = (True, False) if self.unit_rows == "auto" else (bool(self.unit_rows),)
        gammas = GAMMAS if self.gamma == "auto" else (float(self.gamma),)
        linear = LINEAR if self.linear == "auto" else (float(self.linear),)
        if len(units) == len(gammas) == len(linear) == 1:
            return units[0], Kernel(gammas[0], linear[0])
        at = _evenly(torch.arange(len(x)), CHOICE_ROWS)
        x, y = x[at].float(), fewer_columns(y[at] - y[at].mean(0)).float()  # alpha is far above what float32 rounds
        inputs = {unit: _unit(x) if unit else x for unit in units}

        def error(form: tuple[bool, Kernel]) -> float:
            features, p = make_features(form[1], inputs[form[0]], len(x))
            return best_alpha(p, features.energy, y, self._alphas())[0]

        middle = gammas[len(gammas) // 2]
        errors = {form: error(form) for form in [(unit, Kernel(middle, w)) for unit in units for w in linear]}
        unit, kernel = min(errors, key=lambda form: errors[form])
        errors |= {form: error(form) for form in [(unit, replace(kernel, gamma=g)) for g in gammas if g != middle]}
        return min(errors, key=lambda form: errors[form])

    def _fill(self, views: Views, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        device, n = views.present.device, len(views)
        filled = [torch.zeros((n, width), dtype=torch.float64, device=device) for width in self.widths_]
        std = [torch.zeros_like(block) for block in filled]
        for m, model in enumerate(self.models_):
            rows = (~views.present[:, m]).nonzero()[:, 0].cpu()
            if not len(rows):
                continue
            if model is None:
                guess, deviation = self.mean_[m].expand(len(rows), -1), self.std_[m].expand(len(rows), -1)
            else:
                guess, deviation = self._predict(model, views, rows, m)
                keys = _keys(views.present[rows.to(device)])
                factor = torch.tensor([self.factors_[m].get(key, 1.0) for key in keys], dtype=torch.float64)
                deviation = deviation * factor[:, None]
            filled[m][rows.to(device)], std[m][rows.to(device)] = guess.to(device), deviation.to(device)
        return filled, std

    def _predict(self, model: Regression, views: Views, rows: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """(mean, deviation) of modality m in these rows, in blocks of bounded size."""
        parts = []
        for block in rows.split(BLOCK_ROWS):
            x = self._inputs(views, block, m)
            parts.append(model.predict(_unit(x) if self.unit_[m] else x))
        return torch.cat([guess for guess, _ in parts]), torch.cat([deviation for _, deviation in parts])

    def _learned(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        base, tensors = state_of(self.base_, "base.")
        kernels: list[Any] = []
        for name, model, mean, std, length in zip(
            self.names_, self.models_, self.mean_, self.std_, self.length_, strict=True
        ):
            tensors |= {f"mean.{name}": mean, f"std.{name}": std, f"length.{name}": length}
            kernels.append(None)
            if model is not None:
                parts = {**vars(model), **vars(model.features)}
                tensors |= {f"{part}.{name}": parts[part] for part in TENSORS}
                kernels[-1] = [model.features.kernel.gamma, model.features.kernel.linear, model.alpha]
        meta = {
            "base": {"class": type(self.base_).__name__, "meta": base},
            "kernels": kernels,
            "unit": self.unit_,
            "factors": self.factors_,
            "choice": self.choice_,
        }
        return meta, tensors

    def _relearn(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors = {key: t.clone() for key, t in tensors.items()}  # aligned: products are then the same to the bit
        base: Any = MeanImputer() if meta["base"]["class"] == "MeanImputer" else GaussianImputer()
        self.base_ = with_state(base, meta["base"]["meta"], tensors, "base.")
        self.mean_, self.std_, self.length_ = (
            [tensors[f"{part}.{name}"] for name in self.names_] for part in ("mean", "std", "length")
        )
        self.unit_, self.factors_, self.choice_ = meta["unit"], meta["factors"], meta["choice"]
        self.models_ = []
        for name, numbers in zip(self.names_, meta["kernels"], strict=True):
            if numbers is None:
                self.models_.append(None)
                continue
            parts = {part: tensors[f"{part}.{name}"] for part in TENSORS}
            gamma, linear, alpha = numbers
            features = Features(Kernel(gamma, linear), parts["landmarks"], parts["turn"], parts["energy"])
            self.models_.append(Regression(features, alpha, parts["weights"], parts["centre"], parts["variance"]))


def _unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return torch.nn.functional.normalize(x, dim=1)


def _evenly(rows: Tensor, most: int) -> Tensor:
    return rows if len(rows) <= most else rows[torch.linspace(0, len(rows) - 1, most).round().long()]


def _keys(sources: Tensor) -> list[str]:
    """Which sources each row has, as text such as "101"."""
    return ["".join("1" if has else "0" for has in row) for row in sources.tolist()]


def _factors(ratio: Tensor, keys: list[str], shrink: float = 20.0) -> dict[str, float]:
    """Per pattern of sources the root mean square of the scaled residuals, as if `shrink` more rows had had 1."""
    squares = ratio.square().mean(1)
    factors = {}
    for key in dict.fromkeys(keys):
        own = squares[torch.tensor([other == key for other in keys])]
        factors[key] = float(((own.sum() + shrink) / (len(own) + shrink)).sqrt())
    return factors


def linked(present: Tensor) -> bool:
    """Whether all modalities that occur are linked by rows that have two of them."""
    together = rows_together(present)
    return sum(bool(together[group[0], group[0]]) for group in connected(together)) <= 1
