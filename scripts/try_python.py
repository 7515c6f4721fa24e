"""What of an installed calmrl can be checked on any Python, with torch or without.

python scripts/try_python.py              # with the calmrl that this Python has
python scripts/try_python.py CHECKOUT     # also those tests of a checkout that need no torch

1. All modules compile, and a warning of the compiler is an error.
2. What they import from the standard library exists in this Python, also below an `import torch` that stops a module.
3. All modules can be imported, up to a package that is not installed; a DeprecationWarning in calmrl is an error.
4. The packages that calmrl requires have versions that it allows; only torch and accelerate may be absent.
5. With CHECKOUT, the tests of commands, configs, collections of media, tables and statistics that need no torch pass.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import calmrl

ROOT = Path(calmrl.__file__).parent
TESTS = (
    *("tests/_support/test_output.py", "tests/_support/test_filesystem.py"),
    *("tests/cli/test_cli.py", "tests/cli/test_extras.py", "tests/cli/test_light.py", "tests/config"),
    *("tests/paper/collections/test_annotation_files.py", "tests/paper/collections/test_publishers.py"),
    *("tests/data/media/test_folder.py", "tests/data/media/test_images.py", "tests/data/media/test_manifest.py"),
    *("tests/data/media/test_media_files.py", "tests/data/media/test_public_collection.py"),
    *("tests/data/media/test_whole_file.py", "tests/metrics/test_statistics.py"),
)
NEED_TORCH = (  # those among them that do
    "tests/cli/test_extras.py::test_search_names_its_extra",
    "tests/cli/test_extras.py::test_the_core_runs_without_any_extra",
    "tests/config/test_config.py::test_a_shipped_config_and_what_is_written_of_it[ablation]",
    "tests/config/test_config.py::test_a_shipped_config_and_what_is_written_of_it[generative]",
    "tests/config/test_config.py::test_sections_and_imputers_fit_together",
    "tests/paper/collections/test_annotation_files.py::test_objects_in_lines_and_tables",
    "tests/paper/collections/test_publishers.py::test_a_part_of_vast27m_in_three_forms[vast27m.parquet]",
    "tests/data/media/test_manifest.py::test_all_formats_say_the_same[.parquet]",
    "tests/data/media/test_manifest.py::test_files_that_are_no_manifest",
    "tests/data/media/test_public_collection.py::test_a_new_collection_is_reached_by_its_name_alone",
)
LEFT_OUT = ("torch", "accelerate")  # of what calmrl requires
NEEDED = (
    *LEFT_OUT,
    "fastapi",
    "starlette",
    "anyio",
    "h11",
    "uvicorn",
)  # what the first import of a module may lack here

STANDARD = {
    *sys.stdlib_module_names,
    "tomllib",
    "annotationlib",
    "compression",
}  # also modules that are newer than 3.10


def main() -> None:
    files = sorted(ROOT.rglob("*.py"))
    warnings.simplefilter("error")
    trees = {file: compiled(file) for file in files}
    print(f"{len(trees)} modules compile")
    names = {pair for tree in trees.values() for pair in taken(tree)}
    absent = sorted(f"{module}.{name}" for module, name in names if not exists(module, name))
    if absent:
        raise SystemExit(f"this Python has no {', '.join(absent)}")
    print(f"{len(names)} names of the standard library exist")
    warnings.resetwarnings()
    warnings.filterwarnings("error", category=DeprecationWarning, module=r"calmrl\b")
    stopped = Counter(stop for file in files if file.name != "__main__.py" and (stop := imported(file)))
    print(f"{len(files) - 1 - stopped.total()} modules can be imported; others stop at {dict(stopped)}")
    check_requirements()
    if len(sys.argv) == 1:
        return
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    line += [f"--deselect={test}" for test in NEED_TORCH]
    sys.exit(subprocess.run(line, cwd=sys.argv[1], check=False).returncode)


def compiled(file: Path) -> ast.Module:
    text = file.read_text(encoding="utf-8")
    compile(text, str(file), "exec", dont_inherit=True)
    return ast.parse(text)


def taken(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name` of the standard library, and (module, "") of `import module`.

    Not those in a `try` that expects an ImportError: one system has `fcntl`, another `msvcrt`.
    """
    expected = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.Try) and any("ImportError" in ast.dump(one.type) for one in block.handlers if one.type)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        pairs: list[tuple[str, str]] = []
        if id(node) in expected:
            continue
        if isinstance(node, ast.ImportFrom):
            pairs = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            pairs = [(alias.name, "") for alias in node.names]
        yield from (pair for pair in pairs if pair[0].split(".")[0] in STANDARD)


def exists(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return not name or hasattr(found, name) or exists(f"{module}.{name}", "")


def imported(file: Path) -> str | None:
    """None if the module can be imported, or the name of the package that is not installed."""
    name = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as lacking:
        if lacking.name not in NEEDED:
            raise
        return lacking.name
    return None


def check_requirements() -> None:
    """`pip check` may complain about what was left out, and about nothing else."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    absent = [name for name in LEFT_OUT if importlib.util.find_spec(name) is None]
    allowed = [f"requires {name}, which is not installed." for name in absent]
    others = [line for line in done.stdout.splitlines() if not line.endswith(tuple(allowed))]
    if done.returncode and (others or done.stderr.strip()):
        raise SystemExit("\n".join([*others, done.stderr]))
    print(f"requirements are met{', but for ' if absent else ''}{' and '.join(absent)}")


if __name__ == "__main__":
    main()
