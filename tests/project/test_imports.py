"""Imports follow the data: a module imports only from layers below its own. And importing starts nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import calmrl

SOURCE = Path(calmrl.__file__).parent

# From the bottom to the top. A module may import modules of lower layers and its own package, nothing else.
LAYERS = (
    {"errors"},
    {"registry", "convention", "distributed", "output", "pairs"},
    {"data", "spectral"},
    {"encoders", "datasets", "anchors", "models"},
    {"extract"},
    {"latent", "losses"},
    {"imputers", "alignment"},
    {"complete", "search", "evaluate"},
    {"aligner"},
    {"train"},
    {"config", "tables"},
    {"build_media"},
    {"build", "trained"},
    {"training", "compare"},
    {"report"},
    {"comparing", "evaluation", "diagnose"},
    {"cli"},
    {"__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def _home(module: str) -> str:
    """calmrl.data.features.feature_set -> data"""
    return module.split(".")[1]


def _imports(path: Path) -> set[tuple[int, str]]:
    """(line, top-level part of calmrl) for every import in the file, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            names = [f"calmrl.{a.name}" for a in node.names] if node.module == "calmrl" else [node.module or ""]
        else:
            continue
        found |= {(node.lineno, _home(name)) for name in names if name.startswith("calmrl.")}
    return {(line, home) for line, home in found if home != "__version__"}


def _files():
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def test_every_module_has_a_layer():
    there = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in _files()}
    assert there <= set(LEVEL), f"give {sorted(there - set(LEVEL))} a place in LAYERS"


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_data(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for line, home in sorted(_imports(path)):
        assert home == own or LEVEL[home] < LEVEL[own], (
            f"{path.relative_to(SOURCE)}:{line}: {own} must not import {home}, which is not in a layer below it"
        )


def test_the_guard_sees_every_form_of_import(tmp_path):
    text = "import calmrl.cli\nfrom calmrl import demo\ndef f():\n    from calmrl.data.features.feature_set import x\nimport os\n"
    (tmp_path / "m.py").write_text(text)
    assert _imports(tmp_path / "m.py") == {(1, "cli"), (2, "demo"), (4, "data")}


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


EVERYTHING = ", ".join(sorted(f"calmrl.{name}" for name in LEVEL if name != "__main__"))


@pytest.mark.parametrize("modules", ["calmrl", EVERYTHING], ids=["calmrl", "everything"])
def test_importing_starts_nothing(modules):
    run = [sys.executable, "-c", STATE.replace("MODULES", modules)]
    before, after = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert after == before


def test_import_calmrl_alone_is_light():
    heavy = ["torch", "numpy", "sklearn", "matplotlib", "pyarrow", "pydantic", "typer"]
    code = f"import sys, calmrl; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_public_names():
    assert set(dir(calmrl)) == set(calmrl.__all__)
    for name in calmrl.__all__:
        assert getattr(calmrl, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'GausianImputer'"):
        calmrl.GausianImputer  # noqa: B018
