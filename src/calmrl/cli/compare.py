"""`calmrl compare`: all methods on one's own data, under one budget."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.completion import config_names, method_list

EXAMPLE = """Example:
  calmrl compare demo --methods calmrl,pmrl --seeds 3 --out runs/two
  calmrl compare features --out runs/mine
  calmrl compare features --relevant-by labels --keep best --out runs/mine
  calmrl compare my.yaml --out runs/mine workers=8"""


class Keep(str, Enum):
    """Which models stay."""

    best = "best"


def run(
    config: Annotated[
        str,
        typer.Argument(
            help="A config file, a shipped config of kind compare, or features, compared as they are.",
            autocompletion=config_names,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The directory to write; a run that was stopped goes on there.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Comma-separated. [default: those of the config]", autocompletion=method_list),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many: 0, 1, ...")] = None,
    relevant_by: Annotated[
        str | None,
        typer.Option("--relevant-by", help="A found item counts if it has the query's id, text, labels or COLUMN."),
    ] = None,
    keep: Annotated[Keep | None, typer.Option("--keep", help="Keep the model of the best row.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print results.json to stdout.")] = False,
) -> None:
    """Compare methods: same rows, same steps, same number of trials, chosen on validation rows."""
    import shlex

    from calmrl.cli.comparison_table import compare_and_show
    from calmrl.config import CompareConfig, load

    changes = list(overrides or [])
    if methods is not None:
        changes.append(f"methods=[{methods}]")
    if seeds is not None:
        changes.append(f"seeds={list(range(seeds))}")
    if relevant_by is not None:
        changes.append(f"relevant_by={relevant_by}")
    if _is_features(config):
        from calmrl.workflows.compare.own_data import config_for

        resolved = config_for(config, changes)
    else:
        loaded = load(config, changes, kind="compare")
        assert isinstance(loaded, CompareConfig)
        resolved = loaded
    words = ["calmrl", "compare", config, *changes, *(["--keep", keep.value] if keep else []), "--out", str(out)]
    compare_and_show(resolved, out, shlex.join(words), keep=keep.value if keep else None, json=json)


def _is_features(name: str) -> bool:
    """Whether it is a path to features, and not a config."""
    path = Path(name)
    return path.exists() and path.suffix not in (".yaml", ".yml")
