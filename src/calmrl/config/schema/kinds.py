"""The kinds of config: one pydantic model each; the field `kind` of a file chooses it."""

from calmrl._support.section import Section
from calmrl.config.schema.compare import CompareConfig
from calmrl.config.schema.extract import ExtractConfig
from calmrl.config.schema.impute import ImputeConfig
from calmrl.config.schema.train import TrainConfig

KINDS: dict[str, type[Section]] = {
    "impute": ImputeConfig,
    "train": TrainConfig,
    "compare": CompareConfig,
    "extract": ExtractConfig,
}
