"""What `calmrl compare` and `calmrl demo` have in common: run, write, show."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from calmrl.cli.speaking import note, people
from calmrl.config import CompareConfig


def compare_and_show(config: CompareConfig, out: Path, command: str) -> None:
    """Run what is not there yet, write results.json, tables and the report, and print the table and the words."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from calmrl.workflows._compare.directory import finish, prepare
    from calmrl.workflows._compare.jobs import run_all

    prepare(config, out)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=people(), transient=True) as bar:
        task = bar.add_task("", total=None)
        results = run_all(
            config,
            out / "jobs",
            lambda done, total, text: bar.update(task, completed=done, total=total, description=text),
        )
    rows, meta = finish(config, results, out, command)
    for setting in config.settings:
        people().print(_table(rows, meta, setting))
    for sentence in meta["words"]:
        note(textwrap.fill(sentence, 80))
    note(f"\nopen {out / 'report.html'} to see it; tables for a paper are in {out / 'tables'}")


def _table(rows: list[dict[str, Any]], meta: dict[str, Any], setting: str) -> Any:
    from rich import box
    from rich.table import Table

    from calmrl.metrics.significance import mean_interval
    from calmrl.workflows._compare.collect import average

    values = average(rows, setting)
    n = next(
        (row["n"] for row in rows if (row["setting"], row["task"], row["metric"]) == (setting, "average", "R@1")), 0
    )
    title = f"{setting}: R@1 in %, average over all directions (n = {n} queries per seed)"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("method")
    for heading in ("R@1", "95 %", "R@5", "R@10"):
        table.add_column(heading, justify="right")
    means = {method: mean_interval(list(each.values())) for method, each in values.items()}
    for method in sorted(means, key=lambda name: (meta["methods"][name]["ideal"], -means[name].mean)):
        mean, half, _ = means[method]
        others = [
            mean_interval(list(average(rows, setting, metric)[method].values())).mean for metric in ("R@5", "R@10")
        ]
        table.add_row(
            method, f"{mean:.1f}", "one seed" if half is None else f"± {half:.1f}", *(f"{x:.1f}" for x in others)
        )
    return table
