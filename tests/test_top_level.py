"""What lies at the top of the package: its version, the measures by the name of the verb, and `python -m calmrl`."""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import version

import pytest

import calmrl
import calmrl.evaluate
import calmrl.metrics


def test_version():
    assert calmrl.__version__ == version("calmrl")
    with pytest.raises(AttributeError, match="no_such_name"):
        calmrl.no_such_name  # noqa: B018


def test_evaluate_is_metrics_by_the_name_of_the_verb():
    assert calmrl.evaluate.retrieval is calmrl.metrics.retrieval
    assert dir(calmrl.evaluate) == sorted(dir(calmrl.metrics))
    with pytest.raises(AttributeError, match="no_such_name"):
        calmrl.evaluate.no_such_name  # noqa: B018


def test_the_package_is_its_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["calmrl", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("calmrl", run_name="__main__")
    assert not stop.value.code
    assert calmrl.__version__ in capsys.readouterr().out
