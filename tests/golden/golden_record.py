"""The record of what calmrl does: cases, how their results are written down, and how two results are compared.

A case is a function of a `Place`, an empty folder that is the current directory while it runs. It returns dicts, lists,
texts, numbers, arrays and tensors, which `told` turns into JSON. Cases speak through public names and the command line
only, so that they hold whatever file the code lives in.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXPECTED = Path(__file__).with_name("expected")
DOUBLE = 1e-10  # relative; results in double precision of well-conditioned problems
CHOSEN = 1e-6  # double precision, after eigenvectors or a search over settings
SINGLE = 1e-5  # results in single precision
TRAINED = 1e-3  # single precision, after some steps of gradient descent
COARSE = {"float32": SINGLE, "float16": 1e-3}  # at least, for arrays of these kinds
SHOWN = 4  # entries of an array that are written down, beside its sums

CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """A function to record. Numbers agree to `tolerance`; without the packages of `needs` there is nothing to record."""

    make: Callable[[Place], Any]
    tolerance: float
    needs: tuple[str, ...]

    def lacks(self) -> list[str]:
        return [name for name in self.needs if not _is_there(name)]


def case(name: str, tolerance: float = DOUBLE, needs: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Enter a function into the table; "file/rest" is recorded in expected/file.json."""

    def enter(function: Callable[[Place], Any]) -> Callable[[Place], Any]:
        assert name not in CASES, name
        CASES[name] = Case(function, tolerance, needs)
        return function

    return enter


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None


# ---- where a case runs


