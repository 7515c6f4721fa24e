"""Features and latent model against slow twins."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from calmrl.aligner import Aligner
from calmrl.aligner.choose import CandidateSearch
from calmrl.aligner.features import fit_kernel, fit_linear, kernel, kernel_of_rows, prepared, with_relative
from calmrl.aligner.space import Space, make_grid, spread
from calmrl.latent.em import expected_statistics
from calmrl.latent.model import Parameters
from calmrl.latent.rows import open_source
from calmrl.latent.statistics import block_sums, pattern_moments, patterns_of
from tests.aligner.aligner_data import linear_rows
from tests.reference import aligner as reference
from tests.support.latent_data import from_model


def rows(n=30, d=5, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)) + 2)


@pytest.mark.parametrize("unit", [True, False])
def test_kernel_features_equal_the_slow_twin(unit):
    x, new = rows(), rows(7, seed=1)
    feature_map = fit_kernel(x, unit, torch.Generator().manual_seed(0), landmarks=100)
    train, fresh = (prepared(part, x.mean(0), unit).numpy() for part in (x, new))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    want, variance = reference.kernel_features(train[order], fresh, *feature_map.shape.tolist())
    assert_allclose(feature_map.variance, variance, rtol=1e-8)
    assert_allclose(feature_map(new).abs(), np.abs(want), atol=1e-6)


def test_features_of_the_rows_that_a_kernel_is_fitted_on_are_known_from_the_fit():
    x = rows().float()
    feature_map, features = kernel_of_rows(x, True, torch.Generator().manual_seed(0), landmarks=30)
    assert features.dtype == torch.float32
    assert_allclose(features, feature_map(x), atol=1e-6)
    _, unknown = kernel_of_rows(x, True, torch.Generator().manual_seed(0), landmarks=29)
    assert unknown is None


def test_the_spread_is_that_of_all_inner_products():
    left, right = rows(40, 5), rows(30, 5, seed=1)
    assert_allclose(spread([left, right]), (left @ right.T).std(), rtol=1e-9)
    assert spread([left, right[:0]]) == 1.0


def test_the_bandwidth_is_a_share_of_the_median_distance():
    x = rows()
    feature_map = fit_kernel(x, False, torch.Generator().manual_seed(0), landmarks=100)
    distance = np.median([np.linalg.norm(a - b) for i, a in enumerate(x.numpy()) for b in x.numpy()[:i]])
    assert_allclose(feature_map.shape[0], 0.5 / (0.7 * distance) ** 2, rtol=0.05)  # torch takes the lower median


@pytest.mark.parametrize(("n", "d"), [(30, 5), (5, 30)])
def test_linear_features_are_principal_components(n, d):
    x, new = rows(n, d), rows(4, d, seed=1)
    feature_map = fit_linear(x, unit=False)
    centred = (x - x.mean(0)).numpy()
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    keep = values > 1e-8
    assert_allclose(feature_map.variance, values[keep] ** 2 / n, rtol=1e-8)
    assert_allclose(feature_map(new).abs(), np.abs((new - x.mean(0)).numpy() @ directions[keep].T), atol=1e-8)


@pytest.mark.parametrize(("n", "d"), [(30, 5), (5, 30)])
def test_linear_features_of_unit_rows_are_centred_once_more(n, d):
    x, new = rows(n, d), rows(4, d, seed=1)
    feature_map = fit_linear(x, unit=True)
    centred = prepared(x, x.mean(0), True)
    middle = centred.mean(0)
    _, values, directions = np.linalg.svd((centred - middle).numpy(), full_matrices=False)
    keep = values > 1e-8
    assert_allclose(feature_map.variance, values[keep] ** 2 / n, rtol=1e-8)
    want = (prepared(new, x.mean(0), True) - middle).numpy() @ directions[keep].T
    assert_allclose(feature_map(new).abs(), np.abs(want), atol=1e-8)


@pytest.mark.parametrize("whitening", [0.0, 0.5, 1.0])
def test_whitening_divides_by_a_power_of_the_variance(whitening):
    feature_map = fit_linear(rows(), unit=False)
    features = feature_map(rows()) * feature_map.scale(whitening)
    variance = features.square().mean(0)
    assert_allclose(
        variance / variance[0], (feature_map.variance / feature_map.variance[0]) ** (1 - whitening), rtol=1e-8
    )
    assert_allclose(variance.mean(), 1.0)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_rows_have_features_without_variance(value):
    x = torch.full((6, 4), value, dtype=torch.float64)
    for feature_map in (fit_linear(x, True), fit_kernel(x, True, torch.Generator(), 10)):
        assert torch.isfinite(feature_map(x) * feature_map.scale(0.75)).all()
        assert feature_map.width == 1


def parameters(seed=0, widths=(4, 3, 5), latents=2):
    rng = np.random.default_rng(seed)
    W = [rng.normal(size=(d, latents)) for d in widths]
    mu = [rng.normal(size=d) for d in widths]
    noise = [rng.uniform(0.5, 2, size=d) for d in widths]
    as_tensors = ([torch.from_numpy(t)[None] for t in part] for part in (W, mu, noise))
    params = Parameters(("a", "b", "c"), *as_tensors, torch.zeros(1, dtype=torch.float64))
    return params, (W, mu, noise)


def test_any_subset_of_heads_gives_the_posterior_mean_of_a_dense_gaussian():
    params, plain = parameters()
    rng = np.random.default_rng(1)
    present = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 1]], dtype=bool)
    features = [rng.normal(size=(6, d)) for d in params.widths]
    want = reference.posterior_mean(*plain, features, present)
    space = Space.of(params)
    heads = [space.head(m, torch.from_numpy(f[present[:, m]])) for m, f in enumerate(features)]
    assert_allclose(space.posterior(heads, torch.from_numpy(present), range(3)), want, atol=1e-10)


def test_sums_by_pattern_give_the_statistics_of_the_rows():
    z, present = from_model(n=200, widths=(4, 3, 5))
    source = open_source(z, present)
    moments = pattern_moments(
        source,
        [block_sums([_uncentred(pack, source.mean) for pack in source.packs()], source.widths, patterns_of(source))],
        patterns_of(source),
    )
    params, _ = parameters()
    params = Parameters(source.names, params.W, params.mu, params.noise, params.log_weight)
    for mean, want in zip(moments.mean, source.mean, strict=True):
        assert_allclose(mean, want, atol=1e-10)
    got, want = expected_statistics(moments, params), expected_statistics(source, params)
    for mine, theirs in zip(got.tensors(), want.tensors(), strict=True):
        assert_allclose(mine, theirs, atol=1e-8)


def _uncentred(pack, mean):
    return type(pack)(
        pack.patterns,
        pack.bounds,
        [z + m for z, m in zip(pack.z, mean, strict=True)],
        pack.offsets,
        pack.order,
        pack.places,
    )


def normal(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def test_numbers_of_directions_and_landmarks():
    assert fit_linear(normal(300, 260), False).width == 256
    assert fit_linear(normal(260, 300), False).width == 256
    assert fit_linear(normal(20, 7), True).width == 7
    assert fit_kernel(normal(530, 3), False, torch.Generator().manual_seed(0), 2000).width <= 512
    feature_map = fit_kernel(normal(50, 40), False, torch.Generator().manual_seed(0), 20)
    assert feature_map.landmarks.shape == (20, 40)
    assert feature_map.width == 19  # one is lost to the centre


def test_shape_of_the_kernel():
    x = normal(450, 2)
    feature_map = fit_kernel(x, False, torch.Generator().manual_seed(3), 1000)
    order = torch.randperm(450, generator=torch.Generator().manual_seed(3))
    rows = (x - x.mean(0))[order]
    width = 0.7 * float(torch.pdist(rows[:400]).median())
    assert_allclose(feature_map.shape, [0.5 / width**2, 0.5 / float(rows.square().sum(1).mean())])
    one, two = normal(3, 2, 1), normal(4, 2, 2)
    want = [[np.exp(-0.3 * float((a - b).square().sum())) + 0.2 * float(a @ b) for b in two] for a in one]
    assert_allclose(kernel(one, two, 0.3, 0.2), want)


def test_rows_that_are_the_centre_stay_zero():
    x = torch.tensor([[1.0, 2.0], [4.0, 6.0]], dtype=torch.float64)
    assert prepared(x, x[0], True).tolist() == [[0, 0], [0.6, 0.8]]
    assert prepared(x, x[0], False).tolist() == [[0, 0], [3, 4]]


@pytest.mark.parametrize("fit", [fit_linear, lambda x, unit: fit_kernel(x, unit, torch.Generator(), 10)])
def test_a_modality_without_rows(fit):
    feature_map = fit(torch.zeros(0, 3), True)
    assert feature_map.width == 1
    assert not feature_map(normal(4, 3)).any()
    assert feature_map.scale(0.5).tolist() == [1.0]
    assert feature_map.shape.tolist() == [0.0, 0.0]
    assert feature_map(normal(0, 3)).shape == (0, 1)


def test_relative_representations_are_what_the_formula_says():
    random = np.random.default_rng(0)
    values = [torch.from_numpy(random.normal(size=(n, d))) for n, d in ((30, 5), (20, 4))]
    present = torch.ones(30, 2, dtype=torch.bool)
    present[20:, 1] = False
    plain = [fit_linear(x, True) for x in values]
    maps = with_relative(plain, values, present, seed=0)
    vectors = []
    for x, lift in zip(values, plain, strict=True):
        u = lift(x) * lift.variance**-0.25
        u = u / u.norm(dim=1, keepdim=True)
        near = (u @ u[:20].T).clamp(min=0) ** 2  # the first 20 rows have both
        vectors.append(near / near.norm(dim=1, keepdim=True))
    kept = [feature_map(x)[:, -feature_map.beside :] for feature_map, x in zip(maps, values, strict=True)]
    assert maps[0].beside == 20  # as many directions as rows: no inner product is lost
    assert torch.allclose(kept[0] @ kept[1].T, vectors[0] @ vectors[1].T, atol=1e-9)
    for before, after, x in zip(plain, maps, values, strict=True):
        assert torch.allclose(after(x)[:, : -after.beside], before(x))  # the other features are as they were
        assert torch.allclose(after(x)[:, -after.beside :], after.near(x))


def test_relative_representations_stand_beside_latents_where_told_and_are_kept_in_files(tmp_path):
    z, present = linear_rows()
    aligner = Aligner(refine="never")
    chosen = replace(make_grid("auto", "auto", "auto", "auto", "auto").first("kernel", True), relative=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CandidateSearch, "run", lambda search, grid: search.attempt([chosen]) and chosen)
        aligner.fit(z, present)
    assert aligner.choice_["relative"] is True
    assert aligner.space_.latent_dim == aligner.width_ > 0
    aligner.save(tmp_path / "one")
    aligner.save(tmp_path / "two", compact=True)
    vectors = aligner.embed(z, present)
    assert np.allclose(Aligner.load(tmp_path / "one").embed(z, present), vectors, atol=1e-6)
    assert Aligner.load(tmp_path / "two").embed(z, present).shape == vectors.shape
