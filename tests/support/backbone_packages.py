"""Official packages of backbones that are not there: stand-ins with the same functions, on the path for a test."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from calmrl.encoders import encoder_set as ready
from calmrl.paper import encoders

FAKES = Path(__file__).parent / "fake_backbones"
PACKAGES = ("imagebind", "languagebind", "InternVideo")


def forget() -> None:
    """Models and modules that an earlier test loaded."""
    for module in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[module]
    for loaded in vars(encoders).values():
        getattr(loaded, "cache_clear", lambda: None)()
    for key in [key for key in ready._READY if key[0].startswith(("imagebind", "internvideo", "languagebind"))]:
        del ready._READY[key]


@pytest.fixture
def packages(monkeypatch):
    """The stand-ins, importable under the names of the official packages."""
    forget()
    monkeypatch.syspath_prepend(FAKES)
    yield
    forget()


def calls(package: str) -> list[tuple]:
    """What the functions of a stand-in were called with."""
    return import_module(package).CALLS


def imagebind_weights(path: Path) -> Path:
    torch.manual_seed(0)
    model = import_module("imagebind.models.imagebind_model").imagebind_huge()
    torch.save(model.state_dict(), path)
    return path


def internvideo_weights(path: Path, width: int = 768, without: str = "") -> Path:
    torch.manual_seed(0)
    state = import_module("InternVideo.clip_utils.model").VideoIntern(width).state_dict()
    kept = {f"clip.{key}": value for key, value in state.items() if key != without}
    torch.save({"state_dict": kept | {"other.weight": torch.zeros(1)}}, path)
    return path
