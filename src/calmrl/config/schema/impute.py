"""The config of `calmrl impute`."""

from __future__ import annotations

from typing import ClassVar, Literal

from calmrl._support.arguments import Seed
from calmrl._support.section import ChosenSection, Section
from calmrl.imputers.registry import IMPUTERS


class ImputerSection(ChosenSection):
    """The imputer and its arguments; "auto" chooses a value on held-out blocks of the data."""

    registry = IMPUTERS
    tag = "method"
    leave_out: ClassVar[frozenset[str]] = frozenset({"random_state", "blocks", "verbose"})

    method: str


class ImputeConfig(Section):
    """How `calmrl impute` imputes missing features."""

    kind: Literal["impute"]
    imputer: ImputerSection = ImputerSection.choose({"method": "auto"})
    seed: Seed = 0
    std: bool = False
