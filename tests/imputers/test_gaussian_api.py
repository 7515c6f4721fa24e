"""What users rely on: inputs of every kind, bit-identical outputs, gradients, streaming, saving, errors."""

import warnings

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers import GaussianLatent
from calmrl.latent.em import Settings
from calmrl.latent.rows import open_source
from tests.support.latent_data import from_model, with_nan


@pytest.fixture(scope="module")
def data():
    return from_model(n=200)


@pytest.fixture(scope="module")
def model(data):
    return GaussianImputer(2).fit(*data)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_in_numpy_out_and_observed_entries_untouched(data, dtype):
    z, present = data
    z = {name: a.astype(dtype) for name, a in with_nan(z, present).items()}
    filled, std = GaussianImputer(2).fit(z).impute(z, return_std=True)
    for j, name in enumerate(z):
        assert isinstance(filled[name], np.ndarray)
        assert filled[name].dtype == dtype
        assert np.isfinite(filled[name]).all()
        assert filled[name][present[:, j]].tobytes() == z[name][present[:, j]].tobytes()
        assert (std[name][~present[:, j]] > 0).all()
        assert (std[name][present[:, j]] == 0).all()


def test_values_in_missing_rows_are_never_read(data, model):
    z, present = data
    poisoned = {n: np.where(present[:, [j]], a, [np.nan, np.inf][j % 2]) for j, (n, a) in enumerate(z.items())}
    again = GaussianImputer(2).fit(poisoned, present)
    for name in z:
        np.testing.assert_array_equal(again.W_[name], model.W_[name])
        np.testing.assert_array_equal(again.transform(poisoned, present)[name], model.transform(z, present)[name])


def test_new_rows_with_modalities_left_out(data, model):
    z, _ = data
    only = {"m1": z["m1"][:5]}
    filled = model.transform(only)
    assert list(filled) == ["m0", "m1", "m2"]
    whole = {name: np.full((5, a.shape[1]), np.nan) for name, a in z.items()} | only
    for name, values in model.transform({n: whole[n] for n in z}).items():
        np.testing.assert_array_equal(filled[name], values)
    assert model.transform({"m1": z["m1"][:0]})["m0"].shape == (0, 6)


def test_gradient_flows_through_the_imputation(model):
    z = {f"m{j}": torch.randn(4, d, dtype=torch.float64, requires_grad=True) for j, d in enumerate((6, 5, 4))}
    present = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1]]).bool()

    def run(*arrays):
        return tuple(model.transform(dict(zip(z, arrays, strict=True)), present).values())

    assert torch.autograd.gradcheck(run, tuple(z.values()))
    out = run(*z.values())
    sum(t.sum() for t in out).backward()
    assert (z["m2"].grad[0] == 0).all()  # a missing value has no influence


def test_gradient_module_agrees_with_the_imputer(data, model):
    z, present = data
    latent = GaussianLatent(model.parameters_)
    assert float(latent(z, present).detach()) == pytest.approx(-model.score(z, present), rel=1e-12)
    loss = latent(z, present)
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in latent.parameters())
    for name, values in latent.transform(z, present).items():
        np.testing.assert_allclose(values, model.transform(z, present)[name], atol=1e-10)


def test_chunks_and_memory_maps_give_the_same_model(data, model, tmp_path, monkeypatch):
    z, present = data
    chunks = [({n: a[i : i + 37] for n, a in z.items()}, present[i : i + 37]) for i in range(0, 200, 37)]
    np.testing.assert_allclose(GaussianImputer(2).fit(chunks).W_["m0"], model.W_["m0"], atol=1e-9)
    monkeypatch.setattr("calmrl.data.features.distributed_rows.BLOCK_BYTES", 5000)
    mapped = {}
    for name, array in with_nan(z, present).items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    np.testing.assert_allclose(GaussianImputer(2).fit(mapped).W_["m0"], model.W_["m0"], atol=1e-9)
    filled = model.transform(mapped)
    np.testing.assert_allclose(filled["m1"], model.transform(z, present)["m1"], atol=1e-12)


