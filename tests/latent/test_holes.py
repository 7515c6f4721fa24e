"""Rows with holes inside a modality in the latent model, against dense Gaussians and loops over rows."""

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.latent.em import Prior, expected_statistics, noise_floor, run_em, start_at_random
from calmrl.latent.held_out import hidden_entries, hold_out
from calmrl.latent.rows import open_source
from tests.support.latent_data import fitted, stacked, torn

FORMS = [(1, "isotropic"), (1, "diagonal"), (3, "isotropic"), (3, "diagonal")]


def test_deviations_are_zero_where_a_modality_without_holes_is_present():
    z, truth = torn(n=60)
    lacks = np.isnan(z["m1"]).all(1)
    z["m1"] = np.where(lacks[:, None], np.nan, truth["m1"])  # some rows lack it, none in part
    _, std = fitted(z).impute(z, return_std=True)
    assert (std["m1"][~lacks] == 0).all()
    assert (std["m1"][lacks] > 0).all()


@pytest.mark.parametrize(("K", "noise"), FORMS)
@pytest.mark.parametrize("m_step", ["joint", "sequential"])
@pytest.mark.parametrize("options", [{"prior": 0.0}, {"prior": 20.0}, {"accelerate": False}])
def test_the_objective_never_falls(K, noise, m_step, options):
    z, _ = torn(n=80, holes=0.4)
    model = fitted(z, K, noise, m_step=m_step, max_iter=25, **options)
    assert (np.diff(model.log_likelihood_) >= -1e-10).all()
    if K == 1 and not options.get("prior"):
        assert model.log_likelihood_[-1] <= model.score(z) + 1e-10


def test_sums_do_not_depend_on_chunks_or_order():
    z, _ = torn(n=90)
    whole = expected(open_source(z, None, holes=True))
    chunks = [({name: a[i : i + 17] for name, a in z.items()}, None) for i in range(0, 90, 17)]
    mixed = np.random.default_rng(0).permutation(90)
    for other in (
        expected(open_source(chunks, None, holes=True)),
        expected(open_source({n: a[mixed] for n, a in z.items()}, None, holes=True)),
    ):
        for mine, theirs in zip(whole, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def expected(source):
    stats = expected_statistics(source, start_at_random(source, 2, seed=0))
    assert stats.own
    return stats.tensors()


def test_rows_with_the_same_holes_share_a_factor_and_stay_themselves():
    z, _ = torn(n=60)
    model = fitted(z)
    repeated = {name: np.repeat(array, 3, axis=0) for name, array in z.items()}
    once, thrice = model.impute(z, return_std=True), model.impute(repeated, return_std=True)
    for mine, theirs in zip(once, thrice, strict=True):
        for name in z:
            np.testing.assert_allclose(np.repeat(mine[name], 3, axis=0), theirs[name], atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_observed_entries_come_back_bit_for_bit(dtype):
    z, _ = torn(n=60)
    z = {name: array.astype(dtype) for name, array in z.items()}
    model = fitted({name: array.astype(np.float64) for name, array in z.items()})
    for kind in (z, {name: torch.tensor(array) for name, array in z.items()}):
        done = model.transform(kind)
        for name in z:
            got, seen = np.asarray(done[name]), ~np.isnan(z[name])
            assert got.dtype == dtype
            assert got[seen].tobytes() == z[name][seen].tobytes()
            assert np.isfinite(got).all()


def test_gradients_reach_what_was_observed():
    z, _ = torn(n=30)
    model = fitted(z)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in z.items()}
    sum(part.square().sum() for part in model.transform(tensors).values()).backward()
    for tensor in tensors.values():
        assert torch.isfinite(tensor.grad).all()
        assert (tensor.grad[torch.isnan(tensor)] == 0).all()


def test_coverage_of_hidden_blocks_that_have_holes():
    z, _ = torn(n=800, holes=0.2, noise=0.5)
    model = fitted(z, max_iter=60)
    present = np.stack([~np.isnan(array).all(1) for array in z.values()], axis=1)
    hidden = present & (present.sum(1, keepdims=True) > 1)
    hidden[:, 1:] = False
    assert 0.86 < model.coverage(z, present, hidden)["m0"] < 0.94


def test_draws_have_the_predicted_deviations():
    z, _ = torn(n=20)
    model = fitted(z)
    filled, std = model.impute(z, return_std=True)
    many = {name: np.repeat(array, 400, axis=0) for name, array in z.items()}
    draws = stacked(model.sample(many)).reshape(20, 400, -1)
    gone = np.isnan(stacked(z))
    assert np.abs((draws.mean(1) - stacked(filled)) / np.where(gone, stacked(std), 1)).max() < 0.25
    np.testing.assert_allclose(draws.std(1)[gone], stacked(std)[gone], rtol=0.2)


# ---- streams, files, one matrix


def test_batches_with_holes_lead_where_a_fit_does():
    z, _ = torn(n=600, holes=0.3)
    full = fitted(z, max_iter=60)
    stepwise = fitted(z, solver="stepwise", max_iter=12, batch_size=100)
    assert stepwise.score(z) == pytest.approx(full.score(z), abs=0.3)
    stream = GaussianImputer(2)
    for _ in range(6):
        for start in range(0, 600, 100):
            stream.partial_fit({name: array[start : start + 100] for name, array in z.items()})
    assert stream.score(z) == pytest.approx(full.score(z), abs=0.5)


def test_whole_batches_follow_a_fit_with_holes(tmp_path):
    z, truth = torn(n=200)
    model = fitted(z)
    model.save(tmp_path / "model")
    again = GaussianImputer.load(tmp_path / "model")
    batch = {name: array[:64] for name, array in truth.items()}
    before = model.score(z)
    for one in (model, again):
        one.partial_fit(batch)
    assert model.score(z) > before - 0.5
    for name in z:
        np.testing.assert_array_equal(model.W_[name], again.W_[name])
    np.testing.assert_array_equal(stacked(model.transform(z)), stacked(again.transform(z)))


def test_a_column_that_no_row_has_is_zero():
    z, _ = torn(n=60)
    z["m1"][:, 2] = np.nan
    with pytest.warns(UserWarning, match="1 of 5 columns of modality 'm1' are observed in no row"):
        model = GaussianImputer(2, max_iter=500).fit(z)
    filled, std = model.impute(z, return_std=True)
    assert np.abs(filled["m1"][:, 2]).max() < 1e-6
    assert all(np.isfinite(array).all() for array in (*filled.values(), *std.values()))


# ---- choosing on held-out entries


def test_hidden_entries_fall_as_holes_do():
    rng = np.random.default_rng(0)
    seen = torch.ones(400, 6, dtype=torch.bool)
    seen[torch.tensor(rng.random(400) < 0.5), 4:] = False  # a sensor that gives two columns
    hidden = hidden_entries(seen, torch.ones(400, dtype=torch.bool), rng)
    assert not bool((hidden & ~seen).any())
    assert bool((hidden[:, 4] == hidden[:, 5]).all())
    assert not bool(hidden[:, :4].any())
    assert 0.05 < float(hidden.sum()) / float(seen.sum()) <= 0.1
    assert not bool(hidden_entries(torch.ones(9, 2, dtype=torch.bool), torch.ones(9, dtype=torch.bool), rng).any())


def test_held_out_error_counts_blocks_and_entries():
    z, _ = torn(n=300)
    data = {name: torch.tensor(array) for name, array in z.items()}
    present = torch.stack([~torch.isnan(array).all(1) for array in data.values()], dim=1)
    held = hold_out(data, present, seed=0)
    source = held.source
    assert held.holes is not None
    assert all(bool(hidden.any()) for hidden in held.holes.hidden)
    zero = start_at_random(source, 2, seed=0)
    nothing = type(zero)(zero.names, [W * 0 for W in zero.W], zero.mu, zero.noise, zero.log_weight)
    assert held.error(nothing) == pytest.approx(1.0, abs=0.12)  # the column means
    fit = run_em(source, zero, Prior(0.0, 0.0, 0.0, 0.0, source.variance, noise_floor(source)), max_iter=40)
    assert held.error(fit.params) < 0.6
    assert held.scales(fit.params)[1] == pytest.approx([1.0] * 3, abs=0.25)
    poisoned = {name: torch.where(gone, 1e6, data[name]) for name, gone in zip(data, held.holes.hidden, strict=True)}
    again = hold_out(poisoned, present, seed=0)
    for mine, theirs in zip(source.mean, again.source.mean, strict=True):
        torch.testing.assert_close(mine, theirs)  # what is hidden was not seen


# ---- what cannot be


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"whitening": 0.5},
            "whitening=0.5 needs whole rows, but some rows have holes inside a modality; use whitening=0",
        ),
        ({"solver": "gradient"}, "solver='gradient' needs whole rows.*use solver='em'"),
    ],
)
def test_what_needs_whole_rows_says_so(options, said):
    z, _ = torn(n=40)
    with pytest.raises(InputError, match=said):
        GaussianImputer(2, **options).fit(z)


