"""The kinds of config: one pydantic model each; the field `kind` of a file chooses it."""

from __future__ import annotations

from calmrl.config.comparing import CompareConfig
from calmrl.config.kinds import ImputeConfig, Section
from calmrl.config.training import TrainConfig

KINDS: dict[str, type[Section]] = {
    "impute": ImputeConfig,
    "train": TrainConfig,
    "compare": CompareConfig,
}
