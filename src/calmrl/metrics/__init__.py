"""How good representations are: retrieval, classification, imputation, geometry, and how sure the numbers are."""

from calmrl.metrics.classify import classification
from calmrl.metrics.finetune import fine_tune, fine_tuned_classification
from calmrl.metrics.fuse import fuse
from calmrl.metrics.measures import (
    alignment,
    anchor_shift_rows,
    coverage,
    imputation_error,
    modality_gap,
    robustness,
    uniformity,
)
from calmrl.metrics.pool import mixed_pool
from calmrl.metrics.retrieve import retrieval
from calmrl.metrics.scores import SCORES, scored_retrieval
from calmrl.metrics.significance import against_best, holm, mean_interval, paired_bootstrap, paired_t

__all__ = [
    "SCORES",
    "against_best",
    "alignment",
    "anchor_shift_rows",
    "classification",
    "coverage",
    "fine_tune",
    "fine_tuned_classification",
    "fuse",
    "holm",
    "imputation_error",
    "mean_interval",
    "mixed_pool",
    "modality_gap",
    "paired_bootstrap",
    "paired_t",
    "retrieval",
    "robustness",
    "scored_retrieval",
    "uniformity",
]
