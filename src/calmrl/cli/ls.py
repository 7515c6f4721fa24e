"""`calmrl ls`: what there is."""

import shutil
import sys
import textwrap
from pkgutil import resolve_name
from typing import Annotated

import typer

from calmrl._support.registry import Registry, lookup
from calmrl.cli.printing import as_json, data
from calmrl.cli.shared_options import shelf_names

EXAMPLE = "Example:\n  calmrl ls\n  calmrl ls imputers\n  calmrl ls configs --json\n  calmrl ls indexes"

REGISTRIES = {
    "methods": ["calmrl.training.methods:METHODS"],
    "losses": ["calmrl.losses.registry:LOSSES"],
    "models": ["calmrl.models.registry:MODELS"],
    "imputers": ["calmrl.imputers.registry:IMPUTERS"],
    "datasets": ["calmrl.datasets.registry:DATASETS"],
    "collections": ["calmrl.data.media.public_collections:COLLECTIONS"],
    "encoders": ["calmrl.encoders.registry:ENCODERS"],  # frozen: extract, index
    "bases": ["calmrl.aligner.bases:BASES"],  # align, index
    "towers": ["calmrl.paper.vast.section:TOWERS"],  # trainable: train, model.kind vast
    "tables": ["calmrl.paper.reproduce.tables:PAPER_TABLES"],  # of the paper: reproduce
}
INDEXES = "indexes"  # in the user's cache; listed only by name, since they have to be opened
SHELVES = (*REGISTRIES, "configs")


def run(
    what: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(SHELVES)}, all of them by default; or {INDEXES}, which calmrl open made.",
            autocompletion=shelf_names,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: {shelf: {name: what it is}}.")] = False,
) -> None:
    """List methods, imputers, data, encoders and all the rest.

    Losses, models, bases, towers, tables of the paper, shipped configs and indexes as well.
    """
    shelves = SHELVES if what is None else (lookup({shelf: shelf for shelf in (*SHELVES, INDEXES)}, what, "list"),)
    listing = {shelf: entries(shelf) for shelf in shelves}
    if json:
        as_json(listing)
        return
    for shelf, names in listing.items():
        data("\n".join(_lines(names) if what else [shelf, *(f"  {line}" for line in _lines(names)), ""]))


def _lines(names: dict[str, str]) -> list[str]:
    """One line per name; on a terminal, long ones are folded under themselves."""
    column = max(map(len, names), default=0) + 2
    if not sys.stdout.isatty():
        return [f"{name:<{column}}{about}" for name, about in names.items()]
    width = shutil.get_terminal_size().columns - 2
    indent = " " * column
    return [
        line
        for name, about in names.items()
        for line in textwrap.wrap(f"{name:<{column}}{about}", max(width, column + 20), subsequent_indent=indent)
    ]


def entries(shelf: str) -> dict[str, str]:
    """Name -> one line, from the registries themselves; nothing that is listed is imported."""
    if shelf == "configs":
        from calmrl.config.yaml_text import shipped

        return shipped()
    if shelf == INDEXES:
        from calmrl.workflows.index import cached_indexes

        gone = " (gone: calmrl remove --gone)"
        kept = cached_indexes()
        return {str(one.path): f"{one.size / 1e6:.1f} MB  {one.source}{gone if one.gone else ''}" for one in kept}
    abouts: dict[str, str] = {}
    for address in REGISTRIES[shelf]:
        registry: Registry[object] = resolve_name(address)
        abouts |= {name: registry.about(name) for name in registry}
    return dict(sorted(abouts.items()))
