"""Texts of configs: YAML and `key=value` -> plain values, with where every key was written; and the shipped configs.

PyYAML is imported when a text is read or written: a list of what is shipped does without.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from calmrl._support.parsing import reason_of
from calmrl._support.registry import lookup
from calmrl._support.text import plural
from calmrl.errors import InputError

if TYPE_CHECKING:
    import yaml

ABSENT = object()


@dataclass(frozen=True)
class ConfigProblem:
    """One mistake: the key, where it was written, what is wrong, what was got, the nearest valid key or value."""

    key: str
    where: str
    message: str
    got: Any = ABSENT
    closest: str | None = None

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.where, self.key) if part)
        got = "" if self.got is ABSENT else f"; got {self.got!r}"
        hint = f'; did you mean "{self.closest}"?' if self.closest else ""
        return f"{place}: {self.message}{got}{hint}" if place else f"{self.message}{got}{hint}"

    def as_dict(self) -> dict[str, Any]:
        row = asdict(self)
        row["got"] = None if self.got is ABSENT else self.got
        return row


class ConfigError(InputError):
    """Every mistake of a config at once, in `problems`."""

    def __init__(self, name: str, problems: Sequence[ConfigProblem]) -> None:
        self.problems = list(problems)
        count = plural(len(self.problems), "mistake")
        super().__init__("\n".join([f"{name}: {count}", *(f"  {problem}" for problem in self.problems)]))


def dotted(path: Sequence[str | int]) -> str:
    """("imputers", 0, "method") -> "imputers.0.method", as overrides are written."""
    return ".".join(str(part) for part in path)


KeyPath = tuple[str | int, ...]
MOST_CHARACTERS = 200_000
INDEX = re.compile(r"[0-9]{1,9}")  # of a list, in an override
SHIPPED = files("calmrl.config") / "shipped"
PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@cache
def _forms() -> tuple[type[yaml.SafeLoader], type[yaml.SafeDumper]]:
    """SafeLoader that reads 1e-6 as a number, as YAML 1.2 does, and leaves dates as text; SafeDumper that quotes every text
    which it would read as a number.

    The loader is the one in Python: that in C names worse lines in its errors, and ends the process where collections are very
    deep.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, rule) for tag, rule in rules if not tag.endswith("timestamp")]
            for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    class Dumper(yaml.SafeDumper):
        pass

    for form in (Loader, Dumper):
        form.add_implicit_resolver(
            "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
        )
    return Loader, Dumper


def write_yaml(values: Any) -> str:
    """Plain values as YAML that `read_yaml` reads back to the same values."""
    import yaml

    return yaml.dump(values, Dumper=_forms()[1], sort_keys=False, allow_unicode=True)


@dataclass
class ConfigText:
    """Plain values, where each of them was written ("line 3", or "override 2"), and what could not be read."""

    values: dict[str, Any] = field(default_factory=dict)
    where: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)


def read_yaml(text: str) -> ConfigText:
    """The mapping in `text`. Syntax errors, keys given twice and a text that is too long become problems."""
    import yaml

    source = ConfigText()
    if len(text) > MOST_CHARACTERS:
        message = f"a config has at most {MOST_CHARACTERS:,} characters; got {len(text):,}"
        return ConfigText(problems=[ConfigProblem("", "", message)])
    try:
        root = yaml.compose(text, Loader=_forms()[0])
        if root is None:
            return source
        if not isinstance(root, yaml.MappingNode):
            source.problems.append(ConfigProblem("", _line(root), "a config is a mapping of `key: value` lines"))
            return source
        source.values = _value(root, (), source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}" if mark else ""
        source.problems.append(ConfigProblem("", where, f"not valid YAML: {error.problem or error.context}"))
    except yaml.YAMLError as error:  # characters that no YAML has
        source.problems.append(ConfigProblem("", "", f"not valid YAML: {reason_of(error)}"))
    except RecursionError:
        message = "a config that is nested too deeply, or has an alias inside itself, cannot be read; write it flatter"
        source.problems.append(ConfigProblem("", "", message))
    return source


