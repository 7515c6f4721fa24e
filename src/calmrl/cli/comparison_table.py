"""What `calmrl compare` and `calmrl demo` have in common: run, show the table and the words."""

import textwrap
from pathlib import Path
from typing import Any

from calmrl.cli.printing import data, note, people
from calmrl.cli.progress import Progress
from calmrl.config import CompareConfig
from calmrl.report import Results


def compare_and_show(config: CompareConfig, out: Path, command: str) -> None:
    """Compare with a progress bar, then print a table per setting and what it means."""
    from calmrl.workflows import compare

    with Progress() as bar:
        comparison = compare(
            config,
            out,
            command=command,
            progress=lambda done, total, text: bar(text or "the first jobs", done, total),
        )
    for setting in config.settings:
        people().print(_table(comparison.results, setting))
    for sentence in comparison.words:
        note(textwrap.fill(sentence, 80))
    note(f"\nopen {out / 'report.html'} to see it; tables for a paper are in {out / 'tables'}; the numbers are in")
    data(str(out / "results.json"))


def _table(results: Results, setting: str) -> Any:
    from rich import box
    from rich.table import Table

    from calmrl.report.results import group

    rows = [row for row in results.rows if (row.setting, row.task) == (setting, "average")]
    means = group(rows, lambda row: (row.method, row.metric))
    queries = next(iter(means.values())).items
    title = f"{setting}: R@1 in %, average over all directions (n = {queries} queries per seed)"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("method")
    for heading in ("R@1", "95 %", "R@5", "R@10"):
        table.add_column(heading, justify="right")
    methods = dict.fromkeys(row.method for row in rows)
    for method in sorted(methods, key=lambda name: (results.ideal(name), -means[name, "R@1"].mean)):
        first, *others = (means[method, metric] for metric in ("R@1", "R@5", "R@10"))
        spread = "one seed" if first.half is None else f"± {first.half:.1f}"
        table.add_row(method, f"{first.mean:.1f}", spread, *(f"{each.mean:.1f}" for each in others))
    return table
