"""The keys of `model: {kind: aligner}`."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge

from calmrl._support.arguments import Auto, Count, Fraction, NotNegative
from calmrl._support.section import Section


class AlignerSection(Section):
    """The arguments of `calmrl.Aligner`. `groups` names a column: rows with the same value stay in one fold. So does
    `relevant`: rows with the same value count as found for each other."""

    kind: Literal["aligner"]
    features: Literal["auto", "linear", "kernel"] = "auto"
    unit_rows: bool | Auto = "auto"
    whitening: Fraction | Auto = "auto"
    latent_dim: Count | Auto = "auto"
    prior: NotNegative | Auto = "auto"
    refine: Literal["auto", "never", "always"] = "auto"
    candidates: Count = 16
    folds: Annotated[int, Ge(2)] = 3
    landmarks: Count = 2000
    groups: str | None = None
    relevant: str | None = None
