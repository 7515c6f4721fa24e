"""The same values give the same embedding in every dtype and batch; where nothing is known it is exactly zero."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from calmrl import Aligner
from calmrl.aligner.posterior import embed_with_certainty, fuse
from calmrl.errors import InputError

TOLERANCE = 1e-4
SETTINGS = st.fixed_dictionaries(
    {
        "features": st.sampled_from(["linear", "kernel"]),
        "unit_rows": st.booleans(),
        "whitening": st.sampled_from([0.0, 0.35, 0.75, 1.0]),
    }
)


def two_views(width, rows, seed):
    """Two bent views of three shared numbers, in values that float16 holds."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(rows, 3))
    views = {name: np.tanh(shared @ rng.normal(size=(3, width))) for name in "ab"}
    return {name: (x + 0.05 * rng.normal(size=x.shape)).astype(np.float16) for name, x in views.items()}


def fitted(z, options):
    return Aligner(**options, latent_dim=6, prior=3.0, refine="never", folds=2).fit(
        {name: x.astype(np.float64) for name, x in z.items()}
    )


@settings(max_examples=15, deadline=None)
@given(
    options=SETTINGS,
    width=st.integers(1, 32),
    names=st.sampled_from(["a", "b", "ab"]),
    batch=st.integers(1, 9),
    with_torch=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_neither_dtype_nor_batch_size_matters(options, width, names, batch, with_torch, seed):
    z = two_views(width, 70, seed)
    aligner = fitted({name: x[:60] for name, x in z.items()}, options)
    new = {name: z[name][60:] for name in names}
    want = aligner.embed({name: x.astype(np.float64) for name, x in new.items()})
    assert want.dtype == np.float64
    assert_allclose(np.linalg.norm(want, axis=1), 1)
    for dtype in (np.float16, np.float32, np.float64):
        given = {name: x.astype(dtype) for name, x in new.items()}
        if with_torch:
            given = {name: torch.from_numpy(x) for name, x in given.items()}
        whole = aligner.embed(given)
        parts = [aligner.embed({name: x[i : i + batch] for name, x in given.items()}) for i in range(0, 10, batch)]
        assert isinstance(whole, torch.Tensor) == with_torch
        assert np.asarray(whole).dtype == (np.float64 if dtype == np.float64 else np.float32)
        assert_allclose(whole, want, atol=TOLERANCE)
        assert_allclose(np.concatenate(parts), want, atol=TOLERANCE)
    present = np.array([[name in names for name in "ab"]] * 10)
    vectors, _ = embed_with_certainty(aligner, {name: x[60:] for name, x in z.items()}, present)  # as an index does
    assert_allclose(vectors, want, atol=TOLERANCE)


@settings(max_examples=15, deadline=None)
@given(
    options=SETTINGS,
    width=st.integers(1, 32),
    value=st.floats(-1e3, 1e3),
    seed=st.integers(0, 1000),
)
def test_a_constant_modality_says_exactly_nothing(options, width, value, seed):
    z = two_views(8, 60, seed)
    z["c"] = np.full((60, width), value)
    aligner = fitted(z, options)
    for dtype in (np.float16, np.float32, np.float64):
        constant = {"c": z["c"][:3].astype(dtype)}
        assert_array_equal(aligner.embed(constant), 0)
        assert_array_equal(aligner.embed({"c": constant["c"] + dtype(0.5)}), 0)  # nothing was learned of other values
        assert_array_equal(aligner.similarity(constant, {"a": z["a"].astype(dtype)}), 0)
    both = {"a": z["a"].astype(np.float64), "c": z["c"].astype(np.float64)}
    assert_allclose(aligner.embed(both), aligner.embed({"a": both["a"]}), atol=1e-12)


@pytest.mark.parametrize("value", [0.1, 3.3])
def test_the_rounding_of_a_mean_is_not_made_a_direction(value):
    constant = np.full((200, 3), value)
    unit = torch.from_numpy(constant) - torch.from_numpy(constant).mean(0)
    assert unit.any()  # the mean of equal values is another one
    aligner = fitted(
        two_views(6, 200, 0) | {"c": constant}, {"features": "linear", "unit_rows": True, "whitening": 1.0}
    )
    for dtype in (np.float16, np.float32, np.float64):
        assert_array_equal(aligner.embed({"c": constant[:3].astype(dtype)}), 0)


@pytest.mark.parametrize("features", ["linear", "kernel"])
def test_an_index_places_no_item_of_which_nothing_is_known(features):
    z = two_views(8, 60, 0) | {"c": np.full((60, 2), 0.1)}
    aligner = fitted(z, {"features": features, "unit_rows": True, "whitening": 1.0})
    vectors, certainty = embed_with_certainty(aligner, z, np.eye(3, dtype=bool)[np.arange(60) % 3])
    assert vectors.any(axis=1).tolist() == [True, True, False] * 20
    assert (certainty > 0).tolist() == [True, True, False] * 20
    with pytest.raises(InputError, match="the query says nothing"):
        fuse(aligner, [("c", z["c"][0], 1.0)])


def test_saved_directions_keep_their_digits(tmp_path):
    """Directions far below the rounding of float32 survive a saved aligner."""
    z = two_views(2, 60, 0)
    aligner = fitted(z, {"features": "kernel", "unit_rows": False, "whitening": 1.0})
    share = aligner.feature_maps_[0].variance
    assert share[-1] < 1e-7 * share[0]
    aligner.save(tmp_path / "aligner")
    assert_allclose(Aligner.load(tmp_path / "aligner").embed(z), aligner.embed(z), atol=TOLERANCE)
