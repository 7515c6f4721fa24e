"""`AutoImputer`: tries the imputers on held-out blocks of the data and keeps the best, or the best average of them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.arguments import seed_of
from calmrl._support.engine import Engine, LocalEngine
from calmrl.arrays import Array, Views, check
from calmrl.data.features.distributed_rows import DistributedRows
from calmrl.errors import InputError
from calmrl.imputers.base import BlockImputer, Blocks, state_of, with_state
from calmrl.imputers.holes import HoleCompletion, Neighbours, Within, choose_holes, neighbours_of
from calmrl.imputers.kernel import linked
from calmrl.imputers.registry import IMPUTERS
from calmrl.imputers.stacking import (
    CANDIDATES,
    Fitter,
    Guesses,
    Stack,
    Tried,
    Weights,
    answers,
    as_double,
    factors,
    hidden_blocks,
    levels,
    missing_counts,
    try_candidate,
)
from calmrl.latent.held_out import normal_reach
from calmrl.protocols import Progress, no_progress

COSTLY = ("mopoe", "knowledge_bridger", "ridge", "knn")  # tried only on data of at most MOST_VALUES values
MOST_VALUES = 2 * 10**7
CHOICE_ROWS = 10_000  # rows on which the candidates are compared
TRAINED = ("mopoe",)  # by gradient steps, which the race can end
RACE_EPOCHS = 4  # after which it does, where a candidate has no weight and
FALL = 0.02  # the last epoch lowered its error by less than this share
LEVEL_ROWS = 400  # incomplete rows on which the deviations of two fits are compared
LEAST_BLOCKS = 10  # hidden blocks, below which nothing can be compared
InHoles = tuple[Tensor, Tensor, Within]  # weights, factors on the deviations, models of modalities alone


def _column_means(rows: np.ndarray) -> np.ndarray:
    """Over the entries that are not NaN; 0 for a column without any."""
    known = ~np.isnan(rows)
    if known.all():
        return np.asarray(rows.mean(axis=0))
    return np.asarray(np.where(known, rows, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))


class AutoImputer(BlockImputer):
    """Whatever imputes held-out blocks of these data best: one imputer, or a weighted average of a few.

    guess^m = sum_c w^m_c guess^m_c,    w^m >= 0,    sum_c w^m_c = 1

    About an eighth of the observed blocks is hidden such that rows look like the incomplete rows of the data. Every
    candidate is fitted without them (`gaussian` and `kernel` choose their own settings there) and guesses them. The
    best is kept, others join while that lowers the held-out error; their weights, one set per modality, are those of
    the least squared error. What was kept is fitted again on all rows. What costs much is tried only where held-out errors say
    that it can win (`race`). Deviations are averaged alike and scaled per
    modality and number of observed modalities so that 90 % intervals cover 90 % of the held-out values; the deviations
    of the last fit, which saw these values, are brought to the size that was checked.

    Holes inside a modality are completed by the latent model, whose settings are then chosen on held-out blocks and entries,
    averaged with the nearest rows by weights that are chosen on held-out entries. Deviations there are those of the latent
    model, scaled so that 90 % intervals cover 90 % of these entries. The other candidates see completed rows.

    Parameters
    ----------
    candidates : list of str, optional
        Names to try, of "gaussian", "kernel", "mopoe", "knowledge_bridger", "ridge", "knn", "mean"; by default all, and on more
        than twenty million values only "gaussian", "kernel" and "mean".
    random_state : int or None
        Seed of the held-out blocks and of the candidates.
    verbose : bool
        Print every candidate's held-out error to standard error.
    race : bool
        Try `gaussian` on plain features first, and on whitened ones only if it is the best; train `mopoe` on, after four
        epochs and while its error does not fall fast, only if it has a weight in the average, and not again on all rows. False
        tries all.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Attributes
    ----------
    choice_ : dict
        "held_out" (number of blocks), "errors" (candidate -> normalised error over all modalities and per modality, 1.0 is the
        column mean), "weights" (modality -> candidate -> weight), "error" (of the average), "error_by_modality",
        "held_out_by_modality" (blocks, of modalities that some row lacks), "coverage_by_modality" (percent of the held-out
        values inside 95 % intervals), "std_scale" (modality -> factor per number of observed modalities, 0 to k),
        "seconds" (candidate -> time), "left_out" (candidates that the race ended early) and, if rows have holes, "holes"
        (held-out entries, their errors and the weights).
    models_ : dict
        The fitted imputers by name.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> AutoImputer(["ridge", "mean"]).fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """

    neighbours_: Neighbours | None = None  # of rows with holes
    settled_: dict[str, Any]  # "gaussian", fitted, if its settings are chosen
    forms_: dict[str, Any]  # of the kernel, by modality

    def __init__(
        self,
        candidates: list[str] | None = None,
        random_state: int | None = 0,
        verbose: bool = False,
        *,
        race: bool = True,
        blocks: Blocks = None,
    ) -> None:
        self.blocks = blocks
        self.candidates = candidates
        self.random_state = random_state
        self.verbose = verbose
        self.race = race

    def fit(
        self, z: Any, present: Array | None = None, progress: Progress | None = None, observed: Any = None
    ) -> AutoImputer:
        """Compare the candidates on held-out blocks, then fit what was chosen on all rows.

        `progress` is called with (steps done, steps in all, what is done next): a step per candidate, and one for the rest.
        """
        z, present = self._as_dict(z, present, reset=True, observed=observed)
        views = check(z, present, min_rows=1, holes=True)
        names = self._names(views)
        self.names_, self.widths_, self.neighbours_ = views.names, views.widths, None
        self.seed_ = seed_of(self.random_state)
        sample = self._sample(views)
        mask = sample.present.cpu().numpy()
        hidden = hidden_blocks(mask, np.random.default_rng(self.seed_))
        if int(hidden.sum()) < LEAST_BLOCKS:
            self._settle(views, int(hidden.sum()))
            return self
        engine = z.engine if isinstance(z, DistributedRows) else None
        progress = progress or no_progress
        trial = self._compare(sample, hidden, names, progress, engine)
        holes = self._choose_holes(sample)
        progress(len(names), len(names) + 1, f"fitting {' + '.join(self.chosen_)}")
        trained = [name for name in TRAINED if self.race and sample is views and name in self.chosen_]
        self._refit(z, present, {name: trial[name] for name in trained}, holes)
        self._carry_levels(sample, trial)
        return self

    def refit(self, z: Any, present: Array | None = None) -> AutoImputer:
        """Fit what was chosen on other rows, with the same settings, weights and scale of deviations."""
        kept = self.neighbours_
        return self._refit(z, present, {}, None if kept is None else (kept.weight, kept.factor, kept.alone))

    def _refit(self, z: Any, present: Array | None, trained: dict[str, Any], holes: InHoles | None) -> AutoImputer:
        """As `refit`, but for models that are `trained` enough already, and with what was chosen for `holes`."""
        z, present = self._as_dict(z, present, reset=False)
        views = check(z, present, names=self.names_, widths=self.widths_, min_rows=1, holes=True)
        arrays = z if isinstance(z, DistributedRows) else dict(views.arrays)
        fitted = dict(trained)
        fitter = Fitter(self.seed_, self.settled_, self.forms_)
        self.within_ = None
        if views.holes:
            self._report(f"fitting gaussian on all {len(views)} rows, for their holes")
            fitted["gaussian"] = self.within_ = fitter.fit("gaussian", arrays, views.present, fitted)
            if holes is not None:
                self.neighbours_ = neighbours_of(self.within_, views, *holes)
            arrays = dict(self._without_holes(views)[0].arrays)
        for name in sorted(self.chosen_, key=lambda name: name != "gaussian"):  # which `kernel` shares
            if name in fitted:
                continue
            self._report(f"fitting {name} on all {len(views)} rows")
            fitted[name] = fitter.fit(name, arrays, views.present, fitted)
        self.models_ = {name: fitted[name] for name in self.chosen_}
        return self

    # ---- choosing

    def _names(self, views: Views) -> list[str]:
        """The candidates that are asked for, or those that are cheap enough for the data."""
        if self.candidates is None:
            small = len(views) * sum(views.widths) <= MOST_VALUES
            return [name for name in CANDIDATES if small or name not in COSTLY]
        unknown = [name for name in self.candidates if name not in CANDIDATES]
        if unknown or not self.candidates or isinstance(self.candidates, str):
            raise InputError(
                f"candidates must be a list of names among {', '.join(CANDIDATES)}; got {self.candidates!r}"
            )
        return [name for name in CANDIDATES if name in self.candidates]

    def _sample(self, views: Views) -> Views:
        if len(views) <= CHOICE_ROWS:
            return views
        rows = np.random.default_rng(self.seed_).choice(len(views), CHOICE_ROWS, replace=False)
        return views.take(torch.from_numpy(np.sort(rows)))

    def _settle(self, views: Views, blocks: int) -> None:
        """Where no imputers can be compared: the latent model if there are holes, else column means."""
        taken = "gaussian" if views.holes and linked(views.present) else "mean"
        if bool((~views.present).any()) or not views.holes:
            warnings.warn(
                f"only {blocks} blocks of rows with two modalities can be held out, too few to compare imputers: "
                f"missing values become {'column means' if taken == 'mean' else 'those of the latent model'}",
                UserWarning,
                stacklevel=3,
            )
        self.chosen_, self.weight_ = [taken], np.ones((1, len(self.names_)))
        self.scale_ = np.ones((len(self.names_) + 1, len(self.names_)))
        self.models_ = {taken: Fitter(self.seed_).fit(taken, dict(views.arrays), views.present, {})}
        self.settled_, self.forms_ = dict(self.models_) if taken == "gaussian" else {}, {}
        self.within_ = self.settled_.get("gaussian")
        self.choice_ = {
            "held_out": blocks,
            "errors": {},
            "weights": {name: {taken: 1.0} for name in self.names_},
            "error": None,
            "error_by_modality": dict.fromkeys(self.names_),
            "held_out_by_modality": {},
            "coverage_by_modality": dict.fromkeys(self.names_),
            "std_scale": self._scale_by_name(),
            "seconds": {},
            "left_out": [],
        }
        if taken == "gaussian":
            holes = self._choose_holes(self._sample(views))
            self.neighbours_ = None if holes is None else neighbours_of(self.within_, views, *holes)

    def _choose_holes(self, views: Views) -> InHoles | None:
        """Choose on held-out entries how the latent model and the nearest rows complete holes together; None without holes."""
        if not views.holes:
            return None
        weight, factor, alone, self.choice_["holes"] = choose_holes(views, Fitter(self.seed_, self.settled_))
        return weight, factor, alone

    def _compare(
        self, views: Views, hidden: np.ndarray, names: list[str], progress: Progress, engine: Engine | None
    ) -> dict[str, Any]:
        """Every candidate's guesses of the hidden blocks, and the weights that follow; returns what was fitted."""
        hide = torch.from_numpy(hidden).to(views.present.device)
        visible = views.present & ~hide
        truth = [as_double(values)[hidden[:, m]] for m, values in enumerate(views.rows(0, len(views)))]
        middle = [
            _column_means(as_double(values)[visible[:, m].cpu().numpy()]) if bool(visible[:, m].any()) else 0.0
            for m, values in enumerate(views.rows(0, len(views)))
        ]
        known = [~np.isnan(t) for t in truth]  # a hidden block may have holes, of which nobody knows the truth
        totals = [float(np.square(np.where(k, t - c, 0)).sum()) for t, c, k in zip(truth, middle, known, strict=True)]
        stack = Stack(totals, [len(t) for t in truth], self.widths_)
        asked = hide.any(1).nonzero()[:, 0]
        at = hidden[asked.cpu().numpy()]

        def judged(tried: Tried) -> Guesses:
            errors = [np.where(known[j], g[at[:, j]] - truth[j], 0.0) for j, g in enumerate(tried.guess)]
            return Guesses(errors, [np.where(known[j], std[at[:, j]], np.nan) for j, std in enumerate(tried.std)])

        rows = replace(views, arrays=dict(views.arrays), present=visible)
        fitted, seconds, left_out = self._race(rows, asked, names, stack, judged, progress, engine)
        weights = stack.weigh()
        visible_count = visible.sum(1).cpu().numpy()
        sources = [visible_count[hidden[:, m]] for m in range(len(self.names_))]
        missing = missing_counts(views.present.cpu().numpy())
        self.chosen_, self.weight_ = weights.chosen, weights.weight
        scores = stack.scores(weights)
        self.scale_ = factors(scores, sources, missing)
        self._set_choice(stack, weights, seconds)
        self.choice_["left_out"] = left_out
        covered = [self._covered(m, score, sources[m]) for m, score in enumerate(scores)]
        blocks = {m: int(n) for m, n, lacking in zip(self.names_, stack.blocks, missing.sum(0), strict=True) if lacking}
        self.choice_["held_out_by_modality"] = blocks
        self.choice_["coverage_by_modality"] = dict(zip(self.names_, covered, strict=True))
        self.settled_ = {name: fitted[name] for name in ("gaussian",) if name in fitted}
        if views.holes:
            self.settled_["gaussian"] = self.within_
        self.forms_ = fitted["kernel"].choice_ if "kernel" in fitted else {}
        return fitted

    def _race(
        self,
        rows: Views,
        asked: Tensor,
        names: list[str],
        stack: Stack,
        judged: Callable[[Tried], Guesses],
        progress: Progress,
        engine: Engine | None,
    ) -> tuple[dict[str, Any], dict[str, float], list[str]]:
        """(fitted candidates, their seconds, names of those left out): what costs much only where it can win."""
        fitted: dict[str, Any] = {}
        seconds: dict[str, float] = {}
        left_out: list[str] = []
        late = [name for name in names if self.race and name in TRAINED]
        early = [name for name in names if name not in late]
        steps = len(names) + 1
        fitter = Fitter(self.seed_, plain=self.race and not rows.holes, trials={})

        def take(name: str, tried: Tried) -> None:
            fitted[name], stack.guesses[name] = tried.model, judged(tried)
            seconds[name] = seconds.get(name, 0.0) + tried.seconds
            self._report(f"{name}: held-out error {stack.error(name):.4f} ({tried.seconds:.1f} s)")

        for name, tried in self._tried(fitter, rows, asked, early, steps, progress, engine):
            take(name, tried)
        if fitter.plain and "gaussian" in fitted and stack.weigh().chosen[0] == "gaussian":
            progress(len(early), steps, "trying gaussian on whitened features")
            fitter, before = replace(fitter, plain=False), fitted["gaussian"].settings_
            take("gaussian", try_candidate("gaussian", fitter, rows, asked, {}, engine))
            if "kernel" in fitted and fitted["gaussian"].settings_ != before:
                take("kernel", try_candidate("kernel", fitter, rows, asked, fitted))
        if late:
            rows = self._without_holes(rows)[0]
        for step, name in enumerate(late, len(early)):
            progress(step, steps, f"trying {name}")

            def hopeless(model: Any, name: str = name, rows: Views = rows) -> bool:
                """Whether a model in training has no weight, asked once, when its error no longer falls fast."""
                if (
                    name not in stack.guesses
                    and len(model.errors_) >= RACE_EPOCHS
                    and model.errors_[-1] > (1 - FALL) * model.errors_[-2]
                ):
                    stack.guesses[name] = judged(Tried(model, *answers(model, rows, asked), 0.0))
                    left_out.extend({name} - set(stack.weigh().chosen))
                return name in left_out

            tried = try_candidate(name, replace(fitter, stop=hopeless), rows, asked, fitted)
            take(name, tried)
            if name in left_out:
                self._report(f"{name}: left out, because it has no weight after {len(tried.model.errors_)} epochs")
                del stack.guesses[name], fitted[name]
        return fitted, seconds, left_out

    def _tried(
        self,
        fitter: Fitter,
        rows: Views,
        asked: Tensor,
        names: list[str],
        steps: int,
        progress: Progress,
        engine: Engine | None,
    ) -> Iterator[tuple[str, Tried]]:
        """(candidate, what it says): `gaussian` first, for `kernel` shares it; then the others, wherever the engine works."""
        fitted = dict[str, Any]()
        others = [name for name in names if name != "gaussian"]
        latent: Tried | None = None
        if rows.holes:  # the latent model completes them for the others
            progress(0, steps, "trying gaussian")
            latent = try_candidate("gaussian", fitter, rows, asked, fitted, engine)
            fitted["gaussian"] = self.within_ = latent.model
            rows = self._without_holes(rows)[0]
        shared = replace(fitter, trials=None)  # which workers do not need
        guessed = (engine or LocalEngine()).map(try_candidate, others, shared, rows, asked, fitted)
        for step, name in enumerate(names):
            progress(step, steps, f"trying {name}")
            if name != "gaussian":
                yield name, next(guessed)
            elif latent is not None:
                yield name, latent
            elif linked(rows.present):
                tried = try_candidate(name, fitter, rows, asked, fitted, engine)
                fitted[name] = tried.model
                yield name, tried
            else:
                self._report("gaussian: left out, because no rows link all modalities")

    def _covered(self, m: int, score: np.ndarray, sources: np.ndarray) -> float | None:
        """Percent of the held-out values of modality m inside their 95 % interval; None where nothing was held out."""
        known = ~np.isnan(score)
        if not known.any():
            return None
        return 100 * float((score <= self.scale_[sources, m][:, None] * normal_reach(0.95))[known].mean())

    def _carry_levels(self, views: Views, trial: dict[str, Any]) -> None:
        """Bring the deviations of the last fit to the size of those that were checked, on blocks that are missing."""
        rows = (~views.present).any(1).nonzero()[:, 0]
        rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), LEVEL_ROWS)).round().long()]
        if not len(rows):
            return
        taken = views.take(rows)
        present = taken.present.cpu().numpy()
        whole = self._without_holes(taken)[0]
        before, after = (
            [as_double(v.sqrt())[~present[:, m]] for m, v in enumerate(self._average(models, whole, taken, True)[1])]
            for models in (trial, self.models_)
        )
        count = present.sum(axis=1)
        sources = [count[~present[:, m]] for m in range(len(self.names_))]
        self.scale_ = self.scale_ * levels(before, after, sources)
        self.choice_["std_scale"] = self._scale_by_name()

    def _scale_by_name(self) -> dict[str, list[float]]:
        return dict(zip(self.names_, self.scale_.T.tolist(), strict=True))

    def _set_choice(self, stack: Stack, weights: Weights, seconds: dict[str, float]) -> None:
        self.choice_ = {
            "held_out": int(sum(stack.blocks)),
            "errors": {
                name: {"all": stack.error(name), **dict(zip(self.names_, stack.errors(name), strict=True))}
                for name in stack.guesses
            },
            "weights": {
                m: {name: float(weights.weight[c, j]) for c, name in enumerate(weights.chosen)}
                for j, m in enumerate(self.names_)
            },
            "error": weights.error,
            "error_by_modality": dict(zip(self.names_, stack.averaged_errors(weights), strict=True)),
            "std_scale": self._scale_by_name(),
            "seconds": seconds,
        }
        mixed = ", ".join(f"{name} {weights.weight[c].mean():.2f}" for c, name in enumerate(weights.chosen))
        self._report(f"chosen: {mixed} (mean weights); held-out error {weights.error:.4f}")

    def _report(self, line: str) -> None:
        if self.verbose:
            print(line, file=sys.stderr, flush=True)

    # ---- imputing

    def _fill(self, views: Views, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        return self._fill_rows(views, views, with_std)

    def _fill_rows(self, whole: Views, given: Views, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        filled, variance = self._average(self.models_, whole, given, with_std)
        scale = torch.from_numpy(self.scale_).to(given.present.device)[given.present.sum(1)]  # (N, k)
        return filled, [scale[:, m, None] * v.sqrt() for m, v in enumerate(variance)]

    def _latent_model(self) -> Any:
        if self.neighbours_ is not None and self.within_ is not None:
            return HoleCompletion(self.within_, self.neighbours_)
        models = {**getattr(self, "settled_", {}), **getattr(self, "models_", {})}
        return models.get("gaussian") if self.within_ is None else self.within_

    def _average(
        self, models: dict[str, Any], views: Views, given: Views, with_std: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """(guesses, variances) per modality: the weighted averages of what the chosen models say.

        `gaussian` takes the rows as they were `given`, with their holes, so that it knows what was not observed.
        """
        device = views.present.device
        arrays = {name: a for name, a in views.arrays.items() if a is not None}
        torn = {name: a for name, a in given.arrays.items() if a is not None}
        columns = [views.names.index(name) for name in arrays]
        present = views.present[:, columns]
        mask: Array = present if isinstance(views.given(), Tensor) else present.cpu().numpy()
        filled = [torch.zeros((len(views), d), dtype=torch.float64, device=device) for d in self.widths_]
        variance = [torch.zeros_like(block) for block in filled] if with_std else []
        for c, name in enumerate(self.chosen_):
            answer = models[name].impute(torn if name == "gaussian" else arrays, mask, return_std=with_std)
            guess, std = answer if with_std else (answer, None)
            for m, modality in enumerate(self.names_):
                weight = float(self.weight_[c, m])
                filled[m] = filled[m] + weight * torch.as_tensor(guess[modality]).double()
                if std is not None:
                    variance[m] = variance[m] + weight * torch.as_tensor(std[modality]).double().square()
        return filled, variance

    # ---- state

    def _learned(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors: dict[str, Tensor] = {
            "weight": torch.from_numpy(self.weight_),
            "scale": torch.from_numpy(self.scale_),
        }
        alone: dict[str, Any] = {}
        if self.neighbours_ is not None:
            alone, held = self.neighbours_.alone.state()
            parts = {name: part for name, part in vars(self.neighbours_).items() if name != "alone"}
            tensors |= {f"neighbours.{name}": tensor for name, tensor in parts.items()} | held
        states = {}
        settled = {f"settled {name}": model for name, model in self.settled_.items()}
        for number, (name, model) in enumerate({**self.models_, **settled}.items()):
            states[name], held = state_of(model, f"{number}.")
            tensors |= held
        return {
            "chosen": self.chosen_,
            "choice": self.choice_,
            "seed": self.seed_,
            "forms": self.forms_,
            "states": states,
            "alone": alone,
        }, tensors

    def _relearn(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.chosen_, self.choice_, self.seed_ = meta["chosen"], meta["choice"], meta["seed"]
        self.weight_, self.scale_ = (tensors[key].cpu().numpy().copy() for key in ("weight", "scale"))
        self.models_, self.settled_, self.forms_ = {}, {}, meta["forms"]
        start = "neighbours."
        held = {key.removeprefix(start): t.cpu().clone() for key, t in tensors.items() if key.startswith(start)}
        self.neighbours_ = Neighbours(**held, alone=Within.from_state(meta["alone"], tensors)) if held else None
        for number, (name, state) in enumerate(meta["states"].items()):
            place = self.settled_ if name.startswith("settled ") else self.models_
            key = name.removeprefix("settled ")
            place[key] = with_state(IMPUTERS[key](), state, tensors, f"{number}.")
