"""What the aligner chooses among: features, row scaling, whitening, number of latents and prior."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

FEATURES = ("linear", "kernel")
WHITENING = {"linear": (0.5, 0.0, 0.75), "kernel": (0.5, 0.75)}  # the first is tried before the others
LATENTS = {"linear": (128, 64), "kernel": (256, 64)}
PRIORS = (300.0, 30.0, 100.0, 170.0, 550.0, 1000.0, 1800.0)  # the first is tried before the others


@dataclass(frozen=True)
class Candidate:
    """One setting of the closed form."""

    features: str  # "linear" or "kernel"
    unit_rows: bool
    whitening: float
    latent_dim: int
    prior: float

    def row(self) -> dict[str, Any]:
        """As a plain dict."""
        return asdict(self)


@dataclass(frozen=True)
class Grid:
    """The values allowed for each part of a candidate; a part that the user fixed has one value."""

    features: tuple[str, ...]
    unit_rows: tuple[bool, ...]
    whitening: dict[str, tuple[float, ...]]
    latent_dim: dict[str, tuple[int, ...]]
    prior: tuple[float, ...]

    def first(self, features: str, unit_rows: bool) -> Candidate:
        """The candidate that is tried first for these features and this row scaling."""
        return Candidate(features, unit_rows, self.whitening[features][0], self.latent_dim[features][0], self.prior[0])

    def whitenings(self, chosen: Candidate) -> list[Candidate]:
        """The same candidate with every whitening."""
        return [replace(chosen, whitening=power) for power in self.whitening[chosen.features]]

    def latents(self, chosen: Candidate) -> list[Candidate]:
        """The same candidate with every number of latents."""
        return [replace(chosen, latent_dim=count) for count in self.latent_dim[chosen.features]]

    def priors(self, chosen: Candidate) -> list[Candidate]:
        """The same candidate with the priors next to its own."""
        ladder = sorted(self.prior)
        place = ladder.index(chosen.prior)
        return [replace(chosen, prior=prior) for prior in ladder[max(0, place - 1) : place + 2]]

    def scalings(self, chosen: Candidate) -> list[Candidate]:
        """The same candidate with either row scaling."""
        return [replace(chosen, unit_rows=unit) for unit in self.unit_rows]


def make_grid(features: str, unit_rows: bool | str, whitening: Any, latent_dim: Any, prior: Any) -> Grid:
    """The grid from the arguments of the aligner; "auto" means all values."""
    return Grid(
        FEATURES if features == "auto" else (features,),
        (True, False) if unit_rows == "auto" else (bool(unit_rows),),
        {form: WHITENING[form] if whitening == "auto" else (float(whitening),) for form in FEATURES},
        {form: LATENTS[form] if latent_dim == "auto" else (int(latent_dim),) for form in FEATURES},
        PRIORS if prior == "auto" else (float(prior),),
    )
