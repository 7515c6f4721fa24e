"""How networks are trained as imputers: batches, learning rate, early stopping, held-out blocks and deviations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from calmrl.arrays import check
from calmrl.data.hiding import hide
from calmrl.errors import InputError
from calmrl.imputers import SMILImputer, neural
from calmrl.imputers.neural import NeuralImputer, one_of, some_of
from calmrl.imputers.variational import DRAWS, LOG_VARIANCE, MoPoEImputer, MVAEImputer


class Constant(nn.Module):
    """Guesses the same for every entry, and remembers what it was trained on."""

    def __init__(self):
        super().__init__()
        self.guess = nn.Parameter(0 * torch.rand(()))  # it draws from torch's generator, as weights do
        self.seen, self.seeds = [], []

    def loss(self, z, present, generator):
        self.seen.append((z, present))
        self.seeds.append(generator.initial_seed())
        return 0 * self.guess.square() + sum(block.sum() for block in z) * 0 + self.guess

    def predict(self, z, present, with_std):
        means = [self.guess.expand(block.shape) for block in z]
        return means, [torch.full_like(block, 0.25) for block in z] if with_std else []


class Plain(NeuralImputer):
    """`NeuralImputer` around that."""

    def _network(self):
        return Constant()

    def _prepare(self, network, z, present):
        self.prepared = [*getattr(self, "prepared", []), (z, present)]

    def _step(self, z, present, generator):
        self.rates = [*getattr(self, "rates", []), self.optimiser_.param_groups[0]["lr"]]
        super()._step(z, present, generator)


def rows(n=50, seed=0):
    rng = np.random.default_rng(seed)
    return {"a": 3 * rng.normal(size=(n, 2)) + 5, "b": rng.normal(size=(n, 3))}, np.ones((n, 2), bool)


def test_batches_and_learning_rate():
    z, present = rows()
    imputer = Plain(epochs=3, batch_size=20, learning_rate=0.1, patience=99).fit(z, present)
    sizes = [len(mask) for _, mask in imputer.network_.seen]
    assert sizes == [20, 20, 10] * 3
    np.testing.assert_allclose(imputer.rates, [0.1 * (1 - step / 9) for step in range(9)])
    assert imputer.steps_ == 9
    assert imputer.optimiser_.param_groups[0]["lr"] == 0.1
    first = [torch.cat([z[0] for z, _ in imputer.network_.seen[3 * e : 3 * e + 3]]) for e in range(2)]
    assert not torch.equal(first[0], first[1])  # another order in every epoch
    torch.testing.assert_close(first[0].sort(0).values, first[1].sort(0).values)
    assert len(imputer.errors_) == 3
    scaled = (z["a"] - z["a"].mean(0)) / np.sqrt(z["a"].var(0).mean())
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))[:20]  # of the second epoch
    (block, _), mask = imputer.network_.seen[3]
    np.testing.assert_allclose(block[mask[:, 0]], scaled[order][mask[:, 0]], rtol=1e-5)


@pytest.mark.parametrize(("patience", "epochs"), [(1, 2), (3, 4)])
def test_it_stops_when_held_out_blocks_get_no_better(patience, epochs):
    """The guess moves away from 0, the mean, with every step: the first epoch is the best."""
    z, present = rows()
    imputer = Plain(epochs=20, batch_size=50, learning_rate=0.5, patience=patience).fit(z, present)
    assert len(imputer.errors_) == epochs
    assert imputer.errors_ == sorted(imputer.errors_)
    assert float(imputer.network_.guess) == pytest.approx(-0.5, abs=1e-3)  # one step of Adam


def test_a_tenth_of_the_blocks_is_held_out_and_measures_what_is_left():
    z, present = rows()
    imputer = Plain(epochs=1, batch_size=50, learning_rate=0.3).fit(z, present)
    hidden = present & ~hide(present, 0.1, np.random.default_rng(0))
    assert hidden.sum() == 10
    (seen, mask), *_ = imputer.network_.seen
    assert int((~mask).sum()) == 10
    assert not any(block[~mask[:, m]].any() for m, block in enumerate(seen))
    guess = float(imputer.network_.guess)
    scaled = {}
    wrong = total = 0.0
    for m, (name, values) in enumerate(z.items()):
        scale = np.sqrt(values.var(0).mean())
        scaled[name] = (values - values.mean(0)) / scale
        truth = scaled[name][hidden[:, m]]
        wrong, total = wrong + ((guess - truth) ** 2).sum(), total + (truth**2).sum()
        square = ((guess - truth) ** 2).mean(0)
        np.testing.assert_allclose(imputer.noise_[m], np.maximum(square - 0.25, 0.05 * square), rtol=1e-5)
    assert imputer.errors_ == pytest.approx([wrong / total])
    filled, std = imputer.impute({"a": z["a"]}, return_std=True)
    scale = np.sqrt(z["b"].var(0).mean())
    np.testing.assert_allclose(filled["b"], np.tile(guess * scale + z["b"].mean(0), (50, 1)), rtol=1e-6)
    np.testing.assert_allclose(std["b"], np.tile(np.sqrt(0.25 + imputer.noise_[1].numpy()) * scale, (50, 1)), rtol=1e-6)


def test_rows_with_one_modality_have_nothing_to_hold_out():
    z, _ = rows(20)
    present = np.eye(2, dtype=bool)[np.arange(20) % 2]
    imputer = Plain(epochs=3, batch_size=20).fit(z, present)
    assert imputer.errors_ == []
    assert imputer.steps_ == 3
    assert all(torch.equal(noise, torch.ones_like(noise)) for noise in imputer.noise_)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "learning_rate", "patience"])
def test_numbers_that_must_be_positive(name):
    with pytest.raises(InputError, match=f"{name} must be positive; got 0"):
        Plain(**{name: 0}).fit(*rows())


# ---- which sets are trained on


def test_one_and_some_of_what_a_row_has():
    generator = torch.Generator().manual_seed(0)
    present = torch.tensor([[True, True, True], [False, True, True], [False, False, True]]).repeat(2000, 1)
    one, some = one_of(present, generator), some_of(present, generator)
    assert (one.sum(1) == 1).all()
    assert not (one & ~present).any()
    assert some.any(1).all()
    assert not (some & ~present).any()
    np.testing.assert_allclose(one[0::3].float().mean(0), [1 / 3] * 3, atol=0.04)
    # of three each with chance 1/2; of the eighth that would have none, one
    np.testing.assert_allclose(some[0::3].float().mean(0), [0.5 + 1 / 24] * 3, atol=0.04)


def network(cls):
    imputer = cls(latent_dim=2, hidden=4)
    imputer.widths_ = (3, 2)
    torch.manual_seed(0)
    return imputer._network()


def test_sets_of_the_two_networks():
    present = torch.tensor([[True, True], [True, False]]).repeat(2000, 1)
    generator = torch.Generator().manual_seed(0)
    encoded, decoded = network(MoPoEImputer).sets(present, generator)
    assert encoded.shape == (2, 4000, 2)
    assert torch.equal(decoded, present.expand(2, -1, -1))
    encoded, decoded = network(MVAEImputer).sets(present, generator)
    assert encoded.shape == (1, 4000, 2)
    assert torch.equal(encoded, decoded)
    assert torch.equal(encoded[0, 1::2], present[1::2])  # a row that lacks something stays as it is
    whole = encoded[0, 0::2].all(1).float().mean()
    assert float(whole) == pytest.approx(0.5 + 0.5 * 0.25, abs=0.04)  # half of the others, and their whole subsets


def test_deviations_of_decoded_latents():
    experts = network(MoPoEImputer)
    z, present = [torch.randn(4, 3), torch.randn(4, 2)], torch.ones(4, 2, dtype=torch.bool)
    means, variances = experts.predict(z, present, True)
    assert experts.noise.shape == (DRAWS, 1, 2) == (8, 1, 2)
    torch.testing.assert_close(experts.noise[:4], -experts.noise[4:])
    centre, variance = experts.product(z, present)
    for m, decode in enumerate(experts.decoders):
        torch.testing.assert_close(means[m], decode(centre))
        drawn = torch.stack([decode(centre + variance.sqrt() * noise) for noise in experts.noise])
        torch.testing.assert_close(variances[m], (drawn - means[m]).square().mean(0))
    assert experts.predict(z, present, False)[1] == []
    assert LOG_VARIANCE == 8.0


def test_experts_are_never_too_sure():
    experts = network(MoPoEImputer)
    with torch.no_grad():
        experts.encoders[0].linear.bias[2:] = torch.tensor([100.0, -100.0])
        experts.encoders[0].linear.weight.zero_()
        experts.encoders[0].out.weight.zero_()
    _, variance = experts.product([torch.zeros(1, 3), torch.zeros(1, 2)], torch.tensor([[True, False]]))
    np.testing.assert_allclose(variance[0].detach(), [1 / (1 + np.exp(-8)), 1 / (1 + np.exp(8))], rtol=1e-5)


# ---- priors of a modality


def smil(priors=3, n=9):
    imputer = SMILImputer(latent_dim=2, hidden=4, priors=priors, inner_rate=0.1, random_state=1)
    imputer.widths_, imputer.seed_ = (3, 2), 1
    torch.manual_seed(0)
    made = imputer._network()
    generator = torch.Generator().manual_seed(0)
    z = [torch.randn(n, 3, generator=generator), torch.randn(n, 2, generator=generator)]
    present = torch.ones(n, 2, dtype=torch.bool)
    present[0, 1] = False
    z[1][0] = 0.0
    imputer._prepare(made, z, present)
    return made, z, present


@pytest.mark.parametrize(("priors", "own"), [(9, True), (8, False), (20, True)])
def test_few_rows_are_priors_of_their_own(priors, own):
    made, z, _ = smil(priors)
    assert torch.equal(made.priors(0)[:9], z[0][: min(9, priors)]) == own
    assert not made.priors(0)[9:].any()
    assert made.priors(1).shape == (priors, 2)
    if priors == 8:  # as many rows as priors have the second modality
        assert torch.equal(made.priors(1), z[1][1:])


@pytest.mark.parametrize("n", [1, 9])
def test_loss_of_both_halves(n):
    made, z, present = smil(priors=3, n=max(n, 2))
    z, present = [block[:n] for block in z], present[:n]
    sets = some_of(present, torch.Generator().manual_seed(4))

    def error(parameters, part):
        encoders = [
            {key.removeprefix(f"{group}.{m}."): p for key, p in parameters.items() if key.startswith(f"{group}.{m}.")}
            for group in ("encoders", "weights")
            for m in range(2)
        ]
        call = torch.func.functional_call
        codes = torch.stack([call(made.encoders[m], encoders[m], (z[m][part],)) for m in range(2)], 1)
        code = (codes * sets[part][..., None]).sum(1) / sets[part].sum(1, keepdim=True)
        total = 0.0
        for m in range(2):
            weight = call(made.weights[m], encoders[2 + m], (code,)).softmax(1)
            square = (weight @ made.priors(m) - z[m][part]).square().sum(1)
            total = total + square[present[part, m]].sum()
        return total / len(code)

    own = dict(made.named_parameters())
    half = n // 2
    if half:
        first = error(own, slice(half))
        slopes = torch.autograd.grad(first, list(own.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(own.items(), slopes, strict=True)}
        expected = first + error(moved, slice(half, None))
    else:
        expected = error(own, slice(None))
    got = made.loss(z, present, torch.Generator().manual_seed(4))
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(loss, list(own.values()), allow_unused=True) for loss in (got, expected)]
    for one, two in zip(*gradients, strict=True):  # through the inner step, too
        torch.testing.assert_close(one, two)


# ---- seeds, blocks of rows, devices


def test_seeds_and_the_generator_of_others():
    z = {"a": np.random.default_rng(0).normal(size=(10, 2)), "b": np.random.default_rng(1).normal(size=(10, 2))}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    imputer = Plain(random_state=3, epochs=2, batch_size=5).fit(z)
    assert torch.equal(torch.get_rng_state(), state)
    assert imputer.network_.seeds == [3, 3, 4, 4]
    assert not any(p.requires_grad for p in imputer.network_.parameters())
    imputer.partial_fit(z)
    assert imputer.network_.seeds[-1] == 3 + 4
    [(seen, mask)] = imputer.prepared  # before the first step, without what is held out
    assert int((~mask).sum()) == 2
    assert not any(block[~mask[:, m]].any() for m, block in enumerate(seen))
    begun = Plain().partial_fit(z).partial_fit(z)
    [(seen, mask)] = begun.prepared
    assert mask.all()
    torch.testing.assert_close(seen[0].double().mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    torch.manual_seed(3)
    assert float(Plain(random_state=3).partial_fit(z).steps_) == 1
    assert neural.HELD_OUT == 0.1


def test_constant_columns_and_blocks_of_rows(monkeypatch):
    z = {"a": np.full((9, 2), 4.0), "b": np.random.default_rng(1).normal(size=(9, 2))}
    imputer = Plain(epochs=1).fit(z)
    whole, std = imputer.impute({"b": z["b"]}, return_std=True)
    np.testing.assert_allclose(whole["a"], 4)
    assert not std["a"].any()
    present = np.ones((9, 2), bool)
    present[0, 0] = False
    views = check({"a": z["a"] + 3.0, "b": z["b"]}, present)
    assert imputer._scaled(views, 0, 9)[0].tolist() == [[0.0, 0.0]] + [[3.0, 3.0]] * 8  # in units of the data
    monkeypatch.setattr(neural, "FILL_BYTES", 64 * 4 * 2)
    sizes, predict = [], imputer.network_.predict
    monkeypatch.setattr(imputer.network_, "predict", lambda z, p, s: sizes.append(len(p)) or predict(z, p, s))
    again = imputer.transform({"b": z["b"]})
    np.testing.assert_array_equal(again["a"], whole["a"])
    assert sizes == [2, 2, 2, 2, 1]


def test_what_was_learned_follows_the_device():
    imputer = Plain(epochs=1).fit({"a": np.zeros((4, 2)), "b": np.ones((4, 1))})
    imputer._to(torch.device("meta"))
    assert {t.device.type for t in (imputer.count_, *imputer.mean_, *imputer.noise_)} == {"meta"}
