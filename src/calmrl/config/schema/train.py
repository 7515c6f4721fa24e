"""The config of `calmrl train`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from calmrl._support.registry import closest
from calmrl.config.schema.sections import Count, GaussianSection, ImputerSection, Positive, Section, Seed
from calmrl.models.vast.model import VastModel
from calmrl.training.methods import METHODS

Share = Annotated[float, Field(ge=0, lt=1)]


class HideSection(Section):
    """Training blocks to hide on purpose. `groups`, for kind "source": the modalities each kind of pair keeps."""

    kind: Literal["mcar", "value", "one", "source"] = "mcar"
    rate: Annotated[float, Field(gt=0, le=1)]
    groups: Annotated[list[list[str]], Field(min_length=1)] | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _grouped(self) -> HideSection:
        if (self.kind == "source") != (self.groups is not None):
            raise ValueError('groups belongs to kind "source", and that kind needs it, for instance [[image, text]]')
        return self


class ResplitSection(Section):
    """New parts in place of the split column: shares of the values of column `by`, which stay together."""

    by: str = "id"
    val: Annotated[float, Field(gt=0, lt=0.5)] = 0.1
    test: Annotated[float, Field(gt=0, lt=0.8)] = 0.3
    seed: Seed | None = None


class SourceSection(Section):
    """Where rows come from: a data set by name, a feature directory or file, or a table of media files. One of them.

    `manifest` is a table of files, or with `layout` the annotation file of a public collection whose files lie in the
    folders `media` (modality -> folder); `part` puts all its rows in one split.
    `complete` uses only rows that have every modality, `exclude` leaves out rows whose column of that name is true.
    `needs` says what belongs there and how to make it; people see it when it is not there.
    """

    dataset: str | None = None
    features: str | None = None
    manifest: str | None = None
    layout: str | None = None
    media: dict[str, str] = Field(default_factory=dict)
    part: Literal["train", "val", "test"] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weight: Positive = 1.0
    complete: bool = False
    exclude: str | None = None
    resplit: ResplitSection | None = None
    hide: HideSection | None = None
    needs: str | None = None

    @model_validator(mode="after")
    def _one(self) -> SourceSection:
        if sum(given is not None for given in (self.dataset, self.features, self.manifest)) != 1:
            raise ValueError("give one of dataset (a name), features (a path) and manifest (a path)")
        if self.manifest is None and (self.layout or self.media or self.part):
            raise ValueError("layout, media and part belong to a manifest")
        return self


class PMRLSection(Section):
    """Leading singular value and anchors."""

    name: Literal["pmrl"]
    temperature: Positive = 0.05
    anchor_temperature: Positive = 0.1
    log: bool = True
    sign_guard: bool = True


class ContrastiveSection(Section):
    """Pairs of modalities: all of them, or an anchor with each other one."""

    name: Literal["contrastive"]
    anchor: str | None = None
    temperature: Positive = 0.07
    learn_temperature: bool = True
    label_smoothing: Share = 0.1


class VastSection(Section):
    """Text with each other modality."""

    name: Literal["vast"]
    anchor: str = "text"
    temperature: Positive = 0.07
    learn_temperature: bool = True
    label_smoothing: Share = 0.1


class GramSection(Section):
    """Volume spanned by the modalities."""

    name: Literal["gram"]
    anchor: str | None = "text"
    temperature: Positive = 0.07
    learn_temperature: bool = True
    label_smoothing: Share = 0.1
    sign_guard: bool = True


class TriangleSection(Section):
    """Area of the triangle of three modalities."""

    name: Literal["triangle"]
    anchor: str | None = "text"
    temperature: Positive = 0.07
    learn_temperature: bool = True
    label_smoothing: Share = 0.1
    root: bool = True


ObjectiveSection = Annotated[
    PMRLSection | ContrastiveSection | VastSection | GramSection | TriangleSection, Field(discriminator="name")
]
OBJECTIVES: dict[str, type[Section]] = {
    "pmrl": PMRLSection,
    "contrastive": ContrastiveSection,
    "vast": VastSection,
    "gram": GramSection,
    "triangle": TriangleSection,
}


class CalibrationSection(Section):
    """How missing representations are completed before the objective sees them."""

    imputer: ImputerSection = GaussianSection(method="gaussian", latent_dim=64)
    update: Literal["auto", "stepwise", "frozen", "gradient"] = "auto"
    refit: Count = 1
    impute_grad: bool = True
    renormalize: bool = True
    certainty: bool = False
    weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    m_every: Count = 16
    momentum: Share | None = None


class MatchingSection(Section):
    """Instance matching on the observed modalities, added with a weight; re-ranks at test."""

    weight: Positive = 0.1
    anchor: str = "text"
    hidden: Count = 256
    layers: Count = 2
    heads: Count = 4


class HeadsSection(Section):
    """Projectors on features. `init: latent` starts linear heads from a latent model of the features."""

    kind: Literal["heads"]
    width: Count = 512
    hidden: Count | None = None
    standardize: Literal["scale", "whiten"] | None = "scale"
    init: Literal["latent", "random"] = "random"
    latent_prior: Annotated[float, Field(ge=0)] = 100.0
    latent_iterations: Count = 10


class WeightsSection(Section):
    """Files that the encoders start from: one checkpoint of VAST, GRAM or PMRL, or one file per encoder."""

    checkpoint: str | None = None
    vision: str | None = None
    audio: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> WeightsSection:
        if self.checkpoint is not None and (self.vision or self.audio or self.text):
            raise ValueError("a checkpoint holds all encoders; leave out vision, audio and text")
        return self


class VastModelSection(Section):
    """The model of the paper, from raw media. `sizes` are arguments of `VastModel.from_sizes`; its own are the paper's."""

    kind: Literal["vast"]
    width: Count = 512
    frames: Count = 8
    slices: Count = 1
    image_size: Count = 224
    matching: bool = True
    tokenizer: str
    tokens: dict[str, int] = Field(default_factory=dict)
    sizes: dict[str, int | float] = Field(default_factory=dict)
    weights: WeightsSection = WeightsSection()
    gradient_checkpointing: bool = False
    workers: Count = 2

    @field_validator("sizes")
    @classmethod
    def _known(cls, sizes: dict[str, int | float]) -> dict[str, int | float]:
        known = [*inspect.signature(VastModel.from_sizes).parameters]
        for key in sizes:
            if key not in known or key in cls.model_fields:
                near = closest(key, known)
                raise ValueError(f"no size is called {key}" + (f"; did you mean {near}?" if near else ""))
        return sizes


