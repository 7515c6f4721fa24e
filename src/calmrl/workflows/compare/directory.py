"""A comparison in its directory: `config.yaml`, `jobs/`, `results.json`, `tables/`, `report.html`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calmrl._support.output import WRITTEN_BY, new_file
from calmrl.config import CompareConfig, dump, load
from calmrl.errors import InputError
from calmrl.report import build_page, read_results, write_page
from calmrl.report.paper_tables import write_tables
from calmrl.workflows.build import open_features_of
from calmrl.workflows.compare.collect import collect
from calmrl.workflows.compare.job import Job


def prepare(config: CompareConfig, out: Path) -> None:
    """Make the directory, or find a comparison in it that can go on."""
    path = out / "config.yaml"
    if path.is_file() and path.read_text(encoding="utf-8").startswith(WRITTEN_BY):
        load(path, kind="compare")  # a directory of another command is an error here
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists and holds something else; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    dump(config, path, force=True)


def finish(
    config: CompareConfig, results: dict[Job, Any], out: Path, command: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Write results.json, the tables and the report; returns (rows, meta)."""
    from calmrl import __version__

    data = open_features_of(config.source)
    widths = {name: array.shape[1] for name, array in data.z.items() if name in (config.modalities or data.z)}
    known = {"rows": len(data), "modalities": widths, "source": data.source}
    rows, meta = collect(config, results, data.name or "data", known)
    meta = {"command": command, "version": __version__, **meta}
    content = {"rows": rows, "meta": meta}
    with new_file(out / "results.json", force=True) as draft:
        draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
    write_tables(content, out / "tables")
    write_page(build_page(read_results([out])), out / "report.html", force=True)
    return rows, meta
