"""Configs that would take the memory, the time or the stack: a clear error, quickly."""

from __future__ import annotations

import pytest

from calmrl.config import load
from calmrl.config.yaml_text import read_yaml
from calmrl.errors import InputError


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


def test_aliases_are_read() -> None:
    assert read_yaml("a: &x [1, 2]\nb: {c: *x}").values == {"a": [1, 2], "b": {"c": [1, 2]}}
