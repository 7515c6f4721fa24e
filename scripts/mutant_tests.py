"""Which tests meet a change of the code, and whether they notice: the part of `mutate.py` that runs tests."""

from __future__ import annotations

import ast
import importlib
import math
import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

SECONDS = 300  # for the tests of one change
BUDGET = (25.0, 100.0)  # seconds that the tests of a first and a second round took together without a change
ONCE = ["torch", "torch._dynamo", "numpy", "scipy.stats", "sklearn.linear_model", "pyarrow.dataset", "pydantic", "yaml",
        "typer", "rich.table", "hypothesis", "safetensors.torch", "PIL.Image", "lance_namespace",
        "matplotlib.figure"]  # fmt: skip
IN_OTHER_PROCESSES = {  # file -> tests that pass through it where coverage does not look
    "_support/distributed.py": ["tests/losses/test_losses_distributed.py", "tests/paper/vast/test_vast_distributed.py",
                                "tests/latent/test_gaussian_distributed.py",
                                "tests/training/test_train_distributed.py::test_the_documented_commands_start_two_processes"],
    "losses/base.py": ["tests/losses/test_losses_distributed.py", "tests/paper/vast/test_vast_distributed.py"],
    # these run when they are imported, which belongs to no test
    "_support/arguments.py": ["tests/_support/test_registry.py"],
    "server/limits.py": ["tests/server/test_guard.py"],
    **{
        f"paper/collections/{name}.py": ["tests/paper/collections/test_publishers.py"] for name in ("audio", "video")
    },
}  # fmt: skip


def tests_by_line(database: Path) -> dict[str, dict[int, list[str]]]:
    """File below src/calmrl -> line -> names of tests, from the contexts of coverage."""
    from coverage import CoverageData

    data = CoverageData(str(database))
    data.read()
    by_line: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        path = Path(file)
        if "calmrl" in path.parts:
            name = "/".join(path.parts[len(path.parts) - path.parts[::-1].index("calmrl") :])
            contexts = data.contexts_by_lineno(file)
            by_line[name] = {
                line: sorted({test.partition("|")[0] for test in tests if test}) for line, tests in contexts.items()
            }
    return by_line


def reaching(lines: dict[int, list[str]], text: str, line: int) -> list[str]:
    """Tests that pass through the statement of a line; for one that runs when its module is loaded, all tests of the file."""
    inside = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt) and _holds(node, line)]
    statement = min(inside, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    own = [lines[number] for number in range(statement.lineno, max(last, statement.lineno) + 1) if number in lines]
    tests = {test for some in own for test in some}
    if own and not tests:
        tests = {test for some in lines.values() for test in some}
    return sorted(tests)


def _holds(node: ast.stmt, line: int) -> bool:
    first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
    return first <= line <= (node.end_lineno or node.lineno)


def durations(log: Path) -> dict[str, float]:
    """Test -> seconds with its set-up, from what pytest prints with --durations=0; infinite for tests that failed.

    Without -vv pytest leaves out what took less than 0.005 s.
    """
    seconds: dict[str, float] = {}
    failed: set[str] = set()
    for line in log.read_text("utf-8").splitlines():
        part = re.fullmatch(r"([\d.]+)s (?:call|setup|teardown) +(\S.*)", line)
        if part:
            seconds[part[2]] = seconds.get(part[2], 0.0) + float(part[1])
        elif line.startswith(("FAILED ", "ERROR ")):
            failed.add(line.split(" ", 1)[1].partition(" - ")[0])
    return seconds | dict.fromkeys(failed, math.inf)


def rounds(path: str, tests: list[str], seconds: dict[str, float], seed: int) -> list[list[str]]:
    """Two rounds of tests: those in files named after the changed one first, then the quick ones, within the budgets."""
    stem = Path(path).stem
    seconds = {test: seconds.get(test, 0.0) for test in tests}
    usable = [test for test in tests if math.isfinite(seconds[test])]
    shuffled = random.Random(seed).sample(usable, len(usable))
    own = [test for test in shuffled if stem in Path(test.partition("::")[0]).stem]
    others = sorted((test for test in shuffled if test not in set(own)), key=lambda test: round(seconds[test]))
    chosen: list[list[str]] = [[], []]
    spent = 0.0
    for test in own + others:
        spent += seconds[test]
        if chosen[0] and spent > sum(BUDGET):
            break
        chosen[0 if spent <= BUDGET[0] or not chosen[0] else 1].append(test)
    chosen[1] += IN_OTHER_PROCESSES.get(path, [])
    return [some for some in chosen if some]


def import_once() -> None:
    """What tests import from elsewhere, so that the forks that run them need not; nothing of calmrl itself."""
    for name in ONCE:
        with suppress(ImportError):
            importlib.import_module(name)


def passes(tests: list[str], folder: Path) -> bool | None:
    """Whether these tests pass in this copy of the project, run in a fork; None if they do not end in time."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _pytest(tests, folder)
        finally:
            os._exit(code)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _pytest(tests: list[str], folder: Path) -> int:
    import pytest

    os.setsid()
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path[:] = [entry for entry in sys.path if "calmrl" not in entry]
    sys.path.insert(0, str(folder / "src"))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *tests]))
