"""The recipes of METHODS, number by number: a comparison is of these and no others."""

from __future__ import annotations

import itertools

import pytest

from calmrl.config import TrainConfig
from calmrl.errors import InputError
from calmrl.training.methods import METHODS, TRIALS, Method, continual, find_method, grid

RATE, FEATURES, HEADS = "optimiser.learning_rate", "model.standardize", "model.hidden"
TEMPERATURE, PRIOR, WEIGHT = "objective.temperature", "model.latent_prior", "calibration.weight"
LATENT_START = {"model.init": "latent", PRIOR: 300.0, "model.latent_iterations": 8}
GAUSSIAN = {"method": "gaussian", "latent_dim": 64, "prior": 300.0, "max_iter": 15}
BASELINES = ["contrastive", "vast", "gram", "triangle", "pmrl", "symile", "confu", "fusemix", "structure"]
PLAIN = {"learn_temperature": False, "label_smoothing": 0.0}
CALIBRATED = {
    **LATENT_START,
    "calibration.imputer": GAUSSIAN,
    "calibration.update": "frozen",
    "calibration.refit": 12,
    "calibration.certainty": True,
    "objective": {"name": "contrastive", **PLAIN},
}


def combined(**axes):
    """Every combination, the last key changing first."""
    names = {
        "t": TEMPERATURE,
        "r": RATE,
        "f": FEATURES,
        "h": HEADS,
        "p": PRIOR,
        "w": WEIGHT,
        "i": "calibration.imputer",
        "n": "model.latent_iterations",
    }
    keys = [names[key] for key in axes]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*axes.values())]


def test_a_grid_has_every_combination_and_the_last_key_changes_first():
    assert grid({"a": (1, 2), "b": "xy"}) == (
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    )


MORE = {"confu": {"fusion": "learned"}, "structure": {"warmup": 20}}  # what recipes of objectives have beside PLAIN


@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name):
    method = METHODS[name]
    temperatures = (0.5, 0.2) if name == "pmrl" else (0.2, 0.07)
    assert method.objective == name
    plain = {} if name == "pmrl" else PLAIN
    assert method.recipe == {"objective": {"name": name, **plain, **MORE.get(name, {})}}
    assert list(method.trials) == combined(t=temperatures, r=(3e-3, 1e-2), f=("scale", "whiten"), h=(None, 256))
    assert len(method.trials) == TRIALS == 16
    flags = (method.calibrated, method.staged, method.hide_one, method.latent, method.ours, method.ideal)
    assert not any(flags)
    assert method.steps
    assert method.hubs is None
    assert method.model == "heads"
    assert method.__doc__ == method.about
    assert method.stages("epochs", 5) == [{"name": "joint", "epochs": 5}]
    assert method.configs(2) == [method.recipe | method.trials[0], method.recipe | method.trials[1]]


def flags(method: Method) -> set[str]:
    names = ("calibrated", "staged", "hide_one", "steps", "latent", "ours", "ideal")
    return {name for name in names if getattr(method, name)}


def test_the_aligner_and_its_ideal():
    for name, expected in (("aligner", {"latent", "ours"}), ("ideal", {"latent", "ideal"})):
        method = METHODS[name]
        assert (method.recipe, method.trials) == ({"model.kind": "aligner"}, ({FEATURES: None},))
        assert flags(method) == expected
        assert method.model == "aligner"
        assert method.stages("steps", 10) == []


def test_calibrated():
    method = METHODS["calibrated"]
    assert method.recipe == CALIBRATED
    assert flags(method) == {"calibrated", "steps", "latent", "ours"}
    expected = combined(t=(0.2,), r=(3e-4, 1e-3), f=("whiten", "scale"), p=(300.0, 1000.0), w=(0.0, 0.5))
    assert list(method.trials) == expected
    assert len(expected) == TRIALS


def test_the_paper_and_its_start():
    imputers = [{"method": "gaussian", "latent_dim": latents} for latents in (64, 32)]
    for name, more in (("calmrl-printed", {}), ("calmrl-start", {"calibration.impute_from": "start"})):
        method = METHODS[name]
        assert method.recipe == {"objective": {"name": "pmrl", "temperature": 0.05}} | more
        assert flags(method) == {"calibrated", "staged", "hide_one", "steps", "ours"}
        assert list(method.trials) == combined(i=imputers, r=(3e-3, 1e-2), f=("scale", "whiten"), h=(None, 256))
        assert method.stages("steps", 7) == [
            {"name": "warm-up", "steps": 3, "complete_only": True, "hide_one": True},
            {"name": "continual", "steps": 4},
        ]


