"""Commands from a collection to features without holes: `init`, `diagnose`, `extract`, `impute`, `align`."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import Progress, as_json, data, note
from calmrl.cli.shared_options import (
    AddressOption,
    AnnotationsOption,
    CollectionOption,
    EngineOption,
    GroupsOption,
    MediaOption,
    Overrides,
    base_names,
    collection_of,
    encoder_pairs,
    pairs,
)
from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.data.media.public_collections import PublicCollection


def init(
    source: Annotated[Path, typer.Argument(help="A folder of files, a table of files, or features.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write configs and notes to.")],
    collection: CollectionOption = None,
    annotations: AnnotationsOption = None,
    media: MediaOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace configs and notes that are there.")] = False,
) -> None:
    """Look at a collection and write configs for it.

    Says what is in it; the configs run as they are.

    Example:
      calmrl init pictures-and-sounds --out work
      calmrl init items.csv --out work
      calmrl init features.npz --out work
      calmrl init clotho --collection clotho:v2 --out work
    """
    from calmrl.workflows.init import init

    start = init(collection_of(source, collection, annotations, media) or source, out, force=force)
    for line in [*start.survey.lines(), *start.notes]:
        note(line)
    note(f"wrote {', '.join(file.name for file in start.files)} to:")
    data(str(out))
    note("next:")
    for line in start.commands:
        note(f"  {line}")


def diagnose(
    features: Annotated[
        Path,
        typer.Argument(help="A feature directory, a .npz, .safetensors or .parquet file, or the name of a data set."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="A directory to write, with report and numbers.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Which rows are drawn, and their folds.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output of calmrl.")] = False,
) -> None:
    """Say what is missing, and whether imputing it will help.

    Before any training.

    Example:
      calmrl diagnose features
      calmrl diagnose features.npz --out diagnosis
    """
    from calmrl.workflows import diagnose

    command = f"calmrl diagnose {shlex.quote(str(features))} --out {shlex.quote(str(out))} --seed {seed}"
    with Progress() as bar:
        diagnosis = diagnose(features, out=out, seed=seed, force=force, command=command, progress=bar)
    note(diagnosis.as_text())
    if out is not None:
        note(f"\nopen {out / 'report.html'} to see it; the numbers are in:")
        if not json:
            data(str(out / "diagnosis.json"))
    if json:
        as_json(diagnosis.as_dict())


def extract(
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
    r"""Encode files into a feature directory.

    Says what is unusable. Run the same line again to continue where it stopped.

    Example:
      calmrl extract pictures-and-sounds --out features
      calmrl extract extract.yaml --out features
      calmrl extract items.csv --out features \
        --encoder image=efficientnet_lite0 --encoder text=use_multilingual
      calmrl extract test.json --layout msrvtt --media vision=videos \
        --encoder vision=hf:MODEL#image --out features
      calmrl extract msrvtt --collection msrvtt:1k-a --allow-missing \
        --encoder vision=hf:MODEL#image --encoder text=minilm --out features
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


def impute(
    features: Annotated[
        Path,
        typer.Argument(help="A feature directory, a .npz, .safetensors, .parquet or .h5mu file, or a data set's name."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The feature directory, or the .h5mu file, to write.")],
    overrides: Overrides = None,
    std: Annotated[bool, typer.Option("--std", help="Also write standard deviations; the same as std=true.")] = False,
    config: Annotated[str | None, typer.Option("--config", help="A config file or a shipped config.")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Impute observed values that are not finite, and count them.")
    ] = False,
    engine: EngineOption = "local",
    address: AddressOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output of calmrl.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print counts and what was chosen to stdout.")] = False,
) -> None:
    """Impute missing modalities and values, and mark them.

    Observed values stay as they are, to the bit.

    Example:
      calmrl impute features --out imputed --std
      calmrl impute features.npz --out imputed imputer.method=kernel
      calmrl impute features --out imputed imputer.method=knn
      calmrl impute cll.h5mu --out imputed.h5mu kinds.Mutations=binary
      calmrl impute features --out imputed --engine ray --address 10.0.0.1:6379
    """
    from calmrl.config import ImputeConfig, load
    from calmrl.workflows.impute import imputation_warnings, impute

    resolved = load(config, [*(overrides or []), *(["std=true"] if std else [])], kind="impute")
    assert isinstance(resolved, ImputeConfig)
    with Progress() as bar:
        bar(0, 0, f"fitting {resolved.imputer.method}")
        result = impute(
            features,
            out,
            resolved,
            engine=engine,
            address=address,
            allow_missing=allow_missing,
            force=force,
            progress=bar,
        )
    if result.choice is not None:
        note(_chosen(result.choice))
        for warning in imputation_warnings(result.choice):
            note(textwrap.fill(f"warning: {warning}", 80, subsequent_indent="  "))
    damaged = ", ".join(f"{name} {count}" for name, count in result.damaged.items() if count)
    if damaged:
        note(f"warning: value blocks that are not finite, counted as missing: {damaged}")
    if result.holes:
        listed = ", ".join(f"{name} {count}" for name, count in result.holes.items())
        note(f"single values that were missing inside observed value blocks, imputed: {listed}")
    note(
        f"imputed {result.imputed} of {plural(result.blocks, 'value block')} in {plural(result.rows, 'row')}; wrote {out}"
    )
    if json:
        as_json(asdict(result))


def _chosen(choice: dict[str, Any]) -> str:
    """What an imputer that chooses has chosen, a line per modality, and how well that did on held-out blocks."""
    lines = [
        f"  {name}: {_error(choice, name)}"
        + ", ".join(f"{100 * w:.0f} % {imputer}" for imputer, w in weights.items() if w >= 0.005)
        for name, weights in choice["weights"].items()
    ]
    error = choice["error"]
    if error is None:
        return "\n".join(["too few blocks to compare imputers:", *lines])
    head = f"chosen on {plural(choice['held_out'], 'held-out block')}, error {error:.3f} (1 = the column means):"
    return "\n".join([head, *lines])


def _error(choice: dict[str, Any], name: str) -> str:
    error = choice["error_by_modality"][name]
    return "" if error is None else f"error {error:.3f}; "


def align(
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
    groups: GroupsOption = None,
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

    Example:
      calmrl align features --out mine
      calmrl align features --out mine --base named-things
      calmrl align stamps --out stamps.base --groups group --compact
      calmrl index photos --out photos.index --base mine
    """
    from calmrl.workflows.train import align

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
