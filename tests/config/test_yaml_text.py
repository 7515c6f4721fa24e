"""Texts of configs at their limits and beyond, overrides of every shape, and in which words and order mistakes are told."""

from __future__ import annotations

import pytest

from calmrl.config import ConfigError, dump, load, shipped
from calmrl.config.loading import load_values
from calmrl.config.yaml_text import ConfigProblem, ConfigText, apply_overrides, read_yaml, write_yaml
from calmrl.errors import InputError


def told(text: str) -> list[str]:
    return [str(problem) for problem in read_yaml(text).problems]


def overridden(values: dict, *overrides: str) -> tuple[dict, list[str]]:
    source = ConfigText(values)
    apply_overrides(source, overrides)
    return source.values, [str(problem) for problem in source.problems]


def problems(values: dict, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_values(values, overrides, name="mine")
    return [str(problem) for problem in caught.value.problems]


def test_the_longest_text(tmp_path):
    most = "a: 1\n" + "#" * (200_000 - 5)
    assert told(most) == []
    assert told(most + "#") == ["a config has at most 200,000 characters; got 200,001"]
    (tmp_path / "c.yaml").write_text(most + "#" * 9)
    with pytest.raises(ConfigError, match="got 200,001"):  # no more is read
        load(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [1", "line 2: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\nb: *c", "line 2: not valid YAML: found undefined alias 'c'"),
        ("a: 1\nb: !!set x", "line 2: not valid YAML: expected a mapping node, but found scalar"),
        ("a: 1\nb: !!omap [x]", "line 2, b: the tag tag:yaml.org,2002:omap is not used in configs"),
        ("a: 1\n? [x]\n: 2", "line 2: a key is a single word"),
        ("b:\n  ? [x]\n  : 2", "line 2, b: a key is a single word"),
        ("a:\n- 1\n- {b: 1, b: 2}", "line 3, a.1.b: given twice; first on line 3"),
        ("- 1", "line 1: a config is a mapping of `key: value` lines"),
    ],
)
def test_what_is_wrong_and_where(text, said):
    assert told(text) == [said]


def test_every_key_and_item_has_its_line():
    assert read_yaml("a: &x [1, 2]\nb: {c: *x}").values == {"a": [1, 2], "b": {"c": [1, 2]}}
    assert read_yaml("a:\n- 1\n- b: 2\n  c: [3]\n").where == {
        ("a",): "line 1",
        ("a", 0): "line 2",
        ("a", 1): "line 3",
        ("a", 1, "b"): "line 3",
        ("a", 1, "c"): "line 4",
        ("a", 1, "c", 0): "line 4",
    }
    assert read_yaml("# nothing") == ConfigText()


def test_written_in_the_order_given_and_readable():
    assert write_yaml({"b": 1, "a": "é", "c": "1e3"}) == "b: 1\na: é\nc: '1e3'\n"


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("b=2", {"a": [1, {"c": 3}], "b": 2}),
        (" b =2", {"a": [1, {"c": 3}], "b": 2}),
        ("b=", {"a": [1, {"c": 3}], "b": None}),
        ("b= ", {"a": [1, {"c": 3}], "b": None}),
        ("b=x=y", {"a": [1, {"c": 3}], "b": "x=y"}),
        ("a.0=x", {"a": ["x", {"c": 3}]}),
        ("a.1.c=[4]", {"a": [1, {"c": [4]}]}),
        ("a.1.d.e=4", {"a": [1, {"c": 3, "d": {"e": 4}}]}),
        ("b.0=4", {"a": [1, {"c": 3}], "b": {"0": 4}}),
    ],
)
def test_overrides_that_are_taken(override, values):
    assert overridden({"a": [1, {"c": 3}]}, override) == (values, [])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("b", "override 1, b: an override is key=value, for instance imputer.latent_dim=16; got 'b'"),
        ("=1", "override 1: an override is key=value, for instance imputer.latent_dim=16; got '=1'"),
        ("b..c=1", "override 1, b..c: an override is key=value, for instance imputer.latent_dim=16; got 'b..c=1'"),
        ("b=[1", "override 1, b: the value is not valid YAML; got '[1'"),
        ("b=1\nc: 2", "override 1, b: the value is not valid YAML; got '1\\nc: 2'"),
        ("a.2=1", "override 1, a.2: a is a list with items 0 to 1; got '1'"),
        ("a.x=1", "override 1, a.x: a is a list with items 0 to 1; got '1'"),
        ("a.0.x=1", "override 1, a.0.x: a.0 is a single value and has no key 'x'; got '1'"),
    ],
)
def test_overrides_that_are_refused(override, said):
    assert overridden({"a": [1, {"c": 3}]}, override)[1] == [said]


def test_an_override_hides_where_a_section_was_written():
    source = read_yaml("a:\n  b: 1\nab: 2")
    apply_overrides(source, ["a={c: 1}", "d.e.f=3"])
    assert source.where == {
        ("a",): "override 1",
        ("ab",): "line 3",
        ("d",): "override 2",
        ("d", "e"): "override 2",
        ("d", "e", "f"): "override 2",
    }


