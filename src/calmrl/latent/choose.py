"""Choosing size, prior and noise on held-out blocks: hide observed modalities, fit on the rest, measure what comes back.

Of rows with holes inside a modality single entries are hidden, too (`calmrl.latent.held_out`).

Maximum likelihood with many latents overfits real data, so that the log-likelihood cannot choose. The search goes along
one axis at a time (latents, noise, prior, components, whitening) as long as the held-out error falls, stops each trial when
that error rises, and keeps the number of iterations that was best. Where there is an engine, its workers make trials ahead of
the walk, which looks at them in its own order and therefore chooses the same.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calmrl._support.arguments import check_choice, check_number, check_whole
from calmrl._support.distributed import gather_objects, world
from calmrl._support.engine import Engine
from calmrl.arrays import Views
from calmrl.errors import InputError
from calmrl.latent.em import Settings
from calmrl.latent.held_out import CRITERIA, Ended, Trials, hold_out, nothing_to_hide, run_trial
from calmrl.latent.model import Parameters
from calmrl.latent.rows import Source

SEARCH_ROWS = 10_000
MARGIN = 0.005  # errors closer than this are not told apart
LATENTS = (2, 4, 8, 16, 32, 64, 128)
SOON = 64  # latents, beyond which sizes wait until noise and prior are chosen: their trials cost most
PRIORS = (0.0, 10.0, 100.0, 300.0, 1000.0)
COMPONENTS = (3, 10, 30)
COMPONENT_PRIORS = (10.0, 100.0)
MANY_LATENTS = (256, 400)  # tried on whitened features, where columns and rows allow so many
POWERS = (0.35, 0.5, 0.6, 0.75)
FIRST_POWER = 0.5
ABANDON_RATIO = 1.1  # a first whitened trial that is worse than the best by this factor is the last
MOST_LATENTS = 2048  # components x latents that a trial may have: more costs minutes and gained little
MOST_FACTORS = 16_384  # components x latents^2 where rows have holes: nearly every row has a factor of its own there


@dataclass(frozen=True)
class Trial:
    """One line of the search table."""

    settings: Settings
    error: float

    def row(self) -> dict[str, Any]:
        return {**asdict(self.settings), "error": self.error}


Chosen = tuple[Settings, list[Trial], list[float], list[float]]
Ready = dict[tuple[Settings, bool], Ended]  # trials that are made, by settings and whether they start at random


def smallest_of_the_best(trials: list[Trial]) -> Trial:
    """Of the trials within MARGIN of the lowest error, the one with fewest components, then fewest latents."""
    limit = (1 + MARGIN) * min(trial.error for trial in trials)
    good = [trial for trial in trials if trial.error <= limit]
    return min(good, key=lambda trial: (trial.settings.n_components, trial.settings.latent_dim, trial.error))


class Search:
    """Goes along one axis after the other and remembers every trial."""

    def __init__(
        self,
        trials: Trials,
        report: Callable[[Trial], None],
        engine: Engine | None = None,
        ready: Ready | None = None,
    ) -> None:
        self.made, self.report, self.engine = trials, report, engine
        self.trials: list[Trial] = []
        self.models: dict[Settings, Parameters] = {}
        self.ready: Ready = {} if ready is None else ready  # made by the engine ahead, or by a search before

    def best(self) -> Trial:
        return smallest_of_the_best(self.trials)

    def attempt(self, settings: Settings, base: Parameters | None = None) -> Trial:
        """The trial with these settings, which keeps the best number of iterations."""
        earlier = self._tried(settings)
        if earlier is not None:
            return earlier
        key = (settings, base is None)
        if key not in self.ready:
            self.ready[key] = self.made.run(settings, base)
        error, step, params = self.ready[key]
        trial = Trial(replace(settings, iterations=step), error)
        self.trials.append(trial)
        self.models[trial.settings] = params
        self.report(trial)
        return trial

    def _tried(self, settings: Settings) -> Trial | None:
        wanted = replace(settings, iterations=None)
        return next((trial for trial in self.trials if replace(trial.settings, iterations=None) == wanted), None)

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
        """Mixtures that start from the best single component, with more components as long as that lowers the error.

        The strength that is best with the fewest components stays.
        """
        base = self.models[single.settings]
        lowest = single.error
        for count in counts:
            shared = replace(single.settings, n_components=count, base_iterations=single.settings.iterations)
            settings = [replace(shared, component_prior=strength) for strength in strengths]
            self.ahead(settings, base)
            best = min((self.attempt(one, base) for one in settings), key=lambda trial: trial.error)
            if best.error >= lowest:
                return
            lowest, strengths = best.error, (best.settings.component_prior,)

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
    args: Mapping[str, Any],
    seed: int,
    report: Callable[[Trial], None],
    engine: Engine | None = None,
    ready: Ready | None = None,
) -> Chosen:
    """(best settings, all trials, std scale per modality, the same for holes).

    Of `args`, those of the estimator, numbers that were given are kept and 'auto' ones are searched. Trials that are `ready`,
    of the same rows and seed, are not made again; new ones join them.
    """
    latent_dim, n_components, noise, prior, shrinkage, whitening = (
        args[name] for name in ("latent_dim", "n_components", "noise", "prior", "shrinkage", "whitening")
    )
    held = hold_out(z, present, seed)
    search = Search(Trials(held, args["criterion"], seed, args["max_iter"]), report, engine, ready)
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
        search.walk("latent_dim", [size for size in latents if size <= SOON], start)
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
        if held.holes is not None:
            most = min(most, MOST_FACTORS // single.settings.latent_dim**2)
        search.components([count for count in counts if n_components != "auto" or count <= most], strengths, single)
    many = tuple(size for size in MANY_LATENTS if size <= largest)
    whitens = latent_dim == "auto" and whitening == "auto" and held.holes is None  # a row with holes cannot be turned
    if whitens and n_components in (1, "auto") and many:
        search.whitened(replace(start, whitening=FIRST_POWER), many, POWERS)
    best = search.best().settings
    return best, search.trials, *held.scales(search.models[best])


def sample_rows(source: Source, seed: int) -> tuple[dict[str, Any], Tensor]:
    """About SEARCH_ROWS random rows of all processes, in memory, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    rate = min(1.0, SEARCH_ROWS / max(1, source.rows))

    def pick(views: Views) -> Tensor:
        wanted = max(1, round(rate * len(views)))
        return torch.randperm(len(views), generator=generator)[:wanted].sort().values

    values, present, _ = source.take(pick)
    parts = [(values, present)] if world()[0] == 1 else gather_objects((values, present))
    device = source.device
    z = {name: torch.cat([part[m].to(device) for part, _ in parts]) for m, name in enumerate(source.names)}
    return z, torch.cat([mask.to(device) for _, mask in parts])


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


