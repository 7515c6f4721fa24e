"""How recipes relate, which endings go with which method, and that every one trains; the golden record has their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl import load
from calmrl.config import TrainConfig
from calmrl.data import write_features
from calmrl.errors import InputError
from calmrl.training.methods import METHODS, Method, continual, find_method
from calmrl.workflows import train

FEATURES, HEADS = "model.standardize", "model.hidden"
BASELINES = ["contrastive", "vast", "gram", "triangle", "pmrl", "symile", "confu", "fusemix", "structure"]


def flags(method: Method) -> set[str]:
    names = ("calibrated", "staged", "hide_one", "steps", "latent", "ours", "ideal")
    return {name for name in names if getattr(method, name)}


def test_the_old_name_of_the_printed_method_names_the_new_ones():
    with pytest.raises(
        InputError, match="calmrl-paper is called calmrl-printed; calmrl is the paper's method with its"
    ):
        find_method("calmrl-paper")
    with pytest.raises(ValueError, match="calmrl-paper is called calmrl-printed"):
        TrainConfig.model_validate({"kind": "train", "method": "calmrl-paper", "sources": {"a": {"dataset": "digits"}}})


def test_a_method_in_closed_form_goes_with_its_own_kind_of_model():
    config = {"kind": "train", "sources": {"a": {"dataset": "digits"}}}
    for method, kind, fitting in (("cca", "aligner", "aligner"), ("aligner", "mcca", "mcca"), ("gram", "cca", "cca")):
        with pytest.raises(
            ValueError, match=f"method {method} does not go with model.kind {kind}; set method={fitting}"
        ):
            TrainConfig.model_validate(config | {"method": method, "model": {"kind": kind}})
    chosen = TrainConfig.model_validate(config | {"method": "cca", "model": {"ridge": 0.2}}).model
    assert (chosen.kind, chosen.ridge, chosen.directions, chosen.features) == ("cca", 0.2, 256, "kernel")


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


def test_heads_that_start_as_the_identity():
    calmrl, observed, init = (find_method(f"calmrl+identity{ending}") for ending in ("", "+observed", "+init"))
    assert len({tuple(sorted(trial.items(), key=str)) for trial in calmrl.trials}) == 16
    assert {trial[FEATURES] for trial in calmrl.trials} == {None}
    assert calmrl.recipe == observed.recipe | {"calibration.imputer": calmrl.recipe["calibration.imputer"]}
    assert observed.trials == calmrl.trials
    assert observed.recipe["model.init"] == init.recipe["model.init"] == "identity"
    for method in (calmrl, observed, init):
        assert continual(method, 8)[0].recipe["model.init"] == "identity"


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
        ("closed-form", "identity", ", ".join(["calmrl", *BASELINES])),
    ],
)  # fmt: skip
def test_endings_that_do_not_fit_say_where_they_go(name, ending, possible):
    with pytest.raises(InputError) as wrong:
        find_method(f"{name}+{ending}")
    assert str(wrong.value) == f'"{name}+{ending}" is not a method; +{ending} goes with {possible}'


@pytest.mark.parametrize("name", ["aligner:linear:kernel", "gram:mvae", "calibrated:mvae:knn"])
def test_parts_that_do_not_fit(name):
    with pytest.raises(InputError, match=f'"{name}" is not a method; an imputer goes with calibrated'):
        find_method(name)


def test_imputers_of_a_method_exist():
    with pytest.raises(ValueError, match='unknown imputer "nosuch"'):
        find_method("calibrated:nosuch")


# ---- they train, and their models load


VARIANTS = [
    "contrastive+mlp",
    "pmrl+latent+mlp",
    "gram+staged",
    "contrastive+kernel",
    "contrastive+latent+kernel+mlp",
    "closed-form+kernel",
    "calibrated:gaussian+kernel",
    "aligner:linear:unrefined",
    "aligner:kernel:refined",
]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(90, 4))
    z = {name: (shared @ rng.normal(size=(4, 12))).astype(np.float32) for name in ("image", "text", "audio")}
    present = np.ones((90, 3), dtype=bool)
    present[np.arange(20, 60), np.arange(40) % 3] = False
    folder = tmp_path_factory.mktemp("data") / "a"
    write_features(folder, z, present, split=["val"] * 20 + ["train"] * 70)
    return folder, z


def config_of(method: str, folder) -> TrainConfig:
    steps = find_method(method).steps
    stages = {"stages": find_method(method).stages("steps", 4)} if steps else {}
    heads = {} if find_method(method).recipe.get("model.kind") else {"model": {"width": 8}}
    source = {"a": {"features": str(folder)}}
    return TrainConfig.model_validate({"kind": "train", "method": method, "sources": source, **stages, **heads})


@pytest.mark.parametrize("method", [name for name in (*METHODS, *VARIANTS) if name != "ideal"])
def test_trains_and_loads(method, features, tmp_path):
    folder, z = features
    outcome = train(config_of(method, folder), tmp_path / "run")
    assert outcome.steps == (4 if find_method(method).steps else 0)
    vectors = load(tmp_path / "run").encode({name: values[:20] for name, values in z.items()})
    assert set(vectors) == set(z)
    for values in vectors.values():
        np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1, atol=1e-5)


def test_ideal_is_a_row_of_comparisons_only(features):
    with pytest.raises(ValueError, match="ideal is a row of comparisons only; to train on complete rows, hide nothing"):
        config_of("ideal", features[0])
