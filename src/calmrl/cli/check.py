"""`calmrl check`: every mistake of a config, a collection of files, features or an index at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import as_json, data, error, note
from calmrl.cli.shared_options import AnnotationsOption, CollectionOption, MediaOption, collection_of, config_names

if TYPE_CHECKING:
    from calmrl.data.media.public_collections import PublicCollection

EXAMPLE = """Example:
  calmrl check my.yaml
  calmrl check impute imputer.method=knn --json
  calmrl check items.csv
  calmrl check photos --all
  calmrl check features
  calmrl check photos.index
  calmrl check ucf101 --collection ucf101:1"""


def run(
    file: Annotated[
        str,
        typer.Argument(
            help="A config file or the name of a shipped config; a folder or a table of files; features; or an index.",
            autocompletion=config_names,
        ),
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    collection: CollectionOption = None,
    annotations: AnnotationsOption = None,
    media: MediaOption = None,
    every: Annotated[bool, typer.Option("--all", help="A line per problem, and per file of unknown type.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: {ok, problems, config}.")] = False,
) -> None:
    """Show all mistakes of a config, a folder, features or an index.

    A table of files is checked as well; of a config every key is printed.
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
    from calmrl.config import ConfigError, dumps, load

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
