"""The Gaussian imputer in all that it can do, and every other imputer by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from calmrl import GaussianImputer
from calmrl.imputers import IMPUTERS, make_imputer
from tests.golden import golden_inputs as inputs
from tests.golden.cases_measures import refused
from tests.golden.golden_record import CHOSEN, DOUBLE, TRAINED, Place, case

PLAIN: dict[str, Any] = {"max_iter": 15, "prior": 0.1, "shrinkage": 0.0, "whitening": 0.0, "random_state": 0}


def close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal but for the last digits."""
    return list(one) == list(other) and all(np.allclose(one[name], other[name], rtol=1e-9, atol=1e-9) for name in one)


def _gram(vectors: Any) -> Any:
    """Latents are defined up to a rotation; what they say about each other is not."""
    return vectors @ vectors.T


def _fitted(imputer: Any) -> dict[str, Any]:
    """What a fit of one component has learned."""
    return {
        "log likelihood": list(imputer.log_likelihood_),
        "W W'": {name: _gram(w) for name, w in imputer.W_.items()},
        "mu": imputer.mu_,
        "sigma2": imputer.sigma2_,
        "choice": imputer.choice_ if hasattr(imputer, "choice_") else None,
    }


def _used(imputer: Any, z: Any, present: Any) -> dict[str, Any]:
    """What an imputer does with rows."""
    filled, std = imputer.impute(z, present, return_std=True)
    return {
        "filled": filled,
        "std": std,
        "score": imputer.score(z, present),
        "embedded": _gram(imputer.embed(z, present)),
    }


FORMS: dict[str, dict[str, Any]] = {
    "isotropic": {"latent_dim": 3},
    "diagonal": {"latent_dim": 3, "noise": "diagonal"},
    "sequential": {"latent_dim": 2, "m_step": "sequential"},
    "not accelerated": {"latent_dim": 3, "accelerate": False},
    "whitened": {"latent_dim": 3, "whitening": 0.5, "shrinkage": 0.2},
    "stepwise": {"latent_dim": 3, "solver": "stepwise", "batch_size": 20, "max_iter": 3},
}


def _form(name: str, options: dict[str, Any]) -> None:
    @case(f"imputers/gaussian {name}", 1e-9)
    def _(place: Place) -> Any:
        z, present = inputs.rows()
        imputer = GaussianImputer(**(PLAIN | options)).fit(z, present)
        return _fitted(imputer) | _used(imputer, z, present)


for _name, _options in FORMS.items():
    _form(_name, _options)


@case("imputers/gaussian by gradient", TRAINED)
def _(place: Place) -> Any:
    z, present = inputs.rows()
    imputer = GaussianImputer(3, solver="gradient", **(PLAIN | {"max_iter": 5})).fit(z, present)
    return {"score": imputer.score(z, present), "filled": imputer.transform(z, present)}


@case("imputers/gaussian mixture", CHOSEN)
def _(place: Place) -> Any:
    z, present = inputs.rows()
    imputer = GaussianImputer(2, 2, **PLAIN).fit(z, present)
    filled, std = imputer.impute(z, present, return_std=True)
    return {
        "log likelihood": list(imputer.log_likelihood_),
        "filled": filled,
        "std": std,
        "score": imputer.score(z, present),
    }


@case("imputers/gaussian chooses", CHOSEN)
def _(place: Place) -> Any:
    z, present = inputs.rows(80)
    imputer = GaussianImputer("auto", "auto", "auto", max_iter=20, tol=1e-3).fit(z, present)
    return {"repr": repr(imputer), "score": imputer.score(z, present), "filled": imputer.transform(z, present)}


@case("imputers/gaussian methods", 1e-9)
def _(place: Place) -> Any:
    z, present = inputs.rows()
    imputer = GaussianImputer(3, **PLAIN).fit(z, present)
    mean, covariance = imputer.posterior(z, present)
    one = {"image": z["image"][:15]}
    heads = imputer.as_heads()
    other = GaussianImputer(3, **PLAIN).set_state(imputer.get_state())
    hidden = present & (np.arange(60) < 10)[:, None] & np.array([False, True, False])
    return {
        "posterior": [_gram(mean), np.linalg.eigvalsh(covariance)],
        "covariance": imputer.predictive_covariance(one, "text"),
        "scores": imputer.score_samples(z, present),
        "similarity": imputer.similarity(one, {"text": z["text"][:15]}),
        "coverage": imputer.coverage(z, present, hidden),
        "heads": {
            name: _gram(heads[name](torch.from_numpy(z[name][:15]).to(next(heads.parameters()).dtype))) for name in z
        },
        "heads are": str(heads),
        "from one modality": imputer.transform(one),
        "sampled": {name: array.shape for name, array in imputer.sample(z, present).items()},
        "from its state": other.transform(z, present),
        "refitted": imputer.refit(*inputs.rows(60, 4)).score(z, present),
        "repr": repr(GaussianImputer(3, noise="diagonal")),
        "parameters": sorted(imputer.get_params()),
    }