class StageSection(Section):
    """One pass of training: `epochs` or `steps` over some of the sources (all of them if not said)."""

    name: str = "joint"
    sources: list[str] | None = None
    epochs: Positive | None = None
    steps: Count | None = None
    batches: Literal["mixed", "source", "pattern"] = "mixed"
    hide_one: bool = False
    complete_only: bool = False
    rate: Positive = 1.0

    @model_validator(mode="after")
    def _length(self) -> StageSection:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


class OptimiserSection(Section):
    """AdamW with a linear schedule. `freeze` lists names of parameters to keep, with wildcards: "heads.text.*"."""

    learning_rate: Positive = 1e-3
    encoder_learning_rate: Positive | None = None
    betas: list[Share] = Field(default=[0.9, 0.98], min_length=2, max_length=2)
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup_ratio: Share = 0.1
    clip: Positive | None = 1.0
    ema: Share | None = None
    accumulate: Count = 1
    freeze: list[str] = Field(default_factory=list)


class ValidationSection(Section):
    """When to measure on validation rows, and what decides."""

    metric: Literal["MRR", "recall", "R@1", "R@5", "R@10"] = "MRR"
    every: Annotated[int, Field(ge=0)] | None = None
    patience: Count | None = None
    fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.1


class CheckpointSection(Section):
    """When to save (in steps; not said: every epoch; 0: at the end of a stage) and how many to keep beside the best."""

    every: Annotated[int, Field(ge=0)] | None = None
    keep: Count = 2


ModelSection = Annotated[HeadsSection | VastModelSection, Field(discriminator="kind")]


class TrainConfig(Section):
    """How `calmrl train` trains. No stages: no step is made, so that with `model.init: latent` it is the closed form."""

    kind: Literal["train"]
    method: Literal["calmrl", "pmrl", "gram", "triangle", "vast", "contrastive"] = "calmrl"
    root: str | None = None  # the folder that paths of features start from; not said: where the command runs
    sources: Annotated[dict[str, SourceSection], Field(min_length=1)]
    modalities: list[str] | None = None
    model: ModelSection = HeadsSection(kind="heads")
    objective: ObjectiveSection | None = None
    calibration: CalibrationSection | None = None
    matching: MatchingSection | None = None
    matching_weight: Positive = 0.1  # of the matching head of a model that has its own
    stages: list[StageSection] = Field(default=[StageSection(epochs=30.0)])
    batch_size: Annotated[int, Field(ge=2)] = 64
    optimiser: OptimiserSection = OptimiserSection()
    validation: ValidationSection = ValidationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    log_every: Count = 10
    trackers: list[Literal["tensorboard", "wandb"]] = Field(default_factory=list)
    seed: Seed = 0

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        method = METHODS[self.method]
        if self.objective is not None and not method.calibrated and self.objective.name != method.objective:
            raise ValueError(
                f"method {self.method} is the objective {method.objective}, but objective.name is "
                f"{self.objective.name}; set method={self.objective.name}, or method=calmrl to calibrate it"
            )
        if self.calibration is not None and not method.calibrated:
            raise ValueError(f"method {self.method} does not calibrate; remove calibration, or set method=calmrl")
        raw = self.model.kind == "vast"
        for name, source in self.sources.items():
            if raw != (source.manifest is not None):
                what = "a manifest" if raw else "dataset or features"
                raise ValueError(f"model.kind {self.model.kind} reads {what}, but source {name} is something else")
        if raw and self.matching is not None:
            raise ValueError("model.kind vast has a matching head of its own: model.matching and matching_weight")
        for stage in self.stages:
            for name in stage.sources or ():
                if name not in self.sources:
                    raise ValueError(f"stage {stage.name} names the source {name}; there are {', '.join(self.sources)}")
        return self

    @property
    def chosen_objective(self) -> Section:
        """The objective, with the method's own where none is given."""
        name = METHODS[self.method].objective
        return self.objective or OBJECTIVES[name].model_validate({"name": name})
