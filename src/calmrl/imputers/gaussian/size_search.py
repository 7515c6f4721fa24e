"""Choosing size, prior and noise on held-out blocks: hide observed modalities, fit on the rest, measure what comes back.

Maximum likelihood with many latents overfits real data, so that the log-likelihood cannot choose. The search goes along
one axis at a time (latents, prior, noise, components), stops each trial when the held-out error rises, and keeps the
number of iterations that was best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calmrl._support.distributed import gather_objects, world
from calmrl._support.registry import lookup
from calmrl.imputers.gaussian.fitting import Settings, fit_settings
from calmrl.imputers.gaussian.held_out import HeldOut, hold_out
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.row_sources import Source
from calmrl.imputers.gaussian.whitening import Whitening, principal_axes

SEARCH_ROWS = 10_000
PATIENCE = 3
FIRST = 3  # iterations from a random start that are not judged: the first ones still show the start
MARGIN = 0.005  # errors closer than this are not told apart
LATENTS = (2, 4, 8, 16, 32, 64, 128)
PRIORS = (0.0, 10.0, 100.0, 300.0, 1000.0)
COMPONENTS = (3, 10, 30)
COMPONENT_PRIORS = (10.0, 100.0)
CRITERIA: dict[str, Callable[[HeldOut, Parameters], float]] = {"imputation": HeldOut.error, "retrieval": HeldOut.miss}
MANY_LATENTS = (256, 400)  # tried on whitened features, where columns and rows allow so many
POWERS = (0.35, 0.5, 0.6, 0.75)
HOPELESS = 1.1  # a first whitened trial that is worse than the best by this factor is the last
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

    def __init__(self, held: HeldOut, criterion: str, seed: int, max_iter: int, tell: Callable[[Trial], None]) -> None:
        self.held, self.seed, self.max_iter, self.tell = held, seed, max_iter, tell
        self.measure = lookup(CRITERIA, criterion, "criterion")
        self.trials: list[Trial] = []
        self.models: dict[Settings, Parameters] = {}
        self.whitenings: dict[float, Whitening] = {}

    def best(self) -> Trial:
        return smallest_of_the_best(self.trials)

    def attempt(self, settings: Settings, base: Parameters | None = None) -> Trial:
        """Fit with early stopping on the held-out error; the trial keeps the best number of iterations."""
        for trial in self.trials:
            if replace(trial.settings, iterations=None) == replace(settings, iterations=None):
                return trial
        track: list[tuple[float, int, Parameters]] = []
        first = FIRST if base is None else 1

        def best_step() -> tuple[float, int, Parameters]:
            return min([entry for entry in track if entry[1] >= first] or track[-1:], key=lambda entry: entry[0])

        def watch(step: int, params: Parameters, _: float) -> bool:
            track.append((self.measure(self.held, params), step, params))
            return step - best_step()[1] >= PATIENCE

        options: dict[str, Any] = {"seed": self.seed, "max_iter": self.max_iter, "tol": 1e-5, "after_step": watch}
        if settings.whitening:
            self._whitening(settings.whitening).fit(settings, **options)
        else:
            fit_settings(self.held.source, settings, base=base, **options)
        error, step, params = best_step()
        trial = Trial(replace(settings, iterations=step), error)
        self.trials.append(trial)
        self.models[trial.settings] = params
        self.tell(trial)
        return trial

    def _whitening(self, power: float) -> Whitening:
        if power not in self.whitenings:
            earlier = next(iter(self.whitenings.values()), None)
            axes = principal_axes(self.held.source) if earlier is None else earlier.axes
            self.whitenings[power] = Whitening(self.held.source, axes, power)
        return self.whitenings[power]

    def along_powers(self, start: Settings, sizes: tuple[int, ...], powers: tuple[float, ...]) -> None:
        """Whitened features with many latents: the sizes at the second power, then other powers at the better size."""
        limit = HOPELESS * self.best().error
        tried = []
        for size in sizes:
            tried.append(self.attempt(replace(start, latent_dim=size, whitening=powers[1])))
            if tried[0].error > limit:
                return
        best = min(tried, key=lambda trial: trial.error)
        for power in powers[2:]:
            tried.append(self.attempt(replace(best.settings, whitening=power)))
            if tried[-1].error >= tried[-2].error and power > powers[2]:
                break
        if min(tried, key=lambda trial: trial.error) is best:
            self.attempt(replace(best.settings, whitening=powers[0]))

    def along_latents(self, values: tuple[int, ...], start: Settings) -> None:
        """Walk the ladder of sizes up, and down if up did not help, while the error falls."""
        middle = min(range(len(values)), key=lambda i: abs(values[i] - start.latent_dim))
        for direction in (1, -1):
            position, last = middle, self.attempt(replace(start, latent_dim=values[middle]))
            while 0 <= position + direction < len(values):
                position += direction
                trial = self.attempt(replace(start, latent_dim=values[position]))
                if trial.error >= last.error:
                    break
                last = trial
            if position != middle + direction:
                return


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
) -> tuple[Settings, list[Trial], list[float]]:
    """(best settings, all trials, std scale per modality); numbers that were given are kept, 'auto' ones are searched."""
    held = hold_out(z, present, seed)
    search = Search(held, criterion, seed, max_iter, tell)
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
        search.along_latents(latents, start)
    else:
        search.attempt(start)
    for form in noises:
        search.attempt(replace(search.best().settings, noise=form))
    for strength in priors:
        search.attempt(replace(search.best().settings, prior=strength))
    if latent_dim == "auto":
        search.along_latents(latents, search.best().settings)
    if n_components != 1:
        single = search.best()
        counts = COMPONENTS if n_components == "auto" else (int(n_components),)
        strengths = COMPONENT_PRIORS if shrinkage == "auto" else (float(shrinkage),)
        if n_components != "auto":
            search.trials.clear()
        for count in counts:
            too_large = count > held.source.rows // 2 or count * single.settings.latent_dim > MOST_LATENTS
            if n_components == "auto" and too_large:
                continue
            for strength in strengths:
                search.attempt(
                    replace(
                        single.settings,
                        n_components=count,
                        component_prior=strength,
                        base_iterations=single.settings.iterations,
                    ),
                    base=search.models[single.settings],
                )
    many = tuple(size for size in MANY_LATENTS if size <= largest)
    if latent_dim == "auto" and whitening == "auto" and n_components in (1, "auto") and many:
        search.along_powers(start, many, POWERS)
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
