"""The list of changes that are not counted names changes that there are, on the lines that it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mutate(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield __import__("mutate")
    for name in ("mutate", "mutant_tests"):
        sys.modules.pop(name, None)


def test_every_entry_means_a_change(mutate):
    for entry in mutate.listed():
        path = entry["change"][0]
        text = (mutate.SOURCE / path).read_text("utf-8")
        lines = [one.line for one in mutate.mutants_of(path, text) if one.is_listed(entry, text)]
        assert lines, entry
        assert all(entry.get("on", "") in text.splitlines()[line - 1] for line in lines), entry
        assert entry["why"]
        assert set(entry) <= {"change", "on", "why"}


def test_the_rest_of_the_line_is_looked_at(mutate):
    text = "a = 1\nb = 1\n"
    both = list(mutate.mutants_of("x.py", text))
    entry = {"change": ["x.py", "1", "2"], "on": "b =", "why": "no matter"}
    assert [one.line for one in both if one.is_listed(entry, text)] == [2]
