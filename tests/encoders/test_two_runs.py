"""Two runs of every encoder that is offered give the same bytes, in two processes, on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calmrl.encoders import ENCODERS
from tests.support import encode_everything
from tests.support.backbone_packages import FAKES, imagebind_weights, internvideo_weights, packages  # noqa: F401
from tests.support.make_media import click, make_sound, make_video

image_module = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")


def run(folder: Path, out: Path, seed: str) -> dict:
    """What `encode_everything` writes in a new process; the seed is that of its hashes."""
    paths = os.pathsep.join([str(FAKES), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
    script = [sys.executable, encode_everything.__file__, str(folder), str(out)]
    subprocess.run(script, check=True, env=environment, cwd=folder)
    return json.loads(out.read_text())


def test_two_processes_give_the_same_bytes(packages, tmp_path, calmrl) -> None:  # noqa: F811
    y, x = np.mgrid[0:60, 0:80]
    image_module.fromarray(np.stack([3 * x, 4 * y, x + y], axis=2).astype(np.uint8)).save(tmp_path / "a.png")
    make_sound(tmp_path / "a.wav", click(0.4, 1.2))
    make_video(tmp_path / "a.mp4", 6, 10)
    imagebind_weights(tmp_path / "imagebind.pth")
    internvideo_weights(tmp_path / "internvideo.ckpt")
    one, two = (run(tmp_path, tmp_path / f"{seed}.json", seed) for seed in ("1", "2"))
    assert one["vectors"] == two["vectors"]
    for name, content in one["vectors"].items():
        values = np.frombuffer(bytes.fromhex(content), np.float32)
        assert np.isfinite(values).all()
        assert np.ptp(values) > 0, name

    code, out, _ = calmrl("ls", "encoders", "--json")
    assert code == 0
    assert sorted([*one["vectors"], *one["absent"]]) == sorted(json.loads(out)["encoders"])  # none was forgotten
    for name, reason in one["absent"].items():
        assert "not installed" in reason
        assert not ENCODERS[name].package  # the stand-ins of official packages are always there