def test_a_whitened_model_says_that_it_needs_whole_rows():
    z, truth = torn(n=80)
    model = fitted(truth, whitening=0.5)
    with pytest.raises(InputError, match=r"need a model of the features as they are, but this one is whitened"):
        model.transform(z)


def test_training_steps_need_whole_rows():
    z, truth = torn(n=40)
    model = fitted(truth)
    tensors = {name: torch.tensor(array) for name, array in z.items()}
    with pytest.raises(InputError, match="is partly NaN in row 8, which present marks as observed"):
        model.missing(tensors, torch.ones(40, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("observed", "said"),
    [
        ({"sound": np.ones((40, 6), bool)}, "observed has modality 'sound', which z does not have; z has m0, m1, m2"),
        ({"m0": np.ones((40, 6))}, r"observed\['m0'\] must be a bool array of shape \(40, 6\).*got float64"),
        ({"m0": np.ones((40, 5), bool)}, r"observed\['m0'\] has shape \(40, 5\) but z\['m0'\] has \(40, 6\)"),
    ],
)
def test_observed_is_checked(observed, said):
    _, truth = torn(n=40)
    with pytest.raises(InputError, match=said):
        GaussianImputer(2).fit(truth, observed=observed)


def test_infinite_and_huge_values_beside_holes():
    z, _ = torn(n=40)
    row = int(np.flatnonzero(np.isnan(z["m0"]).any(1) & ~np.isnan(z["m0"]).all(1))[0])
    at = int(np.flatnonzero(~np.isnan(z["m0"][row]))[0])
    present = np.stack([~np.isnan(a).all(1) for a in z.values()], axis=1)
    for value, said in ((np.inf, f"infinite value in row {row}"), (1e200, f"size 1e[+]200 in row {row}")):
        z["m0"][row, at] = value
        for mask in (None, present):
            with pytest.raises(InputError, match=said):
                GaussianImputer(2).fit(z, mask)
    z["m0"][row] = np.nan
    with pytest.raises(InputError, match=f"has NaN in row {row}, which present marks as observed"):
        GaussianImputer(2).fit(z, np.ones_like(present))
