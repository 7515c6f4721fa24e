"""The promises of imputers: a good one keeps them all, and one that breaks a promise is told which."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.imputers import IMPUTERS, check_imputer
from calmrl.imputers.contract import PROMISES


class Means:
    """Column means and deviations, in the plainest way; `breaks` names what it does wrong."""

    def __init__(self, breaks=None):
        self.breaks = breaks

    def fit(self, z, present):
        self.mean_ = {name: np.nanmean(block, axis=0) for name, block in z.items()}
        self.std_ = {name: np.nanstd(block, axis=0) for name, block in z.items()}
        if self.breaks == "fit input":
            z["a"][0, 0] = 7.0
        return None if self.breaks == "fit self" else self

    def transform(self, z, present=None, observed=None):
        return self.impute(z, present, False, observed)

    def impute(self, z, present=None, return_std=False, observed=None):
        filled, std = {}, {}
        for m, (name, block) in enumerate(z.items()):
            gone = np.isnan(block)
            if present is not None and self.breaks != "reads absent":
                gone = gone | ~present[:, [m]]
            if observed is not None and self.breaks != "reads unobserved":
                gone = gone | ~observed[name]
            guess = self.mean_[name].astype(block.dtype)
            if self.breaks == "neighbours":
                guess = guess + np.nanmean(block).astype(block.dtype)
            if self.breaks == "random":
                guess = guess + np.random.default_rng().normal()
            if self.breaks == "transform" and return_std:
                guess = guess + 1
            if self.breaks == "needs present" and present is None:
                guess = guess + 1
            if self.breaks == "nan":
                guess = guess * np.nan
            if self.breaks == "input":
                block[gone] = 0.0
            filled[name] = np.where(gone, guess, block * (1 + 1e-9) if self.breaks == "observed" else block)
            filled[name] = filled[name].astype(np.float64 if self.breaks == "dtype" else block.dtype)
            spread = self.std_[name].astype(block.dtype)
            std[name] = np.where(gone, 0 * spread if self.breaks == "no deviation" else spread, 0).astype(block.dtype)
            if self.breaks == "deviation of observed":
                std[name] = std[name] + 1
        return (filled, std) if return_std else filled


BROKEN = {
    "fit self": "fit returns the imputer itself",
    "fit input": "fit leaves its input as it was",
    "dtype": "modalities, shapes and dtypes come back",
    "observed": "observed entries stay bit for bit",
    "nan": "whatever was missing is finite",
    "no deviation": "deviations are finite, positive where imputed and 0 where observed",
    "deviation of observed": "deviations are finite, positive where imputed and 0 where observed",
    "input": "the input stays as it was",
    "transform": "transform gives what impute gives",
    "random": "the same rows give the same again",
    "neighbours": "a row does not depend on the rows beside it",
    "needs present": "without present, a row that is NaN throughout is missing",
    "reads absent": "what stands in a missing modality is not read",
    "reads unobserved": "what is not observed is a hole, and not read",
}


@pytest.mark.parametrize("holes", [False, True])
def test_a_plain_imputer_keeps_every_promise(holes):
    assert set(PROMISES) <= set(BROKEN.values())  # each has an imputer that breaks it
    imputer = Means()
    check_imputer(imputer, holes=holes)
    assert not hasattr(imputer, "mean_")  # a copy was fitted


@pytest.mark.parametrize("breaks", BROKEN)
def test_a_broken_promise_is_named(breaks):
    with pytest.raises(AssertionError) as caught:
        check_imputer(Means(breaks))
    first, *named = str(caught.value).splitlines()
    assert first.startswith("Means breaks ")
    assert any(line.startswith(f"- {BROKEN[breaks]}") for line in named)
    if breaks in ("fit self", "observed", "no deviation", "deviation of observed", "reads unobserved"):
        assert all(line.startswith(f"- {BROKEN[breaks]}") for line in named)


def test_an_error_counts_as_broken():
    class Raises(Means):
        def transform(self, z, present=None, observed=None):
            raise TypeError("no such thing")

    with pytest.raises(AssertionError, match=r"breaks 1 promises:\n- transform gives .*: TypeError: no such thing"):
        check_imputer(Raises())


@pytest.mark.parametrize("name", ["gaussian", "kernel", "ridge", "knn", "knowledge_bridger", "mean"])
def test_ours_keep_every_promise(name):
    check_imputer(IMPUTERS[name]())
