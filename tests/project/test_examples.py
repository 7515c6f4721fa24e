"""The examples run and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_drop_in_loss() -> None:
    before, after = runpy.run_path(str(EXAMPLES / "drop_in_loss.py"))["main"](steps=60)
    assert before < 0.05
    assert after > 0.3
