"""Imports follow the data: a module imports only from packages on lower levels. And importing starts nothing."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import calmrl

SOURCE = Path(calmrl.__file__).parent
SCRIPT = Path(__file__).parents[2] / "scripts" / "layers.py"
ORDER = runpy.run_path(str(SCRIPT))


def test_every_module_has_a_level():
    packages = {ORDER["package_of"](path) for path in ORDER["modules"]()}
    assert packages <= set(ORDER["LEVEL"])


@pytest.mark.parametrize("path", ORDER["modules"](), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_data(path):
    assert ORDER["upward"](path) == []


def test_nothing_but_the_command_line_imports_the_paper():
    importers = {
        ORDER["package_of"](path)
        for path in ORDER["modules"]()
        if any(package == "paper" for _, package in ORDER["imports_of"](path))
    }
    assert importers == {"paper", "cli"}


def test_registries_alone_name_what_is_in_the_paper():
    naming = {
        str(path.relative_to(SOURCE))
        for path in ORDER["modules"]()
        if ORDER["package_of"](path) not in ("paper", "cli") and "calmrl.paper" in path.read_text(encoding="utf-8")
    }
    assert naming == {"models/registry.py", "encoders/registry.py", "data/media/public_collections.py"}


def test_the_guard_sees_every_form_of_import(tmp_path):
    text = "import calmrl.cli\nfrom calmrl import demo\ndef f():\n    from calmrl.data.features import x\nimport os\n"
    (tmp_path / "m.py").write_text(text)
    assert ORDER["imports_of"](tmp_path / "m.py") == {(1, "cli"), (2, "demo"), (4, "data")}


# of named tuples and of `os`: documented, with an underscore
PUBLIC_ALL_THE_SAME = {"_asdict", "_replace", "_fields", "_exit"}
NO_OTHER_WAY = {"_processes"}  # of a ProcessPoolExecutor: the standard library has no public list of its workers


def foreign_privates(path: Path, root: Path = SOURCE) -> list[str]:
    """Where a module uses a private attribute of something that it does not define itself, or imports a private name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes, own, found = list(ast.walk(tree)), PUBLIC_ALL_THE_SAME | NO_OTHER_WAY, list[str]()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            own |= {node.id} if isinstance(node, ast.Name) else {node.attr} if _is_self(node.value) else set()
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and _private(node.attr)
            and node.attr not in own
            and not _is_self(node.value)
        ):
            found.append(f"{path.relative_to(root)}:{node.lineno} {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calmrl"):
            private = [alias.name for alias in node.names if _private(alias.name) and alias.name != "_support"]
            found += [f"{path.relative_to(root)}:{node.lineno} {name}" for name in private]
    return found


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def test_nothing_reaches_into_another_module():
    assert [line for path in ORDER["modules"]() for line in foreign_privates(path)] == []


def test_the_guard_sees_private_names(tmp_path):
    text = "from calmrl.x import _y\nclass A:\n    def f(self, o): return self._a, o._b\n    _c = 1\nprint(a._c, t._asdict())\n"
    (tmp_path / "m.py").write_text(text)
    assert foreign_privates(tmp_path / "m.py", tmp_path) == ["m.py:1 _y", "m.py:3 o._b"]


def test_processes_meet_and_talk_in_one_file():
    talking = [path for path in ORDER["modules"]() if "torch.distributed" in path.read_text()]
    assert [str(path.relative_to(SOURCE)) for path in talking] == ["_support/distributed.py"]


def test_the_page_on_import_order_is_fresh():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


STATE = """
import json, logging, os, random, sys, threading, warnings
import matplotlib.figure, numpy, pyarrow.parquet, pydantic, rich.progress, sklearn.linear_model, torch, typer, yaml
def state():
    return {
        "environment": dict(os.environ),
        "threads": sorted(t.name for t in threading.enumerate()),
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "handlers": {str(n): len(getattr(l, "handlers", [])) for n, l in logging.root.manager.loggerDict.items()},
        "root": [len(logging.root.handlers), logging.root.level],
        "filters": len(warnings.filters),
        "dtype": str(torch.get_default_dtype()),
        "cuda": torch.cuda.is_initialized(),
        "random": [hash(random.getstate()), torch.random.initial_seed(), hash(str(numpy.random.get_state()))],
        "hooks": [sys.excepthook is sys.__excepthook__, len(sys.meta_path)],
        "children": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0,
    }
before = state()
import MODULES
after = state()
after["handlers"] = {n: c for n, c in after["handlers"].items() if c or n in before["handlers"]}
print(json.dumps([before, after]))
"""


EVERYTHING = ", ".join(
    ".".join(("calmrl", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in ORDER["modules"]()
    if path.name != "__main__.py"
)


@pytest.mark.parametrize("modules", ["calmrl", EVERYTHING], ids=["calmrl", "everything"])
def test_importing_starts_nothing(modules):
    run = [sys.executable, "-c", STATE.replace("MODULES", modules)]
    before, after = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert after == before


def test_import_calmrl_alone_is_light():
    heavy = ["torch", "numpy", "sklearn", "matplotlib", "pyarrow", "pydantic", "typer"]
    code = f"import sys, calmrl; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


PACKAGES = [
    ".".join(("calmrl", *stub.parent.relative_to(SOURCE).parts)) for stub in sorted(SOURCE.rglob("__init__.pyi"))
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_export_is_there(package):
    module = import_module(package)
    assert set(dir(module)) == set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="NoSuchName"):
        module.NoSuchName  # noqa: B018


def test_every_package_is_reached_from_the_top_without_torch():
    reached = "; ".join(
        f"calmrl.{package.removeprefix('calmrl.')}.__doc__" for package in PACKAGES[1:] if "workflows." not in package
    )
    code = f"import sys, calmrl; {reached}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_an_export_is_never_its_module():
    """A function named as its file stays the function, whoever imports the file first."""
    names = ["calmrl.workflows.train", "calmrl.workflows.impute"]
    code = f"import {names[0]}, {names[1]}, calmrl; print({names[0]}, {names[1]})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("<function") == 2


def test_every_test_file_has_a_name_of_its_own():
    """pytest imports test files by their base names, and refuses the second of two; one that is run alone does not show it."""
    names = [path.name for path in Path(__file__).parents[1].rglob("test_*.py")]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []
