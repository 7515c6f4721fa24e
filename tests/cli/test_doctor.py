"""`calmrl doctor`: versions, devices, extras, and encoders: it does not believe that they work, it tries."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from importlib import metadata

import pytest
import torch

from calmrl import __version__
from calmrl.cli import info
from calmrl.encoders import ENCODERS
from calmrl.encoders.registry import DEFAULTS, PACKAGES


def test_what_is_installed(calmrl, monkeypatch):
    code, out, _ = calmrl("doctor", "--json")
    told = json.loads(out)
    assert (code, told["system"]["calmrl"]) == (0, __version__)
    assert told["packages"]["torch"]
    assert set(told["extras"]) == set(metadata.metadata("calmrl").get_all("Provides-Extra") or [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    system = info.examine()["system"]
    assert system["devices"] == "cpu, cuda:0 GPU 0, cuda:1 GPU 1, mps"
    assert system["cores"] == str(len(os.sched_getaffinity(0)))


def test_the_columns(calmrl, monkeypatch):
    report = {
        "system": {"python": "3"}, "packages": {"numpy": "2", "torch": None},
        "extras": {"a": {"x": "1"}, "b": dict.fromkeys([f"package-{j}" for j in range(9)])},
    }  # fmt: skip
    monkeypatch.setattr(info, "examine", lambda: report)
    _, out, _ = calmrl("doctor")
    lines = out.splitlines()
    assert lines[0] == "python     3"
    assert {"packages", "extras", "encoders"} <= set(lines)
    assert f"  {'torch':<24} missing" in lines
    assert f"  {'a':<24} installed" in lines
    assert f"""  {"b":<24} absent: pip install "calmrl[b]\"""" in lines
    lacks = [line for line in lines if "package-" in line]
    assert lacks[0].startswith(" " * 27 + "lacks package-0")
    assert lacks[1].startswith(" " * 33 + "package-")
    assert max(map(len, lacks)) <= 79
    assert lines[-2:] == ["engine local", "  this process"]


def test_the_default_encoders_are_tried(calmrl, monkeypatch):
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
    from tests.support.tiny_encoders import TINY

    def fails(items):
        raise RuntimeError("its weights are damaged")

    for kind, name in {"text": "tiny_text", "image": "tiny_image", "audio": "tiny_audio", "speech": "absent"}.items():
        monkeypatch.setitem(DEFAULTS, kind, name)
        monkeypatch.setitem(PACKAGES, name, ("not_there",) if name == "absent" else ())
        if name in TINY:
            monkeypatch.setitem(ENCODERS, name, TINY[name])
    broken = replace(TINY["tiny_audio"].make(), encode=fails)
    monkeypatch.setitem(ENCODERS, "tiny_audio", replace(TINY["tiny_audio"], make=lambda: broken))
    told = json.loads(calmrl("doctor", "--json")[1])["encoders"]
    assert {kind: entry["works"] for kind, entry in told.items()} == {
        "text": True, "image": True, "audio": False, "speech": False,
    }  # fmt: skip
    assert told["audio"]["why"] == "RuntimeError: its weights are damaged"
    assert 'need not_there, not installed here; run: pip install "calmrl[files]"' in told["speech"]["why"]
    assert re.search(
        r"\nencoders\n  text +tiny_text +works\n  image +tiny_image +works\n  audio +tiny_audio +does not work\n",
        calmrl("doctor")[1],
    )
