"""Registries: a name -> an object. Values may be given as text and are imported on first use.

Parameters and docstrings of what is not imported yet are read from its source: importing torch is slow.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias, TypeVar

from calmrl._support.text import closest
from calmrl.errors import InputError

T = TypeVar("T")
REQUIRED = inspect.Parameter.empty
COMPUTED = object()  # a default that is not written out as a literal

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True, eq=False)
class Signature:
    """`parameters`: name -> (annotation, as text or as a type; default or REQUIRED or COMPUTED); `doc`: the docstring.

    Of one object it is always the same one.
    """

    parameters: dict[str, tuple[Any, Any]]
    doc: str


class Registry(MutableMapping[str, T]):
    """A dict whose values may be written as "package.module:Name".

    Such a value is imported when it is first used, so that listing a registry costs nothing. `about` and `signature`
    read the source of what is not imported.
    """

    def __init__(self, what: str, entries: Mapping[str, T | str]) -> None:
        self.what = what
        self._entries: dict[str, T | str] = dict(entries)

    def __getitem__(self, name: str) -> T:
        entry = lookup(self._entries, name, self.what)
        if isinstance(entry, str):
            entry = self._entries[name] = resolve_name(entry)
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        """`self[name]`, or `default` if there is no such name."""
        if name not in self:
            return default
        return self[name]

    def __setitem__(self, name: str, entry: T | str) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __repr__(self) -> str:
        return f"Registry({self.what}: {', '.join(self)})"

    def signature(self, name: str) -> Signature:
        """The parameters and the docstring of an entry, without importing it if it is still a text."""
        return signature_of(lookup(self._entries, name, self.what))

    def about(self, name: str) -> str:
        """The first line of an entry's docstring."""
        entry = lookup(self._entries, name, self.what)
        doc = signature_of(entry).doc if isinstance(entry, str) else inspect.getdoc(entry) or ""
        return doc.partition("\n")[0]

    def name_of(self, entry: Any) -> str:
        """The name under which an object is registered, compared by module and name so that nothing is imported."""
        for name, value in self._entries.items():
            if value is entry or value == f"{entry.__module__}:{entry.__qualname__}":
                return name
        raise InputError(f"{entry!r} is no registered {self.what}. Known: {', '.join(self)}.")


def lookup(registry: Mapping[str, T], name: str, what: str) -> T:
    """`registry[name]`, or an error that names what there is."""
    if name in registry:
        return registry[name]
    near = closest(name, registry)
    hint = f'; did you mean "{near}"?' if near else "."
    raise InputError(f'unknown {what} "{name}"{hint} Known: {", ".join(sorted(registry))}.')


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


@lru_cache(maxsize=256)
def _imported(target: Any) -> Signature:
    found = inspect.signature(target).parameters.values() if callable(target) else ()
    parameters = {
        one.name: (Any if one.annotation is REQUIRED else one.annotation, one.default)
        for one in found
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }
    return Signature(parameters, inspect.getdoc(target) or "")


@lru_cache(maxsize=256)
def _read(module: str, path: str) -> Signature:
    node = _find(module, path)
    doc = ast.get_docstring(node) or ""
    return Signature(_arguments(module, node) if isinstance(node, ast.ClassDef) else _parameters(node), doc)


@lru_cache(maxsize=256)
def _source(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {module}")
    return Path(spec.origin).read_text(encoding="utf-8")


def _find(module: str, path: str) -> Definition:
    """The definition at a path; only its own lines are parsed, which takes a fraction of what the whole module would."""
    name, *inside = path.split(".")
    node = _parsed(_source(module), name)
    for part in inside:
        body = [] if node is None else node.body
        node = next((n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == part), None)
    if node is None:
        raise ImportError(f"{module} defines no {path}")
    return node


def _parsed(text: str, name: str) -> Definition | None:
    begin = re.search(rf"^(?:@.*\n(?:[ )].*\n)*)*(?:class|def) {name}\b", text, re.MULTILINE)
    if begin is None:
        return None
    for end in re.finditer(r"^(?=[^\s)\]}#])|\Z", text[begin.end() :], re.MULTILINE):
        with suppress(SyntaxError):  # the line belongs to a text in the definition: it goes on
            (node,) = ast.parse(text[begin.start() : begin.end() + end.start()]).body
            return node if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else None
    return None


def _arguments(module: str, node: ast.ClassDef) -> dict[str, tuple[str, Any]]:
    """The parameters of a class: of its own `__init__` or fields, and of a base's where it has none or passes `**shared` on."""
    own = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if own is not None and own.args.kwarg is None:
        return _parameters(own)
    inherited: dict[str, tuple[str, Any]] = {}
    for base in node.bases:
        home = _home(base.id, module) if isinstance(base, ast.Name) else None
        if isinstance(base, ast.Name) and home is not None:
            definition = _find(home, base.id)
            assert isinstance(definition, ast.ClassDef)
            inherited |= _arguments(home, definition)
    return inherited | (_fields(node) if own is None else _parameters(own))


def _fields(node: ast.ClassDef) -> dict[str, tuple[str, Any]]:
    """The fields of a dataclass."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return {}
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item)]
    return {
        ast.unparse(field.target): (
            ast.unparse(field.annotation),
            REQUIRED if field.value is None else _value(field.value),
        )
        for field in fields
    }


def _home(name: str, module: str) -> str | None:
    """The module of this package that defines a name used in `module`."""
    text = _source(module)
    if re.search(rf"^class {name}\b", text, re.MULTILINE):
        return module
    imported = re.search(rf"^from (calmrl\.\S+) import (?:\([^)]*|.*)\b{name}\b", text, re.MULTILINE)
    return imported[1] if imported else None


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
