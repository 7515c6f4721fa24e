"""All estimators as scikit-learn uses them: its own checks, pipelines, frames, searches over settings."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from calmrl import Aligner, GaussianImputer
from calmrl.imputers import IMPUTERS, MeanImputer, RidgeImputer
from calmrl.imputers.base import block_columns
from tests.support.later import Later

pandas = pytest.importorskip("pandas")
polars = Later("polars")
SECOND = "the second argument is `present`; a one-dimensional one is taken for y and not used"
SMALL = {
    "auto": {"candidates": ["ridge", "mean"]},
    "kernel": {"base": "mean"},
    "gfa": {"latent_dim": 2, "max_iter": 5},
    **{name: {"latent_dim": 2, "hidden": 8, "epochs": 2} for name in ("mvae", "mopoe", "smil")},
}
WIDTHS = {"image": 4, "text": 3, "sound": 2}


class HalvedAligner(Aligner):
    """An aligner whose blocks are the two halves of the columns, whatever their number: the checks have many."""

    def _places(self, n_columns, given):
        return block_columns([n_columns // 2, n_columns - n_columns // 2] if n_columns > 1 else None, n_columns)


ESTIMATORS = [IMPUTERS[name](**SMALL.get(name, {})) for name in IMPUTERS if name != "gaussian"]
ESTIMATORS.append(GaussianImputer(latent_dim=2, max_iter=5, tol=1e-2))
ESTIMATORS.append(HalvedAligner("linear", False, 0.5, 2, 30, "never", folds=2))


def expected_failures(estimator):
    failures = {"check_fit_score_takes_y": SECOND}
    if isinstance(estimator, Aligner):
        failures["check_fit2d_1feature"] = "two modalities need two columns"
    if isinstance(estimator, GaussianImputer):
        failures["check_n_features_in_after_fitting"] = f"calls score(X, y=...), but {SECOND}"
    return failures


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
@pytest.mark.filterwarnings("ignore")
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def frame():
    """120 rows of three modalities as columns of numbers; a third of the blocks is missing. And labels."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(120, 2))
    columns = {}
    for place, (name, width) in enumerate(WIDTHS.items()):
        block = shared @ rng.normal(size=(2, width)) + 0.2 * rng.normal(size=(120, width))
        block[np.arange(120) % 3 == place] = np.nan
        columns |= {f"{name}_{j}": block[:, j] for j in range(width)}
    return pandas.DataFrame(columns, index=[f"row{j}" for j in range(120)]), (shared[:, 0] > 0).astype(int)


def named_blocks(table):
    return {name: [column for column in table.columns if column.startswith(f"{name}_")] for name in WIDTHS}


@pytest.mark.parametrize("name", [name for name in IMPUTERS if name != "auto"])
@pytest.mark.filterwarnings("ignore")
def test_one_matrix_equals_a_dict(name, frame):
    table, _ = frame
    arguments = {"latent_dim": 2, "max_iter": 5} if name == "gaussian" else SMALL.get(name, {})
    z = {block: table[columns].to_numpy() for block, columns in named_blocks(table).items()}
    want, spread = IMPUTERS[name](**arguments).fit(z).impute(z, return_std=True)
    got, std = IMPUTERS[name](**arguments, blocks=WIDTHS).fit(table).impute(table, return_std=True)
    np.testing.assert_allclose(got, np.concatenate(list(want.values()), axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, np.concatenate(list(spread.values()), axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("imputer", [GaussianImputer(2, tol=1e-2), RidgeImputer()], ids=["gaussian", "ridge"])
def test_columns_may_be_named_and_stand_in_any_order(imputer, frame):
    table, _ = frame
    shuffled = table[np.random.default_rng(1).permutation(table.columns)]
    imputer.set_params(blocks=named_blocks(table)).set_output(transform="pandas")
    done = imputer.fit_transform(shuffled)
    assert list(done.columns) == list(shuffled.columns)
    assert list(done.index) == list(table.index)
    pandas.testing.assert_frame_equal(done[table.columns], imputer.fit_transform(table))
    seen = shuffled.notna().to_numpy()
    np.testing.assert_array_equal(done.to_numpy()[seen], shuffled.to_numpy()[seen])


def test_polars_in_polars_out(frame):
    table, _ = frame
    imputer = MeanImputer(blocks=WIDTHS).set_output(transform="polars")
    done = imputer.fit_transform(polars.from_pandas(table))
    assert isinstance(done, polars.DataFrame)
    np.testing.assert_array_equal(done.to_numpy(), MeanImputer(blocks=WIDTHS).fit_transform(table))


def test_a_search_over_an_imputer_inside_a_pipeline(frame):
    table, labels = frame
    pipeline = Pipeline(
        [
            ("scale", StandardScaler().set_output(transform="pandas")),
            ("impute", GaussianImputer(blocks=named_blocks(table), tol=1e-2)),
            ("classify", LogisticRegression()),
        ]
    )
    search = GridSearchCV(pipeline, {"impute__latent_dim": [1, 2], "impute__prior": [0.0, 10.0]}, cv=3)
    assert search.fit(table, labels).best_score_ > 0.85
    either = GridSearchCV(pipeline, {"impute": [MeanImputer(blocks=WIDTHS), RidgeImputer(blocks=WIDTHS)]}, cv=3)
    assert (either.fit(table, labels).cv_results_["mean_test_score"] > 0.85).all()


def test_some_columns_are_chosen_by_a_column_transformer(frame):
    table, _ = frame
    chosen = [column for column in table.columns if not column.startswith("sound")]
    other = table.assign(age=np.arange(120.0))
    imputer = GaussianImputer(2, tol=1e-2, blocks={"image": 4, "text": 3})
    has_either = other[chosen].notna().any(axis=1)
    transformer = ColumnTransformer([("impute", imputer, chosen), ("age", StandardScaler(), ["age"])])
    transformer.set_output(transform="pandas")
    done = transformer.fit_transform(other[has_either])
    assert list(done.columns) == [*(f"impute__{column}" for column in chosen), "age__age"]
    assert done.notna().all(axis=None)


def test_an_aligner_inside_a_pipeline(frame):
    table, labels = frame
    aligner = Aligner("linear", False, 0.5, 2, 30, "never", blocks=named_blocks(table))
    assert make_pipeline(aligner, LogisticRegression()).fit(table, labels).score(table, labels) > 0.85
    aligner.set_output(transform="pandas")
    assert list(aligner.fit_transform(table).columns) == ["aligner0", "aligner1"]
    assert list(aligner.get_feature_names_out()) == ["aligner0", "aligner1"]


@pytest.mark.parametrize("verb", ["embed", "transform", "score"])
def test_columns_of_another_name_are_refused(verb):
    """What was fitted stays: a frame with other columns does not redefine it."""
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(40, 4)), columns=list("abcd"))
    imputer = GaussianImputer(latent_dim=1, blocks=[2, 2], random_state=0).fit(frame)
    with pytest.raises(ValueError, match="feature names should match"):
        getattr(imputer, verb)(frame.rename(columns={"a": "z"}))
    assert list(imputer.feature_names_in_) == list("abcd")