def test_the_paper_with_its_corrections_starts_aligned_and_unsaturated():
    method = METHODS["calmrl"]
    imputer = {"method": "gaussian", "latent_dim": 64}
    assert method.recipe == LATENT_START | {"objective": {"name": "pmrl"}, "calibration.imputer": imputer}
    assert flags(method) == {"calibrated", "staged", "hide_one", "steps", "latent", "ours"}
    assert list(method.trials) == combined(t=(0.5, 0.2), r=(3e-4, 1e-3), f=("whiten", "scale"), h=(None, 256))
    assert method.stages("steps", 7) == METHODS["calmrl-printed"].stages("steps", 7)


def test_the_old_name_of_the_printed_method_names_the_new_ones():
    with pytest.raises(
        InputError, match="calmrl-paper is called calmrl-printed; calmrl is the paper's method with its"
    ):
        find_method("calmrl-paper")
    with pytest.raises(ValueError, match="calmrl-paper is called calmrl-printed"):
        TrainConfig.model_validate({"kind": "train", "method": "calmrl-paper", "sources": {"a": {"dataset": "digits"}}})


def test_the_closed_form():
    method = METHODS["closed-form"]
    assert method.recipe == LATENT_START
    assert flags(method) == {"latent", "ours"}
    expected = combined(n=(8, 16), p=(300.0, 100.0, 1000.0, 30.0), f=("whiten", "scale"))
    assert list(method.trials) == expected


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *((name, {"ridge": (1.0, 0.3, 3.0, 0.1), "directions": (256, 100)}) for name in ("cca", "mcca", "gcca")),
        ("asif", {"power": (4.0, 2.0, 8.0, 1.0), "whitening": (0.5, 0.0)}),
        ("ridge", {"ridge": (1.0, 0.3, 3.0, 0.1), "whitening": (0.5, 0.0)}),
        ("procrustes", {"directions": (256, 128, 64, 512), "whitening": (0.0, 0.5)}),
    ],
)
def test_classical_baselines_have_as_many_trials_as_objectives(name, axes):
    method = METHODS[name]
    assert (method.recipe, method.model) == ({"model.kind": name}, name)
    assert flags(method) == set()
    expected = [
        {
            **{f"model.{key}": value for key, value in zip(axes, values, strict=True)},
            FEATURES: None,
            "model.features": kind,
        }
        for values in itertools.product(*axes.values())
        for kind in ("kernel", "linear")
    ]
    assert list(method.trials) == expected
    assert len(expected) == TRIALS
    assert method.stages("steps", 10) == []


def test_a_method_in_closed_form_goes_with_its_own_kind_of_model():
    config = {"kind": "train", "sources": {"a": {"dataset": "digits"}}}
    for method, kind, fitting in (("cca", "aligner", "aligner"), ("aligner", "mcca", "mcca"), ("gram", "cca", "cca")):
        with pytest.raises(
            ValueError, match=f"method {method} does not go with model.kind {kind}; set method={fitting}"
        ):
            TrainConfig.model_validate(config | {"method": method, "model": {"kind": kind}})
    chosen = TrainConfig.model_validate(config | {"method": "cca", "model": {"ridge": 0.2}}).model
    assert (chosen.kind, chosen.ridge, chosen.directions, chosen.features) == ("cca", 0.2, 256, "kernel")


def test_heads_from_the_latent_model_move_slower_and_differ_in_the_prior():
    method = find_method("gram+latent")
    assert method.recipe == METHODS["gram"].recipe | LATENT_START
    assert flags(method) == {"steps", "latent"}
    expected = [
        {TEMPERATURE: 0.2, RATE: rate, FEATURES: features, HEADS: hidden, PRIOR: prior}
        for features in ("whiten", "scale")
        for prior in (300.0, 1000.0)
        for rate in (3e-4, 1e-3)
        for hidden in (None, 256)
    ]
    assert list(method.trials) == expected


def test_endings_that_change_the_trials():
    mlp, kernel, staged = (find_method(f"gram+{ending}") for ending in ("mlp", "kernel", "staged"))
    assert [trial[HEADS] for trial in mlp.trials] == [128, 256] * 8
    assert [trial[FEATURES] for trial in kernel.trials[::2]] == ["kernel", "kernel-plain"] * 4
    assert flags(staged) == {"staged", "steps"}
    assert "hide_one" not in staged.stages("steps", 4)[0]
    assert find_method("gram+csls").hubs == "csls"


