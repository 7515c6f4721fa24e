"""More of what workflows refuse and note: sources of training, evaluation of raw media, imputing by blocks."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from calmrl._support.engine import LocalEngine
from calmrl.config import CompareConfig
from calmrl.config.schema.train import CalibrationSection, TrainConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.losses import ContrastiveLoss
from calmrl.models.heads import Heads
from calmrl.models.saved import Trained, trained_card
from calmrl.workflows import build, evaluate
from calmrl.workflows.build import Data, _calibrated, _take_temperature, _validation_relevance, open_data
from calmrl.workflows.compare.jobs import JobError, _on_one_thread, longest_first
from calmrl.workflows.compare.plan import Job

impute_spread = importlib.import_module("calmrl.workflows.impute")  # the package exports a function of this name

imputation = importlib.import_module("calmrl.workflows.impute")  # the package exports a function of this name

# ---- sources of training


def features(n=20, **columns) -> FeatureSet:
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(n, 3)).astype(np.float32) for name in ("image", "text", "sound")}
    z["image"][:3] = z["text"][:3] = np.nan
    return FeatureSet(z, None, pa.table({"id": [str(i) for i in range(n)], **columns}))


def config(**more) -> TrainConfig:
    values = {"kind": "train", "method": "gram", "sources": {"a": {"features": "x"}}, "modalities": ["image", "text"]}
    return TrainConfig.model_validate(values | more)


def test_rows_that_have_nothing_of_what_trains_are_noted():
    parts = ["train"] * 15 + ["val"] * 5
    found = open_data(config(), {"a": features(split=parts)})
    assert found.notes == ["source a: 3 rows have none of image, text and are left out"]
    assert (len(found.train["a"]), len(found.validation[0]), list(found.widths)) == (12, 5, ["image", "text"])
    assert open_data(config(modalities=["image", "sound"]), {"a": features(split=parts)}).notes == []
    hiding = config(sources={"a": {"features": "x", "hide": {"kind": "one", "rate": 0.5}}})
    assert open_data(hiding, {"a": features(split=parts)}).train["a"].present.sum() == 24 - 8  # of half of 15
    assert open_data(hiding, {"a": features(split=parts)}).validation[0].present.all()


def test_which_validation_rows_count_as_found():
    parts = ["train"] * 15 + ["val"] * 5
    data = open_data(config(), {"a": features(split=parts, kind=["x"] * 17 + ["y", None, "x"])})
    assert _validation_relevance(config(), data) is None
    found = _validation_relevance(config(validation={"relevant": "kind"}), data)
    assert found == ["x", "x", "y", 3, "x"]
    with pytest.raises(
        InputError, match=r"validation\.relevant needs features; for a model of raw media a query finds"
    ):
        _validation_relevance(config(validation={"relevant": "kind"}), Data({}, [], {}, []))


def test_a_learned_temperature_starts_at_that_of_the_checkpoint():
    model = SimpleNamespace(matching=SimpleNamespace(temperature=torch.tensor(0.25)))
    learned, fixed = ContrastiveLoss(learn_temperature=True), ContrastiveLoss(learn_temperature=False)
    _take_temperature(learned, model)
    assert float(learned.temperature(torch.ones(())).detach()) == pytest.approx(0.25)
    _take_temperature(fixed, model)
    before = ContrastiveLoss(learn_temperature=True)
    start = float(before.temperature.log_value.detach())
    _take_temperature(before, SimpleNamespace())
    assert float(before.temperature.log_value.detach()) == start


def test_how_imputers_are_updated(monkeypatch):
    def update(method, how="auto"):
        section = CalibrationSection.model_validate({"imputer": {"method": method}, "update": how})
        return _calibrated(ContrastiveLoss(), section, nn.Identity(), [], 0).update

    assert (update("gaussian"), update("mvae"), update("knn")) == ("stepwise", "stepwise", "frozen")
    assert update("gaussian", "frozen") == "frozen"
    monkeypatch.setattr(build, "world", lambda: (2, 0))
    assert (update("gaussian"), update("mvae")) == ("stepwise", "frozen")
    with pytest.raises(InputError, match="the imputer mvae learns from the rows of its own process only"):
        update("mvae", "stepwise")
    with pytest.raises(InputError, match="gradient needs the imputer gaussian; got mvae"):
        update("mvae", "gradient")


# ---- evaluation


def test_what_a_model_of_raw_media_is_not_evaluated_with(tmp_path, monkeypatch):
    home = importlib.import_module("calmrl.workflows.evaluate")
    monkeypatch.setattr(home, "load_model", lambda folder: SimpleNamespace())
    monkeypatch.setattr(home, "load", lambda path, kind: config())
    monkeypatch.setattr(home, "MODELS", {"heads": SimpleNamespace(reads="media")})
    with pytest.raises(InputError, match="is evaluated on the test rows of its sources; leave out `data`"):
        evaluate(tmp_path, tmp_path / "data")
    with pytest.raises(InputError, match="for a model of raw media a query finds its own row; leave out `relevant_by`"):
        evaluate(tmp_path, relevant_by="text")
    with pytest.raises(InputError, match="a model of raw media is evaluated in one process; leave out `engine`"):
        evaluate(tmp_path, engine=LocalEngine())
    monkeypatch.setattr(home, "MODELS", {"heads": SimpleNamespace(reads="features")})
    with pytest.raises(InputError, match="sources are for a model of raw media; name features with data"):
        evaluate(tmp_path, sources={})


def test_sources_without_test_rows(tmp_path):
    from calmrl.workflows.evaluate import _sources

    z = {name: np.ones((4, 2), np.float32) for name in ("image", "text")}
    write_features(tmp_path / "a", z, split=["train"] * 4)
    write_features(tmp_path / "b", z, split=["train"] * 3 + ["test"])
    both = config(sources={name: {"features": str(tmp_path / name)} for name in "ab"})
    assert list(_sources(both, SimpleNamespace(names=("image", "text")))) == ["b"]
    alone = config(sources={"a": {"features": str(tmp_path / "a")}})
    with pytest.raises(InputError, match='no source has rows of split "test"; name test data with `data`'):
        _sources(alone, SimpleNamespace(names=("image", "text")))


# ---- jobs


def test_jobs_that_take_longest_come_first():
    jobs = [Job("d", "s", method, 0) for method in ("gram", "calibrated", "aligner", "pmrl", "closed-form")]
    assert [job.method for job in longest_first(jobs)] == ["aligner", "calibrated", "gram", "pmrl", "closed-form"]


def test_work_on_one_thread_names_what_failed():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert _on_one_thread("job", torch.get_num_threads) == 1
        assert torch.get_num_threads() == 2

        def refuse():
            raise InputError("no rows")

        with pytest.raises(InputError, match=r"^job: no rows$"):
            _on_one_thread("job", refuse)
        with pytest.raises(JobError, match=r"(?s)^job: division by zero\n.*Traceback"):
            _on_one_thread("job", lambda: 1 / 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_config_of_a_comparison_is_plain():
    values = {"kind": "compare", "source": {"dataset": "digits"}, "methods": ["pmrl"]}
    assert CompareConfig.model_validate(values).names


# ---- cards


def test_a_card_says_what_a_model_is():
    model = Trained(Heads({"a": 4, "b": 3}, 2), info={"method": "gram", "steps": 5, "files": {}, "best": [1]},
                    encoders={"encoders": {"a": {"name": "minilm"}}})  # fmt: skip
    card = trained_card(model)
    assert card.title == "gram: a, b in one space of 2 dimensions"
    assert (card.widths, card.encoders) == ({"a": 4, "b": 3}, {"a": "minilm"})
    assert card.choice == {"kind": "heads", "imputes with": "nothing", "method": "gram", "steps": 5}
    assert card.tags == ("calmrl-heads", "feature-extraction")
    assert card.quality == []
