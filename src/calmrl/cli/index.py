"""`calmrl index`: a collection -> an index that any modality can search."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import Progress, note
from calmrl.cli.shared_options import AddressOption, EngineOption, OcrOption, base_names, check_source, pairs

EXAMPLE = """Example:
  calmrl index photos --out photos.index
  calmrl index items.csv --out items.index --encoder image=efficientnet_lite0
  calmrl index emoji --out emoji.index
  calmrl index photos --out photos.index --base mine"""


def run(
    source: Annotated[str, typer.Argument(help="A folder, a manifest, features, or a bundled data set by name.")],
    out: Annotated[str, typer.Option(help="The index to write: a folder, or an address such as s3://bucket/index.")],
    encoder: Annotated[
        list[str] | None,
        typer.Option(help="MODALITY=NAME; by default encoders that work offline (calmrl ls encoders)."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A saved aligner to use, instead of fitting one on the items.")
    ] = None,
    base: Annotated[
        str,
        typer.Option(
            help="What was learned elsewhere, to stand beside: a name (calmrl ls bases), a path, auto for the one that fits "
            "the encoders, or none.",
            autocompletion=base_names,
        ),
    ] = "auto",
    groups: Annotated[
        str | None,
        typer.Option(help="A column of related items, so that they stay in one fold when quality is estimated."),
    ] = None,
    relevant_by: Annotated[
        str | None,
        typer.Option(
            "--relevant-by", help="Expect found items to count if they have the query's text, labels or COLUMN."
        ),
    ] = None,
    ocr: OcrOption = False,
    engine: EngineOption = "local",
    address: AddressOption = None,
) -> None:
    """Encode a collection, align its modalities, and write an index to search.

    Items may lack any modality. Run the same line again to continue where it stopped.
    """
    check_source(source)
    from calmrl.workflows.index import index

    named = pairs(encoder or [], "--encoder", "image=efficientnet_lite0")
    with Progress() as progress:
        made = index(
            source,
            out,
            named or None,
            model=model,
            base=None if base == "none" else base,
            groups=groups,
            relevant=relevant_by,
            ocr=ocr,
            engine=engine,
            address=address,
            progress=progress,
            report=note,
        )
    note(f'wrote {out}: search it with: calmrl search {shlex.quote(str(out))} "..." ({plural(len(made), "item")})')
