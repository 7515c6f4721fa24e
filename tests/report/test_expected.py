"""Whole reports and tables, as text and as what is drawn, are as they were: they are compared with the files in `expected`.

    python -m tests.report.test_expected    # writes them anew, after a change on purpose

Drawings are compared as calls of matplotlib, not as pixels, so that they do not depend on its version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calmrl.report import as_markdown, build_page, results_of
from calmrl.report.table_files import to_csv, to_latex, to_markdown
from calmrl.report.tables import all_tables
from tests.support import report_data
from tests.support.drawing import Drawing

EXPECTED = Path(__file__).with_name("expected")
METHODS = ("calmrl", "closed-form", "gram", "gram+latent", "ideal")


# ---- the results


def comparison() -> dict[str, Any]:
    """A part of the demo-like results: five methods, two seeds, every kind of measurement of two modalities."""
    content = report_data.demo_like()
    rows, meta = content["rows"], content["meta"]
    keep = [row for row in rows if row["method"] in METHODS and row["seed"] < 2 and "speech" not in row["task"]]
    keep = [row for row in keep if row["setting"] in ("two-source", "mcar 0.1", "mcar 0.7") or row["task"] == "average"]
    keep = [
        row for row in keep if row["metric"] not in ("R@10", "MedR") and row["setting"] not in ("mcar 0.3", "mcar 0.5")
    ]
    for row in keep:
        row["value"] = round(row["value"], 3 if row["value"] > 0.1 else 6)
        row["n"] -= 10 * (row["method"] == "gram" and row["seed"] == 1)
    chance = [
        row | {"metric": "chance R@1", "value": 0.4} for row in keep if row["metric"] == "R@1" and "rate" not in row
    ]
    curves = [p for p in meta["curves"] if p["method"] in METHODS and p["seed"] < 2 and p["step"] in (0, 100, 380)]
    for point in curves:
        point["loss"], point["val"] = round(point["loss"], 3), round(point["val"], 2)
    maps = {
        name: {key: [round(v, 2) if isinstance(v, float) else v for v in values] for key, values in points.items()}
        for name, points in (
            (name, report_data._map(np.random.default_rng(1), ("image", "text"), 24, 0.5)) for name in METHODS[:2]
        )
    }
    left_out = {"listed": 1000, "vision": 37}
    datasets = {"stamps": meta["datasets"]["stamps"] | {"left_out": left_out}}
    meta |= {"curves": curves, "maps": maps, "notes": ["Something to know."], "datasets": datasets}
    meta["methods"] = {name: about for name, about in meta["methods"].items() if name in METHODS}
    return {"rows": keep + chance, "meta": meta}


def row(method: str, value: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    return report_data.row(method, value, seed, **{"setting": "s"} | more)


def steps() -> dict[str, Any]:
    """Steps of rates and of complete rows beside as-is, one method ahead, one that crosses; several settings."""
    rows = []
    for place, level in (("as-is", {}), ("complete 25", {"complete": 25}), ("complete 100", {"complete": 100}),
                         ("alone 10 %", {"rate": 0.1}), ("alone 90 %", {"rate": 0.9})):  # fmt: skip
        for m, method in enumerate(("calmrl", "gram", "pmrl")):
            for seed in range(3):
                value = 20 - m + level.get("complete", 300) / (100 + 50 * m) + 0.1 * seed * (m + 1)
                rows.append(row(method, round(value, 2), seed, setting=place, **level))
    patterns = [{"has": ["a", "b"], "rows": 300}, {"has": ["a"], "rows": 40}]
    meta = {
        "datasets": {"d": {"rows": 500, "modalities": {"a": 3, "b": 4}}},
        "patterns": {"d, as-is": patterns, "as-is": patterns},
    }
    return {"rows": rows, "meta": meta}


def single() -> dict[str, Any]:
    """One method, one seed, errors of imputation and a measure that no section knows."""
    rows = [row("gaussian", 0.5, task=f"{a}->{b}", metric="nmse", setting="") for a in "ab" for b in "ab" if a != b]
    rows += [
        row("gaussian", 94.0, task="95", metric="coverage", setting=""),
        row("gaussian", 3.25, task="odd", metric="mine", setting=""),
    ]
    return {"rows": rows, "meta": {"remarks": ["the rows are few"], "config": {"kind": "train"}}}


RESULTS = {
    "comparison": lambda: {Path("run/results.json"): comparison()},
    "steps": lambda: {Path("run/results.json"): steps()},
    "two": lambda: {
        Path("one/results.json"): single(),
        Path("two/results.json"): {
            "rows": [row("pmrl", 2.0, dataset="e"), row("calmrl", 2.5, dataset="e")],
            "meta": {"remarks": ["take care"]},
        },
    },
}  # fmt: skip


# ---- what comes of them


def drawn(name: str) -> tuple[str, str]:
    """(the report as Markdown, what was drawn for it)"""
    with pytest.MonkeyPatch.context() as patch:
        drawing = Drawing(patch)
        page = build_page(results_of(RESULTS[name]()))
        return as_markdown(page), drawing.text


def paper(name: str) -> str:
    """All tables for a paper in all forms; of the numbers for machines four digits."""
    (content,) = list(RESULTS[name]().values())[:1]
    parts = []
    for title, table in all_tables(content).items():
        numbers = re.sub(r"\d+\.\d{4,}(e-\d+)?", lambda number: f"{float(number[0]):.4g}", to_csv(table))
        parts += [f"== {title}", to_markdown(table), to_latex(table, f"tab:{title}"), numbers]
    return "\n".join(parts)


def everything() -> dict[str, str]:
    """File in `expected` -> content."""
    files = {}
    for name in RESULTS:
        files[f"{name}.md"], files[f"{name}.drawn.txt"] = drawn(name)
    return files | {"comparison.tables.txt": paper("comparison"), "steps.tables.txt": paper("steps")}


# ---- the tests


@pytest.mark.parametrize("name", RESULTS)
def test_a_report_reads_and_is_drawn_as_before(name):
    text, drawing = drawn(name)
    assert text == (EXPECTED / f"{name}.md").read_text("utf-8")
    assert drawing == (EXPECTED / f"{name}.drawn.txt").read_text("utf-8")


@pytest.mark.parametrize("name", ["comparison", "steps"])
def test_tables_for_a_paper_are_as_before(name):
    assert paper(name) == (EXPECTED / f"{name}.tables.txt").read_text("utf-8")


if __name__ == "__main__":
    for file, content in everything().items():
        (EXPECTED / file).write_text(content, encoding="utf-8")
