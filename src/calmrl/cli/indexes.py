"""Commands about indexes: made, opened in the browser, changed, served. `search` has a file of its own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from calmrl._support.places import check_index
from calmrl._support.text import plural
from calmrl.cli.printing import Progress, as_json, note
from calmrl.cli.shared_options import (
    AddressOption,
    EngineOption,
    GroupsOption,
    IndexOption,
    OcrOption,
    base_names,
    check_source,
    pairs,
)
from calmrl.errors import InputError


def index(
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
    groups: GroupsOption = None,
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

    Example:
      calmrl index photos --out photos.index
      calmrl index items.csv --out items.index --encoder image=efficientnet_lite0
      calmrl index emoji --out emoji.index
      calmrl index photos --out photos.index --base mine
      calmrl index photos --out p.index --upgrade --encoder image=mobilenet_v2
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


def open_folder(
    source: Annotated[
        str, typer.Argument(help="A folder of files; or a manifest, features, a bundled data set, an index.")
    ],
    index: IndexOption = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port to listen on. [default: 8000, or a free one]")
    ] = None,
    ocr: OcrOption = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Search a folder in the browser, by words and by files.

    Indexes it, or brings its index up to date, and shows the page. Pictures, videos, sounds and texts are
    found by words and by each other, files by their names too. The index is kept in the user's cache unless --index
    says where; nothing is written beside the files. The second time takes seconds.

    Example:
      calmrl open photos
      calmrl open photos --index photos.index --no-browser
      calmrl open items.csv --port 8080
    """
    check_source(source)
    from calmrl.server import run_server
    from calmrl.server.run import check_installed, show
    from calmrl.workflows.index import open_index

    check_installed()
    with Progress() as progress:
        opened = open_index(source, index, ocr=ocr, progress=progress, report=note)
    note(opened.done)
    run_server(opened.index, port=port, report=note, started=show if browser else None)


def add(
    index: Annotated[str, typer.Argument(help="An index.")],
    source: Annotated[str, typer.Argument(help="A folder (usually as before), a file in it, a manifest, features.")],
    prune: Annotated[bool, typer.Option("--prune", help="Remove items that are gone from this source.")] = False,
    removed: Annotated[bool, typer.Option("--removed", help="Also add items that calmrl remove took out.")] = False,
    refit: Annotated[
        bool | None,
        typer.Option(
            "--refit/--no-refit", help="Fit the space again, or never; by default where pairs grew and it pays."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Ids as JSON on stdout.")] = False,
) -> None:
    """Add to an index what is new or changed in a source.

    In one commit; only new content is encoded. Items of a folder that calmrl remove took out stay out, unless a
    file of theirs is named. Where pairs have grown by half and it pays, the space is fitted again. Run the same line again to
    continue where it stopped.

    Example:
      calmrl add photos.index photos
      calmrl add photos.index photos --prune
      calmrl add photos.index photos/dogs/rex.png
    """
    check_index(index)
    check_source(source)
    from dataclasses import asdict

    from calmrl.search import Index

    with Progress() as progress:
        change = Index.open(index).add(source, prune=prune, removed=removed, refit=refit, progress=progress)
    for line in change.lines():
        note(line)
    if json:
        as_json(asdict(change))


def remove(
    index: Annotated[str | None, typer.Argument(help="An index.")] = None,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of items.")] = None,
    gone: Annotated[
        bool,
        typer.Option("--gone", help="Instead: indexes in the user's cache whose folder is gone (calmrl ls indexes)."),
    ] = False,
) -> None:
    """Remove items from an index, in one commit. Files are not touched, and calmrl add does not bring them back unasked.

    An unknown id is an error, and nothing is removed then.

    Example:
      calmrl remove photos.index 2024/beach 2024/boat
      calmrl remove --gone
    """
    if gone:
        if index is not None:
            raise InputError(f"--gone is about the indexes in the cache, so {index} says nothing; leave it out")
        from calmrl.workflows.index import remove_gone

        note(f"removed {plural(remove_gone(note), 'index', 'indexes')}")
        return
    if index is None or not ids:
        raise InputError("name an index and the ids of items to remove; or pass --gone")
    check_index(index)
    from calmrl.search import Index

    opened = Index.open(index)
    count = opened.remove(ids)
    note(f"removed {plural(count, 'item')}; {len(opened)} are left")


def serve(
    index: Annotated[Path, typer.Argument(help="What calmrl index wrote.")],
    host: Annotated[str, typer.Option(help="The address to listen on; by default only this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    allow_add: Annotated[bool, typer.Option("--allow-add", help="Let clients add and remove items.")] = False,
) -> None:
    """Show a collection as a page, and answer programs.

    In JSON, until it is stopped.

    Example:
      calmrl serve index
      calmrl serve index --port 8080 --allow-add
    """
    check_index(index)
    from calmrl.search import Index
    from calmrl.server import run_server

    run_server(Index.open(index), host=host, port=port, allow_add=allow_add, report=note)


def mcp(index: Annotated[Path, typer.Argument(help="What calmrl index wrote.")]) -> None:
    """Let an assistant search a collection (MCP).

    Tools of the Model Context Protocol, over stdin and stdout, that only read.

    Example:
      calmrl mcp photos.index
    """
    check_index(index)
    from calmrl.search import Index
    from calmrl.server.mcp import build_tools

    build_tools(Index.open(index)).run()
