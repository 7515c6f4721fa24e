"""`calmrl evaluate`: a trained model on test rows."""

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from calmrl.cli.printing import as_json, below_table, data, note, stderr_console
from calmrl.cli.shared_options import AddressOption, EngineOption

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
    """Measure a trained model: retrieval, classification, imputation, anchor shift."""
    from calmrl.cli.evaluation_tables import tables
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
            stderr_console().print(table)
            below_table(evaluation.left_out)
            shown = title
    for sentence in evaluation.remarks:
        note(textwrap.fill(f"note: {sentence}", 80, subsequent_indent="  "))
    note("\nthe numbers are in")
    (note if json else data)(str(out))
