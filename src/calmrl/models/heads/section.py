"""The keys of `model: {kind: heads}`."""

from typing import Literal

from calmrl._support.arguments import Count, NotNegative
from calmrl._support.section import Section


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
