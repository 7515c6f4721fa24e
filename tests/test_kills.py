"""Commands that are killed at a random moment and started again give the same bytes and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import warm
from tests.support.train_data import environment

pytestmark = pytest.mark.soak

TIMES = {"train": 2, "impute": 3, "extract": 3, "compare": 2, "index": 2, "add": 2, "refit": 2}
NEEDS = {"extract": ["PIL.Image", "av"], **{verb: ["lancedb", "PIL.Image", "av"] for verb in ("index", "add", "refit")}}


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
@pytest.mark.parametrize("verb", TIMES)
def test_a_few_kills(verb):
    for module in NEEDS.get(verb, []):
        pytest.importorskip(module)
    script = Path(__file__).with_name("kills.py")
    done = warm.run([script, "--verb", verb, "--times", TIMES[verb], "--seed", 3], environment(), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{verb}: {TIMES[verb]} runs" in done.stdout
