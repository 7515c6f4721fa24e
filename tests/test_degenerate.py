"""Degenerate numeric cases over everything that is registered, and every dtype for every loss, imputer and solver."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from calmrl.arrays import check
from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import InputError
from calmrl.imputers.registry import IMPUTERS, make_imputer
from calmrl.losses import LOSSES, InstanceMatching
from calmrl.workflows.diagnose.examine import describe, examine
from tests import degenerate

DTYPES = [getattr(torch, name) for name in degenerate.DTYPES]
OPTIONS = {name: (name, degenerate.SMALL.get(name, {})) for name in IMPUTERS} | {
    name: ("gaussian", options) for name, options in degenerate.SOLVERS.items()
}


def small(n: int = 24) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(n, 2))
    z = {name: torch.from_numpy(shared @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(n, 3))) for name in "abc"}
    present = torch.from_numpy(rng.random((n, 3)) > 0.3)
    present[:, 1] |= ~present.any(1)
    return z, present


def test_a_short_run_finds_nothing():
    counts = degenerate.run(cases=250, seed=11)
    assert set(counts) == set(degenerate.subjects())
    assert all(sum(count.values()) for count in counts.values())
    assert not sum(count["wrong"] for count in counts.values())
    assert sum(count["right"] for count in counts.values()) > 100  # not everything is refused


@pytest.mark.parametrize(
    ("name", "seed"),
    [("mopoe", 11011116), ("smil", 11032988), ("mopoe", 11040092), ("diagnose", 11091333)],
)
def test_cases_that_once_went_wrong(name, seed):
    """Rows 1e37 deviations from those of the fit; a column that differs by rounding errors of 1e-263 only."""
    outcome, text = degenerate.run_one(name, degenerate.subjects()[name], seed)
    assert outcome == "right", text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_imputer_and_solver_takes_every_dtype(name, dtype):
    z, present = small()
    given = {key: values.to(dtype) for key, values in z.items()}
    method, options = OPTIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values, std = make_imputer(method, 0, **options).fit(given, present).impute(given, present, return_std=True)
    degenerate._check_imputed(degenerate.Case(given, present, {}), values, std)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*LOSSES, "matching"])
def test_every_loss_takes_every_dtype(name, dtype):
    z, present = small()
    given = {key: torch.nn.functional.normalize(v, dim=1).to(dtype).requires_grad_() for key, v in z.items()}
    if name == "matching":
        loss = InstanceMatching(list(z), 3, anchor="b", hidden=4, layers=1, heads=1)
    else:
        loss = LOSSES[name](**({"anchor": "b"} if "anchor" in LOSSES.signature(name).parameters else {}))
    value = loss(given, present)
    degenerate._check_loss(value, given)
    assert all(values.grad is not None and values.grad.dtype == dtype for values in given.values())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matching_ranks_again_in_every_dtype(dtype):
    z, _ = small(6)
    head = InstanceMatching(list(z), 3, anchor="b", hidden=4, layers=1, heads=1)
    items = {name: z[name].to(dtype) for name in "ac"}
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.isfinite(head.rerank(z["b"].to(dtype), items, None, scores, top=3)).all()


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, 1e19), (np.float32, 1e38), (np.float64, 1e200), (torch.bfloat16, 1e38)], ids=str
)
def test_values_that_cannot_be_squared_are_refused_with_their_row(dtype, size):
    values = torch.ones(5, 2, dtype=dtype) if isinstance(dtype, torch.dtype) else np.ones((5, 2), dtype)
    values[3, 1] = -size
    for present in (None, torch.ones(5, 1, dtype=torch.bool)):
        mask = present if present is None or isinstance(values, torch.Tensor) else present.numpy()
        with pytest.raises(InputError, match=r"z\['a'\] has a value of size .* in row 3, too large for"):
            check({"a": values}, mask)
        check({"a": values}, mask, any_size=True)
    hidden = np.array([[True], [True], [True], [False], [True]])
    check({"a": values}, torch.from_numpy(hidden) if isinstance(values, torch.Tensor) else hidden, empty_rows=True)


def test_imputed_values_that_do_not_fit_the_dtype_are_refused():
    z, present = small()
    given = {name: (values * 2e4).clamp(-6e4, 6e4).half() for name, values in z.items()}
    imputer = make_imputer("gaussian", 0, latent_dim=2).fit(given, present)
    far = {name: torch.full((1, 3), 6e4).half() for name in "a"}
    with pytest.raises(InputError, match=r"more than torch\.float16 holds; pass the input in a wider dtype"):
        imputer.impute(far)


def test_losses_refuse_vectors_that_overflow():
    z, present = small()
    huge = {name: (values * 1e30).float() for name, values in z.items()}
    for name in LOSSES:
        loss = LOSSES[name](**({"anchor": "b"} if "anchor" in LOSSES.signature(name).parameters else {}))
        with pytest.raises(InputError, match="divide every vector by its length first"):
            loss(huge, present)


# ---- cases that were wrong once


@pytest.mark.parametrize("size", [1e16, 1e50, 1e300])
def test_a_diagnosis_refuses_values_that_single_precision_cannot_square(size):
    values = np.ones((40, 2))
    values[7] *= -size
    for rows in (40, 10):  # with and without enough rows to examine
        features = FeatureSet({"a": values[:rows], "b": np.ones((rows, 3))}, np.ones((rows, 2), dtype=bool))
        with pytest.raises(InputError, match=rf"a has a value of size {size:.3g}".replace("+", r"\+") + " in row 7; "):
            examine(features, 0, lambda text, done, total: None)
    hidden = np.arange(40)[:, None] != [7, -1]
    assert np.isfinite(describe(FeatureSet({"a": values, "b": np.ones((40, 3))}, hidden))[0].norm)


def test_rows_of_tiny_values_are_not_counted_as_zeros():
    values = np.full((3, 2), 1e-200)
    values[0] = 0.0
    assert describe(FeatureSet({"a": values}, np.ones((3, 1), dtype=bool)))[0].zeros == 1


def test_stepwise_leaves_noise_that_values_far_from_zero_can_have():
    constant = {"a": torch.full((40, 1), -0.75), "b": torch.full((40, 1), 1.6e4), "c": torch.full((40, 1), 6.4e13)}
    z = {name: values.bfloat16() for name, values in constant.items()}
    present = torch.from_numpy(np.random.default_rng(0).random((40, 3)) > 0.4)
    present[:, 2] |= ~present.any(1)
    imputer = make_imputer("gaussian", 0, latent_dim=2, solver="stepwise", max_iter=2).fit(z, present)
    values, std = imputer.impute(z, present, return_std=True)
    degenerate._check_imputed(degenerate.Case(z, present, {}), values, std)
    assert imputer.sigma2_["c"] >= 1e-14 * float(z["c"][0]) ** 2  # what float64 sums of squares can tell from 0


@pytest.mark.parametrize("options", [{}, {"n_components": 2}, {"whitening": 0.5}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-8, 0.0])
def test_rows_far_from_all_that_was_fitted(scale, dtype, options):
    z, present = small()
    imputer = make_imputer("gaussian", 0, latent_dim=2, **options)
    imputer.fit({name: (scale * values).to(dtype) for name, values in z.items()}, present)
    far = {"a": torch.full((2, 3), 1e14).to(dtype)}
    values, std = imputer.impute(far, return_std=True)
    assert all(torch.isfinite(values[name]).all() and torch.isfinite(std[name]).all() for name in "abc")
    assert np.isfinite(imputer.score(far))
    wide = imputer.impute({"a": far["a"].double()})
    assert torch.allclose(values["b"].double(), wide["b"], rtol=2e-2)
