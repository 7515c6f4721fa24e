"""`calmrl evaluate`: a trained model on test rows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmrl._support.text import Line, Table, to_terminal
from calmrl.cli.printing import as_json, below_table, data, note, stderr_console
from calmrl.cli.shared_options import AddressOption, EngineOption
from calmrl.metrics.registry import GROUPS, METRICS, describe

if TYPE_CHECKING:
    from calmrl.metrics.measures import TidyRow

EXAMPLE = """Example:
  calmrl evaluate runs/stamps
  calmrl evaluate runs/stamps --data features --out results.json
  calmrl evaluate runs/stamps --force --json | jq .meta.remarks"""


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a finished calmrl train.")],
    features: Annotated[
        Path | None, typer.Option("--data", help="Other features. [default: the test rows of the training data]")
    ] = None,
    relevant_by: Annotated[
        str, typer.Option("--relevant-by", help="A found item counts if it has the query's id, text, labels or COLUMN.")
    ] = "id",
    out: Annotated[Path | None, typer.Option("--out", help="The file to write. [default: DIR/results.json]")] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what is in the file instead of tables.")] = False,
) -> None:
    """Measure a trained model on its test rows.

    Retrieval, classification, imputation and anchor shift.
    """
    from calmrl.workflows.evaluate import evaluate

    out = folder / "results.json" if out is None else out
    where: dict[str, Any] = {"engine": engine, "address": address}
    evaluation = evaluate(folder, features, out, force=force, relevant_by=relevant_by, **where)
    if json:
        as_json(evaluation.as_dict())
    else:
        shown = ""
        for title, table in tables(evaluation.rows):
            note(f"\n{title}" if title != shown else "")
            stderr_console().print(to_terminal(table))
            below_table(evaluation.left_out)
            shown = title
    for sentence in evaluation.remarks:
        note(textwrap.fill(f"note: {sentence}", 80, subsequent_indent="  "))
    note("\nthe numbers are in:")
    (note if json else data)(str(out))


def tables(rows: Sequence[TidyRow]) -> list[tuple[str, Table]]:
    """(title, table) of metrics that are computed together, in the order of METRICS; those nobody described come last.

    A row per task and a column per metric.
    """
    made = []
    for (group, _), together in sorted(_together(rows).items(), key=lambda pair: _place(pair[1][0]["metric"])):
        metrics = list(dict.fromkeys(row["metric"] for row in together))
        lines: list[Line] = []
        for (_, task), values in _by_task(together).items():
            cells = [f"{values[m]['value']:.{describe(m).decimals}f}" if m in values else "" for m in metrics]
            items = max(row["n"] for row in values.values())
            lines.append([task.removeprefix(f"{group} "), *cells, f"{items:,}"])
        made.append((_title(group), Table("", ["", *metrics, "n"], lines)))
    return made


def _together(rows: Sequence[TidyRow]) -> dict[tuple[str, str], list[TidyRow]]:
    """(group, function) -> rows of the metrics that this function computes."""
    sets: dict[tuple[str, str], list[TidyRow]] = {}
    for row in rows:
        metric = describe(row["metric"])
        sets.setdefault((metric.group, str(metric.function)), []).append(row)
    return sets


def _by_task(rows: Sequence[TidyRow]) -> dict[tuple[str, str], dict[str, TidyRow]]:
    """(dataset, task) -> metric -> row."""
    values: dict[tuple[str, str], dict[str, TidyRow]] = {}
    for row in rows:
        values.setdefault((row.get("dataset", ""), row["task"]), {})[row["metric"]] = row
    return values


def _place(metric: str) -> int:
    order = list(METRICS)
    return order.index(metric) if metric in order else len(order)


def _title(group: str) -> str:
    about = GROUPS.get(group, "")
    return f"{group}: {about}" if about else group or "other"
