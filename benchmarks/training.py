"""A calibrated training step against PMRL without calibration: linear heads, batch 64, d = 512, k = 4, L = 64, float32.

Both run the same step (heads, objective, backward, clipping, AdamW) on the same features, of which 30 % are missing.
Seconds are CPU time of one thread per step, the mean over interleaved steps; read the ratio.
`python -m benchmarks.training` prints the rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from calmrl import GaussianImputer
from calmrl.alignment import CalibratedAlignment
from calmrl.losses import PMRLLoss
from calmrl.models.heads import Heads
from calmrl.training.optimise import make_optimiser
from calmrl.training.step import Step

ROWS, WIDTH, LATENTS, MISSING = 64, 512, 64, 0.3
NAMES = ("vision", "audio", "text", "subtitle")
BATCHES, ROUNDS, WARM = 10, 40, 32


def batches(missing: float) -> list[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Features that share a factor, with holes; 0 in missing rows."""
    generator = torch.Generator().manual_seed(0)
    maps = {name: torch.randn(LATENTS, WIDTH, generator=generator) / LATENTS**0.5 for name in NAMES}
    made = []
    for _ in range(BATCHES):
        present = torch.rand(ROWS, len(NAMES), generator=generator) >= missing
        present[torch.arange(ROWS), torch.randint(len(NAMES), (ROWS,), generator=generator)] = True
        shared = torch.randn(ROWS, LATENTS, generator=generator)
        x = {name: shared @ maps[name] + torch.randn(ROWS, WIDTH, generator=generator) for name in NAMES}
        made.append(({n: torch.where(present[:, j, None], v, 0.0) for j, (n, v) in enumerate(x.items())}, present))
    return made


def trainer(objective: Any) -> Callable[[dict[str, torch.Tensor], torch.Tensor], None]:
    """One update of the weights, as a function of a batch."""
    torch.manual_seed(0)
    step = Step(Heads(dict.fromkeys(NAMES, WIDTH), WIDTH), objective).train()
    optimiser = make_optimiser(step, learning_rate=1e-5)

    def update(x: dict[str, torch.Tensor], present: torch.Tensor) -> None:
        optimiser.zero_grad()
        step(x, present).backward()
        torch.nn.utils.clip_grad_norm_(step.parameters(), 1.0)
        optimiser.step()

    return update


def timed(update: Callable[[dict[str, torch.Tensor], torch.Tensor], None], batch: Any) -> float:
    start = time.process_time()
    update(*batch)
    return time.process_time() - start


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    rows = []
    for missing, case in ((MISSING, "30 % missing"), (0.5, "50 % missing")):
        data = batches(missing)
        ours = trainer(CalibratedAlignment(PMRLLoss(), imputer=GaussianImputer(LATENTS), update="stepwise"))
        theirs = trainer(PMRLLoss())
        steps = [(timed(ours, batch), timed(theirs, batch)) for _ in range(ROUNDS) for batch in data]
        spent = torch.tensor(steps[WARM:])  # the model solves for its parameters now and then: means, not medians
        ours_s, theirs_s = spent.mean(0).tolist()
        patterns = statistics.mean(len(torch.unique(present, dim=0)) for _, present in data)
        rows.append(
            {
                "case": f"calibrated step, {case}",
                "ours_s": ours_s,
                "theirs_s": theirs_s,
                "ratio": ours_s / theirs_s,
                "target": "<= 1.2",
                "note": f"batch 64, d 512, k 4, L 64; {patterns:.1f} patterns per batch; ratio is calibrated / PMRL",
            }
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
