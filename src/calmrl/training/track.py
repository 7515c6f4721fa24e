"""TensorBoard and Weights & Biases, through accelerate's trackers."""

from collections.abc import Mapping, Sequence
from typing import Any

from calmrl.errors import need


def open_trackers(accelerator: Any, names: Sequence[str], config: Mapping[str, Any]) -> bool:
    """Start the trackers that `accelerator` was made with; whether there are any."""
    for name in names:
        need(name, "track", f"the tracker {name}")
    if names:
        accelerator.init_trackers("calmrl", config=flat(config))
    return bool(names)


def close_trackers(accelerator: Any) -> None:
    """Let the trackers write what they hold. `accelerator.end_training` would end the group of processes as well."""
    for tracker in accelerator.trackers:
        tracker.finish()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; what is no number becomes text."""
    flattened: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flattened
