"""`calmrl check`: every mistake of a config at once."""

from typing import Annotated

import typer

from calmrl.cli.printing import as_json, data, note

EXAMPLE = "Example:\n  calmrl check my.yaml\n  calmrl check impute imputer.method=knn --json"


def run(
    file: Annotated[str, typer.Argument(help="A config file, or the name of a shipped config.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: {ok, problems, config}.")] = False,
) -> None:
    """Check a config and print it with every key spelled out, or show all its mistakes."""
    from calmrl.config import ConfigError, dumps, load

    try:
        config = load(file, overrides or [])
    except ConfigError as error:
        if not json:
            raise
        as_json({"ok": False, "problems": [problem.as_dict() for problem in error.problems], "config": None})
        raise typer.Exit(2) from None
    if json:
        as_json({"ok": True, "problems": [], "config": config.model_dump(mode="json")})
    else:
        data(dumps(config))
        note(f"{file} is a valid {config.model_dump()['kind']} config")
