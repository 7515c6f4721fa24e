"""What every imputer promises."""

from functools import partial

import numpy as np
import pytest
import torch

from calmrl import CalibratedAlignment
from calmrl.imputers import IMPUTERS
from tests.support.latent_data import from_model, normalised_error, with_nan

NEURAL = {"latent_dim": 4, "hidden": 16, "epochs": 8, "batch_size": 40, "learning_rate": 2e-2}
SMALL = {
    "auto": {"candidates": ["gaussian", "kernel", "knn", "mean"]},
    "gaussian": {"latent_dim": 2},
    "mvae": NEURAL,
    "mopoe": NEURAL,
    "smil": NEURAL | {"priors": 8},
    "gfa": {"latent_dim": 3, "max_iter": 30},
}
MAKE = {name: partial(cls, **SMALL.get(name, {})) for name, cls in IMPUTERS.items()}
STREAMING = [name for name, cls in IMPUTERS.items() if hasattr(cls, "partial_fit")]


@pytest.fixture(autouse=True)
def one_thread():
    """The networks here are so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", list(IMPUTERS))
class TestContract:
    def test_observed_untouched_nothing_nan(self, name):
        z, present = from_model(n=120)
        holes = with_nan(z, present)
        filled, std = MAKE[name]().fit(holes).impute(holes, return_std=True)
        for j, key in enumerate(z):
            assert filled[key][present[:, j]].tobytes() == z[key][present[:, j]].tobytes()
            assert np.isfinite(filled[key]).all()
            assert np.isfinite(std[key]).all()
            assert (std[key][present[:, j]] == 0).all()

    def test_every_pattern_one_row_and_unseen(self, name):
        z, present = from_model(n=120)
        present[:, 0] = True  # patterns without m0 are never seen in training
        imp = MAKE[name]().fit(z, present)
        for code in range(1, 8):
            row = np.array([[bool(code & 1), bool(code & 2), bool(code & 4)]])
            filled = imp.transform({n: a[:1] for n, a in z.items()}, row)
            assert all(np.isfinite(a).all() for a in filled.values())

    def test_same_result_twice_and_after_saving(self, name, tmp_path):
        z, present = from_model(n=120)
        imp = MAKE[name]().fit(z, present)
        again = MAKE[name]().fit(z, present)
        imp.save(tmp_path / "saved")
        back = IMPUTERS[name].load(tmp_path / "saved")
        for key, values in imp.transform(z, present).items():
            np.testing.assert_array_equal(again.transform(z, present)[key], values)
            np.testing.assert_array_equal(back.transform(z, present)[key], values)

    def test_torch_in_torch_out(self, name):
        z, present = from_model(n=60)
        tensors = {n: torch.tensor(a, dtype=torch.float32) for n, a in z.items()}
        filled = MAKE[name]().fit(tensors, torch.tensor(present)).transform(tensors, torch.tensor(present))
        assert all(t.dtype == torch.float32 for t in filled.values())

    def test_inside_calibrated_alignment(self, name):
        z, present = from_model(n=60, widths=(4, 4, 4))
        imp = MAKE[name]().fit(z, present)
        tensors = {n: torch.tensor(a, requires_grad=True) for n, a in z.items()}
        mask = torch.tensor(present)
        align = CalibratedAlignment("pmrl", imputer=imp, update="frozen")
        value = align(tensors, mask)
        value.backward()
        assert all(torch.isfinite(t.grad).all() for t in tensors.values())
        fresh = CalibratedAlignment("pmrl", imputer=MAKE[name](), update="frozen")
        fresh.load_state_dict(align.state_dict())
        assert torch.equal(fresh(tensors, mask), value)

    def test_a_modality_that_never_varies_or_never_comes(self, name):
        z, present = from_model(n=60)
        z["m1"][:] = 3.0
        present[:, 2] = False
        present[:, 0] |= ~present.any(1)
        filled, std = MAKE[name]().fit(z, present).impute(z, present, return_std=True)
        assert all(np.isfinite(a).all() for a in [*filled.values(), *std.values()])
        np.testing.assert_allclose(filled["m1"], 3.0, atol=1e-5)

    def test_beats_nothing_but_the_mean(self, name):
        z, present = from_model(n=400)
        filled = MAKE[name]().fit(z, present).transform(z, present)
        assert normalised_error(filled, z, ~present) < (1.02 if name == "mean" else 0.7)


@pytest.mark.parametrize("name", [name for name in IMPUTERS if name != "gaussian"])  # which refuses such data
def test_rows_with_one_modality_each(name):
    z, _ = from_model(n=40)
    present = np.eye(3, dtype=bool)[np.arange(40) % 3]
    filled = MAKE[name]().fit(z, present).transform(z, present)
    assert all(np.isfinite(a).all() for a in filled.values())


@pytest.mark.parametrize("name", STREAMING)
def test_streaming_goes_on_after_saving(name, tmp_path):
    z, present = from_model(n=90)
    batches = [({n: a[i : i + 30] for n, a in z.items()}, present[i : i + 30]) for i in (0, 30, 60)]
    imp = MAKE[name]()
    for batch in batches[:2]:
        imp.partial_fit(*batch)
    imp.save(tmp_path / "half")
    back = IMPUTERS[name].load(tmp_path / "half").partial_fit(*batches[2])
    imp.partial_fit(*batches[2])
    for key, values in imp.transform(z, present).items():
        np.testing.assert_array_equal(back.transform(z, present)[key], values)


@pytest.mark.parametrize("name", ["mvae", "mopoe", "smil"])
def test_deviations_fit_the_errors(name):
    z, present = from_model(n=600)
    filled, std = MAKE[name]().fit(z, present).impute(z, present, return_std=True)
    ratios = [
        ((filled[n] - a) / np.where(std[n] > 0, std[n], 1.0))[~present[:, j]] for j, (n, a) in enumerate(z.items())
    ]
    assert 0.8 < np.sqrt(np.mean(np.concatenate([r.ravel() for r in ratios]) ** 2)) < 1.25


@pytest.mark.parametrize("name", ["mvae", "mopoe", "smil"])
def test_early_stopping_keeps_the_best_epoch(name):
    z, present = from_model(n=120)
    imp = IMPUTERS[name](**SMALL[name] | {"epochs": 40, "patience": 3}).fit(z, present)
    assert len(imp.errors_) < 40
    assert np.argmin(imp.errors_) == len(imp.errors_) - 4


def test_experts_skip_only_what_does_not_count() -> None:
    """The product and the loss, which leave out absent blocks, against the formulas over all blocks."""
    torch.manual_seed(0)
    network = IMPUTERS["mopoe"](latent_dim=3, hidden=8)
    network.widths_ = (4, 6, 2)
    experts = network._network()
    z = [torch.randn(9, width) for width in network.widths_]
    present = torch.rand(9, 3) < 0.6
    present[:, 0] |= ~present.any(1)
    present[3:, 2] = False
    encoded, decoded = experts.sets(present, torch.Generator().manual_seed(1))
    mean, variance = experts.product(z, encoded)
    total = 0.0
    generator = torch.Generator().manual_seed(1)
    experts.sets(present, generator)
    noise = torch.randn(mean.shape, generator=generator)
    for s in range(len(encoded)):
        for i in range(9):
            precision, weighted = torch.ones(3), torch.zeros(3)
            for m in range(3):
                if encoded[s, i, m]:
                    a, v = experts.encoders[m](z[m][i]).chunk(2)
                    precision, weighted = precision + (-v).exp(), weighted + a * (-v).exp()
            torch.testing.assert_close(variance[s, i], 1 / precision)
            torch.testing.assert_close(mean[s, i], weighted / precision)
            kl = 0.5 * (mean[s, i] ** 2 + variance[s, i] - 1 - variance[s, i].log()).sum()
            total = total + experts.beta * kl
            latents = mean[s, i] + variance[s, i].sqrt() * noise[s, i]
            for m in range(3):
                if decoded[s, i, m]:
                    total = total + 0.5 * ((experts.decoders[m](latents) - z[m][i]) ** 2).sum()
    loss = experts.loss(z, present, torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss, total / (len(encoded) * 9))
