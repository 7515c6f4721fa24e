"""Text -> checked config, and back."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from calmrl._support.output import WRITTEN_BY, new_file
from calmrl._support.section import ChosenSection, Section
from calmrl._support.text import closest
from calmrl.config.schema.commands import KINDS
from calmrl.config.yaml_text import (
    MOST_CHARACTERS,
    ConfigError,
    ConfigProblem,
    ConfigText,
    KeyPath,
    apply_overrides,
    dotted,
    read_yaml,
    shipped,
    shipped_text,
    write_yaml,
)
from calmrl.errors import InputError

TAGS = ("method", "name", "kind")  # keys that choose between sections


def explain(error: ValidationError, model: type[BaseModel], source: ConfigText) -> list[ConfigProblem]:
    """One problem per key; the branches of a union ("an integer" or "auto") are told in one sentence."""
    grouped: dict[tuple[KeyPath, str], list[Any]] = {}
    for detail in error.errors(include_url=False):
        path = _written_path(detail["loc"], source.values, missing=detail["type"] == "missing")
        family = detail["type"] if detail["type"] in ("missing", "extra_forbidden") else "value"
        grouped.setdefault((path, family), []).append(detail)
    return [_problem(path, family, details, model, source) for (path, family), details in grouped.items()]


def keys_of(annotation: Any, values: Any = None) -> Mapping[str, Any]:
    """The keys a section may have, with the type of each; `values` tells which member of a union is meant."""
    members = _members(annotation)
    if isinstance(values, dict):
        for tag in TAGS:
            named = [
                m
                for m in members
                if tag in m.model_fields and values.get(tag) in get_args(m.model_fields[tag].annotation)
            ]
            members = named or members
    return {name: field.annotation for member in members for name, field in member.model_fields.items()}


def _members(annotation: Any) -> list[type[BaseModel]]:
    """The sections among the types of a union, however deep they are wrapped."""
    origin = get_origin(annotation)
    if isinstance(annotation, type) and origin is None:  # Python 3.10 also calls `list[str]` a type
        if issubclass(annotation, ChosenSection) and "registry" in annotation.__dict__:
            return list(annotation.members())
        return [annotation] if issubclass(annotation, BaseModel) else []
    inside = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    return [] if origin in (dict, list) else [m for part in inside for m in _members(part)]


def _problem(path: KeyPath, family: str, details: Any, model: type[BaseModel], source: ConfigText) -> ConfigProblem:
    key, where, first = dotted(path), _where(path, source), details[0]
    if family == "missing":
        return ConfigProblem(key, where, "missing; this key is required")
    if family == "extra_forbidden":
        message, near = _unknown_key(path, model, source.values)
        return ConfigProblem(key, where, message, closest=near)
    if first["type"].startswith("union_tag"):
        return _tag_problem(path, first, source)
    messages = list(dict.fromkeys(str(detail["msg"]).removeprefix("Input should be ") for detail in details))
    if first["type"] == "value_error":  # a sentence of our own, which says what was got and what is closest
        return ConfigProblem(key, where, "; ".join(sentence.removeprefix("Value error, ") for sentence in messages))
    got = first["input"]
    near = closest(got, [word for sentence in messages for word in _quoted(sentence)]) if isinstance(got, str) else None
    start = "should be " if first["msg"].startswith("Input should be ") else ""
    return ConfigProblem(key, where, start + " or ".join(messages), got=got, closest=near)


def _tag_problem(path: KeyPath, detail: Any, source: ConfigText) -> ConfigProblem:
    """The key that chooses between sections (`method`) is absent or has a value that chooses none."""
    tag = (*path, detail["ctx"]["discriminator"].strip("'"))
    if detail["type"] == "union_tag_not_found":
        return ConfigProblem(dotted(tag), _where(path, source), "missing; this key is required")
    expected, got = detail["ctx"]["expected_tags"], detail["ctx"]["tag"]
    near = closest(got, _quoted(expected))
    return ConfigProblem(dotted(tag), _where(tag, source), f"should be one of {expected}", got=got, closest=near)


def _written_path(loc: tuple[str | int, ...], values: Any, *, missing: bool) -> KeyPath:
    """pydantic's location without the names of union members, which nobody wrote."""
    path: list[str | int] = []
    for depth, part in enumerate(loc):
        inside = isinstance(values, dict) and part in values
        inside = inside or (isinstance(values, list) and isinstance(part, int) and part < len(values))
        if inside:
            values = values[part]
        if inside or (missing and depth == len(loc) - 1):
            path.append(part)
    return tuple(path)


