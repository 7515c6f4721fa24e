"""Commands about a run: `train`, `evaluate`, `report`."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmrl._support.text import Line, Table, plural, to_terminal
from calmrl.cli.printing import Progress, as_json, below_table, data, error, note, stderr_console
from calmrl.cli.shared_options import AddressOption, EngineOption, Overrides, config_names
from calmrl.metrics.registry import GROUPS, METRICS, describe

if TYPE_CHECKING:
    from calmrl.metrics.measures import TidyRow


def train(
    config: Annotated[
        str, typer.Argument(help="A config file or a shipped config of kind train.", autocompletion=config_names)
    ],
    out: Annotated[Path, typer.Option("--out", help="The directory of the run.")],
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for another process before it counts as lost.", min=1)
    ] = 600,
) -> None:
    """Train from features or media with missing modalities.

    A run that was stopped resumes; in one process or several.

    Example:
      calmrl train stamps --out runs/stamps
      calmrl train my.yaml method=pmrl batch_size=128 --out runs/pmrl
      calmrl train stamps --out runs/stamps --resume
      torchrun --nproc_per_node 2 -m calmrl train stamps --out runs/two
    """
    from calmrl._support.distributed import join, leave
    from calmrl.config import TrainConfig, load
    from calmrl.training.plan import Interrupted
    from calmrl.workflows.train import train

    resolved = load(config, overrides or [], kind="train")
    assert isinstance(resolved, TrainConfig)
    main, began = join(timeout)[1] == 0, time.monotonic()
    with Progress(shown=main) as bar:
        try:
            outcome = train(
                resolved,
                out,
                resume=resume,
                progress=bar,
                report=note,
                timeout=timeout,
            )
        except Interrupted as stopped:
            error(str(stopped))
            raise typer.Exit(1) from None
    leave()
    if not main:
        return
    if outcome.steps:
        note(f"{outcome.steps} steps in {outcome.seconds:.1f} s")
    else:
        note(f"{resolved.method} is in closed form: no steps; fitted in {time.monotonic() - began:.0f} s")
    if outcome.best is not None:
        note(f"best {resolved.validation.metric}: {outcome.best:.1f} at step {outcome.best_step}")
    if outcome.latent_seconds:
        share = 100 * outcome.latent_seconds / max(outcome.seconds, 1e-9)
        note(f"the latent model took {share:.0f} % of the step time (updates and imputing, without the backward pass)")
    note(f'calmrl.load("{out}") opens the model, which is in')
    data(str(out / "model"))


def evaluate(
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

    Example:
      calmrl evaluate runs/stamps
      calmrl evaluate runs/stamps --data features --out results.json
      calmrl evaluate runs/stamps --force --json | jq .meta.remarks
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


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories that hold results.json.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file to write. [default: report.html in a single DIR]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write results as a page with figures.

    report.html, the same as report.md, and the figures.

    Example:
      calmrl report demo-out --force
      calmrl report run-1 run-2 --out both.html
    """
    from calmrl.workflows import report

    written = report(folders, out, force=force)
    page, text, *figures = written.files
    rows = f"{plural(len(written.results.rows), 'row')} of {plural(len(folders), 'file')}"
    note(f"{rows}; wrote {page}, {text.name} and")
    note(f"{plural(len(figures), 'file')} in {page.parent / 'figures'}")
    data(str(page))
