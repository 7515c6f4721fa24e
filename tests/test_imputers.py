"""What every imputer promises."""

import numpy as np
import pytest
import torch
from sklearn.impute import KNNImputer as OtherKNN

from calmrl.errors import InputError
from calmrl.imputers import IMPUTERS
from latent_data import from_model, with_nan

MAKE = {
    name: (lambda cls=cls, name=name: cls(latent_dim=2) if name == "gaussian" else cls())
    for name, cls in IMPUTERS.items()
}


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

    def test_beats_nothing_but_the_mean(self, name):
        z, present = from_model(n=400)
        filled = MAKE[name]().fit(z, present).transform(z, present)
        wrong = sum(((filled[n] - a)[~present[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
        total = sum(((a - a.mean(0))[~present[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
        assert wrong / total < (1.02 if name == "mean" else 0.7)


def test_neighbours_are_those_of_scikit_learn():
    z, present = from_model(n=200)
    filled = IMPUTERS["knn"](n_neighbors=5).fit(z, present).transform(z, present)
    stacked = np.concatenate(list(with_nan(z, present).values()), axis=1)
    want = OtherKNN(n_neighbors=5).fit_transform(stacked)
    np.testing.assert_allclose(np.concatenate(list(filled.values()), axis=1), want, atol=1e-9)


def test_loading_another_kind_is_refused(tmp_path):
    z, present = from_model(n=60)
    IMPUTERS["mean"]().fit(z, present).save(tmp_path / "mean")
    with pytest.raises(InputError, match="holds a 'MeanImputer' imputer"):
        IMPUTERS["knn"].load(tmp_path / "mean")
