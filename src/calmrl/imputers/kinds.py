"""`MixedImputer`: modalities of yes/no values, counts or categories, beside those of real numbers.

| kind | imputed as | comes back as | deviation |
|---|---|---|---|
| "real" | itself | itself | that of the imputer |
| "count" | log(1 + x), sqrt(x + 3/8) or x, whichever makes held-out counts most likely | the mean count | of the counts |
| "binary" | 0 and 1 | the probability p of a 1 | sqrt(p (1 - p)) |
| "category" | a column per category, 1 in that of the row | probabilities that add up to 1 | sqrt(p (1 - p)) |

With m what the imputer says and q_j the share of ones in column j, a probability is
    logit p = a + logit q_j + b (logit m - logit q_j),
m kept within [q_j / 10, 1 - (1 - q_j) / 10]. b = 0 is the base rate, b = 1 what the imputer says. a and b are those that make
held-out values most likely, one pair per modality. For categories log stands for logit, and the sum is brought to 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit, logsumexp
from scipy.stats import norm
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from calmrl._support.arguments import seed_of
from calmrl.arrays import Array, Views, check, like_input, to_tensor
from calmrl.errors import InputError
from calmrl.imputers.base import Blocks, SavedImputer, state_of, with_state
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.registry import IMPUTERS, Kind, make_imputer
from calmrl.imputers.stacking import as_double, hidden_blocks
from calmrl.interop.containers import impute_object
from calmrl.latent.held_out import hidden_entries

Numbers = dict[str, np.ndarray]
SHADES = ("binary", "category")  # kinds of which probabilities come back
FEWEST = 20  # held-out values of a modality, below which nothing is chosen on them
KEPT = 0.1  # a probability is not taken further from the base rate than this share of the way to 0 or 1 leaves


@dataclass(frozen=True)
class Form:
    """A transform of counts: there, the logarithm of its slope, and the moments and quantiles of what is normal there."""

    there: Any
    log_slope: Any
    mean: Any
    std: Any
    back: Any


FORMS: dict[str, Form] = {
    "log1p": Form(
        np.log1p,
        lambda x: -np.log1p(x),
        lambda m, s: np.exp(np.minimum(m + s**2 / 2, 700)) - 1,
        lambda m, s: np.sqrt(np.expm1(np.minimum(s**2, 300))) * np.exp(np.minimum(m + s**2 / 2, 300)),
        np.expm1,
    ),
    "sqrt": Form(
        lambda x: np.sqrt(x + 0.375),
        lambda x: -np.log(2 * np.sqrt(x + 0.375)),
        lambda m, s: m**2 + s**2 - 0.375,
        lambda m, s: np.sqrt(4 * m**2 * s**2 + 2 * s**4),
        lambda y: np.maximum(y, 0) ** 2 - 0.375,
    ),
    "as it is": Form(lambda x: x, np.zeros_like, lambda m, s: m, lambda m, s: s, lambda y: y),
}


class MixedImputer(SavedImputer, TransformerMixin, BaseEstimator):
    """Impute modalities of yes/no values, counts or categories, beside those of real numbers.

    An imputer for real numbers does the work; values that are none are made real for it, and what it says becomes probabilities
    and counts again (see the table above: `calmrl.imputers.kinds`). About a tenth of what is observed is hidden once to
    choose the transform of counts and the link of probabilities; then all rows are fitted.

    Parameters
    ----------
    kinds : dict of str to {"real", "count", "binary", "category"}
        Modality -> what its values are; modalities that are left out are real. A category is a block of columns, one of
        which is 1 in a row.
    imputer : str
        A name of IMPUTERS.
    options : dict, optional
        Arguments of that imputer.
    random_state : int or None
        Seed of what is hidden and of the imputer.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Attributes
    ----------
    imputer_ : the fitted imputer
    choice_ : dict
        Modality -> {"transform", "log_density"} of counts; {"shift", "slope", "log_likelihood", "base_rate"} (mean
        log-likelihood of the held-out values with the link, and with the share of ones alone) where probabilities come back.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> cause = rng.normal(size=(300, 1))
    >>> z = {"gene": cause + 0.1 * rng.normal(size=(300, 4)), "mutated": (cause + rng.normal(size=(300, 2)) > 0) * 1.0}
    >>> z["mutated"][:100] = np.nan
    >>> imputer = MixedImputer({"mutated": "binary"}, "gaussian").fit(z)
    >>> p = imputer.transform(z)["mutated"][:100]
    >>> bool(((p > 0) & (p < 1)).all()), bool(np.corrcoef(p[:, 0], cause[:100, 0])[0, 1] > 0.9)
    (True, True)
    """

    takes_holes = True

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        imputer: str = "auto",
        options: Mapping[str, Any] | None = None,
        random_state: int | None = 0,
        *,
        blocks: Blocks = None,
    ) -> None:
        self.kinds = kinds
        self.imputer = imputer
        self.options = options
        self.random_state = random_state
        self.blocks = blocks

    def fit(self, z: Any, present: Array | None = None, observed: Any = None) -> MixedImputer:
        """Choose transforms and links on hidden values, then fit the imputer on all rows."""
        arrays, present = self._as_dict(z, present, reset=True, observed=observed)
        views = check(arrays, present, min_rows=1, holes=True)
        self.names_, self.widths_ = views.names, views.widths
        values = _observed_values(views)
        _check_kinds(self.kinds, values)
        seed = seed_of(self.random_state)
        rng = np.random.default_rng(seed)
        self.base_ = {name: _base_rate(values[name]) for name in self._of(*SHADES)}
        self.choice_: dict[str, dict[str, Any]] = {
            name: {"transform": "log1p", "log_density": None} for name in self._of("count")
        }
        self.choice_ |= {name: {"shift": 0.0, "slope": 1.0} for name in self.base_}
        hidden = _hide(views, rng)
        seen = {name: np.where(hidden[name], np.nan, block) for name, block in values.items()}
        self._choose_forms(values, seen, hidden, seed)
        self.imputer_: Any = make_imputer(self.imputer, seed, **(self.options or {}))
        mask = views.present.cpu().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if self.base_ and any(hidden[name].any() for name in self.base_):
                left = _still_there(seen, mask)
                self.imputer_.fit(self._real(seen), left)
                said = self.imputer_.impute(self._real(seen), left)
                for name in self.base_:
                    rows = (self.kinds[name], as_double(said[name]), values[name], hidden[name])
                    self.choice_[name] |= _fit_link(*rows, _base_rate(seen[name]))
                refit = getattr(self.imputer_, "refit", self.imputer_.fit)
                refit(self._real(values), mask)
            else:
                self.imputer_.fit(self._real(values), mask)
        return self

    def _of(self, *kinds: str) -> list[str]:
        return [name for name in self.names_ if self.kinds.get(name, "real") in kinds]

    def _choose_forms(self, values: Numbers, seen: Numbers, hidden: dict[str, np.ndarray], seed: int) -> None:
        """The transform of each modality of counts with the highest density of hidden counts, under a small latent model."""
        counts = [name for name in self._of("count") if hidden[name].sum() >= FEWEST]
        if not counts:
            return
        density: dict[str, dict[str, float]] = {name: {} for name in counts}
        for key, form in FORMS.items():
            tried = {name: form.there(block) if name in counts else block for name, block in seen.items()}
            model = GaussianImputer(8, noise="diagonal", max_iter=50, prior=10.0, random_state=seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                mean, std = model.fit(tried).impute(tried, return_std=True)
            for name in counts:
                x, at = values[name][hidden[name]], hidden[name]
                log_p = norm.logpdf(form.there(x), mean[name][at], np.maximum(std[name][at], 1e-12)) + form.log_slope(x)
                density[name][key] = float(log_p.mean())
        for name, found in density.items():
            self.choice_[name] = {"transform": max(found, key=lambda key: found[key]), "log_density": found}

    def _real(self, values: Numbers) -> Numbers:
        """Counts as their transform, the rest as it is."""
        forms = {name: FORMS[self.choice_[name]["transform"]] for name in self._of("count") if name in values}
        return {name: forms[name].there(block) if name in forms else block for name, block in values.items()}

    def transform(self, z: Any, present: Array | None = None, observed: Any = None) -> Any:
        """The input with everything missing imputed; observed entries as they were."""
        return self.impute(z, present, observed=observed)

    def impute(self, z: Any, present: Array | None = None, return_std: bool = False, observed: Any = None) -> Any:
        """Means, counts and probabilities where something is missing; with `return_std` also deviations, 0 where observed."""
        check_is_fitted(self)
        if self._holds_features(z):
            return impute_object(self, z)
        views, mean, std = self._said(z, present, observed)
        found = {name: self._moments(name, mean[name], std[name]) for name in mean}
        filled = self._kept(views, {name: value for name, (value, _) in found.items()}, z)
        if not return_std:
            return filled
        return filled, self._kept(views, {name: spread for name, (_, spread) in found.items()}, z, observed_is=0.0)

    def interval(
        self, z: Any, present: Array | None = None, level: float = 0.9, observed: Any = None
    ) -> tuple[Any, Any]:
        """(lower, upper) ends of central intervals that hold a missing value with probability `level`.

        Those of counts are not symmetric; those of yes/no values are 0 and 1 unless one of them is that probable. Both
        are the value itself where it was observed.
        """
        check_is_fitted(self)
        views, mean, std = self._said(z, present, observed)
        ends = []
        for share in ((1 - level) / 2, (1 + level) / 2):
            at = {name: self._quantile(name, mean[name], std[name], share) for name in mean}
            ends.append(self._kept(views, at, z))
        return ends[0], ends[1]

    def _said(self, z: Any, present: Array | None, observed: Any) -> tuple[Views, Numbers, Numbers]:
        """What was given, and what the imputer says of it, on its own scale."""
        arrays, present = self._as_dict(z, present, reset=False, observed=observed)
        views = check(arrays, present, names=self.names_, widths=self.widths_, holes=True)
        values = _observed_values(views)
        given = {name: values[name] for name, array in views.arrays.items() if array is not None}
        _check_kinds({name: kind for name, kind in self.kinds.items() if name in given}, given)
        at = [views.names.index(name) for name in given]
        mean, std = self.imputer_.impute(self._real(given), views.present[:, at].cpu().numpy(), return_std=True)
        return views, {n: as_double(mean[n]) for n in self.names_}, {n: as_double(std[n]) for n in self.names_}

    def _moments(self, name: str, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean, deviation) on the scale of the values."""
        kind = self.kinds.get(name, "real")
        if kind == "count":
            form = FORMS[self.choice_[name]["transform"]]
            return np.maximum(form.mean(mean, std), 0), form.std(mean, std)
        if kind in SHADES:
            p = _probabilities(kind, mean, self.base_[name], self.choice_[name]["shift"], self.choice_[name]["slope"])
            return p, np.sqrt(p * (1 - p))
        return mean, std

    def _quantile(self, name: str, mean: np.ndarray, std: np.ndarray, share: float) -> np.ndarray:
        kind = self.kinds.get(name, "real")
        if kind in SHADES:
            return (1 - self._moments(name, mean, std)[0] < share).astype(float)
        value = mean + norm.ppf(share) * std
        return np.maximum(FORMS[self.choice_[name]["transform"]].back(value), 0) if kind == "count" else value

    def _kept(self, views: Views, said: Numbers, z: Any, observed_is: float | None = None) -> Any:
        """What was observed (or `observed_is` there), and what was said of the rest, in the kind of the input."""
        rows = zip(views.names, views.rows(0, len(views)), views.observed(0, len(views)), strict=True)
        done = {}
        for name, values, seen in rows:
            guess = torch.from_numpy(said[name]).to(seen.device)
            there: Any = guess if values is None else values.to(guess.dtype)
            kept = torch.where(seen, there if observed_is is None else torch.full_like(guess, observed_is), guess)
            like = views.given()
            done[name] = like_input(kept.to(to_tensor(like).dtype), like)
        return self._in_kind(done, z)

    def get_state(self) -> dict[str, Any]:
        """Everything learned, as {"meta": json-able, "tensors": name -> tensor}."""
        check_is_fitted(self)
        inner, tensors = state_of(self.imputer_, "imputer.")
        meta = {"names": list(self.names_), "widths": list(self.widths_), "choice": self.choice_, "imputer": inner}
        return {"meta": meta, "tensors": tensors | {f"base.{n}": torch.from_numpy(b) for n, b in self.base_.items()}}

    def set_state(self, state: dict[str, Any]) -> MixedImputer:
        """Take over what `get_state` gave."""
        meta, tensors, start = state["meta"], state["tensors"], "base."
        self.names_, self.widths_, self.choice_ = tuple(meta["names"]), tuple(meta["widths"]), meta["choice"]
        self.base_ = {key.removeprefix(start): t.cpu().numpy() for key, t in tensors.items() if key.startswith(start)}
        made = IMPUTERS[self.imputer](**(self.options or {}))
        self.imputer_ = with_state(made, meta["imputer"], tensors, "imputer.")
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "imputer_")


