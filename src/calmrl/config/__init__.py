"""Configs: YAML files checked by pydantic models, changed on the command line with `key=value`.

`load` reads a file or a shipped config, applies overrides and returns a model; everything that is wrong is reported at
once. `dump` writes the resolved config. A kind of config is one pydantic model in `KINDS`.
"""

from calmrl.config.comparing import CompareConfig
from calmrl.config.kinds import ImputeConfig
from calmrl.config.known import KINDS
from calmrl.config.load import dump, dumps, load
from calmrl.config.problems import ConfigError, Problem
from calmrl.config.shipped import shipped, shipped_text
from calmrl.config.training import TrainConfig

__all__ = [
    "KINDS",
    "CompareConfig",
    "ConfigError",
    "ImputeConfig",
    "Problem",
    "TrainConfig",
    "dump",
    "dumps",
    "load",
    "shipped",
    "shipped_text",
]
