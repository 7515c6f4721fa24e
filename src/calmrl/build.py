"""From a checked config to the objects it names. Config stops here: what is built takes plain arguments."""

from __future__ import annotations

import inspect
from typing import Any

from calmrl.config.kinds import Section
from calmrl.imputers import IMPUTERS
from calmrl.registry import lookup


def build_imputer(section: Section, seed: int) -> Any:
    """The imputer of a section; `seed` becomes its random_state if it has one."""
    arguments = section.model_dump()
    imputer = lookup(IMPUTERS, arguments.pop("method"), "imputer")
    if "random_state" in inspect.signature(imputer).parameters:
        arguments["random_state"] = seed
    return imputer(**arguments)
