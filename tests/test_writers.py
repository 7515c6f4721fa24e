"""Writers of one path at once: each call ends in a result or a sentence, and a reader always finds something whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.train_data import environment


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_four_writers_and_a_reader():
    pytest.importorskip("lancedb")
    done = warm.run([Path(__file__).with_name("writers.py"), "--seconds", 3], environment(), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    done_well = {name: int(count) for name, count in re.findall(r"(.+): (\d+) ok,", done.stdout)}
    for name in ("add", "save", "features", "read index", "search", "load"):
        assert done_well[name] > 0, done.stdout
