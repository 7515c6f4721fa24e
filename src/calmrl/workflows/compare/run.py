"""`compare`: all jobs of a comparison, and its directory.

`config.yaml`, `jobs/`, `results.json`, `tables/`, `report.html`, `train/` (configs of the best rows), `models/` (if kept).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from calmrl._support.output import WRITTEN_BY, check_directory, new_file
from calmrl.config import CompareConfig, dump, load
from calmrl.errors import InputError
from calmrl.metrics.measures import TidyRow
from calmrl.report import Results, build_page, results_of, write_page
from calmrl.report.paper_tables import write_tables
from calmrl.report.write import import_drawing
from calmrl.workflows.compare.all_jobs import Beside, Progress, run_beside
from calmrl.workflows.compare.best import BestRow, best_rows, keep_models
from calmrl.workflows.compare.collect import collect
from calmrl.workflows.compare.plan import plan


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: tidy rows, the sentences about them, remarks on the data, and all as the report reads it."""

    directory: Path
    rows: list[TidyRow]
    words: list[str]
    notes: list[str]
    results: Results
    best: list[BestRow]
    models: list[Path]  # of the best rows, where they were kept
    beside: dict[str, Any] = field(default_factory=dict)  # what was done beside it -> what came of it


def compare(
    config: CompareConfig | str | Path,
    out: str | Path,
    *,
    command: str = "",
    keep: Literal["best"] | None = None,
    beside: Beside | None = None,
    progress: Progress = lambda finished, total, text: None,
) -> Comparison:
    """Compare methods on the same rows, with the same number of steps and trials, chosen on validation rows.

    Parameters
    ----------
    config: a config of kind compare: an object, a file, or the name of a shipped one.
    out: the directory to write. A comparison that was stopped goes on there.
    command: what the report shows as the way to repeat it.
    keep: "best" trains the best row of every data set and setting once more and keeps its model, under `out/models`.
    beside: other work for the same processes, what it is -> a function that they can import, without arguments; it may
        write into `out`. `Comparison.beside` has what the functions return.
    progress: called as `progress(finished, total, text)` after every job.

    Examples
    --------
    >>> compare("demo", "demo-out").words  # doctest: +SKIP
    """
    if not isinstance(config, CompareConfig):
        loaded = load(str(config), kind="compare")
        assert isinstance(loaded, CompareConfig)
        config = loaded
    out = Path(out)
    check_directory(out)
    planned = plan(config)
    _prepare(config, out)
    results, others = run_beside(config, out / "jobs", progress, planned.jobs, beside, import_drawing)
    content = collect(config, results, planned.notes, command)
    with new_file(out / "results.json", force=True) as draft:
        draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
    write_tables(content, out / "tables")
    read = results_of({out / "results.json": content})
    write_page(build_page(read), out / "report.html", force=True)
    best = best_rows(config, results, content["rows"], out)
    models = keep_models(config, results, best, out) if keep == "best" else []
    meta = content["meta"]
    return Comparison(out, content["rows"], meta["words"], meta["notes"], read, best, models, others)


def _prepare(config: CompareConfig, out: Path) -> None:
    """Make the directory, or find a comparison in it that can go on."""
    path = out / "config.yaml"
    if path.is_file() and path.read_text(encoding="utf-8").startswith(WRITTEN_BY):
        load(path, kind="compare")  # a directory of another command is an error here
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists and holds something else; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    dump(config, path, force=True)
