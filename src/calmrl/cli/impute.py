"""`calmrl impute`: completed features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.speaking import note, people

EXAMPLE = """Example:
  calmrl impute features --out completed --std
  calmrl impute features.npz --out completed imputer.method=kernel
  calmrl impute features --out completed imputer.method=knn"""


def run(
    features: Annotated[Path, typer.Argument(help="A feature directory, or a .npz, .safetensors or .parquet file.")],
    out: Annotated[Path, typer.Option("--out", help="The feature directory to write.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    std: Annotated[bool, typer.Option("--std", help="Also write standard deviations; the same as std=true.")] = False,
    config: Annotated[str | None, typer.Option("--config", help="A config file or a shipped config.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output of calmrl.")] = False,
) -> None:
    """Complete features: fill in the modalities that rows lack, and mark what was filled in."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from calmrl._support.output import check_free, new_directory
    from calmrl.config import ImputeConfig, dump, load
    from calmrl.data.features.feature_set import open_features
    from calmrl.workflows.build import build_imputer
    from calmrl.workflows.impute import complete

    resolved = load(config, [*(overrides or []), *(["std=true"] if std else [])], kind="impute")
    assert isinstance(resolved, ImputeConfig)
    check_free(out, force=force)
    given = open_features(features)
    with (
        new_directory(out, force=force) as draft,
        Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), console=people()) as bar,
    ):
        imputer = build_imputer(resolved.imputer, resolved.seed)
        if resolved.imputer.method == "auto":
            imputer.set_params(verbose=True)  # every candidate's held-out error
        task = bar.add_task(f"fitting {resolved.imputer.method}", total=None)
        done = complete(
            given,
            imputer,
            draft,
            std=resolved.std,
            info={"made_by": "calmrl impute", "config": resolved.model_dump(mode="json"), "features": given.info},
            progress=lambda rows, total: bar.update(task, description="filling", completed=rows, total=total),
        )
        dump(resolved, draft / "config.yaml")
    filled = 0 if done.imputed is None else int(done.imputed.sum())
    note(f"filled {filled} of {done.present.size} blocks of {len(done)} rows; wrote {out}")