NOISE = ("isotropic", "diagonal", "auto")
M_STEPS = ("joint", "sequential")
SOLVERS = ("em", "stepwise", "gradient")
UNCHOSEN_LATENTS = 32  # where nothing can be held out to choose a size, and for a stream
UNCHOSEN_PRIOR = 300.0  # rows, for them where the prior cannot be chosen either
MIXTURE_PRIOR = 100.0  # rows, for the shared part of a mixture and for shrinkage, where nothing is searched


def check_arguments(args: dict[str, Any]) -> None:
    """Every argument of the constructor, with one error that names the first wrong one."""
    for name in ("latent_dim", "n_components"):
        if args[name] != "auto":
            check_whole(name, args[name], also=", or auto")
    for name in ("max_iter", "batch_size"):
        check_whole(name, args[name])
    for name, allowed in (("noise", NOISE), ("m_step", M_STEPS), ("solver", SOLVERS), ("criterion", tuple(CRITERIA))):
        check_choice(name, args[name], allowed)
    for name in ("prior", "shrinkage"):
        if args[name] != "auto":
            check_number(name, args[name], 0, what="a number of rows", also=", or 'auto'")
    power = args["whitening"]
    if power != "auto":
        check_number("whitening", power, 0, 1, also=", or 'auto'")
    if power != "auto" and power > 0 and args["solver"] != "em":
        raise InputError(f"whitening needs solver='em'; got solver={args['solver']!r} with whitening={power!r}")
    step = args["step_size"]
    if step != "decay" and (isinstance(step, str) or not 0 < step <= 1):
        raise InputError(f"step_size must be 'decay' or a number in (0, 1]; got {step!r}")
    if not args["tol"] >= 0:
        raise InputError(f"tol must be >= 0; got {args['tol']!r}")
    if args["criterion"] == "retrieval" and args["n_components"] != 1:
        raise InputError(
            f"criterion='retrieval' needs one shared space, n_components=1; got n_components={args['n_components']!r}"
        )
    if args["solver"] != "em" and args["n_components"] != 1:
        raise InputError(
            f"solver={args['solver']!r} fits one component; use solver='em' for n_components={args['n_components']!r}"
        )


