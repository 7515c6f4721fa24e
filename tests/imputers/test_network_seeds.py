"""Networks as imputers: their seeds, what they hold out, the blocks they fill, and the device they follow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from calmrl.arrays import check
from calmrl.imputers import neural
from calmrl.imputers.neural import NeuralImputer
from calmrl.imputers.variational import Experts


class Zero(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.rand(()))
        self.seeds = []

    def loss(self, z, present, generator):
        self.seeds.append(generator.initial_seed())
        return self.start.square()

    def predict(self, z, present, with_std):
        return [torch.zeros_like(block) for block in z], [torch.ones_like(block) for block in z] if with_std else []


class Network(NeuralImputer):
    """`NeuralImputer` around that."""

    def _network(self):
        return Zero()

    def _prepare(self, network, z, present):
        self.prepared = [*getattr(self, "prepared", []), (z, present)]


def test_seeds_and_the_generator_of_others():
    z = {"a": np.random.default_rng(0).normal(size=(10, 2)), "b": np.random.default_rng(1).normal(size=(10, 2))}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    imputer = Network(random_state=3, epochs=2, batch_size=5).fit(z)
    assert torch.equal(torch.get_rng_state(), state)
    assert imputer.network_.seeds == [3, 3, 4, 4]
    assert not any(p.requires_grad for p in imputer.network_.parameters())
    imputer.partial_fit(z)
    assert imputer.network_.seeds[-1] == 3 + 4
    [(seen, mask)] = imputer.prepared  # before the first step, without what is held out
    assert int((~mask).sum()) == 2
    assert not any(block[~mask[:, m]].any() for m, block in enumerate(seen))
    begun = Network().partial_fit(z).partial_fit(z)
    [(seen, mask)] = begun.prepared
    assert mask.all()
    torch.testing.assert_close(seen[0].double().mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    torch.manual_seed(3)
    assert float(Network(random_state=3).partial_fit(z).steps_) == 1
    found = Network().get_params()
    assert found == {
        "latent_dim": 32, "hidden": 256, "epochs": 40, "batch_size": 128, "learning_rate": 2e-3, "patience": 10,
        "random_state": 0, "blocks": None,
    }  # fmt: skip
    assert neural.HELD_OUT == 0.1


@pytest.mark.parametrize(("both", "held"), [(10, 2), (1, 1), (0, 0)])
def test_every_row_keeps_one_block(both, held):
    """A tenth of the blocks, but no more than leave one to every row."""
    imputer = Network()
    imputer.seed_ = 0
    present = torch.ones(10, 2, dtype=torch.bool)
    present[both:, 1] = False
    hidden = imputer._held_out(present)
    assert int(hidden.sum()) == held
    assert (present & ~hidden).any(1).all()


def test_constant_columns_and_blocks_of_rows(monkeypatch):
    z = {"a": np.full((9, 2), 4.0), "b": np.random.default_rng(1).normal(size=(9, 2))}
    imputer = Network(epochs=1).fit(z)
    whole, std = imputer.impute({"b": z["b"]}, return_std=True)
    np.testing.assert_allclose(whole["a"], 4)
    assert not std["a"].any()
    present = np.ones((9, 2), bool)
    present[0, 0] = False
    views = check({"a": z["a"] + 3.0, "b": z["b"]}, present)
    assert imputer._scaled(views, 0, 9)[0].tolist() == [[0.0, 0.0]] + [[3.0, 3.0]] * 8  # in units of the data
    monkeypatch.setattr(neural, "FILL_BYTES", 64 * 4 * 2)
    sizes = []
    monkeypatch.setattr(
        imputer.network_, "predict", lambda z, p, s: (sizes.append(len(p)), Zero.predict(None, z, p, s))[1]
    )
    again = imputer.transform({"b": z["b"]})
    np.testing.assert_array_equal(again["a"], whole["a"])
    assert sizes == [2, 2, 2, 2, 1]


def test_what_was_learned_follows_the_device():
    imputer = Network(epochs=1).fit({"a": np.zeros((4, 2)), "b": np.ones((4, 1))})
    imputer._to(torch.device("meta"))
    assert {t.device.type for t in (imputer.count_, *imputer.mean_, *imputer.noise_)} == {"meta"}


def test_the_loss_of_experts_row_by_row():
    """Minus the ELBO times beta: KL of the product of experts, and half the squared error of what is decoded."""
    torch.manual_seed(0)
    present = torch.tensor([[True, True], [True, False]])
    z = [torch.randn(2, 4), torch.randn(2, 2)]

    class Both(Experts):
        def sets(self, present, generator):
            return present[None], present[None]

    experts = Both((4, 2), 3, 5, beta=0.3)
    loss = experts.loss(z, present, torch.Generator().manual_seed(1))
    noise = torch.randn((1, 2, 3), generator=torch.Generator().manual_seed(1))[0]
    total = torch.zeros(())
    for i in range(2):
        precision, weighted = torch.ones(3), torch.zeros(3)
        for m in range(2):
            if present[i, m]:
                out = experts.encoders[m](z[m][i])
                precision = precision + (-out[3:]).exp()
                weighted = weighted + (-out[3:]).exp() * out[:3]
        mean, variance = weighted / precision, 1 / precision
        total = total + 0.3 * 0.5 * (mean.square() + variance - 1 - variance.log()).sum()
        for m in range(2):
            if present[i, m]:
                guess = experts.decoders[m](mean + variance.sqrt() * noise[i])
                total = total + 0.5 * (guess - z[m][i]).square().sum()
    torch.testing.assert_close(loss, total / 2)
