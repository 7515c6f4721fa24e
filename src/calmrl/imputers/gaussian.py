"""`GaussianImputer`: the latent model as an estimator that fits, imputes, embeds and scores."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from calmrl._support.arguments import Auto, Count, Fraction, NotNegative, Positive, seed_of
from calmrl._support.engine import Engine
from calmrl._support.registry import lookup
from calmrl.arrays import Array, Views, check, within_limit
from calmrl.data.features.distributed_rows import DistributedRows
from calmrl.errors import InputError
from calmrl.imputers.base import Blocks, SavedImputer, explain_linalg_errors
from calmrl.imputers.gradient import fit_by_gradient
from calmrl.interop.containers import impute_object
from calmrl.latent import online, predict
from calmrl.latent.choose import Ready, check_arguments, decide, decide_for_stream
from calmrl.latent.em import Settings, fit_settings, noise_floor, start_at_random
from calmrl.latent.held_out import coverage
from calmrl.latent.model import Expectation, Parameters
from calmrl.latent.online import BatchPosterior, completed, imputed
from calmrl.latent.rows import Source, check_links, check_size, open_source, source_of, working_dtype
from calmrl.latent.storage import learned_to_state, state_to_learned
from calmrl.latent.whitening import Whitening, principal_axes


class GaussianImputer(SavedImputer, TransformerMixin, BaseEstimator):
    """Complete missing modalities with a linear-Gaussian model of shared latents, fitted on observed modalities only.

    z^m = W^m beta + mu^m + eps^m with beta ~ N(0, I), eps^m ~ N(0, Psi^m); a missing z^m is imputed by
    W^m E[beta | observed] + mu^m.

    A modality may also lack single entries of a row: NaN, or False in `observed`. Then E[beta | observed] follows from the
    entries that the row has, each column is learned from the rows that have it, and the holes are imputed, too.

    - `latent_dim`: number of latents L, or "auto" to choose it on held-out blocks: a fixed number overfits or underfits most
      data. Where there is nothing to hold out (fewer than 3 rows, or none with two modalities), "auto" is 32 with a prior
      of 300 rows, with a warning. `partial_fit` takes 32, too, and chooses the prior on its first batch.
    - `n_components`: 1 is the paper's model; K > 1 a mixture, for data that one linear map does not fit; or "auto".
    - `noise`: "isotropic" (one variance per modality), "diagonal" (one per feature), or "auto".
    - `m_step`: "joint" solves [W mu] together; "sequential" is the order printed in the paper, with the same optimum.
    - `max_iter`, `tol`: stop after `max_iter` iterations, or when the objective per row gains less than `tol` (relative).
    - `random_state`: seed of the start and of the search; None draws one.
    - `solver`: "em"; "stepwise", passes over batches of `batch_size` rows; or "gradient", L-BFGS on the likelihood.
    - `prior`: as if so many more rows were pure noise (W = 0, noise = the columns' variance). "auto" is searched where
      something else is "auto", otherwise 0 (maximum likelihood) for one component, 100 for the base of a mixture.
    - `shrinkage`: by how many rows each component's W leans on the W shared by all; "auto" is searched, or 100.
    - `criterion`: what "auto" looks at in held-out blocks: "imputation", how well their values come back, or "retrieval",
      how well they find their row, which is what `embed` and `similarity` are for and prefers more latents.
    - `whitening`: 0 fits the features as they are; p in (0, 1] first turns each modality into at most 400 principal
      directions and divides each by its deviation to the power p. Embeddings want 0.35 to 0.6, many latents and a prior
      of about 300. What comes back is in the space of z. "auto" is searched where `latent_dim` is "auto", otherwise 0.
    - `accelerate`: parameter expansion (PX-EM): several times fewer iterations, same optimum.
    - `step_size`: of stepwise EM; "decay" for data that stay, a constant such as 0.05 for encoders that move.
    - `blocks`: for one 2-D array or frame instead of a dict: list of column widths, dict name -> width, or dict name ->
      list of columns. None is one block.
    - `verbose`: print the search to standard error.

    Learned: `W_`, `mu_`, `sigma2_` (dicts per modality), `log_likelihood_` (the objective per row, one value per
    iteration: log-likelihood, plus log prior where there is one), `settings_`, `search_`, `std_scale_`, `hole_scale_`
    (factors on the deviations of missing modalities, and of holes), `n_iter_`.

        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> shared = rng.normal(size=(200, 2))
        >>> z = {"image": shared @ rng.normal(size=(2, 5)), "text": shared @ rng.normal(size=(2, 4))}
        >>> z["text"][:50] = np.nan                       # fifty items without text
        >>> filled = GaussianImputer(latent_dim=2).fit(z).transform(z)
        >>> bool(np.isfinite(filled["text"]).all())
        True
    """

    saved_as = "gaussian"
    title = "a Gaussian one"
    takes_holes = True
    parameters_: Parameters
    settings_: Settings
    log_likelihood_: list[float]
    search_: list[dict[str, Any]]
    std_scale_: list[float]
    hole_scale_: list[float]
    n_iter_: int
    _running: online.Running | None
    _numpy: bool

    def __init__(
        self,
        latent_dim: Count | Auto = "auto",
        n_components: Count | Auto = 1,
        noise: Literal["isotropic", "diagonal", "auto"] = "isotropic",
        m_step: Literal["joint", "sequential"] = "joint",
        max_iter: Count = 200,
        tol: Positive = 1e-6,
        random_state: int | None = 0,
        *,
        solver: Literal["em", "stepwise", "gradient"] = "em",
        prior: NotNegative | Auto = "auto",
        shrinkage: NotNegative | Auto = "auto",
        criterion: Literal["imputation", "retrieval"] = "imputation",
        whitening: Fraction | Auto = "auto",
        accelerate: bool = True,
        step_size: Positive | Literal["decay"] = "decay",
        batch_size: Count = 256,
        blocks: Blocks = None,
        verbose: bool = False,
    ) -> None:
        self.latent_dim = latent_dim
        self.n_components = n_components
        self.noise = noise
        self.m_step = m_step
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.solver = solver
        self.prior = prior
        self.shrinkage = shrinkage
        self.criterion = criterion
        self.whitening = whitening
        self.accelerate = accelerate
        self.step_size = step_size
        self.batch_size = batch_size
        self.blocks = blocks
        self.verbose = verbose

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "parameters_"):
            return text
        learned = self.parameters_
        widths = ", ".join(f"{name} ({width})" for name, width in zip(learned.names, learned.widths, strict=True))
        mixture = f", {learned.n_components} components" if learned.n_components > 1 else ""
        return f"{text}, fitted: {widths} -> {learned.latent_dim} latents{mixture}"

    # ---- fitting

    def fit(self, z: Any, present: Array | None = None, observed: Any = None) -> GaussianImputer:
        """Fit on a dict of arrays (memory-mapped ones in chunks), an iterable of (z, present) chunks, or a 2-D array.

        Objects that hold features will do as well: a feature set, MuData, AnnData, a frame, a Dataset (`calmrl.interop`).
        Rows may have holes inside a modality: NaN, or entries that are False in `observed` (modality -> bool (N, d)).
        """
        return self.fit_with(z, present, z.engine if isinstance(z, DistributedRows) else None, observed)

    @explain_linalg_errors()
    def fit_with(
        self,
        z: Any,
        present: Array | None,
        engine: Engine | None,
        observed: Any = None,
        ready: Ready | None = None,
    ) -> GaussianImputer:
        """As `fit`; the trials of the search may be made by the workers of an engine, or are `ready`, of the same rows."""
        args = self.get_params(deep=False)
        check_arguments(args)
        source = self._source(z, present, observed)
        seed = seed_of(self.random_state)
        settings, trials, scale, hole_scale = decide(args, source, seed, engine, ready)
        self._fit(source, settings, seed)
        self.search_, self.std_scale_, self.hole_scale_ = [trial.row() for trial in trials], scale, hole_scale
        return self

    @explain_linalg_errors()
    def refit(self, z: Any, present: Array | None = None) -> GaussianImputer:
        """Fit on other rows with the settings that `fit` chose; nothing is searched, the scale of deviations stays."""
        check_is_fitted(self)
        kept = self.search_, self.std_scale_, self.hole_scale_
        self._fit(self._source(z, present), self.settings_, seed_of(self.random_state))
        self.search_, self.std_scale_, self.hole_scale_ = kept
        return self

    def _source(self, z: Any, present: Array | None, observed: Any = None) -> Source:
        z, present = self._as_dict(z, present, reset=True, observed=observed)
        source = open_source(z, present, holes=True)
        check_size(source)
        check_links(source)
        return source

    def _fit(self, source: Source, settings: Settings, seed: int) -> None:
        running: online.Running | None = None
        stop: dict[str, Any] = {"max_iter": self.max_iter, "tol": self.tol}
        if source.torn:
            self._check_takes_holes(settings)
        if self.solver == "em":
            options = {"seed": seed, "m_step": self.m_step, "accelerate": self.accelerate, **stop}
            if settings.whitening:
                with torch.no_grad():
                    fit = Whitening(source, principal_axes(source), settings.whitening).fit(settings, **options)
            else:
                fit = fit_settings(source, settings, **options)
            params, history = fit.params, fit.objective
            sums = fit.statistics if settings.n_components == 1 else None
            if sums is not None:
                running = online.Running.from_sums(sums.moved(source.mean), source.rows)
            if not fit.converged and settings.iterations is None:
                warnings.warn(
                    f"EM used all {self.max_iter} iterations without reaching tol={self.tol}; raise max_iter or tol",
                    ConvergenceWarning,
                    stacklevel=3,
                )
        else:
            params = start_at_random(source, settings.latent_dim, seed)
            if self.solver == "gradient":
                isotropic = settings.noise == "isotropic"
                params, history = fit_by_gradient(list(source.packs()), params, noise_floor(source), isotropic, **stop)
        params = params.moved(source.mean)
        if self.solver == "stepwise":
            params, running, history = online.passes(
                source, params, seed=seed, batch_size=self.batch_size, **stop, **self._step_options(settings)
            )
        self._learn(params, settings, running, history, isinstance(next(source.chunks()).given(), Tensor))

    def _check_takes_holes(self, settings: Settings) -> None:
        if settings.whitening or self.solver == "gradient":
            whitens = (f"whitening={settings.whitening:g}", "whitening=0")
            what, instead = whitens if settings.whitening else ("solver='gradient'", "solver='em'")
            raise InputError(
                f"{what} needs whole rows, but some rows have holes inside a modality; use {instead}, or complete the rows "
                "first with a GaussianImputer that does"
            )

    @explain_linalg_errors()
    def partial_fit(self, z: Any, present: Array | None = None) -> GaussianImputer:
        """Stepwise EM on one batch; continues from `fit` or from earlier batches. One component only.

        With latent_dim="auto" there are 32 latents, and the first batch chooses the prior on held-out blocks: pass one of
        64 rows or more that has rows with several modalities. Rows that come again count as new ones, against which the
        prior weighs less and less: for several epochs over few rows use `fit` with solver="stepwise", which knows their
        number.
        """
        started = hasattr(self, "parameters_")
        z, present = self._as_dict(z, present, reset=not started)
        if started:
            views = self._views(z, present)
        else:
            args = self.get_params(deep=False)
            check_arguments(args)
            if self.whitening not in (0, "auto"):
                raise InputError("partial_fit needs features as they are: set whitening=0, or start with fit")
            if self.n_components != 1 or self.noise == "auto":
                raise InputError(
                    "partial_fit does not choose n_components and noise: give n_components=1 and a noise form, or start "
                    "with fit"
                )
            views = check(z, present, min_rows=1, holes=True)
            seed = seed_of(self.random_state)
            settings = decide_for_stream(args, source_of(views), seed)
            start = online.start(views, settings.latent_dim, seed)
            self._learn(start, settings, None, [], isinstance(views.given(), Tensor))
        if self.settings_.n_components != 1:
            raise InputError("partial_fit works with one component, but this model is a mixture; fit it anew")
        self._need_no_whitening("partial_fit")
        self.parameters_, self._running = online.step(
            views, self._parameters(views), self._running, **self._step_options(self.settings_)
        )
        self.n_iter_ += 1
        return self

    def _need_no_whitening(self, what: str) -> None:
        if self.settings_.whitening:
            raise InputError(
                f"{what} cannot go on from a whitened model (whitening={self.settings_.whitening:g}): its directions "
                "belong to the rows it was fitted on; fit with whitening=0"
            )

    @classmethod
    def from_parameters(cls, params: Parameters) -> GaussianImputer:
        """A fitted imputer with these parameters, for instance those of a `GaussianLatent` that was trained."""
        imputer = cls(params.latent_dim, params.n_components)
        settings = Settings(params.latent_dim, params.n_components)
        imputer._learn(params.detached(), settings, None, [], torch_in=True)
        return imputer

    def _learn(
        self,
        params: Parameters,
        settings: Settings,
        running: online.Running | None,
        history: list[float],
        torch_in: bool,
    ) -> None:
        self.parameters_ = params
        self.settings_ = settings
        self.log_likelihood_ = history
        self.n_iter_ = len(history)
        self.search_ = []
        self.std_scale_ = [1.0] * len(params.names)
        self.hole_scale_ = [1.0] * len(params.names)
        self._running = running
        self._numpy = not torch_in

    def _step_options(self, settings: Settings) -> dict[str, Any]:
        isotropic = settings.noise == "isotropic"
        return {"step_size": self.step_size, "prior": settings.prior, "m_step": self.m_step, "isotropic": isotropic}

    # ---- completing

    @explain_linalg_errors()
    def transform(self, z: Any, present: Array | None = None, observed: Any = None) -> Any:
        """The input with every missing modality and hole imputed; observed entries bit for bit as they were.

        Differentiable in torch inputs. Modalities of the model that `z` lacks altogether are added. An object that holds
        features (MuData, a frame, ...) comes back as a new one, with deviations and masks: `calmrl.interop.impute_object`.
        """
        if self._holds_features(z):
            return impute_object(self, z)
        return self._in_kind(predict.complete(*self._model(z, present, observed)), z)

    @explain_linalg_errors()
    def complete_batch(self, views: Views, *, learn: bool = False, unit: bool = False) -> Tensor:
        """As `transform`, for a batch of a training step: the modalities of the model side by side, (N, D). One component only.

        `views` has all of them, and gradients flow to them. `unit` scales imputed vectors to length one. With `learn`
        the batch also enters the running statistics of `partial_fit`; the parameters stay as they are.
        """
        posterior = self._batch_posterior(views, learn)
        return completed([views.arrays[name] for name in self.parameters_.names], posterior, unit)

    @explain_linalg_errors()
    def missing(
        self, z: Mapping[str, Tensor], present: Tensor, *, learn: bool = False, unit: bool = False
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """For every modality the rows that lack it and what is imputed there, as constants; `learn`, `unit` as above."""
        posterior = self._batch_posterior(check(z, present), learn)
        vectors, gaps = imputed(posterior, unit)[0], posterior.gaps
        parts = vectors[0].split(gaps.counts) if gaps.one_block else vectors
        return dict(zip(self.parameters_.names, zip(gaps.rows.split(gaps.counts), parts, strict=True), strict=True))

    @torch.no_grad()
    def _batch_posterior(self, views: Views, learn: bool) -> BatchPosterior:
        if (views.names, views.widths) != (self.parameters_.names, self.parameters_.widths):
            views = self._views(views.arrays, views.present, holes=False)
        params = self._parameters(views)
        predict.need_one_component(params, "missing")
        expect = Expectation.of(params, working_dtype(views))
        posterior = BatchPosterior(expect, views.rows(0, len(views)), views.present)
        if not within_limit(posterior.x):
            self._views(views.arrays, views.present, holes=False)  # says which value is wrong
        if learn:
            self._need_no_whitening("missing(learn=True)")
            self._running = online.absorb(expect, posterior, views.present, self._running, self.step_size)
            self.n_iter_ += 1
        return posterior

    @explain_linalg_errors()
    def impute(self, z: Any, present: Array | None = None, return_std: bool = False, observed: Any = None) -> Any:
        """As `transform`; with `return_std` also the predictive standard deviation of every entry (0 where observed)."""
        if not return_std or self._holds_features(z):
            return self.transform(z, present, observed)
        filled, std = predict.complete_with_std(*self._model(z, present, observed), self.std_scale_, self.hole_scale_)
        return self._in_kind(filled, z), self._in_kind(std, z)

    def predictive_covariance(self, z: Any, modality: str, present: Array | None = None) -> Array:
        """Full covariance of one modality given the others that each row has, (N, d, d); not scaled by `std_scale_`."""
        params, views = self._model(z, present)
        if modality not in params.names:
            raise InputError(f"unknown modality {modality!r}; the model has {', '.join(params.names)}")
        return self._out(predict.predictive_covariances(params, views, params.names.index(modality)), views)

    def sample(self, z: Any, present: Array | None = None, random_state: int | None = 0) -> Any:
        """One joint draw of the missing modalities from their predictive distribution; observed entries as they were."""
        generator = torch.Generator().manual_seed(seed_of(random_state))
        return self._in_kind(predict.samples(*self._model(z, present), generator), z)

    def coverage(self, z: Any, present: Array | None, hidden: Array, level: float = 0.9) -> dict[str, float]:
        """Share of the values in `hidden` blocks that lie in their `level` predictive interval, per modality and in "all".

        `z` has the true values there; the model sees only what is present and not hidden.
        """
        params, views = self._model(z, present)
        hide = torch.as_tensor(hidden, device=views.present.device) & views.present
        seen = replace(views, present=views.present & ~hide)
        return coverage(views, hide, *predict.complete_with_std(params, seen, self.std_scale_, self.hole_scale_), level)

    # ---- one shared space

    def embed(self, z: Any, present: Array | None = None) -> Array:
        """Posterior mean of the latents, (N, latent_dim): one shared space from any subset of modalities."""
        params, views = self._model(z, present)
        return self._out(predict.posterior_means(params, views), views)

    def posterior(self, z: Any, present: Array | None = None) -> tuple[Array, Array]:
        """Mean (N, L) and covariance (N, L, L) of the latents given what each row has."""
        params, views = self._model(z, present)
        mean, covariance = predict.posterior_moments(params, views)
        return self._out(mean, views), self._out(covariance, views)

    def similarity(self, queries: Any, gallery: Any, scoring_rule: str = "cosine") -> Array:
        """(queries, gallery) scores between items with any modalities; missing ones are NaN rows or left out of the dict.

        "cosine": of posterior means. "anchor": of the leading singular vectors of completed items (equal widths needed).
        "likelihood_ratio": log p(q, g) - log p(q) - log p(g).
        """
        params, left = self._model(queries, None)
        _, right = self._model(gallery, None)
        return self._out(lookup(predict.SCORINGS, scoring_rule, "scoring")(params, left, right), left)

    def as_heads(self) -> nn.ModuleDict:
        """One linear layer per modality, z^m -> posterior mean given m alone: a start for training."""
        check_is_fitted(self)
        return predict.linear_heads(self.parameters_)

    # ---- likelihood

    def score(self, z: Any, present: Array | None = None) -> float:
        """Mean observed-data log-likelihood per row."""
        return float(predict.row_likelihoods(*self._model(z, present)).mean())

    def score_samples(self, z: Any, present: Array | None = None) -> Array:
        """Observed-data log-likelihood of each row, (N,)."""
        params, views = self._model(z, present)
        return self._out(predict.row_likelihoods(params, views), views)

    # ---- what was learned

    @property
    def names_(self) -> tuple[str, ...]:  # type: ignore[override]
        """Modalities, in the order of `present`."""
        return self.parameters_.names

    @property
    def widths_(self) -> tuple[int, ...]:  # type: ignore[override]
        """Columns per modality."""
        return self.parameters_.widths

    def _named(self, tensors: list[Tensor]) -> dict[str, Any]:
        check_is_fitted(self)
        single = self.parameters_.n_components == 1
        picked = [t[0] if single else t for t in tensors]
        return {
            name: t.cpu().numpy() if self._numpy else t for name, t in zip(self.parameters_.names, picked, strict=True)
        }

    @property
    def W_(self) -> dict[str, Any]:
        """Loadings per modality, (d_m, L); (K, d_m, L) for a mixture."""
        return self._named(self.parameters_.W)

    @property
    def mu_(self) -> dict[str, Any]:
        """Means per modality, (d_m,); (K, d_m) for a mixture."""
        return self._named(self.parameters_.mu)

    @property
    def sigma2_(self) -> dict[str, Any]:
        """Noise variances per modality: a number if isotropic, (d_m,) if diagonal; one more axis for a mixture.

        A whitened model has correlated noise; this is its diagonal, (d_m,).
        """
        if self.settings_.noise == "isotropic" and self.parameters_.rotations is None:
            return self._named([noise[:, 0] for noise in self.parameters_.noise])
        return self._named(self.parameters_.noise)

    def get_state(self) -> dict[str, Any]:
        """Everything learned, as {"meta": json-able, "tensors": name -> tensor}."""
        check_is_fitted(self)
        return learned_to_state(self.__dict__)

    def set_state(self, state: dict[str, Any]) -> GaussianImputer:
        """Take over what `get_state` gave."""
        self.__dict__.update(state_to_learned(state))
        return self

    # ---- input and output

    def _views(self, z: Any, present: Array | None, holes: bool = True) -> Views:
        return check(z, present, names=self.parameters_.names, widths=self.parameters_.widths, holes=holes)

    def _parameters(self, views: Views) -> Parameters:
        return self.parameters_.to(views.present.device)

    def _model(self, z: Any, present: Array | None, observed: Any = None) -> tuple[Parameters, Views]:
        check_is_fitted(self)
        z, present = self._as_dict(z, present, reset=False, observed=observed)
        views = self._views(z, present)
        return self._parameters(views), views

    def _out(self, tensor: Tensor, views: Views) -> Array:
        return tensor if isinstance(views.given(), Tensor) else tensor.detach().cpu().numpy()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "parameters_")
