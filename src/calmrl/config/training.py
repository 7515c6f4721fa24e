"""The config of `calmrl train`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from calmrl.config.kinds import Count, GaussianSection, ImputerSection, Positive, Section, Seed
from calmrl.train.methods import METHODS

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


class SourceSection(Section):
    """Where rows come from: a data set by name, or a feature directory or file. One of the two.

    `needs` says what belongs there and how to make it; people see it when it is not there.
    """

    dataset: str | None = None
    features: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weight: Positive = 1.0
    hide: HideSection | None = None
    needs: str | None = None

    @model_validator(mode="after")
    def _one(self) -> SourceSection:
        if (self.dataset is None) == (self.features is None):
            raise ValueError("give either dataset (a name) or features (a path)")
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
    standardize: bool = True
    init: Literal["latent", "random"] = "random"
    latent_prior: Annotated[float, Field(ge=0)] = 100.0
    latent_iterations: Count = 10


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

    metric: Literal["recall", "R@1", "R@5", "R@10"] = "recall"
    every: Annotated[int, Field(ge=0)] | None = None
    patience: Count | None = None
    fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.1


class CheckpointSection(Section):
    """When to save (in steps; not said: every epoch; 0: at the end of a stage) and how many to keep beside the best."""

    every: Annotated[int, Field(ge=0)] | None = None
    keep: Count = 2


class TrainConfig(Section):
    """How `calmrl train` trains."""

    kind: Literal["train"]
    method: Literal["calmrl", "pmrl", "gram", "triangle", "vast", "contrastive"] = "calmrl"
    root: str | None = None  # the folder that paths of features start from; not said: where the command runs
    sources: Annotated[dict[str, SourceSection], Field(min_length=1)]
    modalities: list[str] | None = None
    model: HeadsSection = HeadsSection(kind="heads")
    objective: ObjectiveSection | None = None
    calibration: CalibrationSection | None = None
    matching: MatchingSection | None = None
    stages: list[StageSection] = Field(default=[StageSection(epochs=30.0)], min_length=1)
    batch_size: Annotated[int, Field(ge=2)] = 64
    optimiser: OptimiserSection = OptimiserSection()
    validation: ValidationSection = ValidationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    precision: Literal["no", "bf16", "fp16"] = "no"
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
