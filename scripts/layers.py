"""Which room of the package imports which, from the imports themselves, as a page of the documentation.

python scripts/layers.py            # fails if docs/contributing/layers.md is stale or an import points upwards
python scripts/layers.py --write    # writes the page
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "calmrl"
PAGE = ROOT / "docs" / "contributing" / "layers.md"

# From the bottom to the top. A module may import modules of lower layers and its own room, nothing else.
LAYERS = (
    ("errors",),
    ("arrays", "protocols"),
    ("_support",),
    ("data", "anchors", "hub"),
    ("encoders", "datasets", "losses"),
    ("interop",),
    ("latent",),
    ("imputers",),
    ("alignment",),
    ("metrics",),
    ("aligner",),
    ("models",),
    ("evaluate", "search", "training"),
    ("config",),
    ("report",),
    ("workflows",),
    ("server",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
Imports = set[tuple[str, str]]


def modules() -> list[Path]:
    """All modules of the package but its front door, which imports nothing until it is asked."""
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def room_of(path: Path) -> str:
    """src/calmrl/data/hiding.py -> data"""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[tuple[int, str]]:
    """(line, room) for every import of calmrl in a file, wherever it stands."""
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
    return {(line, room) for line, room in imports if room != "__version__"}


def upward(path: Path) -> list[str]:
    """The imports of a file that do not point to a lower layer."""
    own = room_of(path)
    return [
        f"{path.relative_to(SOURCE)}:{line}: {own} must not import {room}, which is not in a layer below it"
        for line, room in sorted(imports_of(path))
        if room != own and LEVEL[room] >= LEVEL[own]
    ]


def page() -> str:
    """The layers as a table, and the graph as Mermaid text; an arrow that a longer way implies is left out."""
    direct: dict[str, set[str]] = {room: set() for room in LEVEL}
    for path in modules():
        direct[room_of(path)] |= {room for _, room in imports_of(path)} - {room_of(path)}
    below: dict[str, set[str]] = {}
    for room in sorted(direct, key=lambda name: LEVEL[name]):
        below[room] = direct[room].union(*(below[other] for other in direct[room]))
    lines = [
        "# Layers",
        "",
        "A module imports from its own room and from rooms below it. `python scripts/layers.py --write` writes this page",
        "from the imports; a test fails if it is stale.",
        "",
        "| layer | room | imports |",
        "|---|---|---|",
    ]
    for level in reversed(range(len(LAYERS))):
        for room in LAYERS[level]:
            lines.append(
                f"| {level} | `{room}` | {', '.join(f'`{name}`' for name in sorted(direct[room])) or 'nothing'} |"
            )
    lines += ["", "```mermaid", "graph TD"]
    for room in sorted(direct, key=lambda name: (-LEVEL[name], name)):
        nearest = direct[room] - set().union(*(below[other] for other in direct[room]))
        lines += [f"  {room} --> {other}" for other in sorted(nearest)]
    return "\n".join([*lines, "```", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page instead of comparing with it")
    options = parser.parse_args()
    homeless = {room_of(path) for path in modules()} - set(LEVEL)
    problems = [f"give {', '.join(sorted(homeless))} a place in LAYERS"] if homeless else []
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
