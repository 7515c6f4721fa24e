"""Configs: reading, overriding, checking, writing; every mistake at once, with its line and the nearest valid key."""

from __future__ import annotations

import inspect

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calmrl.config import KINDS, ConfigError, ImputeConfig, dump, dumps, load, shipped, shipped_text
from calmrl.config.schema.train import ImputerSection
from calmrl.config.yaml_text import read_yaml, write_yaml
from calmrl.errors import InputError

TRAIN = "kind: train\nsources: {a: {dataset: digits}}\n"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "my.yaml"
        path.write_text(text)
        return path

    return write


def _problems(*load_arguments, **keywords):
    with pytest.raises(ConfigError) as caught:
        load(*load_arguments, **keywords)
    return [str(problem) for problem in caught.value.problems]


def test_three_mistakes_are_all_named(write):
    path = write("kind: impute\nimputer:\n  method: gaussian\n  latent_dims: 3\n  noise: isotopic\nsed: 3\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}: 3 mistakes\n"
        '  line 4, imputer.latent_dims: unknown key for method gaussian; did you mean "imputer.latent_dim"?\n'
        "  line 5, imputer.noise: should be 'isotropic', 'diagonal' or 'auto'; got 'isotopic'; "
        'did you mean "isotropic"?\n'
        '  line 6, sed: unknown key; did you mean "seed"?'
    )


def test_mistakes_in_overrides_and_in_the_file_are_shown_together(write):
    path = write("kind: impute\nsede: 1\n")
    assert _problems(path, ["std=maybe", "seed=-1", "imputer.method=knn", "imputer.tol=1", "oops"]) == [
        'line 2, sede: unknown key; did you mean "seed"?',
        "override 1, std: should be a valid boolean; got 'maybe'",
        "override 2, seed: should be greater than or equal to 0; got -1",
        "override 4, imputer.tol: unknown key for method knn",
        "override 5, oops: an override is key=value, for instance imputer.latent_dim=16; got 'oops'",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "kind: missing; say what the config is for: one of impute, train, compare, extract"),
        ("kind: imput",
         "line 1, kind: should be one of impute, train, compare, extract; got 'imput'; did you mean \"impute\"?"),
        ("kind: impute\nseed: [1", "line 2: not valid YAML"),
        ("kind: impute\nimputer: {}", "line 2, imputer.method: missing; this key is required"),
        ("kind: impute\nimputer: 3", "line 2, imputer: "),
        ("kind: impute\nimputer:\n  method: gausian",
         "line 3, imputer.method: should be one of 'auto', 'gaussian', 'kernel', 'mean', 'knn', 'ridge', 'mvae', "
         "'mopoe', 'smil', 'gfa', 'knowledge_bridger'; got 'gausian'; did you mean \"gaussian\"?"),
        ("kind: impute\nlatent_dim: 3", 'line 2, latent_dim: unknown key; did you mean "imputer.latent_dim"?'),
        ("kind: impute\nseed: '3'", "line 2, seed: should be a valid integer; got '3'"),
        ("kind: impute\nseed: yes", "line 2, seed: should be a valid integer; got True"),
        ("kind: impute\nseed:", "line 2, seed: should be a valid integer; got None"),
        ("kind: impute\nimputer: {method: gaussian, latent_dim: 0}",
         "line 2, imputer.latent_dim: should be greater than or equal to 1 or 'auto'; got 0"),
        ("kind: impute\nimputer: {method: gaussian, latent_dim: atuo}",
         "line 2, imputer.latent_dim: should be a valid integer or 'auto'; got 'atuo'; did you mean \"auto\"?"),
        (f"{TRAIN}batch_size: many", "line 3, batch_size: should be a valid integer"),
        (f"{TRAIN}calibration:\n  imputer:\n    method: knn\n    neighbours: 3",
         "line 6, calibration.imputer.neighbours: unknown key for method knn; did you mean "
         '"calibration.imputer.n_neighbors"?'),
        (f"{TRAIN}objective: {{name: pmrl, temprature: 1.0}}",
         'line 3, objective.temprature: unknown key; did you mean "objective.temperature"?'),
        (f"{TRAIN}stages: [{{name: x}}]", "line 3, stages.0: give either epochs or steps"),
        (f"{TRAIN}stages: [{{epochs: 1, steps: 5}}]", "line 3, stages.0: give either epochs or steps"),
        (f"{TRAIN}method: calmlr",
         "line 3, method: should be 'aligner', 'calibrated', 'calmrl', 'calmrl-printed', 'calmrl-start', "
         "'closed-form', 'contrastive', 'vast', 'gram', 'triangle', 'pmrl', 'cca', 'mcca', 'gcca', 'asif', 'ridge', "
         "'procrustes', 'gfa', 'mopoe', 'symile', 'confu', 'fusemix' or 'structure'; got 'calmlr'; did you mean \"calmrl\"?"),
    ],
)  # fmt: skip
def test_error_text(write, text, said):
    (problem,) = _problems(write(text))
    assert problem.startswith(said)


