"""What makes a comparison fair: as many trials for every method as ours has candidates, the best step kept, MLP heads where
they are asked for, and choices that test rows cannot change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from calmrl.config import CompareConfig
from calmrl.config.schema.train import TrainConfig
from calmrl.metrics import retrieval
from calmrl.models.heads import SkipHead
from calmrl.training.methods import METHODS, TRIALS, find_method
from calmrl.training.validate import encode_all, retrieval_scores
from calmrl.workflows.compare import jobs as job_module
from calmrl.workflows.compare.jobs import Trial, make_trial, run_job, shared_rows
from calmrl.workflows.compare.plan import Job, training_config, trials_of
from tests.support.tiny_comparison import PAIRS, SMALL, world_source

OBJECTIVES = [name for name, method in METHODS.items() if method.steps and not method.ours]


TINY = SMALL | {
    "source": world_source(150),
    "settings": {"pairs": PAIRS},
    "methods": ["pmrl"],
    "measures": ["imputation"],
    "seeds": [0],
    "steps": 20,
}


def tiny(**changes) -> CompareConfig:
    return CompareConfig.model_validate(TINY | changes)


def trial(config: CompareConfig, method: str, number: int = 0, **changes) -> Trial:
    form, own = trials_of(method, config.steps, config.trials)[number]
    return make_trial(config, "pairs", 0, form, own | changes)


def test_objectives_try_both_heads_rates_forms_and_temperatures_or_priors():
    for name in OBJECTIVES:
        for method, last in ((name, "objective.temperature"), (f"{name}+latent", "model.latent_prior")):
            trials = find_method(method).trials
            for key in ("model.hidden", "optimiser.learning_rate", "model.standardize", last):
                assert len({trial[key] for trial in trials}) == 2, (method, key)
            assert len({tuple(sorted(trial.items(), key=str)) for trial in trials}) == TRIALS


@pytest.mark.parametrize("name", ["contrastive+mlp", "pmrl+latent+mlp"])
def test_mlp_heads_where_they_are_forced(name):
    config = tiny(steps=4)
    result = run_job(config, Job("world", "pairs", name, 0))
    assert {one["changes"]["model.hidden"] for one in result.trials} == {128, 256}
    chosen = trial(config, name, result.chosen)
    for head in chosen.step.model.heads.values():
        mlp = head.mlp if isinstance(head, SkipHead) else head
        assert isinstance(head, SkipHead) == ("latent" in name)
        assert mlp[0].out_features == result.trials[result.chosen]["changes"]["model.hidden"]


def test_an_mlp_on_the_latent_start_starts_as_the_linear_heads_do():
    linear, mlp = (trial(tiny(), "pmrl+latent", 0, **{"model.hidden": hidden}) for hidden in (None, 16))
    data = linear.rows.data.validation
    for a, b in zip(*(encode_all(one.step.model, data)[0].values() for one in (linear, mlp)), strict=True):
        assert torch.equal(a, b)
    mlp.trainer.run()
    assert any(head.mlp[-1].weight.any() for head in mlp.step.model.heads.values())


def test_the_best_step_is_kept():
    """A rate that is far too high makes later steps worse: training stops, and what is measured has the best score."""
    config = tiny(steps=200)
    one = trial(config, "contrastive", 0, **{"optimiser.learning_rate": 1.0})
    outcome = one.trainer.run()
    every, patience = 200 // 20, training_config(config, "pairs", 0, {}).validation.patience
    assert outcome.stopped_early
    assert one.steps == outcome.best_step + every * patience < 200
    seen = {point["step"]: point["val"] for point in one.curve() if "val" in point}
    best, last = max(seen.values()), seen[max(seen)]
    assert best > last
    assert one.trainer.position.best_step == min(step for step, value in seen.items() if value == best)
    one.trainer.take_best()
    assert retrieval_scores(*encode_all(one.step.model, one.rows.data.validation))["MRR"] == pytest.approx(best)
    assert one.score() == best


def test_a_trial_measures_retrieval_alone():
    one = trial(tiny(), "calmrl-printed")
    one.trainer.run()
    scores = [record for record in one.records if record["kind"] == "validation"]
    assert scores
    assert all("R@1" in record and "imputation_nmse" not in record for record in scores)


def test_a_training_that_pauses_ends_like_one_that_does_not():
    whole, paused = trial(tiny(), "contrastive+staged"), trial(tiny(), "contrastive+staged")
    whole.trainer.run()
    for until in (3, 10, 10, 11):  # 10 is where the second stage begins
        paused.trainer.run(until=until)
        assert paused.steps == until
    paused.trainer.run()
    assert paused.curve() == whole.curve()
    for a, b in zip(whole.step.parameters(), paused.step.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["contrastive", "closed-form", "aligner", "cca"])
def test_test_rows_cannot_change_a_choice(name, monkeypatch):
    config = tiny(steps=6, trials=6)
    before = run_job(config, Job("world", "pairs", name, 0))

    def other_test_rows(*given):
        rows, generator = shared_rows(*given), np.random.default_rng(5)
        z = {key: generator.permutation(values) for key, values in rows.test.z.items()}
        return replace(rows, test=replace(rows.test, z=z))

    monkeypatch.setattr(job_module, "shared_rows", other_test_rows)
    after = run_job(config, Job("world", "pairs", name, 0))
    assert after.rows != before.rows
    assert (after.chosen, after.trials, after.curve) == (before.chosen, before.trials, before.curve)


@pytest.mark.parametrize("name", ["cca", "mcca", "gcca", "asif", "ridge", "procrustes", "mopoe"])
def test_classical_baselines_are_chosen_among_their_trials_on_validation_rows(name):
    config = tiny()
    result = run_job(config, Job("world", "pairs", name, 0))
    scores = [one[config.metric] for one in result.trials]
    assert len(scores) == TRIALS
    assert result.chosen == scores.index(max(scores))
    assert {one["changes"]["model.features"] for one in result.trials} == {"kernel", "linear"}
    assert {one["steps"] for one in result.trials} == {0}
    again = trial(config, name, result.chosen)
    assert again.score() == max(scores)


def test_validation_scores_are_those_of_retrieval():
    generator = torch.Generator().manual_seed(0)
    z = {name: torch.randn(60, 4, generator=generator) for name in ("a", "b", "c")}
    z["b"][:9] = z["b"][0]  # ties
    present = torch.rand(60, 3, generator=generator) < 0.8
    scores, names = retrieval_scores(z, present), list(z)
    slow = []
    for i in range(3):
        for j in range(3):
            both = present[:, i] & present[:, j]
            if i != j:
                slow.append(retrieval(z[names[i]][both], z[names[j]][both], per_query=True))
    for key in ("R@1", "R@5", "R@10"):
        assert scores[key] == pytest.approx(np.mean([one[key] for one in slow]))
    assert scores["MRR"] == pytest.approx(np.mean([100 * (1 / one["ranks"]).mean() for one in slow]))


def test_validation_scores_by_relevance_are_those_of_retrieval_with_ids():
    generator = torch.Generator().manual_seed(0)
    z = {name: torch.randn(40, 4, generator=generator) for name in ("a", "b")}
    present = torch.rand(40, 2, generator=generator) < 0.8
    relevant, both = [row % 7 for row in range(40)], present.all(1)
    ids = [relevant[row] for row in both.nonzero()[:, 0].tolist()]
    slow = [retrieval(z[a][both], z[b][both], ids, ids) for a, b in (("a", "b"), ("b", "a"))]
    assert retrieval_scores(z, present, relevant)["R@1"] == pytest.approx(np.mean([one["R@1"] for one in slow]))
    assert retrieval_scores(z, present, list(range(40))) == retrieval_scores(z, present)


def test_all_methods_are_chosen_by_the_relevance_that_they_are_compared_by():
    config = tiny(relevant_by="labels")
    for method in ("contrastive", "aligner", "cca"):
        one = trial(config, method)
        labels = one.rows.features.labels[one.rows.data.validation[0].home]
        assert one.trainer.relevant == [str(label) for label in labels]
        if method == "aligner":
            assert all(row["own"] > 1 for row in one.step.model.aligner.expected_.values())
        own = retrieval_scores(*encode_all(one.step.model, one.rows.data.validation))["MRR"]
        if one.trainer.position.best is None:
            assert one.score() > own
    assert trial(tiny(), "contrastive").trainer.relevant is None


def test_kernel_features_are_the_same_in_training_and_in_comparisons():
    """The heads of `calmrl train` compute them; a comparison computes them once before."""
    config = tiny()
    compared = trial(config, "contrastive+kernel")
    plain = shared_rows(config, "pairs", 0, None)
    form, changes = trials_of("contrastive+kernel", config.steps, 1)[0]
    trained = training_config(config, "pairs", 0, changes | {"model.standardize": form})
    whole = Trial.of(trained, {}, plain, job_module.start_model(trained, plain.data))
    for one in (compared, whole):
        one.trainer.run(until=3)
    z = [encode_all(one.step.model, [one.rows.test])[0] for one in (compared, whole)]
    for name in z[0]:
        torch.testing.assert_close(z[0][name], z[1][name], atol=1e-3, rtol=1e-3)


def test_hub_correction_is_a_row_of_its_own():
    config = tiny(steps=4, trials=1)
    plain, corrected = (run_job(config, Job("world", "pairs", name, 0)) for name in ("closed-form", "closed-form+csls"))
    assert plain.trials == corrected.trials  # the same model
    assert plain.rows != corrected.rows
    assert find_method("closed-form+csls").hubs == "csls"
    with pytest.raises(ValueError, match="the model is the same without"):
        TrainConfig.model_validate({"kind": "train", "method": "aligner+csls", "sources": {"a": {"dataset": "digits"}}})
