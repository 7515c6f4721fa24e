"""What imputing features on disk gives back, however it is done."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IMPUTE_BYTES = 1 << 25  # rows are imputed in blocks of about this size

Progress = Callable[[int, int], None]  # rows done, rows in all


@dataclass(frozen=True)
class Imputation:
    """What `impute` wrote at `path`: of the `blocks` (rows x modalities), `imputed` were missing.

    `damaged` counts, per modality, observed blocks that hold values that are not finite and were imputed with the others.
    `choice` is what an imputer that chooses has chosen: held-out errors, weights per modality, scales of deviations.
    """

    path: Path
    rows: int
    blocks: int
    imputed: int
    choice: dict[str, Any] | None = None
    damaged: dict[str, int] = field(default_factory=dict)
