"""Hostile names stay names, everywhere that a name goes."""

from __future__ import annotations

from random import Random

import pytest

from tests import hostile_names

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytestmark = pytest.mark.soak


def test_a_short_run_finds_nothing():
    counts = hostile_names.run(cases=180, seed=4)
    assert set(counts) == {"terminal", "report", "tables", "features", "index", "serve"}
    assert not sum(count["wrong"] for count in counts.values())
    for place, count in counts.items():
        assert count["right"] >= 5, place  # not everything is refused


def test_names_of_every_kind_are_drawn():
    names = [hostile_names.draw(Random(case)) for case in range(400)]
    for kind, pieces in hostile_names.PIECES.items():
        assert any(piece in name for piece in pieces for name in names), kind
    assert max(map(len, names)) > 2900


@pytest.mark.parametrize(
    ("place", "name", "break_out"),
    [
        ("terminal", "\x1b[2J", "calmrl.cli.printing.visible"),
        ("report", "a\u202eb", "calmrl.report.page.visible"),
        ("tables", "a\nb", "calmrl.report.table_files.latex"),
        ("tables", "a|b", "calmrl.report.table_files.escaped"),
    ],
)
def test_a_way_out_would_be_found(tmp_path, monkeypatch, place, name, break_out):
    monkeypatch.setattr(break_out, lambda text: text)
    assert hostile_names.outcome(lambda: hostile_names.ONE_BY_ONE[place](name, tmp_path))[0] == "wrong"