@case("imputers/gaussian other inputs", 1e-9)
def _(place: Place) -> Any:
    z, present = inputs.rows()
    halves = [({n: a[part] for n, a in z.items()}, present[part]) for part in (slice(0, 30), slice(30, 60))]
    chunks = GaussianImputer(3, **PLAIN).fit(halves)
    steps = GaussianImputer(3, **PLAIN)
    for half in halves * 2:
        steps.partial_fit(*half)
    tensors = {name: torch.from_numpy(array) for name, array in z.items()}
    told = GaussianImputer(3, **PLAIN).fit(tensors, torch.from_numpy(present))
    single = {name: array.astype("float32") for name, array in z.items()}
    wide = np.concatenate(list(z.values()), axis=1)
    blocks = GaussianImputer(3, blocks=inputs.WIDTHS, **PLAIN).fit(wide)
    return {
        "chunks": chunks.score(z, present),
        "batches": [steps.score(z, present), steps.transform(z, present)],
        "tensors": told.transform(tensors),
        "single": [array.dtype.name for array in chunks.transform(single).values()],
        "observed as they were": all(
            np.array_equal(chunks.transform(z)[n][present[:, j]], z[n][present[:, j]]) for j, n in enumerate(z)
        ),
        "one array": blocks.transform(wide),
        "names": blocks.get_feature_names_out(),
        "one array, std": blocks.impute(wide, return_std=True)[1],
    }


@case("imputers/gaussian saved", 1e-9)
def _(place: Place) -> Any:
    z, present = inputs.rows()
    imputer = GaussianImputer(3, **PLAIN).fit(z, present)
    imputer.save("model")
    loaded = GaussianImputer.load("model")
    same = close(loaded.transform(z), imputer.transform(z))
    broken = place.path / "broken"
    broken.mkdir()
    (broken / "other.txt").write_text("x")
    said = refused(
        lambda: imputer.save("model"), lambda: GaussianImputer.load("nowhere"), lambda: GaussianImputer.load("broken")
    )
    imputer.save("model", overwrite=True)
    wrong = refused(lambda: IMPUTERS["mean"].load("model"))
    return {"files": sorted(place.files()), "same": same, "refused": said, "of another class": wrong}


@case("imputers/gaussian refuses")
def _(place: Place) -> Any:
    z, present = inputs.rows()
    imputer = GaussianImputer(3, **PLAIN).fit(z, present)
    partly = {name: array.copy() for name, array in z.items()}
    partly["text"][3, 2] = np.nan
    partly["text"][3, 0] = 1.0
    make = GaussianImputer
    return refused(
        lambda: make(3).transform(z),
        lambda: make(0).fit(z),
        lambda: make(3, noise="isotopic").fit(z),
        lambda: make(3, m_step="jont").fit(z),
        lambda: make(3, solver="emm").fit(z),
        lambda: make(3, tol=0).fit(z),
        lambda: make(3, max_iter=0).fit(z),
        lambda: make("atuo").fit(z),
        lambda: make(3, whitening=0.5).fit(partly),
        lambda: make(3).fit({"image": z["image"]}),
        lambda: make(3).fit({"image": z["image"][:15]}),
        lambda: make(3).fit({name: array[:0] for name, array in z.items()}),
        lambda: make(3).fit(np.zeros((5, 4))),
        lambda: make(3, blocks={"a": 3}).fit(np.zeros((5, 4))),
        lambda: imputer.transform({"imag": z["image"][:15]}),
        lambda: imputer.transform({"image": z["image"][:15, :3]}),
        lambda: make_imputer("ridge", 0).fit(z).transform(partly),
        lambda: imputer.similarity(z, z, "cosin"),
        lambda: imputer.predictive_covariance(z, "smell"),
        lambda: IMPUTERS["gausian"],
        lambda: make_imputer("men", 0),
        lambda: make_imputer("knn", 0, n_neighbor=3),
        lambda: make_imputer("knn", 0, n_neighbors=0).fit(z),
    )


OTHERS: dict[str, tuple[dict[str, Any], float]] = {
    "auto": ({"candidates": ["mean", "knn", "ridge", "gaussian"]}, CHOSEN),
    "gaussian": ({"latent_dim": 3, "max_iter": 10}, CHOSEN),
    "kernel": ({"landmarks": 20}, CHOSEN),
    "mean": ({}, DOUBLE),
    "knn": ({"n_neighbors": 3}, DOUBLE),
    "ridge": ({}, 1e-8),
    "mvae": ({"latent_dim": 3, "hidden": 8, "epochs": 3, "batch_size": 16}, TRAINED),
    "mopoe": ({"latent_dim": 3, "hidden": 8, "epochs": 3, "batch_size": 16}, TRAINED),
    "smil": ({"latent_dim": 3, "hidden": 8, "epochs": 3, "batch_size": 16, "priors": 4}, TRAINED),
    "gfa": ({"latent_dim": 3, "max_iter": 15}, CHOSEN),
    "knowledge_bridger": ({"n_candidates": 5, "landmarks": 16}, 1e-8),
}


def _imputer(name: str) -> None:
    options, tolerance = OTHERS[name]

    @case(f"imputers/{name}", tolerance)
    def _(place: Place) -> Any:
        z, present = inputs.rows()
        imputer = make_imputer(name, 0, **options).fit(z, present)
        filled, std = imputer.impute(z, present, return_std=True)
        imputer.save("model")
        loaded = IMPUTERS[name].load("model").transform(z, present)
        fresh, there = inputs.rows(10, 7)
        found = {
            "repr": repr(imputer),
            "filled": filled,
            "std": std,
            "new rows": imputer.transform(fresh, there),
            "one modality": refused(lambda: imputer.transform({"image": fresh["image"][:2]})),
            "loaded is the same": close(loaded, imputer.transform(z, present)),
            "files": sorted(place.files()),
            "choice": {key: part for key, part in getattr(imputer, "choice_", {}).items() if key != "seconds"},
            "about": IMPUTERS.about(name),
        }
        if hasattr(imputer, "partial_fit") and name != "gaussian":
            imputer.partial_fit(fresh, there)
            found["after another batch"] = imputer.transform(fresh, there)
        return found


def _imputers() -> None:
    for name in IMPUTERS:
        _imputer(name)  # KeyError: an imputer that the record does not know


_imputers()
