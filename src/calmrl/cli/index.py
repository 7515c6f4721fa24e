"""`calmrl index`: a collection -> an index that any modality can search."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from calmrl._support.places import check_index
from calmrl._support.text import plural
from calmrl.cli.printing import Progress, note
from calmrl.cli.shared_options import AddressOption, EngineOption, OcrOption, base_names, check_source, pairs
from calmrl.errors import InputError

EXAMPLE = """Example:
  calmrl index photos --out photos.index
  calmrl index items.csv --out items.index --encoder image=efficientnet_lite0
  calmrl index emoji --out emoji.index
  calmrl index photos --out photos.index --base mine
  calmrl index photos --out p.index --upgrade --encoder image=mobilenet_v2"""


def run(
    source: Annotated[str, typer.Argument(help="A folder, a manifest, features, or a bundled data set by name.")],
    out: Annotated[str, typer.Option(help="The index to write: a folder, or an address such as s3://bucket/index.")],
    encoder: Annotated[
        list[str] | None,
        typer.Option(help="The encoder of a modality; by default one that works offline (calmrl ls encoders)."),
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
    segments: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds of the segments of videos, so that a search says where in a video it is; 0 for none."
        ),
    ] = 10.0,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Change encoders of an index that is there, bit by bit, to those of --encoder."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --upgrade: encode at most so many items of each modality now.")
    ] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
) -> None:
    """Encode and align a collection, to search it.

    Items may lack any modality. Run the same line again to continue where it stopped.
    """
    check_source(source)
    from calmrl.workflows.index import index

    named = pairs(encoder or [], "--encoder", "image=efficientnet_lite0")
    if upgrade:
        return _upgrade(source, out, named, limit)
    if limit is not None:
        raise InputError("--limit says how much --upgrade encodes at once; an index is made of all items")
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
            segments=segments,
            engine=engine,
            address=address,
            progress=progress,
            report=note,
        )
    note(f'wrote {out}: search it with: calmrl search {shlex.quote(str(out))} "..." ({plural(len(made), "item")})')


def _upgrade(source: str, out: str, named: dict[str, str], limit: int | None) -> None:
    check_index(out)
    from calmrl.search import Index

    index = Index.open(out)
    with Progress() as progress:
        done = index.upgrade(source, named, limit=limit, progress=progress)
    for line in [*index.summary(), *done.lines()]:
        note(line)
