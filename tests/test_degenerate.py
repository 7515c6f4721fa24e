"""Degenerate numeric cases over everything that is registered, and every dtype for every loss, imputer and solver."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import degenerate
from calmrl.convention import check
from calmrl.errors import InputError
from calmrl.imputers.registry import IMPUTERS, make_imputer
from calmrl.losses import LOSSES, InstanceMatching

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
