"""`calmrl impute`: features with their missing modalities imputed."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import Progress, as_json, note
from calmrl.cli.shared_options import AddressOption, EngineOption

EXAMPLE = """Example:
  calmrl impute features --out imputed --std
  calmrl impute features.npz --out imputed imputer.method=kernel
  calmrl impute features --out imputed imputer.method=knn
  calmrl impute cll.h5mu --out imputed.h5mu kinds.Mutations=binary
  calmrl impute features --out imputed --engine ray --address 10.0.0.1:6379"""


def run(
    features: Annotated[
        Path,
        typer.Argument(help="A feature directory, a .npz, .safetensors, .parquet or .h5mu file, or a data set's name."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The feature directory, or the .h5mu file, to write.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
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
