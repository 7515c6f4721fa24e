"""What the scripts that make the bundled collections have in common: packages, drawings, groups, comparison."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from calmrl.data.features.feature_set import FeatureSet
from calmrl.workflows.extract import extract

PIXELS = 512  # longer side of a rasterised SVG


def debian_package(name: str, version: str, work: Path) -> Path:
    """Download a Debian package of this version and unpack it: the folder that stands for "/"."""
    subprocess.run(["apt-get", "download", f"{name}={version}"], cwd=work, check=True)
    target = work / "package"
    subprocess.run(["dpkg", "-x", next(work.glob(f"{name}_*.deb")), target], check=True)
    return target


def rasterise(path: Path, pixels: int = PIXELS) -> bytes:
    """An SVG as PNG with transparency; letters in the fonts that come with matplotlib, the same on every machine."""
    import matplotlib
    import resvg_py

    fonts = str(Path(matplotlib.get_data_path()) / "fonts/ttf")
    settings: dict[str, Any] = {
        "dpi": 96.0,
        "skip_system_fonts": True,
        "font_dirs": [fonts],
        "font_family": "DejaVu Sans",
    }
    first = bytes(resvg_py.svg_to_bytes(svg_path=str(path), width=64, **settings))
    height = int.from_bytes(first[20:24], "big")  # of the PNG header
    side = {"width": pixels} if height <= 64 else {"height": pixels}
    return bytes(resvg_py.svg_to_bytes(svg_path=str(path), **side, **settings))


def encode(
    manifest: Path, encoders: dict[str, str], out: Path, workers: int, allow_missing: bool = False
) -> FeatureSet:
    """`calmrl extract`, with its progress on the screen."""
    return extract(
        manifest,
        encoders,
        out,
        workers=workers,
        allow_missing=allow_missing,
        report=lambda line: print(line, file=sys.stderr),
        progress=lambda done, total, what: print(f"{what} {done}/{total}", file=sys.stderr, end="\r"),
    )


class Groups:
    """Rows that belong together: rows that share a key, or are joined, end up in one group."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.parent = list(range(len(names)))
        self.first: dict[Hashable, int] = {}

    def root(self, row: int) -> int:
        while self.parent[row] != row:
            self.parent[row] = self.parent[self.parent[row]]
            row = self.parent[row]
        return row

    def join(self, row: int, other: int) -> None:
        self.parent[self.root(row)] = self.root(other)

    def share(self, row: int, keys: Iterable[Hashable]) -> None:
        """Join this row with the first one of each key; empty keys join nothing."""
        for key in keys:
            if key:
                self.join(row, self.first.setdefault(key, row))

    def join_twins(self, features: FeatureSet, modality: str, cosine: float) -> None:
        """Join rows whose features have a cosine above this."""
        rows = np.flatnonzero(features.present[:, features.names.index(modality)])
        unit = np.asarray(features.z[modality][rows], dtype=np.float32)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        for i, j in zip(*np.nonzero(np.triu(unit @ unit.T > cosine, 1)), strict=True):
            self.join(int(rows[i]), int(rows[j]))

    def join_equal(self, features: FeatureSet, modality: str) -> None:
        """Join rows with the same features."""
        for row in np.flatnonzero(features.present[:, features.names.index(modality)]).tolist():
            self.share(row, [(modality, features.z[modality][row].tobytes())])

    def group_names(self) -> list[str]:
        """For each row the name of the first row of its group."""
        smallest: dict[int, str] = {}
        for row, name in enumerate(self.names):
            smallest.setdefault(self.root(row), name)
        return [smallest[self.root(row)] for row in range(len(self.names))]


def compare_bundles(saved: dict[str, np.ndarray], arrays: dict[str, np.ndarray], modalities: Iterable[str]) -> None:
    """Print how far these arrays are from the bundled ones."""
    modalities = list(modalities)
    for key in arrays:
        if key not in modalities:
            equal = key in saved and np.array_equal(saved[key], arrays[key])
            print(f"{key}: {'same' if equal else 'DIFFERS'}")
    for name, column in zip(modalities, saved["present"].T, strict=True):
        if saved[name].shape != arrays[name].shape:
            print(f"{name}: shape {arrays[name].shape}, bundled {saved[name].shape}: DIFFERS")
            continue
        old, new = saved[name][column].astype(np.float64), arrays[name][column].astype(np.float64)
        cosine = (old * new).sum(1) / np.linalg.norm(old, axis=1) / np.linalg.norm(new, axis=1)
        gap = np.abs(old - new).max() / np.abs(old).max()
        print(f"{name}: {len(old)} rows, lowest cosine {cosine.min():.7f}, largest difference {gap:.1e} of the range")
