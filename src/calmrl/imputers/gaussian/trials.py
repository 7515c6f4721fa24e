"""One trial of the search: fit on what is visible, stop when the error of what is hidden rises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calmrl._support.registry import lookup
from calmrl.imputers.gaussian.fitting import Settings, fit_settings
from calmrl.imputers.gaussian.held_out import HeldOut, hold_out
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.whitening import Whitening, principal_axes

PATIENCE = 3
FIRST = 3  # iterations from a random start that are not judged: the first ones still show the start
CRITERIA: dict[str, Callable[[HeldOut, Parameters], float]] = {"imputation": HeldOut.error, "retrieval": HeldOut.miss}

Ended = tuple[float, int, Parameters]  # held-out error, iterations, parameters: the best of a trial


@dataclass
class Trials:
    """Fits on rows of which some blocks are hidden; whitenings share their principal directions."""

    held: HeldOut
    criterion: str
    seed: int
    max_iter: int
    whitenings: dict[float, tuple[Whitening, HeldOut]] = field(default_factory=dict)

    def run(self, settings: Settings, base: Parameters | None) -> Ended:
        """Fit with early stopping on the held-out error, and keep the best number of iterations."""
        measure = lookup(CRITERIA, self.criterion, "criterion")
        track: list[Ended] = []
        first = FIRST if base is None else 1
        whitening, held = self._whitened(settings.whitening) if settings.whitening else (None, self.held)

        def best_step() -> Ended:
            return min([entry for entry in track if entry[1] >= first] or track[-1:], key=lambda entry: entry[0])

        def watch(step: int, params: Parameters, _: float) -> bool:
            track.append((measure(held, params), step, params))
            return step - best_step()[1] >= PATIENCE

        options: dict[str, Any] = {"seed": self.seed, "max_iter": self.max_iter, "tol": 1e-5, "after_step": watch}
        fit_settings(held.source, settings, base=base, **options)
        error, step, params = best_step()
        return error, step, params if whitening is None else whitening.back(params)

    def _whitened(self, power: float) -> tuple[Whitening, HeldOut]:
        if power not in self.whitenings:
            earlier = next(iter(self.whitenings.values()), None)
            axes = principal_axes(self.held.source) if earlier is None else earlier[0].axes
            whitening = Whitening(self.held.source, axes, power)
            self.whitenings[power] = whitening, self.held.inside(whitening)
        return self.whitenings[power]


@torch.no_grad()
def run_trial(settings: Settings, rows: tuple[dict[str, Any], Tensor], base: Parameters | None, *rest: Any) -> Ended:
    """One trial, wherever the engine works; which blocks are hidden follows from the seed."""
    criterion, seed, max_iter = rest
    return Trials(hold_out(*rows, seed), criterion, seed, max_iter).run(settings, base)
