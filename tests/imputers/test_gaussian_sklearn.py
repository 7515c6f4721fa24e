"""The scikit-learn face: one 2-D array with `blocks`."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from calmrl import GaussianImputer
from calmrl.errors import InputError
from tests.support.latent_data import from_model, with_nan


@pytest.fixture
def table():
    z, present = from_model(n=150)
    return np.concatenate(list(with_nan(z, present).values()), axis=1), z, present


@parametrize_with_checks(
    [GaussianImputer(latent_dim=2, max_iter=5, tol=1e-2)],
    expected_failed_checks=lambda _: {
        "check_fit_score_takes_y": "the second argument is `present`",
        "check_n_features_in_after_fitting": "calls score(X, y=...), but the second argument is `present`",
    },
)
@pytest.mark.filterwarnings("ignore")
def test_estimator_checks(estimator, check):
    check(estimator)


def test_array_with_blocks_equals_dict(table):
    array, z, present = table
    imp = GaussianImputer(2, blocks={"m0": 6, "m1": 5, "m2": 4})
    filled = imp.fit_transform(array)
    want = GaussianImputer(2).fit(z, present).transform(z, present)
    np.testing.assert_array_equal(filled, np.concatenate(list(want.values()), axis=1))
    assert imp.get_feature_names_out().tolist() == [f"x{i}" for i in range(15)]
    assert GaussianImputer(2, blocks=[6, 5, 4]).fit(array).score(array) == pytest.approx(imp.score(array))


def test_pipeline_and_grid_search(table):
    array, _, _ = table
    labels = (np.arange(len(array)) % 2).astype(int)
    pipe = make_pipeline(StandardScaler(), GaussianImputer(2, blocks=[6, 5, 4]), LogisticRegression())
    assert pipe.fit(array, labels).predict(array).shape == (len(array),)
    search = GridSearchCV(GaussianImputer(blocks=[6, 5, 4]), {"latent_dim": [1, 2]}, cv=3).fit(array)
    assert search.best_params_ == {"latent_dim": 2}


def test_clone_keeps_the_arguments():
    imp = GaussianImputer(3, 2, random_state=None, blocks=[1, 2], prior=5.0)
    assert clone(imp).get_params() == imp.get_params()


def test_wrong_blocks(table):
    array, _, _ = table
    with pytest.raises(InputError, match="add up to the 15 columns"):
        GaussianImputer(2, blocks=[6, 5]).fit(array)
    with pytest.raises(InputError, match="duplicate modality name"):
        GaussianImputer(2, blocks={"a": 6, "A": 9}).fit(array)


def test_the_representation_says_what_was_fitted():
    rng = np.random.default_rng(0)
    z = {"image": rng.normal(size=(40, 5)), "text": rng.normal(size=(40, 4))}
    imputer = GaussianImputer(latent_dim=2)
    assert repr(imputer) == "GaussianImputer(latent_dim=2)"
    assert repr(imputer.fit(z)) == "GaussianImputer(latent_dim=2), fitted: image (5), text (4) -> 2 latents"
