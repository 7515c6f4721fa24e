"""Everything that can be said of features before any training."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.patterns import ModalityPattern, patterns
from calmrl.workflows.diagnose.models import FOLDS, Progress, aligner, deal, fit_folds, imputer, in_one_space
from calmrl.workflows.diagnose.predictable import directions, recoverable
from calmrl.workflows.diagnose.result import Diagnosis
from calmrl.workflows.diagnose.row_sample import describe, linked, pick, sample
from calmrl.workflows.diagnose.shift import anchor_shifts
from calmrl.workflows.diagnose.space import SHARED, pairs

LEAST_TOGETHER = 30  # rows that must have two modalities for one to be learned from the other
MOST_PATTERNS = 16  # patterns of holes that are tested one by one; the others are mostly a handful of rows


def examine(features: FeatureSet, seed: int, progress: Progress) -> Diagnosis:
    """Count over all rows, fit on a sample, and test each row by models that did not see it."""
    progress("counting", 0, 0)
    modalities = describe(features)
    z, seen = sample(features, seed)
    groups = linked(seen, LEAST_TOGETHER)
    counts: dict[str, Any] = {
        "name": features.name,
        "rows": len(features),
        "sampled": len(seen),
        "modalities": modalities,
        "patterns": patterns(features.present, features.names),
        "groups": [tuple(features.names[j] for j in group) for group in groups],
    }
    if len(groups[0]) < 2:
        return Diagnosis(**counts)
    rows = deal(*pick(z, seen, groups[0]), seed)
    holes = _holes(counts["patterns"], rows.names)
    given = [rows.z] * FOLDS
    models = fit_folds(rows, given, imputer(seed), progress, "predicting each modality from the others")
    predicted = directions(rows, models, seed, progress)
    progress("looking for one space", 0, 0)
    spaces = [in_one_space(None, rows.z)] * FOLDS if len({a.shape[1] for a in rows.z.values()}) == 1 else None
    as_given = pairs(rows, spaces) if spaces is not None else []
    shared = bool(as_given) and min(pair.meet for pair in as_given) >= SHARED
    aligners = fit_folds(rows, given, aligner(seed), progress, "looking for one space")
    latent = [in_one_space(model, rows.z) for model in aligners]
    if spaces is None or not shared:
        spaces = latent
    imputers = fit_folds(rows, spaces, imputer(seed), progress, "moving anchors")
    return Diagnosis(
        **counts,
        tested=len(rows),
        directions=predicted,
        recoverable=recoverable(rows, models, holes[:MOST_PATTERNS], predicted),
        as_given=as_given,
        latent=pairs(rows, latent),
        shared_space=shared,
        shift=anchor_shifts(rows, spaces, imputers, holes, seed),
    )


def _holes(every: list[ModalityPattern], names: tuple[str, ...]) -> list[tuple[np.ndarray, int]]:
    """What incomplete rows have of these modalities, and how many rows have exactly that, the most frequent first."""
    counts: Counter[tuple[bool, ...]] = Counter()
    for pattern in every:
        counts[tuple(name in pattern.modalities for name in names)] += pattern.rows
    return [(np.array(has), rows) for has, rows in counts.most_common() if any(has) and not all(has)]