def test_chunks_may_lack_a_modality_altogether(data):
    z, present = data
    full = [({n: a[:100] for n, a in z.items()}, present[:100])]
    rest = ({"m0": z["m0"][100:], "m2": z["m2"][100:]}, np.ones((100, 2), bool))
    imp = GaussianImputer(2).fit([*full, rest])
    joined = present.copy()
    joined[100:] = [True, False, True]
    np.testing.assert_allclose(imp.W_["m1"], GaussianImputer(2).fit(z, joined).W_["m1"], atol=1e-9)


def test_partial_fit_goes_on_from_fit_and_survives_absent_modalities(data):
    z, present = data
    imp = GaussianImputer(2).fit(z, present)
    before, noise = imp.score(z, present), imp.sigma2_["m2"]
    only = np.zeros((50, 3), bool)
    only[:, 0] = True
    for _ in range(20):
        imp.partial_fit({n: a[:50] for n, a in z.items()}, only)
    assert np.isfinite(imp.score(z, present))
    np.testing.assert_allclose(imp.sigma2_["m2"], noise, rtol=0.01)  # what was never in these batches keeps its noise
    for start in range(0, 200, 50):
        imp.partial_fit({n: a[start : start + 50] for n, a in z.items()}, present[start : start + 50])
    assert imp.score(z, present) > before - 3


def loading_size(imputer):
    return float(sum(np.square(W).sum() for W in imputer.W_.values()))


def test_passes_over_the_same_rows_do_not_wear_off_the_prior():
    z, present = from_model(n=200, noise=1.0)
    whole = GaussianImputer(2, prior=100.0, max_iter=300).fit(z, present)
    options = {"solver": "stepwise", "batch_size": 50, "max_iter": 60, "tol": 0.0}
    passes = GaussianImputer(2, prior=100.0, **options).fit(z, present)
    assert loading_size(GaussianImputer(2).fit(z, present)) > 1.5 * loading_size(whole)  # it has much to say
    assert loading_size(passes) == pytest.approx(loading_size(whole), rel=0.05)


def test_the_prior_counts_against_the_rows_that_a_constant_step_remembers():
    z, present = from_model(n=60, noise=1.0)
    stream = GaussianImputer(2, prior=100.0, step_size=0.5)  # remembers (2 - 0.5) / 0.5 = 3 batches
    for _ in range(100):
        stream.partial_fit(z, present)
    thrice = {name: np.tile(a, (3, 1)) for name, a in z.items()}
    whole = GaussianImputer(2, prior=100.0, max_iter=300).fit(thrice, np.tile(present, (3, 1)))
    assert loading_size(stream) == pytest.approx(loading_size(whole), rel=1e-2)


def test_a_stream_chooses_its_prior_on_the_first_batch():
    rng = np.random.default_rng(0)
    noise = {name: rng.normal(size=(64, 30)) for name in "ab"}  # nothing to predict
    imputer = GaussianImputer().partial_fit(noise)
    chosen = imputer.settings_
    assert chosen == Settings(32, prior=chosen.prior)
    assert chosen.prior >= 100
    assert imputer.partial_fit({name: x[:5] for name, x in noise.items()}).settings_ == chosen
    shared = rng.normal(size=(64, 30))
    assert GaussianImputer().partial_fit({"a": shared, "b": shared}).settings_.prior <= 10
    assert GaussianImputer(prior=5.0).partial_fit(noise).settings_ == Settings(32, prior=5.0)
    assert GaussianImputer(4).partial_fit(noise).settings_ == Settings(4)
    with pytest.warns(UserWarning, match=r"takes latent_dim=32, prior=300\.0: .* at least 3 rows; got 1"):
        one = GaussianImputer().partial_fit({name: x[:1] for name, x in noise.items()})
    assert one.settings_ == Settings(32, prior=300.0)


