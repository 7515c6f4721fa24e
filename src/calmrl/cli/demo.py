"""`calmrl demo`: the comparison on bundled real data."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from calmrl.cli.say import data, note, people

EXAMPLE = """Example:
  calmrl demo --out demo-out
  calmrl demo --out quick 'seeds=[0]' 'datasets=[digits]'"""


def run(
    out: Annotated[Path, typer.Option("--out", help="The directory to write.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    config: Annotated[str, typer.Option("--config", help="A config file or a shipped config.")] = "demo",
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output of calmrl.")] = False,
) -> None:
    """Hide modalities of bundled real data, complete them with every imputer, and compare."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from calmrl.config import DemoConfig, dump, load
    from calmrl.demo import compare, in_words, steps, write_report
    from calmrl.output import check_free, new_directory

    resolved = load(config, overrides or [], kind="demo")
    assert isinstance(resolved, DemoConfig)
    check_free(out, force=force)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=people(), transient=True) as bar:
        task = bar.add_task("", total=steps(resolved), completed=-1)
        rows, meta = compare(resolved, lambda text: bar.update(task, advance=1, description=text))
    with new_directory(out, force=force) as draft:
        write_report(rows, meta, draft)
        dump(resolved, draft / "config.yaml")
    for dataset in meta["datasets"]:
        people().print(_table(rows, dataset))
    for sentence in in_words(rows):
        note(textwrap.fill(sentence, 80))
    note(f"\nopen {out / 'report.html'} to see it; the numbers are in")
    data(str(out / "results.json"))


def _table(rows: list[dict[str, Any]], dataset: str) -> Any:
    from rich import box
    from rich.table import Table

    from calmrl.demo.words import by_method, spread

    table = Table(title=f"{dataset} (error: 1 = the mean)", box=box.SIMPLE, title_justify="left")
    table.add_column("method")
    for heading in ("error", "spread", "seeds", "n"):
        table.add_column(heading, justify="right")
    counts = {row["method"]: row["n"] for row in rows if row["dataset"] == dataset}
    for method, values in by_method(rows, dataset).items():
        table.add_row(method, f"{values.mean():.3f}", spread(values), str(len(values)), str(counts[method]))
    return table
