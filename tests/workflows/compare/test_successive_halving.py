"""Which trials go on, how long, and which is chosen, with trainers that only count; configs that nobody wrote."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.config import CompareConfig
from calmrl.data.features.writer import write_features
from calmrl.workflows.compare import plan as own_data
from calmrl.workflows.compare.jobs import Trial, train_and_choose
from calmrl.workflows.compare.plan import Job, config_for
from calmrl.workflows.compare.run import best_rows


class Counting:
    """A trainer of so many steps whose score is given."""

    relevant = None

    def __init__(self, score: float, steps: int = 40) -> None:
        self.final, self.all = score, steps
        self.position = SimpleNamespace(step=0, best=None)
        self.taken = False

    def run(self, until=None):
        self.position.step = self.all if until is None else until
        self.position.best = self.final

    def take_best(self):
        self.taken = True


def trials(*scores: float):
    made = [Trial({}, None, SimpleNamespace(eval=lambda: None, model=None), Counting(score), "MRR") for score in scores]
    return made, [lambda one=one: one for one in made]


@pytest.mark.parametrize(
    ("scores", "steps", "best"),
    [
        ((1.0, 2.0, 3.0, 4.0), [10, 10, 20, 40], 3),
        ((4.0, 4.0, 1.0, 1.0), [40, 20, 10, 10], 0),  # ties go to the earlier one
        ((1.0, 2.0, 3.0), [10, 20, 40], 2),  # two of three go on
        ((5.0,), [40], 0),
    ],
)
def test_the_better_half_goes_on(scores, steps, best):
    made, start = trials(*scores)
    found, chosen = train_and_choose(start, 40, halve=True)
    assert found == made
    assert [one.steps for one in made] == steps
    assert chosen == best
    assert [one.trainer.taken for one in made] == [number == best for number in range(len(made))]


def test_without_halving_all_go_to_the_end_and_few_steps_are_one():
    made, start = trials(1.0, 2.0)
    assert train_and_choose(start, 40, halve=False)[1] == 1
    assert [one.steps for one in made] == [40, 40]
    made, start = trials(2.0, 1.0)
    train_and_choose(start, 1, halve=True)
    assert made[1].steps == 1


def test_the_curve_of_a_trial():
    (one,), _ = trials(1.0)
    one.records = [
        {"kind": "start", "step": 0},
        {"kind": "train", "step": 2, "loss": 3.0, "epoch": 1},
        {"kind": "validation", "step": 2, "MRR": 50.0, "R@1": 9.0},
        {"kind": "end", "step": 2},
    ]
    assert one.curve() == [{"step": 2, "loss": 3.0}, {"step": 2, "val": 50.0}]


@pytest.mark.parametrize(("rows", "share"), [(9, 0.3), (10, 0.2)])
def test_features_without_test_rows_are_split_anew(rows, share, tmp_path, monkeypatch):
    monkeypatch.setattr(own_data, "SMALL", 10)
    z = {name: np.ones((rows, 2), np.float32) for name in ("a", "b")}
    write_features(tmp_path / "f", z)
    split = config_for(tmp_path / "f").source.resplit
    assert (split.by, split.val, split.test) == ("id", 0.1, share)
    write_features(tmp_path / "v", z, split=["train"] * (rows - 1) + ["val"])
    assert config_for(tmp_path / "v").source.resplit is not None
    write_features(tmp_path / "t", z, split=["train"] * (rows - 1) + ["test"])
    found = config_for(tmp_path / "t", ["seeds=[3]"])
    assert found.source.resplit is None
    assert found.seeds == [3]
    assert [setting.kind for setting in found.settings.values()] == ["as-is"]


def test_file_names_of_best_rows(tmp_path):
    place = {"dataset": "own data", "setting": "50 %"}
    values = {"datasets": {place["dataset"]: {"source": {"dataset": "digits"}}}, "methods": ["aligner:kernel"]}
    values |= {"kind": "compare", "settings": {place["setting"]: {"kind": "mcar", "rate": 0.5}}, "seeds": [0]}
    config = CompareConfig.model_validate(values)
    row = place | {"method": "aligner:kernel", "seed": 0, "task": "average", "metric": "R@1", "value": 1.0, "n": 9}
    result = SimpleNamespace(trials=[{config.metric: 1.0, "changes": {"standardize": "kernel"}}], chosen=0)
    (best,) = best_rows(config, {Job(*place.values(), "aligner:kernel", 0): result}, [row], tmp_path / "out")
    assert best.config == tmp_path / "out" / "train" / "own-data-50-aligner-kernel.yaml"
    assert best.config.is_file()
    assert shlex.split(best.command)[-1].endswith("out-own-data-50-aligner-kernel")
