"""Parameters and docstring of a class or function, read from its source where it is not imported yet (torch is slow)."""

import ast
import inspect
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt

REQUIRED = inspect.Parameter.empty
COMPUTED = object()  # a default that is not written out as a literal

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Signature:
    """`parameters`: name -> (annotation, as text or as a type; default or REQUIRED or COMPUTED); `doc`: the docstring."""

    parameters: dict[str, tuple[Any, Any]]
    doc: str


def signature_of(target: Any) -> Signature:
    """The signature of an object, or of the text "package.module:Name" or "package.module:Name.method".

    Where a constructor takes `**shared`, the parameters of its base class belong to it.
    """
    if isinstance(target, str):
        module, _, path = target.partition(":")
        return _read(module, path)
    if inspect.isclass(target) and "<" not in target.__qualname__ and target.__module__.startswith("calmrl."):
        return _read(target.__module__, target.__qualname__)
    return _imported(target)


def _imported(target: Any) -> Signature:
    parameters = {}
    for name, parameter in inspect.signature(target).parameters.items() if callable(target) else ():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            annotation = Any if parameter.annotation is REQUIRED else parameter.annotation
            parameters[name] = (annotation, parameter.default)
    return Signature(parameters, inspect.getdoc(target) or "")


@lru_cache(maxsize=256)
def _read(module: str, path: str) -> Signature:
    node, tree = _find(module, path)
    doc = ast.get_docstring(node) or ""
    return Signature(_arguments(module, node, tree) if isinstance(node, ast.ClassDef) else _parameters(node), doc)


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
        node = next((n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == part), None)
        if node is None:
            raise ImportError(f"{module} defines no {path}")
        body = node.body
    assert node is not None
    return node, tree


def _arguments(module: str, node: ast.ClassDef, tree: ast.Module) -> dict[str, tuple[str, Any]]:
    """The parameters of a class: of its own `__init__`, and of a base's where it has none or passes `**shared` on."""
    own = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if own is not None and own.args.kwarg is None:
        return _parameters(own)
    inherited: dict[str, tuple[str, Any]] = {}
    for base in node.bases:
        home = _home(base.id, module, tree) if isinstance(base, ast.Name) else None
        if isinstance(base, ast.Name) and home is not None and home.startswith("calmrl."):
            definition, its_tree = _find(home, base.id)
            assert isinstance(definition, ast.ClassDef)
            inherited |= _arguments(home, definition, its_tree)
    return inherited if own is None else inherited | _parameters(own)


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
            REQUIRED if default is None else _value(default),
        )
        for argument, default in pairs
        if argument.arg not in ("self", "cls")
    }


def _value(default: ast.expr) -> Any:
    try:
        return ast.literal_eval(default)
    except ValueError:
        return COMPUTED


Auto = Literal["auto"]
Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Lt(1)]  # may be 0, never everything
Fraction = Annotated[float, Ge(0), Le(1)]
Seed = Annotated[int, Ge(0)]
