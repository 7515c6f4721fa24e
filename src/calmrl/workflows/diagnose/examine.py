"""`diagnose`: everything that can be said of features before any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.patterns import Pattern, patterns
from calmrl.workflows.diagnose.models import FOLDS, aligner, deal, fit_folds, imputer, in_one_space
from calmrl.workflows.diagnose.predictable import directions, recoverable
from calmrl.workflows.diagnose.result import Diagnosis
from calmrl.workflows.diagnose.row_sample import describe, linked, pick, sample
from calmrl.workflows.diagnose.shift import anchor_shifts
from calmrl.workflows.diagnose.space import SHARED, pairs

LEAST_TOGETHER = 30  # rows that must have two modalities for one to be learned from the other
MOST_PATTERNS = 16  # patterns of holes that are tested one by one; the others are mostly a handful of rows


def diagnose(
    features: FeatureSet | Mapping[str, np.ndarray],
    present: np.ndarray | None = None,
    *,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Missing patterns, modality gap, predictability, anchor shift, and what filling in is expected to bring.

    Takes features as `open_features` gives them (memory-mapped ones are read in chunks), or `z` and `present` by the
    shared convention. Counts are over all rows; what needs a fit uses a sample of at most 5,000 rows in three folds:
    each row is tested by models that were fitted on the other two folds.
    """
    tell = progress or (lambda _: None)
    if not isinstance(features, FeatureSet):
        features = FeatureSet(dict(features), present)
    tell("counting")
    modalities = describe(features)
    z, seen = sample(features, seed)
    groups = linked(seen, LEAST_TOGETHER)
    found: dict[str, Any] = {
        "name": features.name,
        "rows": len(features),
        "sampled": len(seen),
        "modalities": modalities,
        "patterns": patterns(features.present, features.names),
        "groups": [tuple(features.names[j] for j in group) for group in groups],
    }
    if len(groups[0]) < 2:
        return Diagnosis(**found)
    rows = deal(*pick(z, seen, groups[0]), seed)
    holes = _holes(found["patterns"], rows.names)
    tell("predicting each modality from the others")
    given = [rows.z] * FOLDS
    models = fit_folds(rows, given, imputer(seed))
    known = directions(rows, models, seed)
    tell("looking for one space")
    spaces = [in_one_space(None, rows.z)] * FOLDS if len({a.shape[1] for a in rows.z.values()}) == 1 else None
    as_given = pairs(rows, spaces) if spaces is not None else []
    shared = bool(as_given) and min(pair.meet for pair in as_given) >= SHARED
    aligners = fit_folds(rows, given, aligner(seed))
    latent = [in_one_space(model, rows.z) for model in aligners]
    if spaces is None or not shared:
        spaces = latent
    tell("moving anchors")
    fillers = fit_folds(rows, spaces, imputer(seed))
    return Diagnosis(
        **found,
        tested=len(rows),
        directions=known,
        recoverable=recoverable(rows, models, holes[:MOST_PATTERNS], known),
        as_given=as_given,
        latent=pairs(rows, latent),
        shared_space=shared,
        shift=anchor_shifts(rows, spaces, fillers, holes, seed),
    )


def _holes(found: list[Pattern], names: tuple[str, ...]) -> list[tuple[np.ndarray, int]]:
    """What incomplete rows have of these modalities, and how many rows have exactly that, the most frequent first."""
    counts: Counter[tuple[bool, ...]] = Counter()
    for pattern in found:
        counts[tuple(name in pattern.modalities for name in names)] += pattern.rows
    return [(np.array(has), rows) for has, rows in counts.most_common() if any(has) and not all(has)]
