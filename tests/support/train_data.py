"""Small data, configs and comparisons for the tests of training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from calmrl.config import load
from calmrl.data.features.writer import write_features
from calmrl.data.loaders.feature_rows import FeatureRows
from calmrl.training import checkpoints as checkpoint
from calmrl.training.checkpoints import read_records
from tests.support import warm
from tests.support.waiting import patience

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = {"image": 10, "text": 8, "audio": 6}
TIMES = {"rows_per_s", "latent_share", "waited_s", "seconds", "latent_seconds"}


def rows(n: int, seed: int = 0, rate: float = 0.4) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Views of a shared factor, and holes: the first rows are complete, the others miss blocks at random."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 5))
    maps = np.random.default_rng(99)
    z = {
        name: (shared @ maps.normal(size=(5, d)) + 0.3 * rng.normal(size=(n, d))).astype(np.float32)
        for name, d in WIDTHS.items()
    }
    present = rng.random((n, 3)) > rate
    present[np.arange(n), rng.integers(0, 3, n)] = True
    present[: n // 4] = True
    return z, present


def write_rows(path: Path, n: int = 96, seed: int = 0, validate: int = 24) -> Path:
    """A feature directory of n rows, of which the first `validate` (all complete) have split val."""
    z, present = rows(n, seed)
    present[:validate] = True
    z = {name: np.where(present[:, [j]], array, np.nan).astype(np.float32) for j, (name, array) in enumerate(z.items())}
    write_features(
        path, z, present, ids=[f"r{i}" for i in range(n)], split=["val"] * validate + ["train"] * (n - validate)
    )
    return path


def config_file(folder: Path, **changes: Any) -> Path:
    """A small training config of two sources in `folder`, written with these top-level keys changed."""
    for name, seed in (("a", 0), ("b", 1)):
        if not (folder / name).exists():
            write_rows(folder / name, seed=seed)
    values: dict[str, Any] = {
        "kind": "train",
        "method": "calmrl-printed",  # the latent model learns along the way: what most tests are about
        "root": str(folder),
        "sources": {"a": {"features": "a"}, "b": {"features": "b"}},
        "modalities": list(WIDTHS),
        "model": {"kind": "heads", "width": 8},
        "calibration": {"imputer": {"method": "gaussian", "latent_dim": 4}},
        "stages": [{"epochs": 3.0}],
        "batch_size": 24,
        "optimiser": {"learning_rate": 1e-2},
        "checkpoint": {"every": 5},
        "log_every": 1,
    }
    values |= changes
    if not values["method"].startswith("calmrl"):
        values.pop("calibration", None)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return path


def config(folder: Path, **changes: Any) -> Any:
    return load(config_file(folder, **changes), kind="train")


def source(n: int, name: str = "s", weight: float = 1.0, seed: int = 0, rate: float = 0.4) -> FeatureRows:
    z, present = rows(n, seed, rate)
    ids = np.array([f"{name}{i}" for i in range(n)], dtype=object)
    return FeatureRows(name, z, present, np.arange(n), ids, tuple(WIDTHS), dict(WIDTHS), weight)


def records(out: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """metrics.jsonl without the fields that tell the time."""
    found = read_records(out / "metrics.jsonl", kind)
    return [{key: value for key, value in record.items() if key not in TIMES} for record in found]


def assert_same_run(one: Path, two: Path) -> None:
    """Records, newest and best checkpoint and exported model are the same, bit for bit."""
    assert records(one) == records(two)
    for find in (checkpoint.newest, checkpoint.best):
        paths = [find(out / "checkpoints") for out in (one, two)]
        assert paths[0].name == paths[1].name
        a, b = (checkpoint.read(path) for path in paths)
        assert_equal(a.weights, b.weights)
        assert_equal(a.ema, b.ema)
        assert_equal(a.latent, b.latent)
        for times in (a, b):
            times.training["position"] |= {"seconds": 0.0, "latent_seconds": 0.0}
        assert_equal(a.training, b.training)
    for file in sorted((one / "model").rglob("*")):
        if file.is_file():
            assert file.read_bytes() == (two / "model" / file.relative_to(one / "model")).read_bytes(), file


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}.{i}")
    else:
        assert a == b, where


def calmrl(*arguments: Any, launch: tuple[str, ...] = (), code: int = 0) -> subprocess.CompletedProcess[str]:
    """`python -m calmrl ...`, or the same under a launcher; its exit code is checked."""
    words = ["-m", "calmrl", *map(str, arguments)]
    if launch:
        run = [sys.executable, "-m", *launch, *words]
        done = subprocess.run(
            run, capture_output=True, text=True, env=environment(), check=False, timeout=patience(300)
        )
    else:
        done = warm.run(words, environment(), timeout=300)
    assert done.returncode == code, done.stderr
    return done


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


def python(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own; its exit code is left to the caller."""
    return warm.run(["-c", script, *arguments], environment(), timeout=300)


def last_json(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout.strip().splitlines()[-1])


def step_of(path: Path) -> int:
    """checkpoints/step-00000400 -> 400"""
    return int(path.name.removeprefix("step-"))
