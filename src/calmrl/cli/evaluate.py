"""`calmrl evaluate`: a trained model on test rows."""

from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import data, note, people

EXAMPLE = """Example:
  calmrl evaluate runs/stamps
  calmrl evaluate runs/stamps --data features --out results.json"""


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a finished calmrl train.")],
    features: Annotated[
        Path | None, typer.Option("--data", help="Other features. [default: the test rows of the training data]")
    ] = None,
    relevant_by: Annotated[
        str, typer.Option("--relevant-by", help="A found item counts if it has the query's id, text, labels or COLUMN.")
    ] = "id",
    out: Annotated[Path | None, typer.Option("--out", help="The file to write. [default: DIR/results.json]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Measure a trained model: retrieval, classification, imputation, anchor shift."""
    from rich import box
    from rich.table import Table

    from calmrl.workflows.evaluate import evaluate

    out = folder / "results.json" if out is None else out
    evaluation = evaluate(folder, features, out, force=force, relevant_by=relevant_by)
    table = Table(box=box.SIMPLE)
    for heading in ("task", "metric", "value", "n"):
        table.add_column(heading, justify="left" if heading in ("task", "metric") else "right")
    for row in evaluation.rows:
        table.add_row(row["task"], row["metric"], f"{row['value']:.3f}", str(row["n"]))
    people().print(table)
    note("the numbers are in")
    data(str(out))
