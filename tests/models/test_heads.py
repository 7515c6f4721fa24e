"""Projectors on features: how they start, and what they refuse."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.heads import Heads, build_heads, fit_kernels
from calmrl.models.registry import HeadsSection
from tests.support.train_data import WIDTHS, source


def test_heads_start_from_the_layers_of_a_latent_model() -> None:
    x = {name: torch.randn(30, 4, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("ab")}
    layers = GaussianImputer(2, max_iter=2, tol=1.0, random_state=0).fit(x).as_heads()
    plain, skipping = Heads({"a": 4, "b": 4}, 2), Heads({"a": 4, "b": 4}, 2, hidden=3, skip=True)
    plain.start_from(layers)
    assert torch.equal(plain.heads["a"].weight, layers["a"].weight)
    assert torch.equal(plain.heads["b"].bias, layers["b"].bias)
    skipping.start_from(layers)
    assert torch.equal(skipping.heads["a"].linear.weight, layers["a"].weight)
    with torch.no_grad():
        torch.testing.assert_close(skipping.heads["a"](x["a"]), layers["a"](x["a"]))  # the MLP starts at zero
    with pytest.raises(InputError, match="an MLP cannot start from a latent model; leave out hidden, or pass skip"):
        Heads({"a": 4, "b": 4}, 2, hidden=3).start_from(layers)
    with pytest.raises(InputError, match="the latent model has 2 latents but the heads have width 3; make them equal"):
        Heads({"a": 4, "b": 4}, 3).start_from(layers)


@pytest.mark.parametrize(
    ("which", "most", "rows"),
    [("complete", 100, None), ("all", 100, 60), ("all", 60, 60), ("all", 59, 30), ("all", 20, 20)],
)
def test_rows_that_the_latent_model_is_fitted_on(monkeypatch, which: str, most: int, rows: int | None) -> None:
    seen = {}

    class Latent(GaussianImputer):
        def fit(self, z, present=None):
            seen.update(rows=len(present), complete=bool(present.all()), params=self.get_params())
            return super().fit(z, present)

    monkeypatch.setattr("calmrl.models.heads.GaussianImputer", Latent)
    monkeypatch.setattr("calmrl.models.heads.INIT_ROWS", most)
    features = source(60)
    data = SimpleNamespace(train={"s": features}, widths=dict(WIDTHS))
    section = HeadsSection(kind="heads", width=3, init="latent", latent_rows=which)
    build_heads(section, data, tuple(WIDTHS), seed=1)
    expected = int(features.present.all(1).sum()) if rows is None else rows
    assert (seen["rows"], seen["complete"]) == (expected, which == "complete")
    assert (seen["params"]["prior"], seen["params"]["max_iter"]) == (100.0, 10)


@pytest.mark.parametrize("hidden", [None, 3])
def test_heads_that_start_as_the_identity_keep_the_first_columns(hidden: int | None) -> None:
    features = source(20)
    data = SimpleNamespace(train={"s": features}, widths=dict(WIDTHS))
    section = HeadsSection(kind="heads", width=2, hidden=hidden, init="identity", standardize=None)
    heads = build_heads(section, data, tuple(WIDTHS), seed=1)
    x = features.fetch(np.arange(20), features.present, 0)
    present = torch.from_numpy(features.present)
    with torch.no_grad():
        z = heads(x, present)
    for j, name in enumerate(WIDTHS):
        has = present[:, j]
        torch.testing.assert_close(z[name][has], torch.nn.functional.normalize(x[name][has][:, :2], dim=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"width": 7, "standardize": None},
            "heads of width 7 cannot start as the identity: audio has 6 columns; make width",
        ),
        ({"width": 2}, "features that are turned are not comparable any more; init: identity needs standardize: null"),
    ],
)
def test_what_the_identity_does_not_go_with(arguments: dict, message: str) -> None:
    data = SimpleNamespace(train={"s": source(20)}, widths=dict(WIDTHS))
    with pytest.raises(InputError, match=message):
        build_heads(HeadsSection(kind="heads", init="identity", **arguments), data, tuple(WIDTHS), seed=1)


def test_kernel_features_need_rows() -> None:
    rows = source(40)
    assert list(fit_kernels([rows], "kernel", 0)) == list(WIDTHS)
    rows.present[:, 1] = False
    with pytest.raises(InputError, match="no training row has text; leave it out of modalities, or add a source"):
        fit_kernels([rows], "kernel", 0)
