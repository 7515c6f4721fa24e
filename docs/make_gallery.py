"""Copy the figures of a demo run into docs/assets/gallery: `python docs/make_gallery.py demo-out` after `calmrl demo`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

TARGET = Path(__file__).with_name("assets") / "gallery"
FIGURES = (
    "compare-1",
    "compare-2",
    "three-1",
    "shift-1",
    "imputation-1",
    "coverage-1",
    "loss-1",
    "classify-1",
    "patterns-1",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the --out of calmrl demo")
    given = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        shutil.copy(given.results / "figures" / f"{name}.svg", TARGET / f"{name}.svg")


if __name__ == "__main__":
    main()