def _where(path: KeyPath, source: ConfigText) -> str:
    """Where the key, or the nearest section around it, was written."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in source.where:
            return source.where[path[:depth]]
    return ""


def _unknown_key(path: KeyPath, model: type[BaseModel], values: Any) -> tuple[str, str | None]:
    """What to say of it, and the nearest key of the same section, else the nearest key anywhere in the config."""
    annotation: Any = model
    for part in path[:-1]:
        annotation = _child(annotation, part, values)
        values = values[part]
    name = str(path[-1])
    method = values.get("method") if isinstance(values, dict) else None
    message = f"unknown key for method {method}" if method else "unknown key"
    near = closest(name, keys_of(annotation, values))
    if near:
        return message, dotted((*path[:-1], near))
    everywhere = {last: key for last, key in _all_keys(model, "") if key != dotted(path)}
    near = closest(name, everywhere)
    return message, everywhere[near] if near else None


def _child(annotation: Any, part: str | int, values: Any) -> Any:
    """The type of what lies under `part` in a section, a dict or a list."""
    keys = keys_of(annotation, values)
    if part in keys:
        return keys[str(part)]
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_args(annotation)[-1] if get_origin(annotation) in (dict, list) else annotation


def _all_keys(annotation: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for name, kind in keys_of(annotation).items():
        yield name, prefix + name
        yield from _all_keys(kind, f"{prefix}{name}.")


def _quoted(sentence: str) -> list[str]:
    return re.findall(r"'([^']*)'", sentence)


def load(name: str | Path | None, overrides: Sequence[str] = (), *, kind: str | None = None) -> Section:
    """Read a config file or a shipped config, apply `key=value` overrides, check it.

    A name ending in .yaml or .yml, or with a path separator, is a file; any other name is a shipped config; None starts
    from the defaults of `kind`. `kind` is what the caller can use. Raises `ConfigError` with every mistake.

    Examples
    --------
    >>> config = load(None, ["imputer.method=ridge"], kind="impute")
    >>> config.imputer.method
    'ridge'
    """
    text = _text(name) if name is not None else _defaults(kind)
    return _checked(text, "defaults" if name is None else str(name), overrides, kind)


def load_values(values: Mapping[str, Any], overrides: Sequence[str] = (), *, name: str) -> Section:
    """The same for a config that a program made; `name` is what its mistakes are reported under."""
    return _checked(write_yaml(dict(values)), name, overrides, None)


def _checked(text: str, name: str, overrides: Sequence[str], kind: str | None) -> Section:
    source = read_yaml(text)
    if any(not problem.key for problem in source.problems):  # not YAML, or not a mapping: nothing to look into
        raise ConfigError(name, source.problems)
    apply_overrides(source, overrides)
    problems = source.problems
    problem = _kind_problem(source, kind)
    if problem:
        raise ConfigError(name, [problem, *problems])
    model = KINDS[source.values["kind"]]
    try:
        config = model.model_validate(source.values)
    except ValidationError as error:
        problems = [*problems, *explain(error, model, source)]
    if problems:
        raise ConfigError(name, sorted(problems, key=_reading_order))
    return config


def dumps(config: Section) -> str:
    """The resolved config, every key spelled out, as YAML that `load` reads back to an equal config.

    Examples
    --------
    >>> "method: " in dumps(load(None, kind="impute"))
    True
    """
    return write_yaml(config.model_dump(mode="json"))


def dump(config: Section, path: str | Path, *, force: bool = False) -> None:
    """Write the resolved config; the file is written atomically.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/impute.yaml"
    >>> dump(load(None, kind="impute"), path)
    >>> load(path) == load(None, kind="impute")
    True
    """
    from calmrl import __version__

    with new_file(path, force=force) as draft:
        draft.write_text(f"{WRITTEN_BY} {__version__}\n{dumps(config)}", encoding="utf-8")


def _defaults(kind: str | None) -> str:
    """The kind and the method of every section; all else is left to the defaults of the models."""
    fields = KINDS[kind].model_fields if kind else {}
    methods = {
        name: {"method": field.default.method} for name, field in fields.items() if hasattr(field.default, "method")
    }
    return write_yaml({"kind": kind, **methods})


def _text(name: str | Path) -> str:
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") and len(path.parts) == 1:
        return shipped_text(str(name))
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{path} is a device or a pipe; a config is a file")
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except FileNotFoundError:
        near = closest(path.stem, shipped())
        hint = f'; a shipped config is named without an ending, for instance "{near}"' if near else ""
        raise InputError(f"{path} does not exist{hint}") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)[-200:]!r} cannot be read as a config: {error}") from None


def _kind_problem(source: ConfigText, wanted: str | None) -> ConfigProblem | None:
    got, where = source.values.get("kind"), source.where.get(("kind",), "")
    kinds = ", ".join(KINDS)
    if got is None:
        return ConfigProblem("kind", where, f"missing; say what the config is for: one of {kinds}")
    if got not in KINDS:
        return ConfigProblem("kind", where, f"should be one of {kinds}", got=got, closest=closest(str(got), KINDS))
    if wanted is not None and got != wanted:
        return ConfigProblem("kind", where, f"this command needs a config of kind {wanted}", got=got)
    return None


def _reading_order(problem: ConfigProblem) -> tuple[bool, int]:
    number = re.search(r"\d+", problem.where)
    return problem.where.startswith("override"), int(number.group()) if number else 0
