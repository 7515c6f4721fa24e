"""Commands that say what there is and whether it is right: `ls`, `cp`, `check`, `doctor`."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import textwrap
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmrl._support.registry import Registry, lookup
from calmrl._support.text import closest, plural
from calmrl.cli.printing import as_json, data, error, note
from calmrl.cli.shared_options import (
    AddressOption,
    AnnotationsOption,
    CollectionOption,
    EngineOption,
    MediaOption,
    Overrides,
    collection_of,
    config_names,
    shelf_names,
)

if TYPE_CHECKING:
    from calmrl.data.media.public_collections import PublicCollection

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


def ls(
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

    Example:
      calmrl ls
      calmrl ls imputers
      calmrl ls configs --json
      calmrl ls indexes
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


def cp(
    name: Annotated[str, typer.Argument(help="A name that `calmrl ls configs` shows.", autocompletion=config_names)],
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Copy a shipped config to a file, to change it.

    Example:
      calmrl cp impute my.yaml
      calmrl check my.yaml imputer.method=knn
    """
    from calmrl._support.output import new_file
    from calmrl.config import shipped_text

    text = shipped_text(name)
    with new_file(file, force=force) as draft:
        draft.write_text(text, encoding="utf-8")
    note(f"wrote {file}")


def check(
    file: Annotated[
        str,
        typer.Argument(
            help="A config file or the name of a shipped config; a folder or a table of files; features; or an index.",
            autocompletion=config_names,
        ),
    ],
    overrides: Overrides = None,
    collection: CollectionOption = None,
    annotations: AnnotationsOption = None,
    media: MediaOption = None,
    every: Annotated[bool, typer.Option("--all", help="A line per problem, and per file of unknown type.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: {ok, problems, config}.")] = False,
) -> None:
    """Show all mistakes of a config, a folder, features or an index.

    A table of files is checked as well; of a config every key is printed.

    Example:
      calmrl check my.yaml
      calmrl check impute imputer.method=knn --json
      calmrl check items.csv
      calmrl check photos --all
      calmrl check features
      calmrl check photos.index
      calmrl check ucf101 --collection ucf101:1
    """
    path = Path(file)
    named = collection_of(path, collection, annotations, media)
    if named is not None:
        _check_source(named, overrides, json, every)
    elif "://" in file:  # an index in an object store
        _check_source(file, overrides, json, every)
    elif path.is_dir() or (path.is_file() and path.suffix not in (".yaml", ".yml")):
        _check_source(path, overrides, json, every)
    else:
        _check_config(file, overrides, json)


def _check_config(file: str, overrides: list[str] | None, json: bool) -> None:
    from calmrl.config import ConfigError, dumps, load, shipped
    from calmrl.errors import InputError

    if Path(file).suffix not in (".yaml", ".yml") and len(Path(file).parts) == 1 and file not in (names := shipped()):
        near = closest(file, names)
        hint = f'; did you mean "{near}"?' if near else "."
        raise InputError(
            f'there is no file or folder "{file}", and no config of that name{hint} Configs: {", ".join(sorted(names))}.'
        )
    try:
        config = load(file, overrides or [])
    except ConfigError as mistakes:
        if not json:
            raise
        as_json({"ok": False, "problems": [problem.as_dict() for problem in mistakes.problems], "config": None})
        raise typer.Exit(2) from None
    if json:
        as_json({"ok": True, "problems": [], "config": config.model_dump(mode="json")})
    else:
        data(dumps(config))
        note(f"{file} is a valid {config.model_dump()['kind']} config")


def _check_source(path: str | Path | PublicCollection, overrides: list[str] | None, json: bool, every: bool) -> None:
    from calmrl.cli.printing import Progress
    from calmrl.errors import InputError
    from calmrl.workflows.check import check_source

    if overrides:
        raise InputError(f"{path} is not a config, so {overrides[0]} changes nothing; leave it out")
    with Progress() as progress:
        problems = check_source(path, every=every, progress=progress, report=note)
    if json:
        as_json({"ok": not problems, "problems": problems, "config": None})
    for problem in problems:
        note(problem)
    if problems:
        count = plural(len(problems), *(["problem"] if every else ["kind of problem", "kinds of problems"]))
        error(f"{path}: {count}")
        raise typer.Exit(2)
    note(f"{path}: nothing is wrong")


def doctor(
    engine: EngineOption = "local",
    address: AddressOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is installed, and whether it works.

    Versions, devices, extras, the default encoders and what an engine would use. Each encoder tries
    one tiny text, picture or sound.

    Example:
      calmrl doctor
      calmrl doctor --json
      calmrl doctor --engine ray
    """
    from calmrl._support.engine import opened

    report = examine()
    with opened(engine, address) as started:
        report["engine"] = {"name": started.name, "uses": started.describe()}
    report["encoders"] = try_encoders()
    if json:
        as_json(report)
        return
    lines = [f"{name:<10} {value}" for name, value in report["system"].items()]
    lines += ["", "packages", *(f"  {name:<24} {version or 'missing'}" for name, version in report["packages"].items())]
    lines += ["", "extras"]
    for extra, packages in report["extras"].items():
        absent = [name for name, version in packages.items() if version is None]
        state = f'absent: pip install "calmrl[{extra}]"' if absent else "installed"
        lines.append(f"  {extra:<24} {state}")
        if absent:
            lines += textwrap.wrap(
                f"lacks {', '.join(absent)}", 79, initial_indent=" " * 27, subsequent_indent=" " * 33
            )
    lines += ["", "encoders"]
    for kind, entry in report["encoders"].items():
        lines.append(f"  {kind:<7} {entry['name']:<19} {'works' if entry['works'] else 'does not work'}")
        if entry["why"]:
            lines += textwrap.wrap(entry["why"], 79, initial_indent=" " * 10, subsequent_indent=" " * 10)
    lines += ["", f"engine {report['engine']['name']}", *(f"  {line}" for line in report["engine"]["uses"])]
    data("\n".join(lines))


def examine() -> dict[str, Any]:
    """Versions, devices, and per extra the version of each package it brings (None: not installed)."""
    import torch

    devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    system = {
        "calmrl": metadata.version("calmrl"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": ", ".join(["cpu", *devices]),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
    packages: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in metadata.requires("calmrl") or []:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        name = match.group() if match else requirement
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", requirement)
        (extras.setdefault(extra.group(1), {}) if extra else packages)[name] = _version(name)
    return {"system": system, "packages": packages, "extras": extras}


def try_encoders() -> dict[str, dict[str, Any]]:
    """Per kind of file the default encoder, whether it works here, and why not."""
    from calmrl.encoders.encoder_set import try_encoder
    from calmrl.encoders.registry import DEFAULTS, default_encoders
    from calmrl.errors import MissingExtraError

    tried = {}
    for kind, name in DEFAULTS.items():
        try:
            default_encoders({kind: "audio" if kind == "speech" else kind})
            why = try_encoder(kind, name)
        except MissingExtraError as error:
            why = str(error)
        tried[kind] = {"name": name, "works": why is None, "why": why}
    return tried


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
