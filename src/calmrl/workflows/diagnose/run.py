"""`diagnose`: features in, a diagnosis out, and its directory: report.html, report.md, figures and diagnosis.json."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from calmrl._support.output import WRITTEN_BY, check_free, new_directory
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.protocols import Progress, no_progress
from calmrl.report import write_page
from calmrl.workflows.diagnose.examine import Diagnosis, examine
from calmrl.workflows.diagnose.page import as_page


def diagnose(
    features: FeatureSet | Mapping[str, np.ndarray] | str | Path,
    present: np.ndarray | None = None,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
    command: str = "",
    progress: Progress = no_progress,
) -> Diagnosis:
    """Missing patterns, modality gap, predictability, anchor shift, and the expected gain of imputing; no training.

    Counts are over all rows; what needs a fit uses a sample of at most 5,000 rows in three folds: each row is tested by
    models that were fitted on the other two folds.

    Parameters
    ----------
    features: a feature directory or file, what `open_features` gives (memory-mapped ones are read in chunks), or `z` of
        the shared convention.
    present: bool (N, k), with `z`.
    out: a directory to write report.html, report.md, figures and diagnosis.json into.
    seed: which rows are drawn, and their folds.
    force: replace an earlier output of calmrl.
    command: what the report shows as the way to repeat it.
    progress: called with (steps done, of how many, what is being done); 0 of 0 where that is not known.
    """
    if out is not None:
        check_free(Path(out), force=force)
    if isinstance(features, (str, Path)):
        features = open_features(Path(features))
    elif not isinstance(features, FeatureSet):
        features = FeatureSet(dict(features), present)
    diagnosis = examine(features, seed, progress)
    if out is not None:
        with new_directory(Path(out), force=force) as draft:
            _write(diagnosis, draft, command or f"calmrl.workflows.diagnose(..., seed={seed})")
    return diagnosis


def _write(diagnosis: Diagnosis, folder: Path, command: str) -> None:
    numbers = {"command": command, **diagnosis.as_dict()}
    (folder / "diagnosis.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    write_page(as_page(diagnosis, command), folder / "report.html")
    (folder / "config.yaml").write_text(f"{WRITTEN_BY}: {command}\n", encoding="utf-8")
