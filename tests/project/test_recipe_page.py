"""docs/reference/recipe.md lists thirty rules, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULE = re.compile(r"^\| (\d+) \| (.+?) \| (same|option|intended) \| ?(.*?) ?\| (.*?) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rules() -> list[tuple[str, ...]]:
    return RULE.findall((ROOT / "docs" / "reference" / "recipe.md").read_text(encoding="utf-8"))


def test_there_are_thirty_rules_in_order() -> None:
    assert [int(number) for number, *_ in rules()] == list(range(1, 31))


def test_every_rule_names_tests_that_exist() -> None:
    for number, _, _, _, tests in rules():
        named = NAMED.findall(tests)
        assert named, f"rule {number} names no test"
        for file, name in named:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name}(" in text, f"rule {number}: {file} has no {name}"


def test_an_option_names_its_key() -> None:
    assert [number for number, _, how, key, _ in rules() if (how == "option") and not key] == []
