"""The config of `calmrl compare` and `calmrl demo`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from calmrl._support.arguments import Count, Seed
from calmrl._support.registry import lookup
from calmrl._support.section import Section
from calmrl.config.schema.train import HideSection, SourceSection
from calmrl.metrics.registry import measures
from calmrl.training.methods import TRIALS, find_method


class SettingSection(HideSection):
    """What is hidden, and in which order rows come.

    `regime: continual` is that of the paper: heads start from a latent model of the complete rows and see complete rows
    first, then only rows that lack something, without rehearsal; what counts is the model at the end.
    """

    regime: Literal["joint", "continual"] = "joint"


class CompareConfig(Section):
    """What is compared, on which data, under which budget.

    `settings` names ways to hide blocks of the training rows. Every method of every setting and seed gets `steps`
    updates of `batch_size` rows for each of its trials, the same number of trials as every other one; validation rows
    choose between them. `sweep` adds rows: key of the training config -> values, for every method.
    """

    kind: Literal["compare"]
    source: SourceSection
    modalities: list[str] | None = None
    settings: Annotated[dict[str, SettingSection], Field(min_length=1)]
    methods: Annotated[list[str], Field(min_length=1)]
    seeds: list[Seed] = Field(default=[0, 1, 2], min_length=1)
    steps: Count = 120
    batch_size: Annotated[int, Field(ge=2)] = 128
    width: Count = 128
    trials: Annotated[int, Field(ge=1, le=TRIALS)] = TRIALS
    metric: Literal["MRR", "recall", "R@1", "R@5", "R@10"] = "MRR"
    measures: list[str] = Field(default_factory=measures)
    sweep: dict[str, list[Any]] = Field(default_factory=dict)
    workers: Annotated[int, Field(ge=0)] = 0

    @field_validator("methods")
    @classmethod
    def _methods(cls, names: list[str]) -> list[str]:
        for name in names:
            find_method(name)
        return names

    @field_validator("measures")
    @classmethod
    def _measures(cls, names: list[str]) -> list[str]:
        for name in names:
            lookup(dict.fromkeys(measures()), name, "measure")
        return names

    @model_validator(mode="after")
    def _plain_source(self) -> CompareConfig:
        if self.source.hide is not None:
            raise ValueError("settings say what is hidden; leave out source.hide")
        return self
