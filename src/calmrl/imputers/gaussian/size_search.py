"""Choosing size, prior and noise on held-out blocks: hide observed modalities, fit on the rest, measure what comes back.

Maximum likelihood with many latents overfits real data, so that the log-likelihood cannot choose. The search goes along
one axis at a time (latents, noise, prior, components, whitening) as long as the held-out error falls, stops each trial when
that error rises, and keeps the number of iterations that was best. Where there is an engine, its workers make trials ahead of
the walk, which looks at them in its own order and therefore chooses the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calmrl._support.distributed import gather_objects, world
from calmrl._support.engine import Engine
from calmrl.imputers.gaussian.fitting import Settings
from calmrl.imputers.gaussian.held_out import hold_out
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.row_sources import Source
from calmrl.imputers.gaussian.trials import Ended, Trials, run_trial

SEARCH_ROWS = 10_000
MARGIN = 0.005  # errors closer than this are not told apart
LATENTS = (2, 4, 8, 16, 32, 64, 128)
PRIORS = (0.0, 10.0, 100.0, 300.0, 1000.0)
COMPONENTS = (3, 10, 30)
COMPONENT_PRIORS = (10.0, 100.0)
MANY_LATENTS = (256, 400)  # tried on whitened features, where columns and rows allow so many
POWERS = (0.35, 0.5, 0.6, 0.75)
FIRST_POWER = 0.5
ABANDON_RATIO = 1.1  # a first whitened trial that is worse than the best by this factor is the last
MOST_LATENTS = 2048  # components x latents that a trial may have: more costs minutes and gained little


@dataclass(frozen=True)
class Trial:
    """One line of the search table."""

    settings: Settings
    error: float

    def row(self) -> dict[str, Any]:
        return {**asdict(self.settings), "error": self.error}


def smallest_of_the_best(trials: list[Trial]) -> Trial:
    """Of the trials within MARGIN of the lowest error, the one with fewest components, then fewest latents."""
    limit = (1 + MARGIN) * min(trial.error for trial in trials)
    good = [trial for trial in trials if trial.error <= limit]
    return min(good, key=lambda trial: (trial.settings.n_components, trial.settings.latent_dim, trial.error))


class Search:
    """Goes along one axis after the other and remembers every trial."""

    def __init__(self, trials: Trials, tell: Callable[[Trial], None], engine: Engine | None = None) -> None:
        self.made, self.tell, self.engine = trials, tell, engine
        self.trials: list[Trial] = []
        self.models: dict[Settings, Parameters] = {}
        self.ready: dict[tuple[Settings, bool], Ended] = {}  # made by the engine, not asked for yet

    def best(self) -> Trial:
        return smallest_of_the_best(self.trials)

    def attempt(self, settings: Settings, base: Parameters | None = None) -> Trial:
        """The trial with these settings, which keeps the best number of iterations."""
        earlier = self._tried(settings)
        if earlier is not None:
            return earlier
        key = (settings, base is None)
        error, step, params = self.ready.pop(key) if key in self.ready else self.made.run(settings, base)
        trial = Trial(replace(settings, iterations=step), error)
        self.trials.append(trial)
        self.models[trial.settings] = params
        self.tell(trial)
        return trial

    def _tried(self, settings: Settings) -> Trial | None:
        same = (t for t in self.trials if replace(t.settings, iterations=None) == replace(settings, iterations=None))
        return next(same, None)

    def ahead(self, wanted: Sequence[Settings], base: Parameters | None = None) -> None:
        """Let the engine make the next trials, one per worker; those that the walk does not come to are not used."""
        if self.engine is None:
            return
        new = [s for s in wanted if self._tried(s) is None][: self.engine.workers]
        new = [s for s in new if (s, base is None) not in self.ready]
        if len(new) < 2:
            return
        views, made = self.made.held.views, self.made
        shared = ((dict(views.arrays), views.present), base, made.criterion, made.seed, made.max_iter)
        for settings, ended in zip(new, self.engine.map(run_trial, new, *shared), strict=True):
            self.ready[settings, base is None] = ended

    def along(self, name: str, values: Sequence[Any]) -> None:
        """Try every value of one setting, each with the others from the best so far."""
        for place, value in enumerate(values):
            best = self.best().settings
            self.ahead([replace(best, **{name: other}) for other in values[place:]])
            self.attempt(replace(best, **{name: value}))

    def components(self, counts: Sequence[int], strengths: Sequence[float], single: Trial) -> None:
        """Mixtures that start from the best single component."""
        base = self.models[single.settings]
        settings = [
            replace(
                single.settings,
                n_components=count,
                component_prior=strength,
                base_iterations=single.settings.iterations,
            )
            for count in counts
            for strength in strengths
        ]
        for place, one in enumerate(settings):
            self.ahead(settings[place:], base)
            self.attempt(one, base)

    def whitened(self, start: Settings, sizes: Sequence[int], powers: Sequence[float]) -> None:
        """Whitened features with many latents: the power at the smallest size, then larger sizes while the error falls."""
        limit = ABANDON_RATIO * self.best().error
        last = self.attempt(replace(start, latent_dim=sizes[0]))
        if last.error > limit:
            return
        last = self.walk("whitening", powers, last.settings)
        for size in sizes[1:]:
            trial = self.attempt(replace(last.settings, latent_dim=size))
            if trial.error >= last.error:
                return
            last = trial

    def walk(self, name: str, values: Sequence[Any], start: Settings) -> Trial:
        """Up the ladder of values from the one nearest to `start`, or down if up did not help, while the error falls.

        Returns the trial with the lowest error on the way.
        """
        middle = min(range(len(values)), key=lambda i: abs(values[i] - getattr(start, name)))
        ladders = [[replace(start, **{name: v}) for v in part] for part in (values[middle:], values[middle::-1])]
        self.ahead(ladders[0][:2])  # two: larger ones take longer
        lowest = first = self.attempt(ladders[0][0])
        for ladder in ladders:
            for place in range(1, len(ladder)):
                self.ahead(ladder[place : place + 2])
                trial = self.attempt(ladder[place])
                if trial.error >= lowest.error:
                    break
                lowest = trial
            if lowest is not first:
                break
        return lowest


def choose(
    z: dict[str, Any],
    present: Tensor,
    *,
    latent_dim: int | str,
    n_components: int | str,
    noise: str,
    prior: float | str,
    shrinkage: float | str,
    whitening: float | str,
    criterion: str,
    seed: int,
    max_iter: int,
    tell: Callable[[Trial], None],
    engine: Engine | None = None,
) -> tuple[Settings, list[Trial], list[float]]:
    """(best settings, all trials, std scale per modality); numbers that were given are kept, 'auto' ones are searched."""
    held = hold_out(z, present, seed)
    search = Search(Trials(held, criterion, seed, max_iter), tell, engine)
    largest = min(sum(held.source.widths), max(2, held.source.rows - 1))
    latents = tuple(size for size in LATENTS if size <= largest) or (1,)
    noises = ("isotropic", "diagonal") if noise == "auto" else (noise,)
    priors = PRIORS if prior == "auto" else (float(prior),)
    start = Settings(
        latent_dim=min(16, largest) if latent_dim == "auto" else int(latent_dim),
        noise=noises[0],
        prior=300.0 if prior == "auto" else float(prior),
        whitening=0.0 if whitening == "auto" else float(whitening),
    )
    if latent_dim == "auto":
        search.walk("latent_dim", latents, start)
    else:
        search.attempt(start)
    search.along("noise", noises)
    search.walk("prior", priors, search.best().settings)
    if latent_dim == "auto":
        search.walk("latent_dim", latents, search.best().settings)
    if n_components != 1:
        single = search.best()
        counts = COMPONENTS if n_components == "auto" else (int(n_components),)
        strengths = COMPONENT_PRIORS if shrinkage == "auto" else (float(shrinkage),)
        if n_components != "auto":
            search.trials.clear()
        most = min(held.source.rows // 2, MOST_LATENTS // single.settings.latent_dim)
        search.components([count for count in counts if n_components != "auto" or count <= most], strengths, single)
    many = tuple(size for size in MANY_LATENTS if size <= largest)
    if latent_dim == "auto" and whitening == "auto" and n_components in (1, "auto") and many:
        search.whitened(replace(start, whitening=FIRST_POWER), many, POWERS)
    best = search.best()
    return best.settings, search.trials, held.std_scale(search.models[best.settings])


def sample_rows(source: Source, seed: int) -> tuple[dict[str, Any], Tensor]:
    """About SEARCH_ROWS random rows of all processes, in memory, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    rate = min(1.0, SEARCH_ROWS / max(1, source.rows))
    parts: list[list[Tensor]] = [[] for _ in source.names]
    masks: list[Tensor] = []
    for views in source.chunks():
        rows = torch.randperm(len(views), generator=generator)[: max(1, round(rate * len(views)))].sort().values
        taken = views.take(rows)
        masks.append(taken.present)
        for m, values in enumerate(taken.rows(0, len(rows))):
            if values is None:
                values = torch.full((len(rows), source.widths[m]), float("nan"), device=source.device)
            parts[m].append(values.detach().to(source.dtype))
    mine = {name: torch.cat(part) for name, part in zip(source.names, parts, strict=True)}, torch.cat(masks)
    size, _ = world()
    if size == 1:
        return mine
    gathered = gather_objects(mine)
    return (
        {name: torch.cat([z[name].to(source.device) for z, _ in gathered]) for name in source.names},
        torch.cat([present.to(source.device) for _, present in gathered]),
    )


def table(trials: list[Trial]) -> str:
    """The search as a small table, the chosen line marked."""
    best = smallest_of_the_best(trials)
    lines = ["latents  components  noise      prior  shrinkage  power  steps  held-out error"]
    for trial in trials:
        s = trial.settings
        lines.append(
            f"{s.latent_dim:7d}  {s.n_components:10d}  {s.noise:9s}  {s.prior:5g}  {s.component_prior:9g}  "
            f"{s.whitening:5g}  {s.iterations or 0:5d}  {trial.error:14.4f}{' *' if trial is best else ''}"
        )
    return "\n".join(lines)
