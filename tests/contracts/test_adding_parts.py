"""A new loss, imputer, method or model costs its own file and one line of a table; everything else finds it there."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace

import pytest

from calmrl._support.registry import Registry
from calmrl.config import ConfigError, load
from calmrl.imputers.registry import IMPUTERS
from calmrl.losses.registry import LOSSES
from calmrl.training.methods import METHODS, find_method
from tests.support.train_data import config_file

PARTS = '''
"""Parts that somebody brings along."""

from calmrl._support.arguments import Positive
from calmrl.imputers.simple import MeanImputer
from calmrl.losses.contrastive import ContrastiveLoss


class NearLoss(ContrastiveLoss):
    """Pairs that should be near."""

    def __init__(self, temperature: Positive = 0.3, *, sharp: bool = False) -> None:
        super().__init__(None, temperature, learn_temperature=False)
        self.sharp = sharp


class MiddleImputer(MeanImputer):
    """The middle of everything."""
'''


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A module with new parts, registered as the tables do it: by text."""
    (tmp_path / "new_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(LOSSES, "near", "new_parts:NearLoss")
    monkeypatch.setitem(IMPUTERS, "middle", "new_parts:MiddleImputer")
    method = replace(
        METHODS["contrastive"],
        about="pairs that should be near, a new method",
        objective="near",
        recipe={"objective": {"name": "near", "temperature": 0.4}},
    )
    monkeypatch.setitem(METHODS, "near", method)
    yield
    sys.modules.pop("new_parts", None)


def test_listing_does_not_import_what_it_lists(parts, calmrl):
    code, out, _ = calmrl("ls", "methods")
    assert code == 0
    assert "pairs that should be near, a new method" in out
    code, out, _ = calmrl("ls", "imputers")
    assert "The middle of everything." in out
    assert "new_parts" not in sys.modules


def test_config_errors_know_them(parts, tmp_path):
    path = config_file(tmp_path, method="neer")
    with pytest.raises(ConfigError, match='did you mean "near"'):
        load(path)
    path = config_file(tmp_path, method="near", objective={"name": "near", "sharpe": True})
    with pytest.raises(ConfigError, match=r'objective\.sharpe: unknown key; did you mean "objective.sharp"'):
        load(path)
    path = config_file(tmp_path, method="near", objective={"name": "near", "temperature": 0})
    with pytest.raises(ConfigError, match=r"objective\.temperature: should be greater than 0; got 0"):
        load(path)


def test_train_uses_them(parts, tmp_path, calmrl):
    path = config_file(tmp_path, method="near")
    config = load(path)
    assert config.objective.model_dump() == {"name": "near", "temperature": 0.4, "sharp": False}
    code, _, err = calmrl("train", path, "--out", tmp_path / "run", "stages=[{steps: 2}]")
    assert code == 0, err
    assert (tmp_path / "run" / "model" / "weights.safetensors").is_file()


def test_compare_and_its_report_use_them(parts, tmp_path, calmrl):
    text = textwrap.dedent(
        """
        kind: compare
        source: {dataset: digits, resplit: {by: id, test: 0.3}}
        settings: {half: {kind: mcar, rate: 0.5}}
        methods: [near, near+latent, "calibrated:middle"]
        measures: [imputation]
        seeds: [0]
        steps: 2
        trials: 1
        width: 8
        workers: 1
        """
    )
    (tmp_path / "mine.yaml").write_text(text)
    code, _, err = calmrl("compare", tmp_path / "mine.yaml", "--out", tmp_path / "out")
    assert code == 0, err
    page = (tmp_path / "out" / "report.html").read_text()
    assert "pairs that should be near, a new method, heads from the latent model" in page
    assert "calibrated with middle" in page


def test_the_recipe_of_a_method_is_the_default_of_training_and_the_first_trial_of_comparisons(tmp_path):
    for name in METHODS:
        if METHODS[name].ideal:
            continue
        method = find_method(name)
        plain = {"calibration": None, "optimiser": None, "stages": None if not method.steps else [{"steps": 2}]}
        plain |= {"model": None} if method.model != "heads" else {}
        config = load(config_file(tmp_path, method=name, **plain)).model_dump()
        for key, value in method.configs(1)[0].items():
            if value is None:  # not a key of this kind of model
                continue
            part = config
            for step in key.split("."):
                part = part[step]
            expected = value.items() if isinstance(value, dict) else None
            assert (expected <= part.items()) if expected is not None else part == value, (name, key)


def test_a_registry_is_a_mapping_of_names():
    shapes = Registry("shape", {"fraction": "fractions:Fraction", "own": int})
    assert list(shapes) == ["fraction", "own"]
    assert shapes["own"] is int
    assert shapes["fraction"](1, 2) * 2 == 1
    del shapes["own"]
    assert "own" not in shapes
    with pytest.raises(ValueError, match='unknown shape "fracton"; did you mean "fraction"'):
        shapes["fracton"]