def apply_overrides(source: ConfigText, overrides: Sequence[str]) -> None:
    """Set dotted keys in `source`: `imputer.latent_dim=16`, `seeds=[0, 1]`, `imputers.0.method=mean`."""
    for number, text in enumerate(overrides, start=1):
        where = f"override {number}"
        key, equals, raw = text.partition("=")
        path: KeyPath = tuple(int(part) if INDEX.fullmatch(part) else part for part in key.strip().split("."))
        if not equals or "" in path:
            message = "an override is key=value, for instance imputer.latent_dim=16"
            source.problems.append(ConfigProblem(key.strip(), where, message, got=text))
            continue
        read = read_yaml(f"value: {raw}") if raw.strip() else ConfigText({"value": None})
        if read.problems or set(read.values) != {"value"}:
            source.problems.append(ConfigProblem(key.strip(), where, "the value is not valid YAML", got=raw))
            continue
        problem = _set(source.values, path, read.values["value"])
        if problem:
            source.problems.append(ConfigProblem(key.strip(), where, problem, got=raw))
            continue
        for known in [known for known in source.where if known[: len(path)] == path]:
            del source.where[known]
        for depth in range(1, len(path)):
            source.where.setdefault(path[:depth], where)
        source.where[path] = where


def _value(node: yaml.Node, path: KeyPath, source: ConfigText) -> Any:
    import yaml

    if isinstance(node, yaml.CollectionNode) and node.tag not in PLAIN_TAGS:
        source.problems.append(ConfigProblem(dotted(path), _line(node), f"the tag {node.tag} is not used in configs"))
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                source.problems.append(ConfigProblem(dotted(path), _line(key_node), "a key is a single word"))
                continue
            here = (*path, key_node.value)
            if key_node.value in mapping:
                message = f"given twice; first on {source.where[here]}"
                source.problems.append(ConfigProblem(dotted(here), _line(key_node), message))
            source.where[here] = _line(key_node)
            mapping[key_node.value] = _value(value_node, here, source)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items = []
        for i, item in enumerate(node.value):
            at = (*path, i)
            source.where[at] = _line(item)
            items.append(_value(item, at, source))
        return items
    return _scalar(node, path, source)


def _scalar(node: yaml.Node, path: KeyPath, source: ConfigText) -> Any:
    """A single value; None, and a problem, if it is not what its tag says."""
    import yaml

    try:
        return yaml.constructor.SafeConstructor().construct_object(node, deep=True)
    except yaml.MarkedYAMLError:
        raise
    except Exception:  # constructors of PyYAML raise KeyError, ValueError, AttributeError, ...
        problem = f"{node.value[:60]!r} is no {node.tag.rpartition(':')[2]}"
        source.problems.append(ConfigProblem(dotted(path), _line(node), problem))
        return None


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _set(values: dict[str, Any], path: KeyPath, value: Any) -> str | None:
    """Set values[path]; returns what is wrong with the path, if anything."""
    here: Any = values
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(here, dict):
            here[str(part)] = value if last else here.get(str(part), {})
            here = here[str(part)]
        elif isinstance(here, list):
            if not isinstance(part, int) or part >= len(here):
                return f"{dotted(path[:depth])} is a list with items 0 to {len(here) - 1}"
            if last:
                here[part] = value
            here = here[part]
        else:
            return f"{dotted(path[:depth])} is a single value and has no key {part!r}"
    return None


def shipped() -> dict[str, str]:
    """Name -> what it is for: the first comment line after the launch command of each shipped file.

    Examples
    --------
    >>> "demo" in shipped()
    True
    """
    about = {}
    for entry in SHIPPED.iterdir():
        if entry.name.endswith(".yaml"):
            comments = [line for line in entry.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
            about[entry.name.removesuffix(".yaml")] = comments[1].removeprefix("#").strip()
    return dict(sorted(about.items()))


def shipped_text(name: str) -> str:
    """The text of a shipped config.

    Examples
    --------
    >>> shipped_text("demo").startswith("#")
    True
    """
    lookup(shipped(), name, "config")
    return SHIPPED.joinpath(f"{name}.yaml").read_text(encoding="utf-8")
