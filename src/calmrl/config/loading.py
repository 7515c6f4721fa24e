"""Text -> checked config, and back."""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from calmrl._support.output import WRITTEN_BY, new_file
from calmrl._support.registry import closest, lookup
from calmrl._support.section import Section
from calmrl.config.explain import explain
from calmrl.config.schema.commands import KINDS
from calmrl.config.yaml_text import (
    MOST_CHARACTERS,
    ConfigError,
    ConfigProblem,
    ConfigText,
    apply_overrides,
    read_yaml,
    write_yaml,
)
from calmrl.errors import InputError


def shipped() -> dict[str, str]:
    """Name -> what it is for: the first comment line after the launch command of each shipped file.

    Examples
    --------
    >>> "demo" in shipped()
    True
    """
    names = sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))
    texts = {name: _folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8") for name in names}
    comments = {name: [line for line in text.splitlines() if line.startswith("#")] for name, text in texts.items()}
    return {name: lines[1].removeprefix("#").strip() for name, lines in comments.items()}


def shipped_text(name: str) -> str:
    """The text of a shipped config.

    Examples
    --------
    >>> shipped_text("demo").startswith("#")
    True
    """
    lookup(shipped(), name, "config")
    return _folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def _folder():  # type: ignore[no-untyped-def]  # importlib's Traversable moved between Python versions
    return files("calmrl.config") / "shipped"


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
    """Write the resolved config; the file appears whole or not at all.

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
