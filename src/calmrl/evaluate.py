"""The measures under the name of the verb: everything that `calmrl.metrics` exports."""

from typing import Any

from calmrl import metrics


def __getattr__(name: str) -> Any:
    return getattr(metrics, name)


def __dir__() -> list[str]:
    return dir(metrics)
