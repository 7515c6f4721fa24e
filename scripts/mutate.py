"""Would the tests notice? Change one place of the code at a time, run the tests that pass through it, and count.

    pip install coverage pytest-cov
    python -m pytest -n 2 --cov=calmrl --cov-context=test --cov-report= --durations=0 -vv > suite.log    # once
    python scripts/mutate.py --per-package 20 --durations suite.log --out mutants.json

The first command finds out which test passes through which line, and how long it takes.

A change is one operator, one constant, one statement left out, or one early return, at a place drawn at random. It is caught if
a test fails or hangs. Changes after which the result is the same are listed, with the reason, in equivalent_mutants.yaml beside
this file; they are not counted. Lines that no test reaches are counted apart.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from mutant_tests import durations, import_once, passes, reaching, rounds, tests_by_line

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "calmrl"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.yaml")
DISTRIBUTED = ("_support/distributed.py", "_support/distributed.py")  # a package of their own here

COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
               ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}  # fmt: skip
ARITHMETIC = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.MatMult: "+",
    ast.FloorDiv: "*",
    ast.Pow: "*",
}


@dataclass(frozen=True)
class Mutant:
    """One change: the text between two offsets of a file is replaced."""

    path: str  # below src/calmrl
    line: int
    before: str
    after: str
    start: int
    stop: int

    @property
    def package(self) -> str:
        """The package that the file is in."""
        if self.path in DISTRIBUTED:
            return "distributed"
        return self.path.partition("/")[0] if "/" in self.path else "calmrl"

    def is_listed(self, entry: dict[str, Any], source: str) -> bool:
        """Whether an entry of the list of equivalent changes means this one; lines may have moved since."""
        line = source.splitlines()[self.line - 1]
        return [self.path, self.before, self.after] == entry["change"] and entry.get("on", "") in line


def listed_changes() -> list[dict[str, Any]]:
    """The list of equivalent changes, all of it as text: YAML would read the key `on` as true."""
    return yaml.load(EQUIVALENT.read_text("utf-8"), Loader=yaml.BaseLoader) or []


# ---- the changes


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Every change that this script knows of one file."""
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    encoded = [line.encode() for line in text.splitlines(keepends=True)]

    def offset(line: int, column: int) -> int:
        return begins[line - 1] + len(encoded[line - 1][:column].decode())

    def change(node: ast.AST, after: str) -> Mutant:
        start = offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        stop = offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return Mutant(path, node.lineno, text[start:stop], after, start, stop)  # type: ignore[attr-defined]

    def source(node: ast.AST) -> str:
        return f"({ast.unparse(node)})"

    tree = ast.parse(text)
    skipped = _not_run(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield change(node, f"{source(node.left)} {COMPARISONS[type(node.ops[0])]} {source(node.comparators[0])}")
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _texts(node):
            yield change(node, f"({source(node.left)} {ARITHMETIC[type(node.op)]} {source(node.right)})")
        elif isinstance(node, ast.BoolOp):
            other = " or " if isinstance(node.op, ast.And) else " and "
            yield change(node, f"({other.join(map(source, node.values))})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield change(node, source(node.operand))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield change(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            yield change(node, repr(node.value + 1))
        elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node) != "return None":
            yield change(node, "return None")
        elif isinstance(node, (ast.Raise, ast.AugAssign)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield change(node, "pass")


def _texts(node: ast.BinOp) -> bool:
    """Whether a text or a list is put together: another operator only raises."""
    sides = (node.left, node.right)
    texts = [isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides]
    return any(texts) or any(isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple)) for side in sides)


def _not_run(tree: ast.Module) -> set[int]:
    """Nodes that say something about the code: annotations, names for type checkers, texts of errors, `strict`, `frozen`."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts = [
                node.returns,
                *(argument.annotation for argument in ast.walk(node.args) if isinstance(argument, ast.arg)),
            ]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, (ast.JoinedStr, ast.Assert)) or _for_types(node) or _is_strict(node):
            parts = [node]
        for part in parts:
            skipped |= {id(inner) for inner in ast.walk(part)} if part is not None else set()
    return skipped


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_strict(node: ast.AST) -> bool:
    """`zip(..., strict=True)` and `dataclass(frozen=True)` assert what holds."""
    return isinstance(node, ast.keyword) and node.arg in ("strict", "frozen")


# ---- running


def fate(mutant: Mutant, tests: list[str], seconds: dict[str, float], folder: Path, seed: int) -> str:
    """ "caught", "hung" (which counts as caught), "survived" or "not reached"."""
    chosen = rounds(mutant.path, tests, seconds, seed)
    if not chosen:
        return "not reached"
    target = folder / "src" / "calmrl" / mutant.path
    original = target.read_text("utf-8")
    target.write_text(original[: mutant.start] + mutant.after + original[mutant.stop :], encoding="utf-8")
    try:
        for some in chosen:
            if not (passed := passes(some, folder)):
                return "hung" if passed is None else "caught"
        return "survived"
    finally:
        target.write_text(original, encoding="utf-8")


def draw(per_package: int, seed: int, packages: list[str] | None) -> list[Mutant]:
    """So many changes of every package, every file with the same chance as its share of changes."""
    all_of = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        path = str(file.relative_to(SOURCE))
        for mutant in mutants_of(path, file.read_text("utf-8")):
            if packages is None or mutant.package in packages:
                all_of[mutant.package].append(mutant)
    chosen = []
    for package, mutants in sorted(all_of.items()):
        chosen += random.Random(f"{seed} {package}").sample(mutants, min(per_package, len(mutants)))
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage")
    parser.add_argument("--per-package", type=int, default=20)
    parser.add_argument("--packages", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--durations", type=Path, required=True, help="what pytest printed with --durations=0 -vv")
    options = parser.parse_args()
    by_line, seconds = tests_by_line(options.coverage), durations(options.durations)
    import_once()
    equivalent = listed_changes()
    results = json.loads(options.out.read_text("utf-8")) if options.out.exists() else []
    done = {(row["path"], row["start"], row["after"]) for row in results}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(
            ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "site", "*-out", "__pycache__")
        )
        for mutant in draw(options.per_package, options.seed, options.packages):
            if (mutant.path, mutant.start, mutant.after) in done:
                continue
            source = (SOURCE / mutant.path).read_text("utf-8")
            tests = reaching(by_line.get(mutant.path, {}), source, mutant.line)
            same = any(mutant.is_listed(entry, source) for entry in equivalent)
            result = "equivalent" if same else fate(mutant, tests, seconds, folder, options.seed)
            results.append({**asdict(mutant), "package": mutant.package, "fate": result})
            options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
            print(
                f"{result:12} {mutant.path}:{mutant.line}  {mutant.before[:60]!r} -> {mutant.after[:60]!r}", flush=True
            )
    print(table(results))
    return 0


def table(results: list[dict[str, str]]) -> str:
    """Packages down; the share is of changes that were not found equivalent."""
    lines = [
        "| package | changes | equivalent | caught | survived | not reached | share caught |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for package in [*sorted({row["package"] for row in results}), None]:
        fates = Counter(row["fate"] for row in results if package in (None, row["package"]))
        total = fates.total()
        fates["caught"] += fates.pop("hung", 0)
        counted = total - fates["equivalent"]
        share = f"{100 * fates['caught'] / counted:.0f} %" if counted else ""
        cells = [
            package or "all",
            total,
            *(fates[name] for name in ("equivalent", "caught", "survived", "not reached")),
            share,
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