def fixed_prior(args: dict[str, Any]) -> float:
    """The prior on W where nothing is searched: none for one component, moderate for the shared part of a mixture."""
    if args["prior"] != "auto":
        return float(args["prior"])
    return 0.0 if args["n_components"] == 1 else MIXTURE_PRIOR


def decide(
    args: dict[str, Any], source: Source, seed: int, engine: Engine | None = None, ready: Ready | None = None
) -> Chosen:
    """(settings, trials, std scale, std scale of holes): as given, or searched on held-out blocks where something is "auto".

    Where nothing can be held out, "auto" is what `unchosen` says, with a warning.
    """
    if "auto" not in (args["latent_dim"], args["n_components"], args["noise"]):
        mixture = args["n_components"] != 1
        shrinkage = MIXTURE_PRIOR if args["shrinkage"] == "auto" else float(args["shrinkage"])
        settings = Settings(
            latent_dim=int(args["latent_dim"]),
            n_components=int(args["n_components"]),
            noise=args["noise"],
            prior=fixed_prior(args),
            component_prior=shrinkage if mixture else 0.0,
            whitening=0.0 if args["whitening"] == "auto" else float(args["whitening"]),
        )
        return settings, [], [1.0] * len(source.names), [1.0] * len(source.names)
    z, present = sample_rows(source, seed)
    why = nothing_to_hide(present, source.torn)
    if why:
        return decide(unchosen(args, source, why), source, seed)
    if args["whitening"] == "auto" and args["solver"] != "em":
        args = {**args, "whitening": 0.0}

    def report(trial: Trial) -> None:
        if args["verbose"]:
            s = trial.settings
            whitened = f", whitening {s.whitening:g}" if s.whitening else ""
            shape = f"{s.latent_dim} latents, {s.n_components} components{whitened}"
            print(f"tried {shape}: {trial.error:.4f}", file=sys.stderr)

    with torch.no_grad():
        chosen = choose(z, present, args, seed, report, engine, ready)
    if args["verbose"]:
        print(table(chosen[1]), file=sys.stderr)
    return chosen


def decide_for_stream(args: dict[str, Any], source: Source, seed: int) -> Settings:
    """The settings of `partial_fit`, from its first batch.

    A batch is too small to choose a size for all that follow: "auto" is UNCHOSEN_LATENTS, and the prior that keeps them from
    fitting noise is chosen on held-out blocks of the batch.
    """
    if args["latent_dim"] != "auto":
        return Settings(int(args["latent_dim"]), noise=args["noise"], prior=fixed_prior(args))
    size = _unchosen_latents(source)
    if args["prior"] != "auto":
        return Settings(size, noise=args["noise"], prior=float(args["prior"]))
    z, present = sample_rows(source, seed)
    why = nothing_to_hide(present, source.torn)
    if why:
        return Settings(size, noise=args["noise"], prior=unchosen(args, source, why)["prior"])
    fixed = {"latent_dim": size, "n_components": 1, "whitening": 0.0}
    with torch.no_grad():
        settings, *_ = choose(z, present, {**args, **fixed}, seed, report=lambda trial: None)
    return replace(settings, iterations=None)


def unchosen(args: dict[str, Any], source: Source, why: str) -> dict[str, Any]:
    """The arguments with values that do little harm where "auto" has nothing to choose on; warns, and says `why`."""
    size = _unchosen_latents(source)
    values = {"latent_dim": size, "n_components": 1, "noise": "isotropic", "prior": UNCHOSEN_PRIOR}
    taken = {name: value for name, value in values.items() if args[name] == "auto"}
    listed = ", ".join(f"{name}={value!r}" for name, value in taken.items())
    warnings.warn(f"'auto' takes {listed}: {why}; give values to choose others", UserWarning, stacklevel=2)
    return {**args, **taken}


def _unchosen_latents(source: Source) -> int:
    return min(UNCHOSEN_LATENTS, sum(source.widths))
