"""The parameters and the docstring of a class or function, read from its source where it is not imported yet.

Configs and listings need them, and must not wait for torch.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

REQUIRED = inspect.Parameter.empty

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Signature:
    """`parameters`: name -> (annotation as text, default or REQUIRED); `doc`: the docstring."""

    parameters: dict[str, tuple[str, Any]]
    doc: str


def signature_of(target: Any) -> Signature:
    """The signature of an object, or of the text "package.module:Name" or "package.module:Name.method"."""
    if not isinstance(target, str):
        return _imported(target)
    module, _, path = target.partition(":")
    return _read(module, path)


def _imported(target: Any) -> Signature:
    parameters = {}
    for name, parameter in inspect.signature(target).parameters.items() if callable(target) else ():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            annotation = parameter.annotation
            text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
            parameters[name] = ("Any" if annotation is REQUIRED else text, parameter.default)
    return Signature(parameters, inspect.getdoc(target) or "")


@lru_cache(maxsize=256)
def _read(module: str, path: str) -> Signature:
    node, tree = _find(module, path)
    doc = ast.get_docstring(node) or ""
    function = _constructor(module, node, tree) if isinstance(node, ast.ClassDef) else node
    return Signature({} if function is None else _parameters(function), doc)


@lru_cache(maxsize=256)
def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _find(module: str, path: str) -> tuple[Definition, ast.Module]:
    tree = _tree(module)
    body: list[ast.stmt] = tree.body
    node: Definition | None = None
    for part in path.split("."):
        node = next(
            (n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == part),
            None,
        )
        if node is None:
            raise ImportError(f"{module} defines no {path}")
        body = node.body
    assert node is not None
    return node, tree


def _constructor(module: str, node: ast.ClassDef, tree: ast.Module) -> ast.FunctionDef | None:
    """The `__init__` of a class, or of the first base that has one."""
    own = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if own is not None:
        return own
    for base in node.bases:
        if not isinstance(base, ast.Name):
            continue
        home = _home(base.id, module, tree)
        if home is not None and home.startswith("calmrl."):
            inherited = _constructor(home, *_find(home, base.id))  # type: ignore[arg-type]
            if inherited is not None:
                return inherited
    return None


def _home(name: str, module: str, tree: ast.Module) -> str | None:
    """The module that defines a name used in `module`."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module
    return None


def _parameters(function: ast.FunctionDef) -> dict[str, tuple[str, Any]]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*defaults, *arguments.defaults], strict=True)]
    pairs += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return {
        argument.arg: (
            "Any" if argument.annotation is None else ast.unparse(argument.annotation),
            REQUIRED if default is None else ast.literal_eval(default),
        )
        for argument, default in pairs
        if argument.arg not in ("self", "cls")
    }
