"""The configs of `calmrl extract` and `calmrl compare`, and KINDS: the value of `kind` -> the class of its config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from calmrl._support.arguments import Count, Seed
from calmrl._support.registry import lookup
from calmrl._support.section import Section
from calmrl.config.schema.train import CollectionSection, HideSection, ImputeConfig, SourceSection, TrainConfig
from calmrl.metrics.registry import measures
from calmrl.training.methods import TRIALS, find_method


class ExtractConfig(Section):
    """Which collection is encoded, and by what. The words are those of the options of the command."""

    kind: Literal["extract"]
    collection: CollectionSection | None = None  # in place of a manifest
    manifest: str | None = Field(
        default=None, validate_default=True
    )  # a folder, a table, with `layout` an annotation file
    encoders: Annotated[dict[str, str], Field(min_length=1)] | None = (
        None  # modality -> encoder; None: the default ones
    )
    root: str | None = None
    captions: str | None = None
    layout: str | None = None
    media: dict[str, str] = Field(default_factory=dict)
    ignore: list[str] = Field(default_factory=list)
    allow_missing: bool = False
    frames: Count = 8
    batch_size: Count = 16
    workers: Annotated[int, Field(ge=0)] = 2
    dtype: Literal["float16", "float32"] = "float16"
    device: str = "cpu"

    @field_validator("manifest")
    @classmethod
    def _one(cls, manifest: str | None, info: ValidationInfo) -> str | None:
        if "collection" not in info.data:
            return manifest  # it has mistakes of its own
        if manifest is None and info.data["collection"] is None:
            raise PydanticCustomError("missing", "manifest or collection is missing")
        if manifest is not None and info.data["collection"] is not None:
            raise ValueError("give one of manifest (a path) and collection (a section with name and root)")
        return manifest

    @model_validator(mode="after")
    def _whole(self) -> ExtractConfig:
        if self.collection is not None and (self.root or self.captions or self.layout or self.media):
            raise ValueError("root, captions, layout and media belong to a manifest; a collection has keys of its own")
        return self


AS_IS: Literal["as-is"] = "as-is"
METHODS = ["contrastive", "gram", "pmrl", "contrastive+latent", "closed-form", "calibrated", "aligner", "ideal"]
Kind = Literal["as-is", "mcar", "value", "one", "alone", "source", "all-but"]


class SettingSection(HideSection):
    """What is hidden, and in which order rows come.

    `kind: as-is` hides nothing: rows lack what they lack in the data.
    `regime: continual` is that of the paper: heads start from a latent model of the complete rows and see complete rows
    first, then only rows that lack something, without rehearsal; what counts is the model at the end.
    """

    kind: Kind = "mcar"  # type: ignore[assignment]
    regime: Literal["joint", "continual"] = "joint"

    @property
    def hide(self) -> dict[str, Any] | None:
        """The `hide` of a training source; None where nothing is hidden."""
        return None if self.kind == AS_IS else self.model_dump(mode="json", exclude={"regime"})


def _shorthand(value: Any) -> Any:
    """`settings: as-is`, and `{name: as-is}`, spelled out."""
    if value == AS_IS:
        return {AS_IS: {"kind": AS_IS}}
    if isinstance(value, dict):
        return {name: {"kind": AS_IS} if section == AS_IS else section for name, section in value.items()}
    return value


def _nothing_hidden() -> dict[str, SettingSection]:
    return {AS_IS: SettingSection(kind=AS_IS)}


Settings = Annotated[dict[str, SettingSection], BeforeValidator(_shorthand), Field(min_length=1)]


class DatasetSection(Section):
    """One collection of a comparison. What it leaves out is as the config says for all."""

    source: SourceSection
    modalities: list[str] | None = None
    settings: Settings | None = None
    relevant_by: str | None = None
    steps: Count | None = None

    @model_validator(mode="after")
    def _plain_source(self) -> DatasetSection:
        if self.source.hide is not None:
            raise ValueError("settings say what is hidden; leave out source.hide")
        return self


class CompareConfig(Section):
    """What is compared, on which data, under which budget.

    `source` is one collection; `datasets` are several, by name, in one table. `settings` names ways to hide blocks of
    the training rows; `as-is` hides nothing. Every method of every data set, setting and seed gets `steps` updates of
    `batch_size` rows for each of its trials, the same number of trials as every other one; validation rows choose
    between them. `sweep` adds rows: key of the training config -> values, for every method. `relevant_by` says which
    items count as found for a query: its own row (`id`), or all with the same `text`, `labels` or other column.
    `table` lists the metrics that are shown on screen.
    """

    kind: Literal["compare"]
    datasets: dict[str, DatasetSection] = Field(default_factory=dict)
    source: SourceSection | None = Field(default=None, validate_default=True)
    modalities: list[str] | None = None
    settings: Settings = Field(default_factory=_nothing_hidden)
    methods: Annotated[list[str], Field(min_length=1)] = Field(default=METHODS)
    seeds: list[Seed] = Field(default=[0, 1, 2], min_length=1)
    steps: Count = 120
    batch_size: Annotated[int, Field(ge=2)] = 128
    width: Count = 128
    trials: Annotated[int, Field(ge=1, le=TRIALS)] = TRIALS
    metric: Literal["MRR", "recall", "R@1", "R@5", "R@10"] = "MRR"
    measures: list[str] = Field(default_factory=measures)
    relevant_by: str = "id"
    table: Annotated[list[Literal["R@1", "R@5", "R@10", "MRR", "MedR"]], Field(min_length=1)] = Field(default=["R@1"])
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

    @field_validator("source")
    @classmethod
    def _one_or_several(cls, source: SourceSection | None, info: ValidationInfo) -> SourceSection | None:
        if source is None and info.data.get("datasets") == {}:
            raise PydanticCustomError("missing", "give either source (one collection) or datasets (several, by name)")
        if source is not None and info.data.get("datasets"):
            raise ValueError("give either source (one collection) or datasets (several, by name)")
        if source is not None and source.hide is not None:
            raise ValueError("settings say what is hidden; leave out source.hide")
        return source

    @field_validator("modalities")
    @classmethod
    def _of_one(cls, names: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if names is not None and info.data.get("datasets"):
            raise ValueError("with datasets, modalities belong to each of them: datasets.NAME.modalities")
        return names

    @property
    def names(self) -> list[str]:
        """The names of the data sets; a single source is called by its data set or file."""
        if self.source is None:
            return list(self.datasets)
        return [self.source.dataset or Path(str(self.source.features or self.source.manifest)).name or "data"]

    def only(self, name: str) -> CompareConfig:
        """The comparison on one of the data sets, as if it were the only one."""
        if self.source is not None:
            return self
        section = self.datasets[name]
        return self.model_copy(
            update={
                "source": section.source,
                "modalities": section.modalities,
                "settings": section.settings or self.settings,
                "relevant_by": section.relevant_by or self.relevant_by,
                "steps": section.steps or self.steps,
                "datasets": {},
            }
        )


KINDS: dict[str, type[Section]] = {
    "impute": ImputeConfig,
    "train": TrainConfig,
    "compare": CompareConfig,
    "extract": ExtractConfig,
}
