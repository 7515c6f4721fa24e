"""The measurements of an evaluation as tables: one per group of METRICS, a row per task and a column per metric."""

from collections.abc import Sequence
from typing import Any

from calmrl.cli.printing import visible
from calmrl.metrics.measures import TidyRow
from calmrl.metrics.registry import GROUPS, METRICS, describe


def tables(rows: Sequence[TidyRow]) -> list[tuple[str, Any]]:
    """(title, table) of metrics that are computed together, in the order of METRICS; those nobody described come last."""
    from rich import box
    from rich.table import Table

    made = []
    for (group, _), together in sorted(_together(rows).items(), key=lambda pair: _place(pair[1][0]["metric"])):
        table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, collapse_padding=True)
        metrics = list(dict.fromkeys(row["metric"] for row in together))
        table.add_column(
            "", no_wrap=True, min_width=max(len(row["task"].removeprefix(f"{group} ")) for row in together)
        )
        for metric in metrics:
            table.add_column(visible(metric), justify="right")
        table.add_column("n", justify="right")
        for (_, task), values in _by_task(together).items():
            cells = [f"{values[m]['value']:.{describe(m).decimals}f}" if m in values else "" for m in metrics]
            table.add_row(
                visible(task.removeprefix(f"{group} ")), *cells, f"{max(row['n'] for row in values.values()):,}"
            )
        made.append((_title(group), table))
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
