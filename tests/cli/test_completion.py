"""What the shell completes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("calmrl chec", {"check"}),
        ("calmrl train stam", {"stamps"}),
        ("calmrl ls enc", {"encoders"}),
        ("calmrl extract c --encoder image=eff", {"image=efficientnet_lite0"}),
        ("calmrl compare demo --methods pmrl,gram", {"pmrl,gram"}),
    ],
)
def test_names_are_completed(words, expected) -> None:
    asked = {"_CALMRL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    run = [sys.executable, "-m", "calmrl"]
    done = subprocess.run(run, capture_output=True, text=True, env=os.environ | asked, check=True)
    assert set(done.stdout.split()) == expected
