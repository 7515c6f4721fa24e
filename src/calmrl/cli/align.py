"""`calmrl align`: features -> one space, saved, for indexes and as a base of others."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import note
from calmrl.cli.shared_options import base_names

EXAMPLE = """Example:
  calmrl align features --out mine
  calmrl align features --out mine --base named-things
  calmrl align stamps --out stamps.base --groups group --compact
  calmrl index photos --out photos.index --base mine"""


def run(
    features: Annotated[
        str, typer.Argument(help="A feature directory, a file of features, or a bundled data set by name.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; nothing is overwritten.")],
    base: Annotated[
        str,
        typer.Option(
            help="A base by name (calmrl ls bases) or path, to stand beside; or none.", autocompletion=base_names
        ),
    ] = "none",
    groups: Annotated[
        str | None,
        typer.Option(help="A column of related items, so that they stay in one fold when quality is estimated."),
    ] = None,
    relevant_by: Annotated[
        str | None, typer.Option("--relevant-by", help="Expect found items to count if they have the query's COLUMN.")
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Write less than a tenth of the bytes; vectors differ by about a tenth.")
    ] = False,
) -> None:
    """Fit an aligner on features with holes, and save it.

    Says what was chosen and which recall to expect. `calmrl index` takes the result as --model, or as --base beside what it
    learns from other items with the same encoders.
    """
    from calmrl.workflows.align import align

    align(
        features,
        out,
        base=None if base == "none" else base,
        groups=groups,
        relevant=relevant_by,
        compact=compact,
        report=note,
    )
    note(
        f"wrote {out}: index other items beside it with: calmrl index SOURCE --out INDEX --base {shlex.quote(str(out))}"
    )