def test_the_same_without_imputed_rows():
    calmrl, observed, init = (find_method(f"calmrl{ending}") for ending in ("", "+observed", "+init"))
    assert calmrl.calibrated
    assert any(key.startswith("calibration.") for key in calmrl.recipe)
    assert observed.trials == calmrl.trials
    assert len(observed.trials) == 16
    assert calmrl.recipe == observed.recipe | {"calibration.imputer": calmrl.recipe["calibration.imputer"]}
    assert flags(observed) == flags(calmrl) - {"calibrated", "hide_one", "ours"}
    stages = calmrl.stages("steps", 8)
    hidden = [stage.pop("hide_one", False) for stage in stages]
    assert hidden == [True, False]
    assert stages == observed.stages("steps", 8)
    assert init.stages("steps", 8) == []
    assert init.recipe == observed.recipe
    assert [set(trial) for trial in init.trials] == [{FEATURES, HEADS}] * 4
    for method in (calmrl, observed, init):
        started, stages = continual(method, 8)
        assert started.recipe["model.latent_rows"] == "complete"
        assert bool(stages) == method.steps


def test_another_imputer_in_every_trial():
    more = {"calibration.refit": 10_000, WEIGHT: 0.5}
    expected = [
        {TEMPERATURE: temperature, RATE: rate, FEATURES: features, HEADS: hidden}
        for features in ("whiten", "scale")
        for temperature in (0.2, 0.07)
        for rate in (3e-4, 1e-3)
        for hidden in (None, 256)
    ]
    for name, section in (("gaussian", GAUSSIAN), ("mvae", {"method": "mvae"})):
        method = find_method(f"calibrated:{name}")
        assert method.recipe == CALIBRATED | more | {"calibration.imputer": section}
        assert list(method.trials) == expected
    with pytest.raises(ValueError, match='unknown imputer "nosuch"'):
        find_method("calibrated:nosuch")


def test_parts_of_the_aligner():
    assert find_method("aligner:linear").recipe == {"model.kind": "aligner", "model.features": "linear"}
    both = {"model.kind": "aligner", "model.features": "kernel", "model.refine": "always"}
    assert find_method("aligner:kernel:refined").recipe == both
    assert find_method("aligner:unrefined").recipe["model.refine"] == "never"
    for name in ("aligner:linear:kernel", "gram:mvae", "calibrated:mvae:knn"):
        with pytest.raises(InputError, match=f'"{name}" is not a method; an imputer goes with calibrated'):
            find_method(name)


@pytest.mark.parametrize(
    ("name", "ending", "possible"),
    [
        *((name, ending, ", ".join(BASELINES)) for name, ending in (
            ("aligner", "latent"), ("gram+latent", "latent"), ("calibrated", "staged"), ("ideal", "staged"))),
        ("closed-form", "mlp", ", ".join(["calmrl", "calmrl-printed", "calmrl-start", *BASELINES])),
        ("aligner", "kernel", ", ".join(
            ["calibrated", "calmrl", "calmrl-printed", "calmrl-start", "closed-form", *BASELINES])),
        ("gram+csls", "csls", ", ".join(METHODS)),
        ("pmrl", "observed", "calibrated, calmrl, calmrl-printed, calmrl-start"),
        ("pmrl", "init", "calibrated, calmrl"),
    ],
)  # fmt: skip
def test_endings_that_do_not_fit_say_where_they_go(name, ending, possible):
    with pytest.raises(InputError) as wrong:
        find_method(f"{name}+{ending}")
    assert str(wrong.value) == f'"{name}+{ending}" is not a method; +{ending} goes with {possible}'


def test_the_continual_regime_starts_slower_from_the_complete_rows():
    method, stages = continual(METHODS["gram"], 9)
    assert method.recipe == METHODS["gram"].recipe | LATENT_START | {
        "model.latent_rows": "complete",
        "validation.every": 0,
    }
    assert [trial[RATE] for trial in method.trials[:8:2]] == [3e-4, 3e-4, 1e-3, 1e-3]
    assert stages == [
        {"name": "warm-up", "steps": 4, "complete_only": True},
        {"name": "continual", "steps": 5, "incomplete_only": True, "fresh_best": True},
    ]