def _observed_values(views: Views) -> Numbers:
    """float64, NaN where nothing was observed."""
    rows = zip(views.names, views.rows(0, len(views)), views.observed(0, len(views)), strict=True)
    return {
        name: np.full(seen.shape, np.nan) if v is None else torch.where(seen, v.double(), float("nan")).cpu().numpy()
        for name, v, seen in rows
    }


def _check_kinds(kinds: Mapping[str, str], values: Numbers) -> None:
    """Every kind is one, of a modality that is there, and the values are of that kind."""
    for name, kind in kinds.items():
        if kind not in get_args(Kind):
            raise InputError(f"kinds[{name!r}] must be one of {', '.join(get_args(Kind))}; got {kind!r}")
        if name not in values:
            raise InputError(f"kinds names {name!r}, which is no modality of the input; it has {', '.join(values)}")
        x = values[name][~np.isnan(values[name])]
        wrong = x[(x < 0) | (x != np.round(x))] if kind == "count" else x[(x != 0) & (x != 1)]
        if kind != "real" and len(wrong):
            wanted = "whole numbers from 0" if kind == "count" else "0 and 1"
            raise InputError(
                f"{name} is of kind {kind!r}, whose values are {wanted}; got {wrong[0]:g}. Leave it out of kinds if its "
                "values are real numbers"
            )
        if kind == "category":
            whole = values[name][~np.isnan(values[name]).any(axis=1)].sum(axis=1)
            if (whole != 1).any():
                raise InputError(
                    f"{name} is of kind 'category', a column per category, one of which is 1 in each row; a row has "
                    f"{whole[whole != 1][0]:g}. For several at once use 'binary'"
                )


