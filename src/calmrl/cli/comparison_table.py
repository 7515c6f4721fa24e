"""What `calmrl compare` and `calmrl demo` have in common: run, show the table and the words."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from calmrl.cli.printing import below_table, data, note, people, visible
from calmrl.cli.progress import Progress
from calmrl.config import CompareConfig
from calmrl.metrics.registry import describe
from calmrl.report import Results

if TYPE_CHECKING:
    from calmrl.workflows import Comparison

WIDTH = 80  # columns of a screen
COMMANDS = 3  # that train a best row, shown at most
METHOD, CELL = 22, 14  # of them, for the names of methods and for each data set and setting


def compare_and_show(
    config: CompareConfig,
    out: Path,
    command: str,
    *,
    keep: Literal["best"] | None = None,
    json: bool = False,
    beside: Mapping[str, Callable[[], Any]] | None = None,
) -> Comparison:
    """Compare with a progress bar, then print one table over all data sets and settings, and what it means."""
    from calmrl.workflows import compare

    with Progress() as bar:
        comparison = compare(
            config,
            out,
            command=command,
            keep=keep,
            beside=beside,
            progress=lambda done, total, text: bar(text or "the first jobs", done, total),
        )
    for metric in config.table:
        note(f"\n{describe(metric).axis}, average over all directions; {_spread(config)}")
        for table in tables(comparison.results, metric):
            people().print(table, width=WIDTH)
            below_table(comparison.results.left_out)
    for sentence in (*comparison.notes, *comparison.words):
        note(textwrap.fill(sentence, WIDTH))
    _next_steps(comparison, out)
    if json:
        data((out / "results.json").read_text(encoding="utf-8"))
    else:
        data(str(out / "results.json"))
    return comparison


def _spread(config: CompareConfig) -> str:
    """What stands behind a mean."""
    return f"± 95 % over {len(config.seeds)} seeds" if len(config.seeds) > 1 else "one seed, so no spread"


def _next_steps(comparison: Comparison, out: Path) -> None:
    for folder in comparison.models:
        note(f'calmrl.load("{folder}") opens the model of a best row')
    shown = comparison.best[:COMMANDS]
    if shown:
        note("\nto train the best row on all rows, nothing hidden:")
    for row in shown:
        note(_folded(f"  {row.command}"))
    if len(comparison.best) > len(shown):
        note(f"  ... and {len(comparison.best) - len(shown)} more, for the configs in {out / 'train'}")
    text = f"open {out / 'report.html'} to see it; tables for a paper are in {out / 'tables'}; the numbers are in"
    note("\n" + textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _folded(command: str) -> str:
    """The same command on two lines, as a shell reads it, where it is too long for one."""
    return command if len(command) <= WIDTH else command.replace(" --out ", " \\\n    --out ", 1)


def tables(results: Results, metric: str = "R@1") -> list[Any]:
    """Methods down, data sets and settings across: mean ± 95 % interval over seeds; as many tables as the width needs."""
    rows = [row for row in results.rows if (row.task, row.metric) == ("average", metric)]
    places = results.places(rows)
    step = (WIDTH - METHOD) // CELL
    return [_table(results, rows, places[start : start + step], metric) for start in range(0, len(places), step)]


def _table(results: Results, rows: Sequence[Any], places: Sequence[tuple[str, str]], metric: str) -> Any:
    from rich import box
    from rich.table import Table

    from calmrl.report.results import group

    means = group([row for row in rows if row.place in places], lambda row: (row.method, row.place))
    methods = list(dict.fromkeys(method for method, _ in means))
    sign, chances = describe(metric).sign, results.chances(metric)
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), show_footer=bool(chances))
    table.add_column("method", footer="by chance" if chances else "", max_width=METHOD - 2, overflow="fold")
    for place in places:
        queries = next(mean.items for (_, where), mean in means.items() if where == place)
        name = place[1] if len({dataset for dataset, _ in results.places(results.rows)}) == 1 else "\n".join(place)
        level = chances.get((place, "average"))
        table.add_column(
            visible(f"{name}\nn = {queries}"),
            footer="" if level is None else f"{level:.1f}",
            justify="right",
            min_width=CELL - 3,
        )

    def order(method: str) -> tuple[bool, float]:
        return results.ideal(method), -sign * sum(means[method, p].mean for p in places if (method, p) in means)

    for method in sorted(methods, key=order):
        cells = [means.get((method, place)) for place in places]
        table.add_row(visible(method), *("–" if cell is None else cell.text(1) for cell in cells))
    return table
