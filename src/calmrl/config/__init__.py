"""Configs: YAML files checked by pydantic models, changed on the command line with `key=value`.

`load` reads a file or a shipped config, applies overrides and returns a model; everything that is wrong is reported at
once. `dump` writes the resolved config. A kind of config is one pydantic model in `KINDS`.
"""

from calmrl.config.config_error import ConfigError, Problem
from calmrl.config.loading import dump, dumps, load
from calmrl.config.schema.compare import CompareConfig
from calmrl.config.schema.impute import ImputeConfig
from calmrl.config.schema.kinds import KINDS
from calmrl.config.schema.train import TrainConfig
from calmrl.config.shipped_files import shipped, shipped_text

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
