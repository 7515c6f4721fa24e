"""The imputers that `AutoImputer` compares, and how each of them is fitted and asked."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from calmrl._support.engine import Engine
from calmrl.convention import Array, Views, check, to_tensor
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.kernel import KernelImputer, linked
from calmrl.imputers.knowledge_bridger import KnowledgeBridgerImputer
from calmrl.imputers.mopoe import MoPoEImputer
from calmrl.imputers.simple import KNNImputer, MeanImputer, RidgeImputer

CANDIDATES: dict[str, Any] = {
    "gaussian": GaussianImputer,
    "kernel": KernelImputer,
    "mopoe": MoPoEImputer,
    "knowledge_bridger": KnowledgeBridgerImputer,
    "ridge": RidgeImputer,
    "knn": KNNImputer,
    "mean": MeanImputer,
}


@dataclass(frozen=True)
class Fitter:
    """Fits candidates by name: choosing their settings, or with those that were chosen before."""

    seed: int
    settled: dict[str, Any] = field(default_factory=dict)  # "gaussian", fitted, if its settings are chosen
    forms: dict[str, Any] | None = None  # of the kernel, by modality, if chosen

    def fit(
        self,
        name: str,
        z: Mapping[str, Any],
        present: Tensor,
        fitted: Mapping[str, Any],
        engine: Engine | None = None,
    ) -> Any:
        """A candidate, fitted; `kernel` shares the latent model of `gaussian`, whose settings are chosen once."""
        mask: Array = present if isinstance(next(iter(z.values())), Tensor) else present.cpu().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is chosen, not reached
            if name == "gaussian":
                return self._gaussian(z, mask, engine)
            if name == "kernel":
                shared = fitted.get("gaussian")
                if shared is None and linked(present):
                    shared = self._gaussian(z, mask, engine)
                if shared is None:
                    shared = MeanImputer().fit(z, mask)
                return KernelImputer(random_state=self.seed).fit_on(check(z, mask), shared, self.forms)
            make: Callable[..., Any] = CANDIDATES[name]
            options = {"random_state": self.seed} if "random_state" in inspect.signature(make).parameters else {}
            return make(**options).fit(z, mask)

    def _gaussian(self, z: Mapping[str, Any], mask: Array, engine: Engine | None) -> GaussianImputer:
        imputer = GaussianImputer("auto", "auto", "auto", random_state=self.seed)
        if "gaussian" in self.settled:
            return imputer.set_state(self.settled["gaussian"].get_state()).refit(z, mask)
        return imputer.fit_with(z, mask, engine)


@dataclass(frozen=True)
class Tried:
    """A candidate and what it says about rows of which blocks were hidden."""

    model: Any
    guess: list[np.ndarray]  # per modality, float64
    std: list[np.ndarray]
    seconds: float


def try_candidate(
    name: str,
    fitter: Fitter,
    views: Views,
    visible: Tensor,
    asked: Tensor,
    fitted: Mapping[str, Any],
    engine: Engine | None = None,
) -> Tried:
    """Fit on what is `visible` of the rows, and guess the rows `asked`."""
    start = time.perf_counter()
    model = fitter.fit(name, dict(views.arrays), visible, fitted, engine)
    guess, std = model.impute(dict(views.take(asked).arrays), visible[asked], return_std=True)
    values, deviations = ([as_double(part[m]) for m in views.names] for part in (guess, std))
    return Tried(model, values, deviations, time.perf_counter() - start)


def as_double(values: Array) -> np.ndarray:
    """As a float64 NumPy array."""
    return to_tensor(values).detach().double().cpu().numpy()
