"""Compare the packages that calmrl may be installed with, and those it is tested with, with known weaknesses.

    python scripts/audit.py

A lower bound in pyproject.toml or a pin in constraints.txt below the first version without a weakness is an error. The list is
advisories.yaml beside this file; it needs no network, and is only as new as its last entry.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def lowest_versions(text: str) -> list[tuple[str, Version]]:
    """(package, lowest version it allows) of every quoted requirement with >= or ==."""
    found = []
    for line in re.findall(r'"([A-Za-z0-9_.\[\]-]+[=>]=[^"]+)"', text):
        requirement = Requirement(line)
        versions = [Version(part.version) for part in requirement.specifier if part.operator in (">=", "==")]
        found.append((canonicalize_name(requirement.name), min(versions)))
    return found


def pinned_versions(text: str) -> list[tuple[str, Version]]:
    """(package, version) of every line of a constraints file."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    return [(canonicalize_name(pin.name), Version(part.version)) for pin in pins for part in pin.specifier]


def weaknesses(advisories: dict[str, list[dict[str, str]]], versions: list[tuple[str, Version]]) -> list[str]:
    """A line for every version that is older than a fix."""
    return [
        f"{name} {version} has {entry['id']} ({entry['why']}); {entry['fixed']} is the first without it"
        for name, version in versions
        for entry in advisories.get(name, [])
        if version < Version(str(entry["fixed"]))
    ]


def main() -> int:
    advisories = yaml.safe_load((ROOT / "scripts/advisories.yaml").read_text("utf-8"))
    allowed = lowest_versions((ROOT / "pyproject.toml").read_text("utf-8"))
    pinned = pinned_versions((ROOT / "constraints.txt").read_text("utf-8"))
    lines = [f"pyproject.toml: {line}" for line in weaknesses(advisories, allowed)]
    lines += [f"constraints.txt: {line}" for line in weaknesses(advisories, pinned)]
    print("\n".join(lines) or f"{len(allowed)} bounds and {len(pinned)} pins: none has a weakness of advisories.yaml")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
