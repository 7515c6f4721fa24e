"""pydantic's errors -> problems with the key as written, where it was written, and the nearest valid key or value."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeGuard, get_args, get_origin

from pydantic import BaseModel, ValidationError

from calmrl._support.registry import closest
from calmrl._support.section import ChosenSection
from calmrl.config.yaml_text import ConfigProblem, ConfigText, KeyPath, dotted

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
    if get_origin(annotation) is Annotated:
        return keys_of(get_args(annotation)[0], values)
    if _is_class(annotation) and issubclass(annotation, BaseModel) and not _chooses(annotation):
        return {name: field.annotation for name, field in annotation.model_fields.items()}
    members = _members(annotation)
    for member in members:
        for tag in TAGS:
            chooses = member.model_fields.get(tag)
            if chooses and isinstance(values, dict) and values.get(tag) in get_args(chooses.annotation):
                return keys_of(member)
    return {name: kind for member in members for name, kind in keys_of(member).items()}


def _members(annotation: Any) -> list[type[BaseModel]]:
    """The sections among the types of a union, however deep they are wrapped."""
    if _is_class(annotation):
        if _chooses(annotation):
            return list(annotation.members())
        return [annotation] if issubclass(annotation, BaseModel) else []
    inside = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return [] if get_origin(annotation) in (dict, list) else [m for part in inside for m in _members(part)]


def _is_class(annotation: Any) -> TypeGuard[type]:
    """Whether it is a class; Python 3.10 also calls `list[str]` a type, and `issubclass` refuses it."""
    return isinstance(annotation, type) and get_origin(annotation) is None


def _chooses(annotation: type) -> TypeGuard[type[ChosenSection]]:
    """Whether a section is chosen from a registry."""
    return issubclass(annotation, ChosenSection) and "registry" in annotation.__dict__


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
