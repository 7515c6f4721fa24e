"""Which package imports which, from the imports themselves, as a page of the documentation.

python scripts/layers.py            # fails if docs/contributing/import-order.md is stale or an import points upwards
python scripts/layers.py --write    # writes the page
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "calmrl"
PAGE = ROOT / "docs" / "contributing" / "import-order.md"

# From the bottom to the top. A module may import from packages on lower levels and from its own, nothing else.
ORDER = (
    ("errors",),
    ("arrays", "protocols"),
    ("_support",),
    ("data", "anchors", "hub"),
    ("encoders", "datasets", "losses"),
    ("sources",),
    ("interop",),
    ("latent",),
    ("imputers",),
    ("alignment",),
    ("metrics",),
    ("aligner",),
    ("baselines",),
    ("models",),
    ("evaluate", "search", "training"),
    ("config",),
    ("report",),
    ("workflows",),
    ("server", "paper"),
    ("cli",),
    ("__main__",),
)
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}
Imports = set[tuple[str, str]]


def modules() -> list[Path]:
    """All modules of the package but its front door, which imports nothing until it is asked."""
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def package_of(path: Path) -> str:
    """src/calmrl/data/hiding.py -> data"""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[tuple[int, str]]:
    """(line, package) for every import of calmrl in a file, wherever it stands."""
    imports = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise SystemExit(f"{path}:{node.lineno}: write imports in full")
            names = [f"calmrl.{alias.name}" for alias in node.names] if node.module == "calmrl" else [node.module or ""]
        else:
            continue
        imports |= {(node.lineno, name.split(".")[1]) for name in names if name.startswith("calmrl.")}
    return {(line, package) for line, package in imports if package != "__version__"}


def upward(path: Path) -> list[str]:
    """The imports of a file that do not point to a lower level."""
    own = package_of(path)
    return [
        f"{path.relative_to(SOURCE)}:{line}: {own} must not import {package}, which is not on a level below it"
        for line, package in sorted(imports_of(path))
        if package != own and LEVEL[package] >= LEVEL[own]
    ]


def page() -> str:
    """The order as a table, and the graph as Mermaid text; an arrow that a longer way implies is not drawn."""
    direct: dict[str, set[str]] = {package: set() for package in LEVEL}
    for path in modules():
        direct[package_of(path)] |= {package for _, package in imports_of(path)} - {package_of(path)}
    below: dict[str, set[str]] = {}
    for package in sorted(direct, key=lambda name: LEVEL[name]):
        below[package] = direct[package].union(*(below[other] for other in direct[package]))
    lines = [
        "# Import order",
        "",
        "A module imports from its own package and from packages on lower levels. `python scripts/layers.py --write` writes",
        "this page from the imports; a test fails if it is stale.",
        "",
        "| level | package | imports |",
        "|---|---|---|",
    ]
    for level in reversed(range(len(ORDER))):
        for package in ORDER[level]:
            lines.append(
                f"| {level} | `{package}` | {', '.join(f'`{name}`' for name in sorted(direct[package])) or 'nothing'} |"
            )
    lines += ["", "```mermaid", "graph TD"]
    for package in sorted(direct, key=lambda name: (-LEVEL[name], name)):
        nearest = direct[package] - set().union(*(below[other] for other in direct[package]))
        lines += [f"  {package} --> {other}" for other in sorted(nearest)]
    return "\n".join([*lines, "```", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page instead of comparing with it")
    options = parser.parse_args()
    homeless = {package_of(path) for path in modules()} - set(LEVEL)
    problems = [f"give {', '.join(sorted(homeless))} a place in ORDER"] if homeless else []
    if not problems:
        problems = [problem for path in modules() for problem in upward(path)]
    if problems:
        sys.exit("\n".join(problems))
    if options.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE.relative_to(ROOT)} is stale; run python scripts/layers.py --write")


if __name__ == "__main__":
    main()
