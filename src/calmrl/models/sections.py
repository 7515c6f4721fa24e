"""The keys of `model` for heads and aligners; apart from the models, so that configs are read without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge

from calmrl._support.section import Section
from calmrl._support.signatures import Auto, Count, Fraction, NotNegative


class HeadsSection(Section):
    """Projectors on features. `init: latent` starts heads from a latent model of the features.

    `standardize` is the form of the features: turned and scaled, mildly whitened as well, or the kernel features of the
    aligner, with rows scaled to length one or ("kernel-plain") as they are.
    """

    kind: Literal["heads"]
    width: Count = 512
    hidden: Count | None = None
    standardize: Literal["scale", "whiten", "kernel", "kernel-plain"] | None = "scale"
    init: Literal["latent", "random"] = "random"
    latent_prior: NotNegative = 100.0
    latent_iterations: Count = 10
    latent_rows: Literal["all", "complete"] = "all"


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
