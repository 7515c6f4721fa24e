"""Every public name is on a page of the reference, and shows how it is used."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "calmrl"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference" / "api").glob("*.md")}
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.pyi"))
# What functions return, errors, sections of configs, parts of pages; and what the how-to pages show at work, where files or
# weights are needed.
WITHOUT_EXAMPLE = {
    "Card", "Cell", "Change", "Code", "CollectionRows", "CompareConfig", "Comparison", "ConfigError", "ConfigProblem",
    "Data", "Decoding", "Diagnosis", "Encoder", "EncoderSpec", "Evaluation", "ExtractConfig", "Factors", "FeatureRows",
    "FeatureWriter", "Figure", "Hit", "ImageTransform", "Imputation", "ImputeConfig", "Item", "JointModel", "Limits",
    "MediaRows", "Method", "Metric", "Number", "OnHub", "Outcome", "Page", "PageSection", "Picture", "Problems",
    "Reproduction", "Results", "RowSource", "Shards", "Stage", "Start", "Step", "Table", "Text", "TrainConfig",
    "Trained", "Trainer", "VastModel", "WrittenReport", "as_html", "as_markdown", "beats_fbank", "diagnose", "fbank",
    "fine_tune", "fine_tuned_classification", "imagebind_features", "load_towers", "load_vast", "make_optimiser",
    "read_annotations", "read_audio", "read_frames", "read_records", "reproduce", "results_of", "save", "write_shards",
}  # fmt: skip


def exported(package: str) -> dict[str, Path]:
    """Name -> the module that defines it, for what a package exports; its own modules are left out."""
    names = {}
    for node in ast.parse((SOURCE / package / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = SOURCE / package / node.module.replace(".", "/")
            path = module.with_suffix(".py") if module.with_suffix(".py").is_file() else module / "__init__.py"
            names |= {alias.asname or alias.name: path for alias in node.names}
    return names


def definition(path: Path, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """The class or function; None for a constant."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
    return None


def shown(package: str, name: str) -> bool:
    """Whether a page documents a name, or for a constant names it as code."""
    address = rf"^::: calmrl\.{package}\.(?:\w+\.)*{name}$"
    if any(re.search(address, page, re.MULTILINE) for page in PAGES.values()):
        return True
    return name.isupper() and any(f"`{name}`" in page for page in PAGES.values())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_a_page(package):
    absent = [name for name in exported(package) if not shown(package, name)]
    assert not absent, f"docs/reference/api says nothing of {', '.join(absent)} of calmrl.{package}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_and_function_has_an_example(package):
    without = []
    for name, path in exported(package).items():
        node = definition(path, name)
        if node is not None and ">>>" not in (ast.get_docstring(node) or "") and name not in WITHOUT_EXAMPLE:
            without.append(name)
    assert not without, f"no example in the docstrings of {', '.join(without)} of calmrl.{package}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_examples_run(package):
    """Examples that need a file, a download or a package that is not installed say so with `doctest: +SKIP`."""
    room = importlib.import_module(f"calmrl.{package}")
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    seen = []
    for name, path in exported(package).items():
        node = definition(path, name)
        if node is None or ">>>" not in (ast.get_docstring(node) or ""):
            continue
        target = getattr(room, name)
        module = importlib.import_module(target.__module__)
        for example in finder.find(target, name, module, globs={**vars(module), **vars_of(room)}):
            runner.run(example, out=seen.append)
    assert runner.failures == 0, "".join(seen)


def vars_of(room) -> dict[str, object]:
    """What a package exports, so that examples need not import their neighbours."""
    return {name: getattr(room, name) for name in room.__all__}
