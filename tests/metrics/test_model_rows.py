"""What is measured on rows that lack a modality which the model knows."""

from __future__ import annotations

import torch

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.metrics.model_rows import measure_rows


def test_a_modality_that_no_test_row_has_does_not_hinder_the_others():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(60, 3, generator=generator)
    names = ("vision", "audio", "text", "subtitle")
    z = {
        name: torch.nn.functional.normalize(
            shared @ torch.randn(3, 5, generator=generator) + 0.1 * torch.randn(60, 5, generator=generator), dim=1
        )
        for name in names
    }
    align = CalibratedAlignment(imputer=GaussianImputer(latent_dim=3, random_state=0).fit(z), update="frozen").eval()
    present = torch.ones(60, 4, dtype=torch.bool)
    present[:, 3] = False
    left_out: list[str] = []
    rows = measure_rows(["imputation", "shift"], left_out, z=z, present=present, align=align)
    assert left_out == []
    tasks = {row["task"] for row in rows if row["metric"] == "mse"}
    assert {"vision->audio", "vision,text->audio"} <= tasks
    assert not any("subtitle" in task for task in tasks)
    shift = {row["task"]: row["value"] for row in rows if row["metric"] == "anchor_shift"}
    assert shift["calibrated"] < shift["observed"]
