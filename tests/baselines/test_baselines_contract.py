"""What every baseline promises: the order and turning of rows do not matter, files, dtypes, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from calmrl.baselines import BASELINES, load_baseline
from calmrl.errors import InputError
from tests.baselines.baseline_rows import rows_of

NAMES = list(BASELINES)
FIXED = [name for name in NAMES if name != "mopoe"]  # the same from rows in any order: without random batches
SMALL = {"gfa": {"latent_dim": 6, "max_iter": 20}, "mopoe": {"latent_dim": 6, "hidden": 16, "epochs": 3}}
SEEDS = st.integers(0, 10_000)
few = settings(max_examples=8, deadline=None)


def fitted(name, z, present=None, **arguments):
    return BASELINES[name](**SMALL.get(name, {}) | arguments).fit(z, present)


def similarity(model, z):
    """Of single modalities, and of items with two."""
    pairs = (({"m0": z["m0"]}, {"m1": z["m1"]}), ({"m2": z["m2"], "m0": z["m0"]}, {"m1": z["m1"]}))
    return np.concatenate([model.similarity(*pair) for pair in pairs])


@pytest.mark.parametrize("features", ["linear", "kernel"])
@pytest.mark.parametrize("name", FIXED)
@few
@given(seed=SEEDS)
def test_the_order_of_rows_and_of_modalities_does_not_matter(name, features, seed):
    z, present = rows_of(seed, n=40)
    order = np.random.default_rng(seed).permutation(40)
    names = list(z)[::-1]
    other = fitted(name, {key: z[key][order] for key in names}, present[order][:, ::-1], features=features)
    expected = similarity(fitted(name, z, present, features=features), z)
    np.testing.assert_allclose(similarity(other, z), expected, atol=1e-6)


@pytest.mark.parametrize("features", ["linear", "kernel"])
@pytest.mark.parametrize("name", FIXED)
@few
@given(seed=SEEDS)
def test_turning_and_moving_a_modality_does_not_matter(name, features, seed):
    z, present = rows_of(seed, n=40)
    rng = np.random.default_rng(seed)
    turned = {
        key: x @ np.linalg.qr(rng.normal(size=(x.shape[1], x.shape[1])))[0] + rng.normal(size=x.shape[1])
        for key, x in z.items()
    }
    expected = similarity(fitted(name, z, present, features=features), z)
    got = similarity(fitted(name, turned, present, features=features), turned)
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@few
@given(seed=SEEDS)
def test_values_in_missing_rows_are_never_read(name, seed):
    z, present = rows_of(seed, n=40)
    holes = {key: np.where(present[:, [m]], x, np.nan) for m, (key, x) in enumerate(z.items())}
    junk = {key: np.where(present[:, [m]], x, 1e9) for m, (key, x) in enumerate(z.items())}
    a, b = fitted(name, holes), fitted(name, junk, present)
    np.testing.assert_array_equal(a.embed(holes), b.embed(junk, present))


@pytest.mark.parametrize("name", NAMES)
def test_vectors_have_unit_length_and_items_find_themselves(name):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(200, 4))
    turn = [np.linalg.qr(rng.normal(size=(8, 8)))[0][:4] for _ in range(3)]
    z = {f"m{j}": shared @ matrix + 0.01 * rng.normal(size=(200, 8)) for j, matrix in enumerate(turn)}
    present = np.ones((200, 3), dtype=bool)
    present[np.arange(100), np.arange(100) % 3] = False
    longer = {"epochs": 200, "beta": 0.05} if name == "mopoe" else {}
    model = fitted(name, z, present, features="linear", **longer)
    held = {key: x[150:] for key, x in z.items()}
    for key, x in held.items():
        vectors = model.embed({key: x})
        assert vectors.shape == (50, model.width_)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-9)
    hits = model.similarity({"m0": held["m0"]}, {"m1": held["m1"]}).argmax(1) == np.arange(50)
    assert hits.mean() > 0.5  # by chance 0.02


@pytest.mark.parametrize("features", ["linear", "kernel"])
@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_gives_the_same_vectors(name, features, tmp_path):
    z, present = rows_of()
    model = fitted(name, z, present, features=features)
    model.save(tmp_path / "saved")
    again = load_baseline(tmp_path / "saved")
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    np.testing.assert_allclose(again.embed(z, present), model.embed(z, present), atol=1e-12)
    assert again.modalities_ == ("m0", "m1", "m2")
    assert again.widths_ == {"m0": 5, "m1": 4, "m2": 6}


def test_a_file_that_lacks_a_part_says_so(tmp_path):
    z, present = rows_of()
    model = fitted("cca", z, present)
    del model.learned_["rho.m0.m1"]
    model.save(tmp_path / "saved")
    with pytest.raises(InputError, match=r"the saved baseline in .*saved is incomplete \(.*\); save it again"):
        load_baseline(tmp_path / "saved")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_an_estimator_and_takes_tensors(name):
    z, present = rows_of()
    model = fitted(name, z, present)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(ValueError, match="not fitted"):
        copy.embed(z)
    tensors = {key: torch.from_numpy(x).float() for key, x in z.items()}
    vectors = fitted(name, tensors, torch.from_numpy(present)).embed(tensors)
    assert vectors.dtype == torch.float32
    np.testing.assert_allclose(vectors.numpy(), model.embed(z), atol=1e-3)
    assert len(model.embed({"m1": z["m1"][:0]})) == 0
    with pytest.raises(InputError, match="queries and gallery mix NumPy arrays and torch tensors"):
        model.similarity({"m0": z["m0"]}, {"m1": tensors["m1"]})


@pytest.mark.parametrize("name", NAMES)
def test_rows_from_which_nothing_can_be_learned(name):
    z, _ = rows_of()
    with pytest.raises(InputError) as wrong:
        fitted(name, {"m0": z["m0"]})
    assert str(wrong.value) == "z has one modality (m0); a baseline needs at least two"
    present = np.ones((60, 3), dtype=bool)
    present[:, 1] = False
    with pytest.raises(InputError) as wrong:
        fitted(name, z, present)
    assert str(wrong.value) == (
        "modality 'm1' is observed in no row, so nothing can be learned about it; leave it out, or add rows that have it"
    )
    present[:30], present[30:] = [True, True, False], [False, False, True]
    with pytest.raises(InputError) as wrong:
        fitted(name, z, present)
    assert str(wrong.value) == (
        "fewer than 2 rows link m2 with m0, m1, also through a third modality, so nothing can be learned between them; add "
        "rows that have both, or fit them separately"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cca", {"ridge": -1.0}, "ridge must be a number >= 0; got -1.0"),
        ("gcca", {"ridge": float("nan")}, "ridge must be a number >= 0; got nan"),
        ("mcca", {"directions": 0}, "directions must be a whole number >= 1; got 0"),
        ("ridge", {"whitening": 2}, "whitening must be a number from 0 to 1; got 2"),
        ("asif", {"power": True}, "power must be a number >= 0; got True"),
        ("asif", {"nearest": 0}, "nearest must be a whole number >= 1; got 0"),
        ("procrustes", {"features": "linea"}, "features must be one of 'linear', 'kernel'; got 'linea'; did you mean"),
        ("cca", {"unit_rows": "auto"}, "unit_rows must be True or False; got 'auto'"),
        ("cca", {"landmarks": 1}, "landmarks must be a whole number >= 2; got 1"),
        ("mopoe", {"hidden": 0}, "hidden must be a whole number >= 1; got 0"),
    ],
)
def test_wrong_arguments(name, arguments, message):
    z, present = rows_of()
    with pytest.raises(InputError) as wrong:
        fitted(name, z, present, **arguments)
    assert str(wrong.value).startswith(message)


def test_constant_modalities_and_items_at_the_centre_give_no_nan():
    z, present = rows_of()
    z["m2"] = np.ones_like(z["m2"])
    for name in NAMES:
        for features in ("linear", "kernel"):
            model = fitted(name, z, present, features=features)
            centre = {key: x[present[:, m]].mean(0, keepdims=True) for m, (key, x) in enumerate(z.items())}
            for key in z:
                assert np.isfinite(model.embed({key: z[key]})).all()
                assert np.isfinite(model.embed({key: centre[key]})).all()


@pytest.mark.parametrize("name", ["cca", "asif", "ridge", "procrustes"])
def test_several_modalities_ask_by_the_sum_of_their_cosines(name):
    z, present = rows_of()
    model = fitted(name, z, present)
    one, other = (model.similarity({key: z[key]}, {"m1": z["m1"]}) for key in ("m0", "m2"))
    own = np.einsum("nd,nd->n", model.embed({"m0": z["m0"]}), model.embed({"m2": z["m2"]}))
    together = model.similarity({"m0": z["m0"], "m2": z["m2"]}, {"m1": z["m1"]})
    np.testing.assert_allclose(together * np.sqrt(2 + 2 * own)[:, None], one + other, atol=1e-9)


@pytest.mark.parametrize("name", FIXED)
def test_items_are_found_over_three_links_that_no_row_shows(name):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(330, 3))
    turn = [np.linalg.qr(rng.normal(size=(6, 6)))[0][:3] for _ in range(4)]
    z = {f"m{j}": shared @ matrix + 0.01 * rng.normal(size=(330, 6)) for j, matrix in enumerate(turn)}
    present = np.zeros((330, 4), dtype=bool)
    for j in range(3):
        present[100 * j : 100 * (j + 1), [j, j + 1]] = True
    present[300:] = True
    train = {key: x[:300] for key, x in z.items()}
    few_directions = {"directions": 3} if "directions" in BASELINES[name]().get_params() else {}
    with pytest.warns(
        UserWarning, match="m0 and m2; nor m0 and m3; nor m1 and m3: they are aligned through other"
    ) as warned:
        model = fitted(name, train, present[:300], features="linear", unit_rows=False, **few_directions)
    assert warned[0].filename == __file__  # of the caller
    found = model.similarity({"m0": z["m0"][300:]}, {"m3": z["m3"][300:]}).argmax(1) == np.arange(30)
    assert found.mean() > 0.1  # by chance 0.03
