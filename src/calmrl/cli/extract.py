"""`calmrl extract`: raw media -> features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import Progress, note
from calmrl.cli.shared_options import (
    AddressOption,
    AnnotationsOption,
    CollectionOption,
    EngineOption,
    collection_of,
    encoder_pairs,
    pairs,
)
from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.data.media.public_collections import PublicCollection

EXAMPLE = """Example:
  calmrl extract pictures-and-sounds --out features
  calmrl extract extract.yaml --out features
  calmrl extract items.csv --out features \\
    --encoder image=efficientnet_lite0 --encoder text=use_multilingual
  calmrl extract test.json --layout msrvtt --media vision=videos \\
    --encoder vision=hf:MODEL#image --out features
  calmrl extract msrvtt --collection msrvtt:1k-a --allow-missing \\
    --encoder vision=hf:MODEL#image --encoder text=minilm --out features"""


def run(
    manifest: Annotated[
        Path,
        typer.Argument(
            help="A folder; CSV, TSV, JSONL or Parquet; with --layout an annotation file; with --collection its folder; "
            "or a config."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The feature directory to write.")],
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="The encoder of a column (calmrl ls encoders). [default: offline ones]",
            autocompletion=encoder_pairs,
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="What paths are relative to; by default the manifest's folder.")
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="A second table, id and text: several captions per item.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="The form of an annotation file, for instance msrvtt.")] = None,
    collection: CollectionOption = None,
    annotations: AnnotationsOption = None,
    media: Annotated[
        list[str] | None, typer.Option(help="With --layout or --collection: the folder that holds the files.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column not to use.")] = None,
    allow_missing: Annotated[
        bool | None, typer.Option("--allow-missing", help="Continue without what cannot be used; it is counted.")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(min=1, help="Frames per video, one from the middle of each segment. [default: 8]")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Items per batch; does not change the result. [default: 16]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode; 0 decodes in this one. [default: 2]")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float16 or float32. [default: float16]")] = None,
    device: Annotated[
        str | None, typer.Option(help='Where "hf:", "st:" and official encoders run, for instance cuda. [default: cpu]')
    ] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
) -> None:
    """Encode files into a feature directory.

    Says what is unusable. Run the same line again to continue where it stopped.
    """
    from calmrl.config import ExtractConfig, load
    from calmrl.workflows.extract import extract

    given: dict[str, Any] = {
        "encoders": pairs(encoder or [], "--encoder", "image=efficientnet_lite0") or None,
        "root": root,
        "captions": captions,
        "layout": layout,
        "media": (pairs(media or [], "--media", "vision=videos") or None) if collection is None else None,
        "ignore": ignore or None,
        "allow_missing": allow_missing,
        "frames": frames,
        "batch_size": batch_size,
        "workers": workers,
        "dtype": dtype,
        "device": device,
    }
    given = {name: value for name, value in given.items() if value is not None}
    source: Path | PublicCollection = manifest
    if manifest.suffix in (".yaml", ".yml"):
        if collection is not None:
            raise InputError(f"{manifest} is a config; name the collection in it, or give the folder of the collection")
        config = load(manifest, kind="extract")
        assert isinstance(config, ExtractConfig)
        source = Path(str(config.manifest)) if config.collection is None else config.collection.at(None)
    else:
        config = ExtractConfig(kind="extract", manifest=str(manifest))
        if collection is not None or annotations is not None:
            source = collection_of(manifest, collection, annotations, media) or manifest
    options = config.model_dump(exclude={"kind", "manifest", "collection"}) | given
    with Progress() as progress:
        where: dict[str, Any] = {"engine": engine, "address": address}
        features = extract(source, options.pop("encoders"), out, progress=progress, report=note, **where, **options)
    note(f"{out}: {plural(len(features), 'item')}")
