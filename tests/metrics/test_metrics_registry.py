"""METRICS is the one table: a measure costs its function and its line, and everything that shows numbers knows it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from calmrl.config import CompareConfig
from calmrl.errors import InputError
from calmrl.metrics.model_rows import measure_rows
from calmrl.metrics.registry import GROUPS, METRICS, Metric, describe, functions_of, measures, names_of
from calmrl.report.table_files import to_markdown
from calmrl.report.tables import all_tables
from calmrl.workflows import compare

MODULE = '''
"""A measure of one's own."""
from calmrl.metrics.measures import row

def crowding(z, present, seed):
    """Mean squared length of the centroid, per modality; `seed` shows that what is named is given."""
    assert seed in (0, 1)
    return [row(name, "crowding", x[present[:, j]].mean(0).square().sum(), len(x)) for j, (name, x) in enumerate(z.items())]
'''


@pytest.fixture
def crowding(tmp_path, monkeypatch):
    (tmp_path / "my_measure.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    METRICS["crowding"] = Metric("crowding", "0 to 1", "lower", "geometry", "my_measure:crowding", "how near all lie")
    yield
    del METRICS["crowding"]


def test_a_new_measure_is_computed_and_shown_the_right_way_round(crowding, tmp_path):
    config = CompareConfig.model_validate(
        {
            "kind": "compare",
            "source": {"dataset": "world", "options": {"n": 200, "rate": 0.0, "seed": 1}, "resplit": {}},
            "settings": {"random": {"kind": "mcar", "rate": 0.3}},
            "methods": ["pmrl", "closed-form"],
            "seeds": [0, 1],
            "steps": 4,
            "batch_size": 32,
            "width": 4,
            "trials": 1,
            "measures": ["geometry"],
            "workers": 1,
        }
    )
    comparison = compare(config, tmp_path / "out")
    mine = [row for row in comparison.rows if row["metric"] == "crowding"]
    assert {(row["method"], row["seed"]) for row in mine} == {(m, s) for m in config.methods for s in (0, 1)}
    task = mine[0]["task"]
    means = {m: sum(r["value"] for r in mine if (r["method"], r["task"]) == (m, task)) for m in config.methods}
    best = min(means, key=lambda method: means[method])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "crowding (0 to 1), lower is better" in text
    table = all_tables({"rows": comparison.rows, "meta": {}})["geometry"]
    column = next(j for j, c in enumerate(table.columns) if (c.metric, c.name) == ("crowding", task))
    ranks = {line.method: line.cells[column].rank for line in table.blocks[0][1]}
    assert ranks[best] == 1
    assert "crowding" in to_markdown(table)
    assert "crowding" in (tmp_path / "out" / "tables" / "geometry.tex").read_text()


def test_a_group_of_its_own(crowding):
    METRICS["crowding"] = Metric("crowding", "", "lower", "mine", "my_measure:crowding")
    assert measures() == [*(group for group in GROUPS if group != "retrieval"), "mine"]
    rows = [
        {"dataset": "d", "method": m, "seed": 0, "task": "image", "metric": "crowding", "value": v, "n": 9}
        for m, v in (("a", 0.5), ("b", 0.25))
    ]
    lines = all_tables({"rows": rows})["mine"].blocks[0][1]
    assert {line.method: line.cells[0].rank for line in lines} == {"a": 2, "b": 1}


def test_what_a_measure_may_ask_for(crowding):
    METRICS["crowding"] = Metric("crowding", "", "lower", "mine", "my_measure:crowding")
    with pytest.raises(InputError, match="the measure crowding asks for seed, which is not there"):
        measure_rows(["mine"], z={}, present=None)


def test_every_entry_is_whole():
    for name, metric in METRICS.items():
        assert metric.about, name
        assert not metric.group or metric.group in GROUPS
        assert METRICS.about(name) == metric.about
    for group in GROUPS:
        functions = functions_of([group])
        assert all(map(callable, functions))
        assert functions or group == "examples"
        assert len(set(functions)) == len(functions)
    assert names_of("retrieval") == [
        *("R@1", "R@5", "R@10", "MedR", "MRR"),
        *("chance R@1", "chance R@5", "chance R@10"),
    ]


def test_digits_and_what_is_computed_only_by_hand():
    digits = {name: metric.decimals for name, metric in METRICS.items()}
    one = [*names_of("retrieval"), "coverage", "modality_separability", "accuracy", "macro-F1", "seconds"]
    assert {name for name, number in digits.items() if number == 1} == set(one)
    assert {number for name, number in digits.items() if name not in one} == {3}
    assert {name for name, metric in METRICS.items() if metric.by_hand} == {"modality_separability", "alignment"}
    assert [f.__name__ for f in functions_of(["geometry"])] == ["modality_gap", "uniformity"]
    assert [f.__name__ for f in functions_of(["pool", "shift", "retrieval"])] == [
        "retrieval_rows",
        "shift_rows",
        "pool_rows",
    ]
    assert functions_of([]) == []
    assert {describe(name).sign for name in ("R@1", "nmse", "something else")} == {1, -1, 0}
    assert [describe(name).axis for name in ("R@1", "seconds")] == ["R@1 (%)", "seconds"]
    assert [describe(name).unit for name in ("R@7", "R@07", "R@", "xR@7")] == ["%", "", "", ""]


def test_the_table_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from calmrl.metrics.registry import METRICS; print(len(METRICS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(METRICS)