def test_kind_must_fit_the_command():
    (problem,) = _problems("demo", kind="impute")
    assert problem == "line 4, kind: this command needs a config of kind impute; got 'compare'"


def test_missing_files_and_names(tmp_path):
    (tmp_path / "x.yaml").mkdir()
    with pytest.raises(InputError, match="cannot be read as a config"):
        load(tmp_path / "x.yaml")
    with pytest.raises(InputError, match='unknown config "imput"; did you mean "impute"'):
        load("imput")
    with pytest.raises(
        InputError, match=r'impute\.yaml does not exist; a shipped config is named without an ending.*"impute"'
    ):
        load("impute.yaml")


def test_the_shipped_impute_config_is_the_default():
    assert load("impute") == load(None, kind="impute") == ImputeConfig(kind="impute")
    assert set(yaml.safe_load(dumps(load("impute")))) == set(ImputeConfig.model_fields)  # every key is spelled out


def test_overrides_are_typed():
    config = load(
        None,
        ["imputer.method=gaussian", "imputer.tol=1e-3", "imputer.latent_dim=8", "std=true", "seed=0"],
        kind="impute",
    )
    assert config.imputer == ImputerSection.choose({"method": "gaussian", "tol": 0.001, "latent_dim": 8})
    assert config.std is True
    assert config.seed == 0


def test_an_override_replaces_a_whole_section():
    assert load("impute", ["imputer={method: knn, n_neighbors: 3}"]).imputer == ImputerSection.choose(
        {"method": "knn", "n_neighbors": 3}
    )


def test_overrides_reach_into_lists():
    assert load("study", ["seeds.1=7"]).seeds[1] == 7
    assert _problems("demo", ["seeds.9=7"]) == ["override 1, seeds.9: seeds is a list with items 0 to 0; got '7'"]
    assert _problems("emoji", ["source.dataset.x=7"]) == [
        "override 1, source.dataset.x: source.dataset is a single value and has no key 'x'; got '7'"
    ]


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_config_and_what_is_written_of_it(tmp_path, name):
    assert shipped_text(name).startswith("# calmrl ")
    assert shipped()[name]
    config = load(name)
    dump(config, tmp_path / "config.yaml")
    assert (tmp_path / "config.yaml").read_text().startswith("# written by calmrl ")
    assert load(tmp_path / "config.yaml") == config
    with pytest.raises(InputError, match="exists"):
        dump(config, tmp_path / "config.yaml")


def test_sections_and_imputers_fit_together():
    """Every imputer has a section; every key is an argument of it, with its default (but "auto" for size)."""
    from calmrl.imputers import IMPUTERS

    for method in IMPUTERS:
        taken = inspect.signature(IMPUTERS[method]).parameters
        keys = ImputerSection.choose({"method": method}).model_dump(exclude={"method"})
        assert set(keys) == set(taken) - ImputerSection.leave_out
        assert {key: taken[key].default for key in keys if key != "latent_dim"} == {
            key: value for key, value in keys.items() if key != "latent_dim"
        }


json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text("abc-.:{[#'1e", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text("abc_", min_size=1, max_size=4), json))
@example({"a": "1e1", "b": ["-2.5E-3", "1.e+5"], "c": 10.0})
def test_reading_yaml_gives_what_was_written(values):
    source = read_yaml(write_yaml(values))
    assert source.values == values
    assert source.problems == []


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["kind", "imputer", "seed", "std", "x"]), json), st.sampled_from(list(KINDS)))
def test_any_mapping_is_accepted_or_explained(tmp_path_factory, values, kind):
    path = tmp_path_factory.mktemp("any") / "a.yaml"
    path.write_text(yaml.safe_dump({**values, "kind": kind}))
    try:
        config = load(path)
    except ConfigError as error:
        problems = error.problems
    else:
        path.write_text(dumps(config))
        assert load(path) == config
        return
    assert problems
    assert all(problem.key.split(".")[0] in {*values, *KINDS[kind].model_fields} for problem in problems)


def test_numbers_and_text_are_told_apart():
    assert read_yaml("[1e-6, 1E3, -2e+1]").problems
    read = read_yaml("a: [1e-6, 1E3, -2e+1, 2.e3]\nb: [e6, '1e6', 1e6x, 2026-13-45]").values
    assert read == {"a": [1e-6, 1000.0, -20.0, 2000.0], "b": ["e6", "1e6", "1e6x", "2026-13-45"]}