TRAIN = {"kind": "train", "sources": {"a": {"dataset": "digits"}}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sources": {"a": {"dataset": "digits", "weigth": 2}}},
         'sources.a.weigth: unknown key; did you mean "sources.a.weight"?'),
        ({"stages": [{"epoch": 2}]}, 'stages.0.epoch: unknown key; did you mean "stages.0.epochs"?'),
        ({"learning_rate": 2}, 'learning_rate: unknown key; did you mean "optimiser.learning_rate"?'),
        ({"optimiser": {"xyzzy": 2}}, "optimiser.xyzzy: unknown key"),
        ({"optimiser": {"clip": "x"}}, "optimiser.clip: should be a valid number; got 'x'"),
        ({"optimiser": {"betas": [0.9, 1.0]}}, "optimiser.betas.1: should be less than 1; got 1.0"),
        ({"optimiser": {"decay": "matrix"}},
         "optimiser.decay: should be 'matrices' or 'names'; got 'matrix'; did you mean \"matrices\"?"),
        ({"optimiser": {"decay": 3}}, "optimiser.decay: should be 'matrices' or 'names'; got 3"),
        ({"sources": {"a": {"collection": {"name": "clotho"}}}}, "sources.a.collection.root: missing; this key is required"),
        ({"sources": {}}, "sources: Dictionary should have at least 1 item after validation, not 0; got {}"),
    ],
)  # fmt: skip
def test_mistakes_name_the_key_and_the_nearest(values, said):
    assert said in [problem.partition(", ")[2] for problem in problems({**TRAIN, **values})]


def test_mistakes_are_told_in_reading_order():
    values = {"kind": "impute", **{f"x{number}": 1 for number in range(10)}}
    overrides = [f"y{number}=1" for number in range(11)]
    places = [problem.partition(",")[0] for problem in problems(values, *overrides)]
    assert places == [f"line {number}" for number in range(2, 12)] + [f"override {number}" for number in range(1, 12)]


def test_a_problem_as_text_and_as_data():
    whole = ConfigProblem("a.b", "line 3", "is wrong", got=None, closest="a.c")
    assert str(whole) == 'line 3, a.b: is wrong; got None; did you mean "a.c"?'
    assert whole.as_dict() == {"key": "a.b", "where": "line 3", "message": "is wrong", "got": None, "closest": "a.c"}
    bare = ConfigProblem("", "", "is wrong")
    assert str(bare) == "is wrong"
    assert bare.as_dict()["got"] is None
    assert ConfigProblem("a", "", "is wrong", got=3).as_dict()["got"] == 3
    assert str(ConfigError("x", [bare])) == "x: 1 mistake\n  is wrong"
    assert str(ConfigError("x", [bare, bare])).startswith("x: 2 mistakes\n")


def test_where_configs_come_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("c.yml", "c.yaml", "sub/c"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("kind: impute\nseed: 5\n")
        assert load(name).seed == 5
    with pytest.raises(InputError, match="/dev/null is a device or a pipe; a config is a file"):
        load("/dev/null")
    with pytest.raises(InputError, match=r"a/9 does not exist$"):
        load("a/9")
    dump(load("c.yml"), "c.yaml", force=True)
    assert load("c.yaml") == load("c.yml")
    assert load(None, kind="impute").imputer.method == "auto"
    with pytest.raises(ConfigError, match=r"defaults: 1 mistake\n  .*missing; say what the config is for"):
        load(None)


def test_what_a_shipped_config_is_for():
    assert shipped()["impute"] == (
        "Impute missing features; the imputer, or an average of several, is chosen on held-out blocks."
    )


# ---- texts that would take the memory, the time or the stack


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [*a]", "alias inside itself"),
        ("a: &a {b: *a}", "alias inside itself"),
        ("? &a [*a]\n: 1", "a key is a single word"),
        ("kind: impute\na: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("kind: impute\na: " + "{b: " * 5000, "nested too deeply"),
        ("- " * 5000, "nested too deeply"),
        ("kind: imp\0ute", "not valid YAML"),
        ("kind: imp\ud800ute", "cannot be read as a config"),
        ("kind: impute\nseed: !!int abc", "'abc' is no int"),
        ("kind: impute\nseed: !!float x", "'x' is no float"),
        ("kind: impute\nseed: !!bool x", "'x' is no bool"),
        ("kind: impute\nseed: !!timestamp x", "'x' is no timestamp"),
        ("kind: impute\nseed: !!binary é", "base64"),
        ("kind: impute\nseed: " + "9" * 5001, "'9{60}' is no int"),
        ("kind: impute\nseed: !!python/object/apply:os.getcwd []", "the tag .*getcwd is not used"),
        ("kind: impute\nseed: !!python/name:os.getcwd x", "could not determine a constructor"),
        ("# " + "x" * 300_000, "at most 200,000 characters"),
    ],
)
def test_hostile_configs(tmp_path, text: str, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=said) as caught:
        load(path)
    assert "c.yaml" in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "a\0.yaml", "./" + "x" * 5000])
def test_what_is_no_file(name: str) -> None:
    with pytest.raises(InputError):
        load(name if "/" in name else f"./{name}", kind="impute")


@pytest.mark.parametrize("key", ["9" * 5001, "²", ".".join("a" * 4000), "imputer." + "0" * 5000])
def test_hostile_overrides(key: str) -> None:
    with pytest.raises(InputError):
        load(None, [f"{key}=1"], kind="impute")
