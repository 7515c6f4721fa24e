"""What is chosen does not depend on who evaluates the candidates: the search of sizes, the best imputer, the aligner."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl import Aligner
from calmrl.aligner import crossvalidation
from calmrl.data.features.distributed_rows import DistributedArrays
from calmrl.imputers import AutoImputer, GaussianImputer
from tests.engines.pickling_engine import PicklingEngine
from tests.support.latent_data import from_model


def test_the_search_of_sizes_makes_trials_ahead_and_chooses_the_same():
    z, present = from_model(n=300)
    settings = {"latent_dim": "auto", "n_components": "auto", "noise": "auto", "max_iter": 10}
    engine = PicklingEngine()
    one = GaussianImputer(**settings).fit(z, present)
    distributed = GaussianImputer(**settings).fit_with(z, present, engine)
    assert set(engine.done) == {"run_trial"}
    assert len(engine.done) >= 8
    assert distributed.settings_ == one.settings_
    assert distributed.search_ == one.search_
    assert distributed.std_scale_ == one.std_scale_


def test_an_engine_with_one_worker_makes_no_trials_ahead():
    z, present = from_model(n=100)
    engine = PicklingEngine()
    engine.workers = 1
    GaussianImputer("auto", max_iter=5).fit_with(z, present, engine)
    assert engine.done == []


@pytest.mark.parametrize("settings", [{"whitening": "auto"}, {"criterion": "retrieval"}], ids=str)
def test_other_searches_choose_the_same(settings, monkeypatch):
    from calmrl.latent import choose as size_search

    monkeypatch.setattr(size_search, "MANY_LATENTS", (6, 8))
    z, present = from_model(n=200)
    engine = PicklingEngine()
    one = GaussianImputer("auto", max_iter=6, **settings).fit(z, present)
    distributed = GaussianImputer("auto", max_iter=6, **settings).fit_with(z, present, engine)
    assert any(row["whitening"] > 0 for row in one.search_)
    assert distributed.search_ == one.search_


def test_the_best_imputer_is_the_same():
    z, present = from_model(n=300)
    candidates = ["gaussian", "kernel", "ridge", "knn", "mean"]
    engine = PicklingEngine()
    one = AutoImputer(candidates).fit(z, present)
    distributed = AutoImputer(candidates).fit(DistributedArrays(z, present, engine), present)
    assert engine.done.count("try_candidate") == 4
    assert "run_trial" in engine.done
    assert distributed.chosen_ == one.chosen_
    for part in ("errors", "weights", "error", "coverage_by_modality", "held_out_by_modality"):
        assert distributed.choice_[part] == one.choice_[part]
    for name in z:
        np.testing.assert_allclose(distributed.transform(z, present)[name], one.transform(z, present)[name], atol=1e-8)


@pytest.mark.parametrize("relevant", [None, "some"])
def test_the_aligner_chooses_the_same(relevant):
    z, present = from_model(n=400)
    values = None if relevant is None else np.arange(400) // 3
    engine = PicklingEngine()
    settings = {"candidates": 8, "landmarks": 50}
    one = Aligner(**settings).fit(z, present, relevant=values)
    distributed = Aligner(**settings).fit(DistributedArrays(z, present, engine), relevant=values)
    assert engine.done.count("_evaluate") >= 8 + 2 + 3
    assert distributed.choice_ == one.choice_
    assert distributed.expected_ == one.expected_
    np.testing.assert_allclose(distributed.embed(z, present), one.embed(z, present), atol=1e-8)
    assert len({key for key, _ in crossvalidation._kept}) == 1


def test_few_trials_are_made_for_nothing():
    z, present = from_model(n=300)
    engine = PicklingEngine()
    distributed = GaussianImputer("auto", "auto", "auto", max_iter=10).fit_with(z, present, engine)
    assert len(engine.done) <= len(distributed.search_) + 2
