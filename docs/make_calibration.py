"""Write the tables of docs/concepts/calibration.md again from a comparison.

    calmrl compare calibration --out runs/calibration
    python docs/make_calibration.py runs/calibration
    python scripts/measure_base.py DIR --calibration runs/from-base --first 20 --seeds 5
    python docs/make_calibration.py runs/from-base/compared

A table stands between `<!-- calibration: NAME -->` and `<!-- end of calibration -->`, those of what starts from a base between
`<!-- calibration from a base: NAME -->` and `<!-- end of calibration from a base -->`: `found` is R@1 and the difference by
paired bootstrap over test items, `forgotten` is R@1 of the directions that the second stage shows and of those that it does
not, `anchors` is the anchor shift.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

from marked_tables import asked, fill, head, line

from calmrl.report import Results
from calmrl.report.results import Estimate, estimate, group

PAGE = Path(__file__).parent / "concepts" / "calibration.md"
COLUMNS = {
    "+init": "the start",
    "+observed": "PMRL on what is observed",
    "": "CalMRL",
}  # ending of the method -> its name
BASE = "+identity"  # ending of what starts from a base


def found(results: Results, meta: dict[str, Any]) -> str:
    """R@1 over all directions; the last columns are CalMRL - PMRL and p, corrected by Holm with the start."""
    methods = _methods(meta)
    lines = head("R@1 (%)", [*COLUMNS.values(), "CalMRL - PMRL", "p"])
    cells = group(_rows(results, "R@1"), lambda row: (row.place, row.method))
    for place in results.places(_rows(results, "R@1")):
        difference, low, high, p = meta["tests"][results.place_name(place)]["methods"][methods[-1]].values()
        values = [cells[place, method].text(1) for method in methods]
        lines.append(line(", ".join(place), [*values, f"{difference:+.2f} ({low:+.2f} to {high:+.2f})", f"{p:.3f}"]))
    return "\n".join(lines)


def forgotten(results: Results, meta: dict[str, Any]) -> str:
    """Only where the second stage shows incomplete rows alone, and some pair of modalities in none of them."""
    lines = head("R@1 (%)", ["directions", *COLUMNS.values()])
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
            cells = [_mean_over(results, place, method, chosen) for method in _methods(meta)]
            lines.append(line(", ".join(place), [name, *(cell.text(1) for cell in cells)]))
    return "\n".join(lines)


def anchors(results: Results, meta: dict[str, Any]) -> str:
    """Distance between the anchor of what is left of an item and that of the whole item."""
    methods = _methods(meta)
    lines = head("anchor shift", [*COLUMNS.values(), "CalMRL, imputed"])
    rows = [row for row in results.rows if row.metric == "anchor_shift"]
    cells = group(rows, lambda row: (row.place, row.method, row.task))
    for place in results.places(rows):
        values = [cells[place, method, "observed"].text(3) for method in methods]
        lines.append(line(", ".join(place), [*values, cells[place, methods[-1], "calibrated"].text(3)]))
    return "\n".join(lines)


def _methods(meta: dict[str, Any]) -> list[str]:
    """The methods of COLUMNS, of the same start."""
    start = BASE if f"calmrl{BASE}" in meta["config"]["methods"] else ""
    return [f"calmrl{start}{ending}" for ending in COLUMNS]


def _rows(results: Results, metric: str) -> list[Any]:
    return [row for row in results.rows if (row.task, row.metric) == ("average", metric)]


def _mean_over(results: Results, place: tuple[str, str], method: str, tasks: set[str]) -> Estimate:
    """The mean over directions, seed by seed."""
    seeds: dict[int, list[float]] = {}
    for row in results.rows:
        if (row.place, row.method, row.metric) == (place, method, "R@1") and row.task in tasks:
            seeds.setdefault(row.seed, []).append(row.value)
    return estimate([sum(values) / len(values) for values in seeds.values()], [0])


def main() -> None:
    results, meta = asked(__doc__, "calmrl compare calibration")
    tables = {"found": found, "forgotten": forgotten, "anchors": anchors}
    kind = "calibration from a base" if BASE in _methods(meta)[-1] else "calibration"
    fill(PAGE, kind, lambda name: tables[name](results, meta))


if __name__ == "__main__":
    main()
