"""The keys of `model: {kind: heads}`."""

from typing import Literal

from calmrl._support.arguments import Count, NotNegative
from calmrl._support.section import Section


class HeadsSection(Section):
    """Projectors on features. `init: latent` starts linear heads from a latent model of the features."""

    kind: Literal["heads"]
    width: Count = 512
    hidden: Count | None = None
    standardize: Literal["scale", "whiten"] | None = "scale"
    init: Literal["latent", "random"] = "random"
    latent_prior: NotNegative = 100.0
    latent_iterations: Count = 10
    latent_rows: Literal["all", "complete"] = "all"
