"""Write the tables of docs/concepts/calibration.md again from a comparison.

    calmrl compare calibration --out runs/calibration
    python docs/make_calibration.py runs/calibration

A table stands between `<!-- calibration: NAME -->` and `<!-- end of calibration -->`: `found` is R@1 and the difference by
paired bootstrap over test items, `forgotten` is R@1 of the directions that the second stage shows and of those that it does
not, `anchors` is the anchor shift.
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import permutations
from pathlib import Path
from typing import Any

from calmrl.report import Results, read_results
from calmrl.report.results import Estimate, estimate, group

PAGE = Path(__file__).parent / "concepts" / "calibration.md"
PLACE = re.compile(r"<!-- calibration: (\w+) -->\n.*?<!-- end of calibration -->", re.S)
METHODS = {"calmrl+init": "the start", "calmrl+observed": "PMRL on what is observed", "calmrl": "CalMRL"}


def found(results: Results, meta: dict[str, Any]) -> str:
    """R@1 over all directions; the last columns are CalMRL - PMRL and p, corrected by Holm with the start."""
    lines = _head("R@1 (%)", [*METHODS.values(), "CalMRL - PMRL", "p"])
    cells = group(_rows(results, "R@1"), lambda row: (row.place, row.method))
    for place in results.places(_rows(results, "R@1")):
        difference, low, high, p = meta["tests"][results.place_name(place)]["methods"]["calmrl"].values()
        values = [cells[place, method].text(1) for method in METHODS]
        lines.append(_line(place, [*values, f"{difference:+.2f} ({low:+.2f} to {high:+.2f})", f"{p:.3f}"]))
    return "\n".join(lines)


def forgotten(results: Results, meta: dict[str, Any]) -> str:
    """Only where the second stage shows incomplete rows alone, and some pair of modalities in none of them."""
    lines = _head("R@1 (%)", ["directions", *METHODS.values()])
    config = meta["config"]["datasets"]
    for place in results.places(_rows(results, "R@1")):
        dataset, setting = place
        section = config[dataset]["settings"][setting]
        if section.get("regime") != "continual" or not section.get("groups"):
            continue
        shown = {pair for kept in section["groups"] for pair in permutations(kept, 2)}
        tasks = {task for row in results.rows if row.place == place and "->" in (task := row.task)}
        for name, wanted in (("shown in stage two", True), ("not shown", False)):
            chosen = {task for task in tasks if (tuple(task.split("->")) in shown) == wanted}
            cells = {method: _mean_over(results, place, method, chosen) for method in METHODS}
            lines.append(_line(place, [name, *(cells[method].text(1) for method in METHODS)]))
    return "\n".join(lines)


def anchors(results: Results, meta: dict[str, Any]) -> str:
    """Distance between the anchor of what is left of an item and that of the whole item."""
    lines = _head("anchor shift", [*METHODS.values(), "CalMRL, imputed"])
    rows = [row for row in results.rows if row.metric == "anchor_shift"]
    cells = group(rows, lambda row: (row.place, row.method, row.task))
    for place in results.places(rows):
        values = [cells[place, method, "observed"].text(3) for method in METHODS]
        lines.append(_line(place, [*values, cells[place, "calmrl", "calibrated"].text(3)]))
    return "\n".join(lines)


def _rows(results: Results, metric: str) -> list[Any]:
    return [row for row in results.rows if (row.task, row.metric) == ("average", metric)]


def _mean_over(results: Results, place: tuple[str, str], method: str, tasks: set[str]) -> Estimate:
    """The mean over directions, seed by seed."""
    seeds: dict[int, list[float]] = {}
    for row in results.rows:
        if (row.place, row.method, row.metric) == (place, method, "R@1") and row.task in tasks:
            seeds.setdefault(row.seed, []).append(row.value)
    return estimate([sum(values) / len(values) for values in seeds.values()], [0])


def _head(corner: str, columns: list[str]) -> list[str]:
    return [f"| {corner} | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]


def _line(place: tuple[str, str], values: list[str]) -> str:
    return f"| {', '.join(place)} | {' | '.join(values)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="what `calmrl compare calibration` wrote")
    given = parser.parse_args()
    results = read_results([given.results])
    meta = json.loads((given.results / "results.json").read_text(encoding="utf-8"))["meta"]
    tables = {"found": found, "forgotten": forgotten, "anchors": anchors}
    text = PAGE.read_text(encoding="utf-8")

    def filled(place: re.Match[str]) -> str:
        return f"<!-- calibration: {place[1]} -->\n{tables[place[1]](results, meta)}\n<!-- end of calibration -->"

    PAGE.write_text(PLACE.sub(filled, text), encoding="utf-8")
    print(f"{PAGE.name}: {len(PLACE.findall(text))} tables")


if __name__ == "__main__":
    main()
