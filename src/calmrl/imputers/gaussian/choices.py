"""What a `GaussianImputer` was asked for: its arguments checked, and what was left to "auto" chosen."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from calmrl._support.engine import Engine
from calmrl._support.registry import closest
from calmrl.errors import InputError
from calmrl.imputers.gaussian.fitting import Settings
from calmrl.imputers.gaussian.held_out import nothing_to_hide
from calmrl.imputers.gaussian.row_sources import Source
from calmrl.imputers.gaussian.size_search import Trial, choose, sample_rows, table
from calmrl.imputers.gaussian.trials import CRITERIA

NOISE = ("isotropic", "diagonal", "auto")
M_STEPS = ("joint", "sequential")
SOLVERS = ("em", "stepwise", "gradient")
UNCHOSEN_LATENTS = 32  # where nothing can be held out to choose a size, and for a stream
UNCHOSEN_PRIOR = 300.0  # rows, for them where the prior cannot be chosen either
MIXTURE_PRIOR = 100.0  # rows, for the shared part of a mixture and for shrinkage, where nothing is searched


def check_arguments(args: dict[str, Any]) -> None:
    """Every argument of the constructor, with one error that names the first wrong one."""
    for name in ("latent_dim", "n_components"):
        _whole(name, args[name], auto=True)
    for name in ("max_iter", "batch_size"):
        _whole(name, args[name], auto=False)
    for name, allowed in (("noise", NOISE), ("m_step", M_STEPS), ("solver", SOLVERS), ("criterion", tuple(CRITERIA))):
        if args[name] not in allowed:
            near = closest(str(args[name]), allowed)
            hint = f"; did you mean {near!r}?" if near else ""
            raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {args[name]!r}{hint}")
    for name in ("prior", "shrinkage"):
        value = args[name]
        if value != "auto" and (isinstance(value, str) or not 0 <= value < float("inf")):
            raise InputError(f"{name} is a number of rows >= 0, or 'auto'; got {value!r}")
    power = args["whitening"]
    if power != "auto" and (isinstance(power, (str, bool)) or not 0 <= power <= 1):
        raise InputError(f"whitening is a number from 0 to 1, or 'auto'; got {power!r}")
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


def _whole(name: str, value: Any, auto: bool) -> None:
    if auto and value == "auto":
        return
    if isinstance(value, (bool, str)) or int(value) != value or value < 1:
        raise InputError(f"{name} must be a whole number >= 1{', or auto' if auto else ''}; got {value!r}")


def check_links(source: Source) -> None:
    """Say what the data cannot tell: modalities never seen, seen in few rows, or never together with the others."""
    seen = [m for m in range(len(source.names)) if source.count[m] > 0]
    for m, name in enumerate(source.names):
        if source.count[m] == 0:
            warnings.warn(
                f"modality {name!r} is observed in no row: nothing can be learned about it, it will be imputed by zeros",
                UserWarning,
                stacklevel=3,
            )
        elif source.count[m] < 10 and source.rows >= 10:
            warnings.warn(
                f"modality {name!r} is observed in {int(source.count[m])} of {source.rows} rows only: "
                "do not trust what is imputed for it",
                UserWarning,
                stacklevel=3,
            )
    linked, fresh = {seen[0]}, [seen[0]]
    while fresh:
        row = source.together[fresh.pop()]
        reached = [m for m in seen if row[m] > 0 and m not in linked]
        linked.update(reached)
        fresh.extend(reached)
    apart = [source.names[m] for m in seen if m not in linked]
    if apart:
        raise InputError(
            f"no row links {', '.join(apart)} with {', '.join(source.names[m] for m in sorted(linked))}, not even through a "
            "third modality, so nothing can be learned between them; add rows that have both, or fit them separately"
        )


def check_size(source: Source) -> None:
    """Squares of the values must fit the working dtype, with room for sums."""
    limit = 1e30 if source.dtype == torch.float32 else 1e280
    for name, mean, variance in zip(source.names, source.mean, source.variance, strict=True):
        largest = float((variance + mean.square()).max())
        if not largest <= limit:
            raise InputError(
                f"z[{name!r}] has a column with mean square {largest:.3g}, too large for {source.dtype} "
                f"(limit {limit:g}); divide the modality by a constant" + (", or pass float64" if limit < 1e100 else "")
            )


def seed_of(random_state: Any) -> int:
    """A whole number from what scikit-learn calls a random state; None draws one."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def fixed_prior(args: dict[str, Any]) -> float:
    """The prior on W where nothing is searched: none for one component, moderate for the shared part of a mixture."""
    if args["prior"] != "auto":
        return float(args["prior"])
    return 0.0 if args["n_components"] == 1 else MIXTURE_PRIOR


def decide(
    args: dict[str, Any], source: Source, seed: int, engine: Engine | None = None
) -> tuple[Settings, list[Trial], list[float]]:
    """(settings, trials, std scale): as given, or searched on held-out blocks where something is "auto".

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
        return settings, [], [1.0] * len(source.names)
    z, present = sample_rows(source, seed)
    why = nothing_to_hide(present)
    if why:
        return decide(unchosen(args, source, why), source, seed)
    names = ("latent_dim", "n_components", "noise", "prior", "shrinkage", "criterion", "max_iter")
    whitening = 0.0 if args["whitening"] == "auto" and args["solver"] != "em" else args["whitening"]

    def tell(trial: Trial) -> None:
        if args["verbose"]:
            s = trial.settings
            whitened = f", whitening {s.whitening:g}" if s.whitening else ""
            shape = f"{s.latent_dim} latents, {s.n_components} components{whitened}"
            print(f"tried {shape}: {trial.error:.4f}", file=sys.stderr)

    with torch.no_grad():
        settings, trials, scale = choose(
            z, present, whitening=whitening, seed=seed, tell=tell, engine=engine, **{name: args[name] for name in names}
        )
    if args["verbose"]:
        print(table(trials), file=sys.stderr)
    return settings, trials, scale


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
    why = nothing_to_hide(present)
    if why:
        return Settings(size, noise=args["noise"], prior=unchosen(args, source, why)["prior"])
    fixed: dict[str, Any] = {"latent_dim": size, "n_components": 1, "shrinkage": 0.0, "whitening": 0.0, "seed": seed}
    given = {name: args[name] for name in ("noise", "prior", "criterion", "max_iter")}
    with torch.no_grad():
        settings, _, _ = choose(z, present, **fixed, **given, tell=lambda trial: None)
    return replace(settings, iterations=None)


def unchosen(args: dict[str, Any], source: Source, why: str) -> dict[str, Any]:
    """The arguments with values that do little harm where "auto" has nothing to choose on; warns, and says `why`."""
    values = {
        "latent_dim": _unchosen_latents(source),
        "n_components": 1,
        "noise": "isotropic",
        "prior": UNCHOSEN_PRIOR,
    }
    taken = {name: value for name, value in values.items() if args[name] == "auto"}
    listed = ", ".join(f"{name}={value!r}" for name, value in taken.items())
    warnings.warn(f"'auto' takes {listed}: {why}; give values to choose others", UserWarning, stacklevel=2)
    return {**args, **taken}


def _unchosen_latents(source: Source) -> int:
    return min(UNCHOSEN_LATENTS, sum(source.widths))
