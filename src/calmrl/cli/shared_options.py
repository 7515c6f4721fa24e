"""Options that several commands share, and what a shell completes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.data.media.public_collections import PublicCollection


PLACEHOLDERS = {  # option -> what the help calls its value, the same in every command
    **dict.fromkeys(["--out", "--root", "--annotations", "--captions", "--data", "--index", "--model"], "PATH"),
    **dict.fromkeys(["--image", "--sound"], "FILE"),
    **{"--encoder": "MODALITY=NAME", "--media": "MODALITY=FOLDER", "--with": "MODALITY=VALUE"},
    **dict.fromkeys(["--having", "--lacking"], "MODALITY,..."),
    **dict.fromkeys(["--ignore", "--groups", "--relevant-by"], "COLUMN"),
    **dict.fromkeys(["-k", "--frames", "--batch-size", "--workers", "--seeds", "--seed"], "N"),
    **dict.fromkeys(["--segments", "--limit", "--port"], "N"),
    **dict.fromkeys(["--layout", "--engine", "--device", "--dtype"], "NAME"),
    **{"--config": "CONFIG", "--base": "BASE", "--like": "ID", "--where": "CONDITION", "--methods": "NAME,..."},
    **{"--address": "HOST:PORT", "--host": "ADDRESS", "--timeout": "SECONDS", "--keep": "best"},
}


def names_of(shelf: str, start: str) -> list[str]:
    """Names of a list of `calmrl ls` that begin so; the shell itself adds files and folders."""
    from calmrl.cli.info import entries

    return [name for name in entries(shelf) if name.startswith(start)]


def config_names(incomplete: str) -> list[str]:
    return names_of("configs", incomplete)


def table_names(incomplete: str) -> list[str]:
    return names_of("tables", incomplete)


def base_names(incomplete: str) -> list[str]:
    return names_of("bases", incomplete)


def shelf_names(incomplete: str) -> list[str]:
    """What `calmrl ls` lists."""
    from calmrl.cli.info import SHELVES

    return [name for name in SHELVES if name.startswith(incomplete)]


def encoder_pairs(incomplete: str) -> list[str]:
    """MODALITY=NAME, once the modality is typed."""
    modality, equals, start = incomplete.partition("=")
    return [f"{modality}={name}" for name in names_of("encoders", start)] if equals else []


def collection_names(incomplete: str) -> list[str]:
    """Public collections, and once one is typed, its splits."""
    name, colon, start = incomplete.partition(":")
    if not colon:
        return names_of("collections", name)
    from calmrl.data.media.public_collections import COLLECTIONS

    splits = COLLECTIONS[name].splits if name in COLLECTIONS else ()
    return [f"{name}:{split}" for split in splits if split.startswith(start)]


def method_list(incomplete: str) -> list[str]:
    """Comma-separated methods: the last one is completed."""
    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names_of("methods", start)]


CollectionOption = Annotated[
    str | None,
    typer.Option(
        "--collection",
        metavar="NAME[:SPLIT]",
        help="The folder holds this public collection, as its publisher ships it (calmrl ls collections).",
        autocompletion=collection_names,
    ),
]
AnnotationsOption = Annotated[
    Path | None,
    typer.Option("--annotations", help="With --collection: the folder of the annotation files. [default: the same]"),
]
MediaOption = Annotated[
    list[str] | None,
    typer.Option("--media", help="With --collection: the folder of vision or audio. [default: the same]"),
]


def collection_of(
    root: str | Path, collection: str | None, annotations: Path | None, media: list[str] | None
) -> PublicCollection | None:
    """The collection that the options name; None without --collection."""
    if collection is None:
        if annotations is not None or media:
            raise InputError("--annotations and --media go with --collection; name one (calmrl ls collections)")
        return None
    from calmrl.data.media.public_collections import PublicCollection

    name, _, split = collection.partition(":")
    return PublicCollection(name, root, split or None, annotations, pairs(media or [], "--media", "vision=videos"))


def pairs(given: list[str], option: str, example: str) -> dict[str, str]:
    """MODALITY=VALUE options as a dict."""
    values = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{option} {text} is not MODALITY=VALUE; for instance {option} {example}")
        if name in values:
            raise InputError(f"{option} names {name} twice; give it once")
        values[name] = value
    return values


def check_source(source: str) -> None:
    """Refuse a source that is not there, before anything that computes is imported."""
    from calmrl._support import places
    from calmrl.datasets.registry import DATASETS

    places.check_source(source, list(DATASETS))


Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")]
GroupsOption = Annotated[
    str | None,
    typer.Option(
        "--groups", help="A column of related items, so that they stay in one fold when quality is estimated."
    ),
]
OcrOption = Annotated[bool, typer.Option("--ocr", help="Read words in pictures, too (extra ocr).")]
IndexOption = Annotated[
    str | None,
    typer.Option("--index", help="Where the index is, or is to be made. [default: in the user's cache]"),
]
EngineOption = Annotated[
    str,
    typer.Option("--engine", help="Where the work is done: local, or ray for a Ray cluster. The result is the same."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="With --engine ray: the head node, such as 10.0.0.1:6379. [default: this machine's]"
    ),
]
