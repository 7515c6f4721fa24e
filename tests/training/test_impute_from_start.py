"""Imputing from the representations at the start of a stage, and the regime in which the paper claims a gain."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from calmrl import CalibratedAlignment
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.losses import PMRLLoss
from calmrl.workflows.from_config import build_step, build_trainer, open_data
from tests.support.train_data import config

NAMES = ("image", "text", "audio")


def unit_rows(seed, n=40, d=6):
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, d, generator=generator, dtype=torch.float64)
    noisy = {name: shared + 0.5 * torch.randn(n, d, generator=generator, dtype=torch.float64) for name in NAMES}
    return {name: normalize(rows, dim=1) for name, rows in noisy.items()}


def test_missing_vectors_come_from_the_start_and_observed_ones_from_now():
    start, now = unit_rows(0), {name: rows.requires_grad_() for name, rows in unit_rows(1).items()}
    present = torch.rand(40, 3, generator=torch.Generator().manual_seed(2)) < 0.6
    present[:, 1] |= ~present.any(1)
    imputer = GaussianImputer(latent_dim=3, max_iter=10, tol=1e-2).fit(start, present)
    align = CalibratedAlignment("pmrl", imputer=imputer, update="frozen", impute_from="start")
    imputed = imputer.transform(start, present)
    by_hand = {
        name: torch.where(present[:, j, None], now[name], normalize(imputed[name], dim=1))
        for j, name in enumerate(NAMES)
    }
    expected = PMRLLoss()(by_hand, torch.ones_like(present))
    value = align(now, present, start=start)
    torch.testing.assert_close(value, expected)
    current = CalibratedAlignment("pmrl", imputer=imputer, update="frozen")(now, present)
    assert abs(float((current - value).detach())) > 1e-3  # the premise: the two differ
    for g, h in zip(*(torch.autograd.grad(v, list(now.values())) for v in (value, expected)), strict=True):
        torch.testing.assert_close(g, h)


def test_start_and_the_option_go_together():
    z, imputer = unit_rows(0), GaussianImputer(latent_dim=2)
    for options, more in (({}, {"start": z}), ({"impute_from": "start"}, {})):
        with pytest.raises(InputError, match='start and impute_from="start" go together'):
            CalibratedAlignment("pmrl", imputer=imputer, **options)(z, None, **more)
    with pytest.raises(InputError, match="impute_from must be current or start; got 'begin'"):
        CalibratedAlignment("pmrl", imputer=imputer, impute_from="begin")


def test_the_trainer_remembers_the_model_at_the_start_of_each_stage(tmp_path):
    stages = [{"name": "one", "steps": 3}, {"name": "two", "steps": 3}]
    cfg = config(tmp_path, method="calmrl-start", stages=stages)
    data = open_data(cfg)
    step = build_step(cfg, data)
    trainer = build_trainer(cfg, data, step, None)
    seen = []
    remember = step.remember_start

    def recorded():
        remember()
        seen.append(
            all(torch.equal(a, b) for a, b in zip(step.start.parameters(), step.model.parameters(), strict=True))
        )

    step.remember_start = recorded
    trainer.run()
    assert seen == [True, True]
    moved = [not torch.equal(a, b) for a, b in zip(step.start.parameters(), step.model.parameters(), strict=True)]
    assert any(moved)  # the model went on, the memory did not
    assert not any(parameter.requires_grad for parameter in step.start.parameters())