@pytest.mark.parametrize("options", [{"n_components": 2}, {"noise": "auto"}], ids=str)
def test_batches_need_settings_that_are_given(data, options):
    with pytest.raises(InputError):
        GaussianImputer(**{"latent_dim": 2, **options}).partial_fit(*data)


def test_embed_heads_and_scoring(data, model):
    z, _ = data
    heads = model.as_heads()
    for name, array in z.items():
        got = heads[name](torch.tensor(array, dtype=torch.float32)).detach().numpy()
        np.testing.assert_allclose(got, model.embed({name: array}), atol=1e-4)
    right = np.arange(len(z["m0"]))
    for rule in ("cosine", "likelihood_ratio"):
        scores = model.similarity({"m0": z["m0"]}, {"m1": z["m1"]}, rule)
        assert scores.shape == (200, 200)
        assert np.median((scores > scores[right, right][:, None]).sum(1)) < 20
    with pytest.raises(InputError, match="anchors need modalities of one width"):
        model.similarity(z, z, "anchor")
    with pytest.raises(InputError, match='did you mean "cosine"'):
        model.similarity(z, z, "cosin")


def test_sampling_has_the_predictive_moments(model, data):
    z, _ = data
    one = {"m0": np.repeat(z["m0"][:1], 20_000, axis=0)}
    drawn = model.sample(one, random_state=1)
    mean, std = model.impute({"m0": z["m0"][:1]}, return_std=True)
    np.testing.assert_allclose(drawn["m2"].mean(0), mean["m2"][0], atol=0.05)
    np.testing.assert_allclose(drawn["m2"].std(0), std["m2"][0], rtol=0.05)
    seen = {"m0": one["m0"][:1], "m1": mean["m1"], "m2": mean["m2"]}
    cov = model.predictive_covariance(seen, "m2", np.array([[1, 0, 1]], bool))
    np.testing.assert_allclose(np.cov(drawn["m2"].T), cov[0], atol=0.15)
    np.testing.assert_array_equal(drawn["m0"], one["m0"])
    np.testing.assert_array_equal(drawn["m2"], model.sample(one, random_state=1)["m2"])


def test_mixture_serves_and_says_what_it_cannot(data):
    z, present = data
    imp = GaussianImputer(2, n_components=3).fit(z, present)
    assert imp.W_["m0"].shape == (3, 6, 2)
    assert np.isfinite(imp.sample(z, present)["m1"]).all()
    for call in (imp.embed, imp.posterior, imp.partial_fit):
        with pytest.raises(InputError, match=r"components|mixture"):
            call(z, present)
    with pytest.raises(InputError, match="n_components=1"):
        imp.as_heads()


def test_chunks_that_can_be_read_once_or_come_with_a_mask(data):
    z, present = data
    with pytest.raises(InputError, match="can be read only once"):
        GaussianImputer(2).fit((z, present) for _ in range(2))
    with pytest.raises(InputError, match="present goes with a dict"):
        GaussianImputer(2).fit([(z, present)], present)
    with pytest.raises(InputError, match="must be a dict of arrays or an iterable of"):
        open_source(3, None)


def test_few_or_no_rows_are_said():
    z, present = from_model(n=50)
    present[:, 2] = False
    present[:, 0] = True
    with pytest.warns(UserWarning, match="'m2' is observed in no row"):
        imp = GaussianImputer(2).fit(z, present)
    assert (imp.transform(z, present)["m2"] == 0).all()
    present[:4, 2] = True
    with pytest.warns(UserWarning, match="in 4 of 50 rows only"):
        GaussianImputer(2).fit(z, present)


def test_same_seed_same_model_seed_zero_included(data):
    z, present = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a, b, c = (GaussianImputer(2, max_iter=2, random_state=s).fit(z, present).W_["m0"] for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
