"""How good representations are: retrieval, classification, imputation, geometry, and how sure the numbers are."""

from calmrl.evaluate.classify import classification
from calmrl.evaluate.finetune import fine_tune, fine_tuned_classification
from calmrl.evaluate.fuse import fuse
from calmrl.evaluate.measures import (
    alignment,
    anchor_shift_rows,
    coverage,
    imputation_error,
    modality_gap,
    robustness,
    uniformity,
)
from calmrl.evaluate.pool import mixed_pool
from calmrl.evaluate.retrieve import retrieval
from calmrl.evaluate.scores import SCORES, scored_retrieval
from calmrl.evaluate.statistics import against_best, holm, mean_interval, paired_bootstrap, paired_t

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
