"""The methods one can train and compare: METHODS. A method is changes to a training config, and facts that reports need."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from calmrl._support.registry import Registry, lookup
from calmrl.errors import InputError
from calmrl.imputers.registry import IMPUTERS

Changes = dict[str, Any]  # dotted keys of a training config -> values


@dataclass(frozen=True)
class Method:
    """A way to train, as changes to a training config.

    Parameters
    ----------
    about : one line for people
    objective : a name of LOSSES
    recipe : changes that every trial shares
    trials : changes of each trial, the most promising first
    calibrated : whether missing representations are imputed before the objective
    staged : complete rows first, then all rows
    hide_one : hides one modality of every complete row in the first stage
    steps : False makes no step at all
    init_only : whether it stands for the heads that another method starts from
    latent : whether it uses a latent model anywhere
    ours : whether this project or its paper proposes it, as opposed to a baseline
    ideal : whether it sees the rows with nothing hidden
    hubs : how scores are corrected for hubs when it is measured, None or "csls"
    """

    about: str
    objective: str
    recipe: Changes
    trials: tuple[Changes, ...]
    calibrated: bool = False
    staged: bool = False
    hide_one: bool = False
    steps: bool = True
    init_only: bool = False
    latent: bool = False
    ours: bool = False
    ideal: bool = False
    hubs: str | None = None

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.about

    def stages(self, unit: str, total: int) -> list[Changes]:
        """The stages of a training of `total` units, "steps" or "epochs"."""
        if not self.steps:
            return []
        if not self.staged:
            return [{"name": "joint", unit: total}]
        first = {"name": "warm-up", unit: total // 2, "complete_only": True}
        first |= {"hide_one": True} if self.hide_one else {}
        return [first, {"name": "continual", unit: total - total // 2}]

    @property
    def model(self) -> str:
        """The kind of model that it trains, a name of MODELS; objectives train any."""
        return self.recipe.get("model.kind", "heads")

    def configs(self, count: int) -> list[Changes]:
        """The changes of the first `count` trials, everything spelled out."""
        return [self.recipe | trial for trial in self.trials[:count]]


def grid(axes: Mapping[str, Iterable[Any]]) -> tuple[Changes, ...]:
    """Every combination of the values of some keys; the last key changes first."""
    return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


TRIALS = 16  # of every method; candidates of the aligner are at most as many
RATE = "optimiser.learning_rate"
FEATURES = "model.standardize"
HEADS = "model.hidden"
TEMPERATURE = "objective.temperature"
WEIGHT = "calibration.weight"
PRIOR = "model.latent_prior"
RATES = (3e-3, 1e-2)  # heads from random weights
SLOWER = {3e-3: 3e-4, 1e-2: 1e-3}  # heads that start from the latent model
SLOWEST = {3e-4: 3e-5, 1e-3: 1e-4}  # half of the trials of heads that start as the identity
HIDDEN = 256  # units of an MLP head
SMALL_HIDDEN = 128  # where every trial has MLP heads, in half of them
TEMPERATURES = {"pmrl": (0.5, 0.2)}  # at the printed 0.05 it is saturated before it starts
OTHER_TEMPERATURES = (0.2, 0.07)
KERNELS = {"scale": "kernel", "whiten": "kernel-plain"}  # rows of length one, and rows as they are
PRIORS = (300.0, 1000.0)  # of the latent model that heads start from
LATENT_START: Changes = {"model.init": "latent", PRIOR: PRIORS[0], "model.latent_iterations": 8}
GAUSSIAN = {"method": "gaussian", "latent_dim": 64, "prior": 300.0, "max_iter": 15}
CALIBRATION: Changes = {
    "calibration.imputer": GAUSSIAN,
    "calibration.update": "frozen",
    "calibration.refit": 12,
    "calibration.certainty": True,
}
PARTS: dict[str, Changes] = {
    "linear": {"model.features": "linear"},
    "kernel": {"model.features": "kernel"},
    "unrefined": {"model.refine": "never"},
    "refined": {"model.refine": "always"},
}


def _trials(objective: str, rates: tuple[float, ...] = RATES) -> tuple[Changes, ...]:
    """Temperature, rate, features and heads: two of each."""
    return grid(
        {
            TEMPERATURE: TEMPERATURES.get(objective, OTHER_TEMPERATURES),
            RATE: rates,
            FEATURES: ("scale", "whiten"),
            HEADS: (None, HIDDEN),
        }
    )


def _objective(name: str) -> Changes:
    """The objective without smoothing, at the temperature of the trial."""
    plain = {} if name == "pmrl" else {"learn_temperature": False, "label_smoothing": 0.0}
    return {"objective": {"name": name} | plain}


def _baseline(objective: str, about: str, **more: Any) -> Method:
    return Method(about, objective, {"objective": _objective(objective)["objective"] | more}, _trials(objective))


_ALIGNER = Method(
    "recommended: the aligner, one space in closed form, chosen by cross-validation",
    "contrastive",
    {"model.kind": "aligner"},
    ({FEATURES: None},),
    steps=False,
    latent=True,
    ours=True,
)

_CALIBRATED = Method(
    "heads from the latent model, rows imputed by it, then aligned",
    "contrastive",
    LATENT_START | CALIBRATION | _objective("contrastive"),
    grid(
        {
            TEMPERATURE: OTHER_TEMPERATURES[:1],
            RATE: SLOWER.values(),
            FEATURES: ("whiten", "scale"),
            PRIOR: PRIORS,
            WEIGHT: (0.0, 0.5),
        }
    ),
    calibrated=True,
    latent=True,
    ours=True,
)

_CALMRL = Method(
    "the paper's method, corrected: staged, from aligned heads, PMRL at temperatures that do not saturate",
    "pmrl",
    LATENT_START | _objective("pmrl") | {"calibration.imputer": {"method": "gaussian", "latent_dim": 64}},
    grid(
        {
            TEMPERATURE: TEMPERATURES["pmrl"],
            RATE: SLOWER.values(),
            FEATURES: ("whiten", "scale"),
            HEADS: (None, HIDDEN),
        }
    ),
    calibrated=True,
    staged=True,
    hide_one=True,
    latent=True,
    ours=True,
)

_PRINTED = Method(
    "the paper's method as printed: staged, PMRL at temperature 0.05; needs encoders that are aligned already",
    "pmrl",
    {"objective": {"name": "pmrl", "temperature": 0.05}},
    grid(
        {
            "calibration.imputer": tuple({"method": "gaussian", "latent_dim": latents} for latents in (64, 32)),
            RATE: RATES,
            FEATURES: ("scale", "whiten"),
            HEADS: (None, HIDDEN),
        }
    ),
    calibrated=True,
    staged=True,
    hide_one=True,
    ours=True,
)

RIDGES = (1.0, 0.3, 3.0, 0.1)
KINDS_OF_FEATURES = {FEATURES: (None,), "model.features": ("kernel", "linear")}
CORRELATION_TRIALS = grid({"model.ridge": RIDGES, "model.directions": (256, 100), **KINDS_OF_FEATURES})


def _classical(kind: str, about: str, trials: tuple[Changes, ...]) -> Method:
    """A baseline in closed form, on the features of the aligner. Its trials differ in the arguments of its class."""
    return Method(about, "contrastive", {"model.kind": kind}, trials, steps=False)


METHODS: Registry[Method] = Registry(
    "method",
    {
        "aligner": _ALIGNER,
        "calibrated": _CALIBRATED,
        "calmrl": _CALMRL,
        "calmrl-printed": _PRINTED,
        "calmrl-start": replace(
            _PRINTED,
            about="calmrl-printed, but imputing from the representations at the start of the stage",
            recipe=_PRINTED.recipe | {"calibration.impute_from": "start"},
        ),
        "closed-form": Method(
            "posterior means of the latent model, no gradient step",
            "contrastive",
            LATENT_START,
            grid(
                {
                    "model.latent_iterations": (8, 16),
                    PRIOR: (300.0, 100.0, 1000.0, 30.0),
                    FEATURES: ("whiten", "scale"),
                }
            ),
            steps=False,
            latent=True,
            ours=True,
        ),
        "contrastive": _baseline("contrastive", "InfoNCE over all pairs of modalities"),
        "vast": _baseline("vast", "InfoNCE of text with each other modality"),
        "gram": _baseline("gram", "InfoNCE over volumes"),
        "triangle": _baseline("triangle", "InfoNCE over areas of triangles"),
        "pmrl": _baseline("pmrl", "leading singular value and anchors"),
        "cca": _classical(
            "cca", "ridge CCA of every pair of modalities, directions weighted by correlation", CORRELATION_TRIALS
        ),
        "mcca": _classical("mcca", "multi-set CCA from the covariances of rows that have both", CORRELATION_TRIALS),
        "gcca": _classical("gcca", "generalised CCA (MAXVAR) with missing rows", CORRELATION_TRIALS),
        "asif": _classical(
            "asif",
            "ASIF: relative representations by the rows that have both",
            grid({"model.power": (4.0, 2.0, 8.0, 1.0), "model.whitening": (0.5, 0.0), **KINDS_OF_FEATURES}),
        ),
        "ridge": _classical(
            "ridge",
            "ridge regression onto the modality that meets the others most",
            grid({"model.ridge": RIDGES, "model.whitening": (0.5, 0.0), **KINDS_OF_FEATURES}),
        ),
        "procrustes": _classical(
            "procrustes",
            "rotation onto the modality that meets the others most",
            grid({"model.directions": (256, 128, 64, 512), "model.whitening": (0.0, 0.5), **KINDS_OF_FEATURES}),
        ),
        "gfa": _classical(
            "gfa",
            "posterior means of group factor analysis (GFA, MOFA)",
            grid(
                {
                    "model.latent_dim": (128, 64),
                    "model.max_iter": (10, 30),
                    "model.whitening": (1.0, 0.5),
                    **KINDS_OF_FEATURES,
                }
            ),
        ),
        "mopoe": _classical(
            "mopoe",
            "posterior means of a multimodal VAE (MoPoE)",
            grid(
                {
                    "model.latent_dim": (64, 128),
                    "model.beta": (0.8, 0.2),
                    "model.whitening": (0.5, 0.0),
                    **KINDS_OF_FEATURES,
                }
            ),
        ),
        "symile": _baseline("symile", "InfoNCE over products of all modalities"),
        "confu": _baseline(
            "confu", "InfoNCE over all pairs, and of two fused modalities with a third", fusion="learned"
        ),
        "fusemix": _baseline("fusemix", "InfoNCE over all pairs of rows that are mixed before the heads"),
        "structure": _baseline("structure", "InfoNCE over all pairs, neighbourhoods as before the heads", warmup=20),
        "ideal": replace(_ALIGNER, about="the recipe of aligner with nothing missing", ours=False, ideal=True),
    },
)


RENAMED = (
    "the method calmrl-paper is called calmrl-printed; calmrl is the paper's method with its corrections, and the aligner, "
    "which was called calmrl, is aligner"
)


def find_method(name: str) -> Method:
    """The method of a name such as `pmrl`, `pmrl+latent+mlp`, `gram+staged`, `calibrated:mvae` or `aligner:kernel`.

    Examples
    --------
    >>> find_method("pmrl").about
    'leading singular value and anchors'
    """
    base, *suffixes = name.split("+")
    base, *parts = base.split(":")
    if base == "calmrl-paper":
        raise InputError(RENAMED)
    method = METHODS[base]
    if parts:
        method = _with_parts(name, base, parts)
    for suffix in suffixes:
        goes, change = lookup(SUFFIXES, suffix, "ending of a method")
        if not goes(method):
            possible = ", ".join(key for key, value in METHODS.items() if goes(value))
            raise InputError(f'"{name}" is not a method; +{suffix} goes with {possible}')
        method = change(method)
    return method


def _with_parts(name: str, base: str, parts: list[str]) -> Method:
    """`calibrated:IMPUTER` and `aligner:PART`."""
    method = METHODS[base]
    if base == "calibrated" and len(parts) == 1:
        return _with_imputer(method, parts[0])
    if base == "aligner":
        changes = [lookup(PARTS, part, "part of aligner") for part in parts]
        if len({key for change in changes for key in change}) == len(parts):
            about = f"aligner, {' and '.join(parts)}"
            return replace(method, about=about, recipe={k: v for c in (method.recipe, *changes) for k, v in c.items()})
    raise InputError(
        f'"{name}" is not a method; an imputer goes with calibrated, as in calibrated:mvae, and aligner takes '
        f"{', '.join(PARTS)}, as in aligner:kernel:refined"
    )


def _with_latent(method: Method) -> Method:
    """Heads start from the latent model and move more slowly; mildly whitened features first.

    Trials differ in the prior of the latent model instead of the temperature, which is the first one in all of them.
    """
    first = method.trials[0][TEMPERATURE]
    trials = [
        trial | {TEMPERATURE: first, PRIOR: PRIORS[0] if trial[TEMPERATURE] == first else PRIORS[1]}
        for trial in sorted(_slower(method.trials), key=lambda trial: trial[FEATURES] != "whiten")
    ]
    about = f"{method.about}, heads from the latent model"
    return replace(method, about=about, recipe=method.recipe | LATENT_START, trials=tuple(trials), latent=True)


def _with_identity(method: Method) -> Method:
    """Heads start as the identity on features as they are, and move slowly; two smaller rates in place of the second form
    of the features."""
    recipe = {key: value for key, value in method.recipe.items() if key not in LATENT_START} | {
        "model.init": "identity"
    }
    first = method.trials[0][FEATURES]
    trials = [
        trial | {FEATURES: None, RATE: trial[RATE] if trial[FEATURES] == first else SLOWEST[trial[RATE]]}
        for trial in _slower(method.trials)
    ]
    about = f"{method.about}, heads that start as the identity"
    return replace(method, about=about, recipe=recipe, trials=tuple(trials), latent=method.calibrated)


def _slower(trials: Iterable[Changes]) -> tuple[Changes, ...]:
    return tuple(trial | {RATE: SLOWER.get(trial[RATE], trial[RATE])} if RATE in trial else trial for trial in trials)


def _with_mlp(method: Method) -> Method:
    trials = tuple(trial | {HEADS: trial[HEADS] or SMALL_HIDDEN} for trial in method.trials)
    return replace(method, about=f"{method.about}, MLP heads", trials=trials)


def _with_kernel(method: Method) -> Method:
    trials = tuple(trial | {FEATURES: KERNELS[trial[FEATURES]]} for trial in method.trials)
    return replace(method, about=f"{method.about}, on kernel features", trials=trials)


def _is_objective(method: Method) -> bool:
    """Whether it is a published objective, which trains heads."""
    return method.steps and not method.ours


def _with_observed(method: Method) -> Method:
    """The same start, stages and trials, without imputed rows and without hiding anything to impute."""
    return replace(
        method,
        about=f"{method.about}; nothing imputed, for comparison",
        recipe={key: value for key, value in method.recipe.items() if not key.startswith("calibration.")},
        trials=_without(method.trials, lambda key: key.startswith("calibration.")),
        calibrated=False,
        hide_one=False,
        ours=False,
    )


def _with_init(method: Method) -> Method:
    """The heads that a method starts from, without a step."""
    observed = _with_observed(method)
    return replace(
        observed,
        about=f"{method.about}; before its first step",
        trials=_without(observed.trials, lambda key: key in (TEMPERATURE, RATE)),
        steps=False,
        init_only=True,
        ours=method.ours,
    )


def _without(trials: Iterable[Changes], dropped: Callable[[str], bool]) -> tuple[Changes, ...]:
    """The trials without some keys, those that become equal once."""
    kept: list[Changes] = []
    for trial in trials:
        rest = {key: value for key, value in trial.items() if not dropped(key)}
        if rest not in kept:
            kept.append(rest)
    return tuple(kept)


Suffix = tuple[Callable[[Method], bool], Callable[[Method], Method]]  # (which methods take it, what it does)
SUFFIXES: dict[str, Suffix] = {
    "observed": (lambda method: method.calibrated, _with_observed),
    "identity": (
        lambda method: all(set(trial) == {TEMPERATURE, RATE, FEATURES, HEADS} for trial in method.trials),
        _with_identity,
    ),
    "init": (lambda method: method.steps and "model.init" in method.recipe, _with_init),
    "latent": (lambda method: _is_objective(method) and not method.latent, _with_latent),
    "staged": (
        _is_objective,
        lambda method: replace(method, about=f"{method.about}, complete rows first", staged=True),
    ),
    "mlp": (lambda method: all(HEADS in trial for trial in method.trials), _with_mlp),
    "kernel": (lambda method: all(trial[FEATURES] in KERNELS for trial in method.trials), _with_kernel),
    "csls": (
        lambda method: method.hubs is None,
        lambda method: replace(method, about=f"{method.about}, hubs corrected", hubs="csls"),
    ),
}


def continual(method: Method, steps: int) -> tuple[Method, list[Changes]]:
    """(the method from heads that are aligned already, its stages): complete rows first, then only incomplete ones.

    Heads start from a latent model of the complete rows, for every method alike (but those that start as the identity), and
    what counts is the model at the end.
    """
    stages = replace(method, staged=True).stages("steps", steps)
    start = {"model.latent_rows": "complete"} | ({} if method.recipe.get("model.init") == "identity" else LATENT_START)
    aligned = replace(
        method,
        recipe=method.recipe | start | {"validation.every": 0},
        trials=_slower(method.trials),
    )
    return aligned, stages and [stages[0], stages[1] | {"incomplete_only": True, "fresh_best": True}]


def _with_imputer(method: Method, imputer: str) -> Method:
    """Imputed rows take part in every trial: they are what is compared. Fitted at the start and at the end."""
    lookup(IMPUTERS, imputer, "imputer")
    section = GAUSSIAN if imputer == "gaussian" else {"method": imputer}
    more = {"calibration.imputer": section, "calibration.refit": 10_000, WEIGHT: 0.5}
    about, recipe = f"calibrated with {imputer}", method.recipe | more
    trials = sorted(_trials(method.objective, tuple(SLOWER.values())), key=lambda trial: trial[FEATURES] != "whiten")
    return replace(method, about=about, recipe=recipe, trials=tuple(trials))