@dataclass(frozen=True)
class Place:
    """An empty folder, the current directory; `patch` undoes itself."""

    path: Path
    patch: pytest.MonkeyPatch

    def calmrl(self, *arguments: Any) -> dict[str, Any]:
        """A line of the command line: exit code, what it says, what it writes."""
        from calmrl.cli import main

        before = self.files()
        out, err = io.StringIO(), io.StringIO()
        code: Any = None
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
        result = {"code": code, "out": self.text(out.getvalue()), "err": self.text(err.getvalue())}
        result["wrote"] = folded(name for name, stamp in self.files().items() if before.get(name) != stamp)
        return result

    def files(self) -> dict[str, str]:
        """Every file below -> checksum."""
        return {
            path.relative_to(self.path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
        }

    def text(self, text: str) -> str:
        """Without what differs between machines and moments: folders, versions, durations."""
        from calmrl import __version__

        for folder in (str(self.path), str(self.path.resolve())):
            text = text.replace(folder, "{place}")
        text = re.sub(r"'(\{place\}[^']*)'", r"\1", text)  # a folder with a space in it is quoted
        text = text.replace(f"calmrl {__version__}", "calmrl {version}")
        # progress comes once a minute, so only on a slow machine
        text = re.sub(r"^\d+:\d\d:\d\d .*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"\d+(\.\d+)? s\b", "{seconds} s", text)
        return re.sub(r"took \d+ % of the step time", "took {share} % of the step time", text)


def folded(names: Any) -> list[str]:
    """Names of files; those that hold random letters or count up are one name with its number."""
    short = [re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{20,}|\d{10,}", "{id}", name) for name in names]
    short = [
        re.sub(r"/_versions/[^/]+|/_transactions/[^/]+", lambda part: part[0].rpartition("/")[0] + "/{id}", n)
        for n in short
    ]
    return sorted({re.sub(r"/data/[^/]+\.lance$", "/data/{id}.lance", name) for name in short})


@contextmanager
def in_place(path: Path) -> Iterator[Place]:
    """A Place in this folder, with an environment that is the same everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for name in ("COLUMNS", "NO_COLOR", "TERM"):
            patch.setenv(name, {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}[name])
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
            patch.delenv(name, raising=False)
        state = torch.get_rng_state()
        torch.manual_seed(0)
        try:
            yield Place(path, patch)
        finally:
            torch.set_rng_state(state)


def result_of(name: str, path: Path) -> Any:
    """What a case gives, as JSON."""
    with in_place(path) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)  # commands show these; other libraries' own ones are not our words
        warnings.showwarning = lambda *told, **more: None
        return shortened(told(CASES[name].make(place)), CASES[name].tolerance)


# ---- as JSON


def told(value: Any) -> Any:
    """A result as JSON: long arrays as shape, kind, some entries and sums, everything else as it is."""
    if isinstance(value, torch.Tensor):
        return told(value.detach().cpu().numpy()) | {"torch": True} if value.ndim else told(value.item())
    if isinstance(value, np.generic):
        return told(value.item())
    if isinstance(value, np.ndarray):
        return _array(value)
    if is_dataclass(value) and not isinstance(value, type):
        return told(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): told(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [told(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(told(part) for part in value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, os.PathLike):
        return Path(value).as_posix()
    raise TypeError(f"{value!r} is nothing that can be recorded")


def shortened(value: Any, tolerance: float) -> Any:
    """Numbers with three digits more than are compared."""
    if isinstance(value, dict):
        tolerance = _tolerance(value, tolerance)
        return {name: shortened(part, tolerance) for name, part in value.items()}
    if isinstance(value, list):
        return [shortened(part, tolerance) for part in value]
    return float(f"{value:.{3 - round(math.log10(tolerance))}g}") if isinstance(value, float) else value


def _tolerance(summary: dict[str, Any], tolerance: float) -> float:
    """That of an array, where it is one."""
    return max(tolerance, COARSE.get(summary.get("dtype", ""), 0.0)) if "shape" in summary else tolerance


def _array(array: np.ndarray) -> dict[str, Any]:
    head = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype.kind in "OUS":
        entries = [str(entry) for entry in array.ravel()]
        return head | {"some": _some(entries), "sha256": checksum("\n".join(entries))}
    if array.dtype.kind in "biu":
        numbers = array.ravel().astype(np.int64)
        place = np.arange(1, numbers.size + 1)
        return head | {"some": _some(numbers.tolist()), "sum": int(numbers.sum()), "by place": int(numbers @ place)}
    flat = np.asarray(array, np.float64).ravel()
    known = np.where(np.isfinite(flat), flat, 0.0)
    wave = np.cos(np.arange(flat.size) * 0.7)  # so that two entries in each other's place are noticed
    holes = {"not finite": int((~np.isfinite(flat)).sum())} if len(flat) and not np.isfinite(flat).all() else {}
    return (
        head
        | holes
        | {
            "some": [told(float(entry)) for entry in _some(flat.tolist())],
            "norm": float(np.linalg.norm(known)),
            "sum": float(known.sum()),
            "wave": float(known @ wave),
        }
    )


def _some(entries: list[Any]) -> list[Any]:
    """The first entries, the last, and some between."""
    if len(entries) <= SHOWN:
        return entries
    return [entries[round(i * (len(entries) - 1) / (SHOWN - 1))] for i in range(SHOWN)]


def checksum(text: str) -> str:
    """Of a text too long to be recorded."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- compared


def differences(expected: Any, got: Any, tolerance: float, at: str = "", scale: float = 0.0) -> list[str]:
    """Where two results differ, each as "path: expected ..., got ..."."""
    if isinstance(expected, dict) and isinstance(got, dict):
        found = [f"{at}/{name}: is gone" for name in expected if name not in got]
        found += [f"{at}/{name}: is new" for name in got if name not in expected]
        for name in expected:
            if name in got:
                inner = _scale(expected, name, scale)
                found += differences(expected[name], got[name], _tolerance(expected, tolerance), f"{at}/{name}", inner)
        return found
    if isinstance(expected, list) and isinstance(got, list):
        found = [] if len(expected) == len(got) else [f"{at}: expected {len(expected)} entries, got {len(got)}"]
        for i, (one, other) in enumerate(zip(expected, got, strict=False)):
            found += differences(one, other, tolerance, f"{at}[{i}]", scale)
        return found
    if isinstance(expected, float) or isinstance(got, float):
        return [] if _near(expected, got, tolerance, scale) else [_differ(at, expected, got)]
    if isinstance(expected, str) and isinstance(got, str):
        return _in_text(expected, got, at)
    return [] if type(expected) is type(got) and expected == got else [_differ(at, expected, got)]


def _scale(summary: dict[str, Any], name: str, scale: float) -> float:
    """How large numbers of an array are: its entries as on average, its sums as they are together."""
    if not summary.keys() >= {"norm", "wave"}:
        return scale
    return summary["norm"] / math.sqrt(max(1, math.prod(summary["shape"]))) if name == "some" else summary["norm"]


def _near(one: Any, other: Any, tolerance: float, scale: float) -> bool:
    """Relative to the number itself, or to the array that it belongs to."""
    for number in (one, other):
        if isinstance(number, (bool, str)) or not isinstance(number, (int, float)):
            return False
    return abs(one - other) <= tolerance * max(abs(one), abs(other), scale, 0.01)


NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[-+]?\d+)?(?![\w.])")


def _in_text(expected: str, got: str, at: str) -> list[str]:
    """Texts are equal but for the last digit of decimals, which may be rounded the other way."""
    for number, (one, other) in enumerate(zip(expected.split("\n"), got.split("\n"), strict=False), 1):
        if one == other:
            continue
        decimals = list(zip(NUMBER.findall(one), NUMBER.findall(other), strict=False))
        if NUMBER.sub("#", one) != NUMBER.sub("#", other) or not all(_rounded(a, b) for a, b in decimals):
            return [_differ(f"{at} line {number}", one, other)]
    lines = [text.count("\n") + 1 for text in (expected, got)]
    if lines[0] != lines[1]:
        rest = (expected if lines[0] > lines[1] else got).split("\n")[min(lines)]
        return [f"{at}: expected {lines[0]} lines, got {lines[1]}; one has {rest!r}"]
    return []


def _rounded(one: str, other: str) -> bool:
    digits = len(one.partition(".")[2]) if "e" not in one else 3
    return abs(float(one) - float(other)) <= max(1.01 * 10.0**-digits, 1e-9 * abs(float(one)))


def _differ(at: str, expected: Any, got: Any) -> str:
    return f"{at or '/'}: expected {expected!r}, got {got!r}"


# ---- on disk


def expected_of(name: str) -> Any:
    """What is recorded of a case; KeyError if nothing is."""
    file = EXPECTED / f"{name.partition('/')[0]}.json"
    return json.loads(file.read_text("utf-8"))[name] if file.exists() else {}[name]


def write_expected(results: Mapping[str, Any]) -> None:
    """Renew these cases; what is no case any more goes."""
    for file in {name.partition("/")[0] for name in [*CASES, *(path.stem for path in EXPECTED.glob("*.json"))]}:
        path = EXPECTED / f"{file}.json"
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
        content |= {name: result for name, result in results.items() if name.partition("/")[0] == file}
        content = {name: content[name] for name in sorted(content) if name in CASES}
        if content:
            lines = ",\n".join(f"{json.dumps(name)}: {_lines(result)}" for name, result in content.items())
            path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        else:
            path.unlink(missing_ok=True)


def _lines(value: Any, indent: int = 1, width: int = 160) -> str:
    """JSON that fits a line on one line, and one entry per line otherwise."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or len(short) + indent <= width or "dtype" in value:
        return short
    pad = " " * indent
    if isinstance(value, dict):
        parts = [
            f"{pad}{json.dumps(name, ensure_ascii=False)}: {_lines(part, indent + 1)}" for name, part in value.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n" + " " * (indent - 1) + "}"
    parts = [f"{pad}{_lines(part, indent + 1)}" for part in value]
    return "[\n" + ",\n".join(parts) + "\n" + " " * (indent - 1) + "]"