def _base_rate(values: np.ndarray) -> np.ndarray:
    """(d,) the share of ones in each column, as if one more row were like the whole modality; strictly between 0 and 1."""
    known = ~np.isnan(values)
    overall = (np.nansum(values) + 0.5) / (known.sum() + 1)
    return np.asarray((np.nansum(values, axis=0) + overall) / (known.sum(axis=0) + 1))


def _hide(views: Views, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Modality -> (N, d) bool: observed values to hide, in blocks and as holes fall."""
    blocks = hidden_blocks(views.present.cpu().numpy(), rng)
    hidden = {}
    for m, (name, seen) in enumerate(zip(views.names, views.observed(0, len(views)), strict=True)):
        seen, gone = seen.expand(-1, views.widths[m]), torch.from_numpy(blocks[:, m]).to(seen.device)
        entries = hidden_entries(seen, views.present[:, m] & ~gone, rng)
        hidden[name] = (seen & (entries | gone[:, None])).cpu().numpy()
    return hidden


def _still_there(seen: Numbers, present: np.ndarray) -> np.ndarray:
    """(N, k) which modalities have a value left."""
    there = np.stack([~np.isnan(block).all(axis=1) for block in seen.values()], axis=1)
    return np.asarray(there & present)


def _steps(kind: str, mean: np.ndarray, base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log-odds of the base rate, how far the imputer's are from them), (N, d) each; logs for categories."""
    kept = np.clip(mean, KEPT * base, 1 - KEPT * (1 - base))
    scale = logit if kind == "binary" else np.log
    start = np.broadcast_to(scale(base), mean.shape)
    return start, scale(kept) - start


def _probabilities(kind: str, mean: np.ndarray, base: np.ndarray, shift: float, slope: float) -> np.ndarray:
    start, step = _steps(kind, mean, base)
    if kind == "binary":
        return np.asarray(expit(shift + start + slope * step))
    return np.asarray(np.exp(log_softmax(start + slope * step, axis=1)))


def _fit_link(kind: str, mean: np.ndarray, truth: np.ndarray, hidden: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """Shift and slope with the highest likelihood of the hidden values, and that likelihood beside the base rate's."""
    if kind == "category":
        hidden = np.broadcast_to(hidden.all(axis=1, keepdims=True), hidden.shape)
    if hidden.sum() < FEWEST:
        return {}
    at = hidden if kind == "binary" else hidden[:, 0]
    start, step, x = (part[at] for part in (*_steps(kind, mean, base), truth))

    def log_likelihood(shift: float, slope: float) -> float:
        odds = shift + start + slope * step
        if kind == "binary":
            return float((x * odds - np.logaddexp(0, odds)).mean())
        return float(((x * odds).sum(axis=1) - logsumexp(odds, axis=1)).mean())

    lean = 1.0 / len(x)  # as if one value spoke for no shift and the imputer's own slope
    free = 1.0 if kind == "binary" else 0.0

    def cost(at: np.ndarray) -> float:
        return -log_likelihood(free * at[0], at[1]) + lean * (at[0] ** 2 + (at[1] - 1) ** 2) / 2

    best = minimize(cost, np.array([0.0, 1.0]), bounds=[(-5, 5), (0, 5)], method="L-BFGS-B").x
    shift, slope = free * float(best[0]), float(best[1])
    return {
        "shift": shift,
        "slope": slope,
        "log_likelihood": log_likelihood(shift, slope),
        "base_rate": log_likelihood(0.0, 0.0),
    }
