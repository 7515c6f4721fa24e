"""`calmrl doctor` does not believe that an encoder works because its packages are there: it tries."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from calmrl.encoders import ENCODERS
from calmrl.encoders.registry import DEFAULTS, PACKAGES
from tests.support.tiny_encoders import TINY, tiny  # noqa: F401

pytestmark = pytest.mark.usefixtures("tiny")


def test_doctor_tries_the_default_encoders(calmrl, monkeypatch):
    for kind, name in {"text": "tiny_text", "image": "tiny_image", "audio": "tiny_audio", "speech": "absent"}.items():
        monkeypatch.setitem(DEFAULTS, kind, name)
        monkeypatch.setitem(PACKAGES, name, ("not_there",) if name == "absent" else ())

    def fails(items):
        raise RuntimeError("its weights are damaged")

    broken = replace(TINY["tiny_audio"].make(), encode=fails)
    monkeypatch.setitem(ENCODERS, "tiny_audio", replace(TINY["tiny_audio"], make=lambda: broken))
    _, out, _ = calmrl("doctor", "--json")
    told = json.loads(out)["encoders"]
    assert {kind: entry["works"] for kind, entry in told.items()} == {
        "text": True, "image": True, "audio": False, "speech": False,
    }  # fmt: skip
    assert told["audio"]["why"] == "RuntimeError: its weights are damaged"
    assert 'need not_there, not installed here; run: pip install "calmrl[files]"' in told["speech"]["why"]
    _, out, _ = calmrl("doctor")
    assert re.search(
        r"\nencoders\n  text +tiny_text +works\n  image +tiny_image +works\n  audio +tiny_audio +does not work\n", out
    )
