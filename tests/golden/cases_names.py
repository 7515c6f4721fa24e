"""What can be imported, and how it is called: names and parameters of every public package."""

from __future__ import annotations

import enum
import inspect
from importlib import import_module
from typing import Any

from tests.golden.golden_record import Place, case

PACKAGES = (
    *(
        "calmrl",
        "calmrl.aligner",
        "calmrl.anchors",
        "calmrl.config",
        "calmrl.data",
        "calmrl.datasets",
        "calmrl.encoders",
    ),
    *(
        "calmrl.errors",
        "calmrl.evaluate",
        "calmrl.hub",
        "calmrl.imputers",
        "calmrl.interop",
        "calmrl.losses",
        "calmrl.metrics",
    ),
    *("calmrl.models", "calmrl.paper", "calmrl.paper.reproduce", "calmrl.report", "calmrl.search", "calmrl.server"),
    *("calmrl.training", "calmrl.workflows"),
)
ALL = {  # modules that do not list what is public
    "calmrl.anchors": ("anchor", "anchor_shift", "calibration_helps", "calibration_threshold", "completion_bounds",
                       "completion_shift", "printed_calibration_threshold", "printed_shift_bounds", "shift_bounds"),
    "calmrl.errors": ("InputError", "JobError", "MissingExtraError", "ProcessLost"),
    "calmrl.evaluate": ("retrieval",),
    "calmrl.hub": ("Card", "Data", "OnHub"),
}  # fmt: skip
WHOLE = ("Aligner", "CalibratedAlignment", "FeatureSet", "GaussianImputer", "Index")  # with their methods


def _called(function: Any) -> str:
    """The parameters with their defaults, without annotations."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "?"
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters if parameter.name != "self"
    ]
    plain = [parameter.replace(default=_default(parameter.default)) for parameter in plain]
    return str(inspect.Signature(plain))


class _Default:
    """A default that is shown, but not compared by its address."""

    def __repr__(self) -> str:
        return "..."


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty or value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, enum.Enum) else value
    plain = isinstance(value, tuple) and all(isinstance(part, (bool, int, float, str)) for part in value)
    return value if plain else _Default()


@case("names/public", needs=("starlette",))
def _(place: Place) -> Any:
    found: dict[str, Any] = {}
    seen: dict[int, str] = {}
    for package in PACKAGES:
        module = import_module(package)
        entries: dict[str, str] = {}
        for name in ALL.get(package) or sorted(module.__all__):
            value = getattr(module, name)
            if inspect.ismodule(value):
                entries[name] = "a package"
            elif id(value) in seen:
                entries[name] = f"{seen[id(value)]}.{name}"  # the same as there
            elif isinstance(value, type) and issubclass(value, Exception):
                entries[name] = "an error"
            else:
                seen[id(value)] = package
                entries[name] = _called(value) if callable(value) else type(value).__name__
        found[package] = entries
    return found


@case("names/methods")
def _(place: Place) -> Any:
    calmrl, data = import_module("calmrl"), import_module("calmrl.data")
    classes = {name: getattr(calmrl, name, None) or getattr(data, name) for name in WHOLE}
    ours = {name: [part for part in dir(kind) if not part.startswith("_")] for name, kind in classes.items()}
    return {
        name: {
            part: _called(getattr(kind, part))
            for part in ours[name]
            if callable(getattr(kind, part))
            and str(getattr(getattr(kind, part), "__module__", "")).startswith("calmrl")
        }
        for name, kind in classes.items()
    }
