"""The step of training says what it measured."""

from __future__ import annotations

import torch

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.losses import PMRLLoss
from calmrl.models.heads.model import Heads
from calmrl.training.step import Step
from calmrl.training.validate import calibration_scores


def batch(rows: int = 12) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = {name: torch.randn(rows, 4, generator=generator) for name in ("image", "text")}
    present = torch.ones(rows, 2, dtype=torch.bool)
    present[::3, 0] = False
    return x, present


def test_only_a_latent_model_takes_time_of_its_own():
    x, present = batch()
    plain = Step(Heads({"image": 4, "text": 4}, 3), PMRLLoss()).train()
    calibrated = Step(
        Heads({"image": 4, "text": 4}, 3), CalibratedAlignment(PMRLLoss(), imputer=GaussianImputer(2, random_state=0))
    ).train()
    for step in (plain, calibrated):
        step(x, present)
    assert plain.latent_seconds == 0.0
    assert calibrated.latent_seconds > 0.0


def test_two_rows_with_several_modalities_are_enough_to_measure_and_one_is_not():
    x, present = batch()
    align = CalibratedAlignment("pmrl", imputer=GaussianImputer(2, random_state=0).fit(x, present), update="frozen")
    for several, measured in ((2, True), (1, False)):
        alone = torch.ones(5, 2, dtype=torch.bool)
        alone[several:, 0] = False
        rows = {name: values[:5] for name, values in x.items()}
        assert ("imputation_nmse" in calibration_scores(align, rows, alone)) == measured
