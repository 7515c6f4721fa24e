"""The options that name a public collection in place of a manifest, the same in every command that takes one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calmrl.cli.completion import collection_names
from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.data.media.collections.public_collection import PublicCollection

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
    typer.Option("--media", help="With --collection: vision=FOLDER or audio=FOLDER. [default: the same]"),
]


def collection_of(
    root: str | Path, collection: str | None, annotations: Path | None, media: list[str] | None
) -> PublicCollection | None:
    """The collection that the options name; None without --collection."""
    if collection is None:
        if annotations is not None or media:
            raise InputError("--annotations and --media go with --collection; name one (calmrl ls collections)")
        return None
    from calmrl.data.media.collections.public_collection import PublicCollection

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
