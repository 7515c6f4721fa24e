"""The configs of `calmrl train` and `calmrl impute`, and the sections that several configs share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from calmrl._support.arguments import Count, Fraction, NotNegative, Positive, Seed, Share
from calmrl._support.section import ChosenSection, Section
from calmrl.data.media.decoding import Resize
from calmrl.errors import InputError
from calmrl.imputers.registry import IMPUTERS, Kind
from calmrl.losses.registry import LOSSES, OF_FEATURES
from calmrl.models.registry import MODELS
from calmrl.training.methods import METHODS, RENAMED, TEMPERATURE, find_method

if TYPE_CHECKING:
    from calmrl.data.media.public_collections import PublicCollection


class CollectionSection(Section):
    """A public collection as its publisher ships it: a name of `calmrl ls collections`, and the folder `root` it lies in.

    `split` is one of its splits, by default the usual one. `annotations` is the folder of its annotation files and `media`
    (vision or audio -> folder) those of its files, where they are not in `root`.
    """

    name: str
    root: str
    split: str | None = None
    annotations: str | None = None
    media: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _exists(self) -> CollectionSection:
        try:
            self.at(None)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def at(self, folder: str | None) -> PublicCollection:
        """The collection; paths start from `folder`."""
        from calmrl.data.media.public_collections import PublicCollection

        home = Path(folder or ".")
        return PublicCollection(
            self.name,
            home / self.root,
            self.split,
            None if self.annotations is None else home / self.annotations,
            {modality: home / path for modality, path in self.media.items()},
        )


class ImputerSection(ChosenSection):
    """The imputer and its arguments; "auto" chooses a value on held-out blocks of the data."""

    registry = IMPUTERS
    tag = "method"
    leave_out: ClassVar[frozenset[str]] = frozenset({"random_state", "blocks", "verbose"})

    method: str


class ImputeConfig(Section):
    """How `calmrl impute` imputes missing features.

    `kinds`: modality -> "count", "binary" or "category", for values that are no real numbers: see `MixedImputer`.
    """

    kind: Literal["impute"]
    imputer: ImputerSection = ImputerSection.choose({"method": "auto"})
    kinds: dict[str, Kind] = Field(default_factory=dict)
    seed: Seed = 0
    std: bool = False


EPOCHS = 30  # of a training whose stages are not given


class HideSection(Section):
    """Training blocks to hide on purpose.

    `groups`, for kind "source": the modalities each kind of pair keeps. `complete`, for kind "all-but": how many rows
    stay complete.
    """

    kind: Literal["mcar", "value", "one", "alone", "source", "all-but"] = "mcar"
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    groups: Annotated[list[list[str]], Field(min_length=1)] | None = None
    complete: Annotated[int, Field(ge=0)] | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _grouped(self) -> HideSection:
        if (self.kind == "source") != (self.groups is not None):
            raise ValueError('groups belongs to kind "source", and that kind needs it, for instance [[image, text]]')
        if (self.kind == "all-but") != (self.complete is not None):
            raise ValueError('complete belongs to kind "all-but", and that kind needs it, for instance 50')
        rated = self.kind not in ("all-but", "as-is")
        if rated != (self.rate is not None):
            raise ValueError(f"kind {self.kind} {'needs a rate, for instance 0.5' if rated else 'has no rate'}")
        return self


class ResplitSection(Section):
    """New parts in place of the split column: shares of the values of column `by`, which stay together."""

    by: str = "id"
    val: Annotated[float, Field(gt=0, lt=0.5)] = 0.1
    test: Annotated[float, Field(ge=0, lt=0.8)] = 0.3
    seed: Seed | None = None


class SourceSection(Section):
    """Where rows come from: a data set by name, features, a table of media files, or a public collection. One of them.

    `manifest` is a table of files, or with `layout` the annotation file of a public collection whose files lie in the
    folders `media` (modality -> folder); `part` puts all its rows in one split. `allow_missing` continues without files that
    are not there or cannot be played, and counts them. `frames`, `test_frames`, `slices`, `resize` and `text_tokens` are
    for the model of raw media; by default those of the public configs for the collection, else those of the model.
    `complete` uses only rows that have every modality, `exclude` leaves out rows whose column of that name is true.
    `needs` says what belongs there and how to make it; people see it when it is not there.
    """

    dataset: str | None = None
    features: str | None = None
    manifest: str | None = None
    collection: CollectionSection | None = None
    allow_missing: bool = False
    layout: str | None = None
    media: dict[str, str] = Field(default_factory=dict)
    part: Literal["train", "val", "test"] | None = None
    frames: Count | None = None
    test_frames: Count | None = None
    slices: Count | None = None
    resize: Resize | None = None
    text_tokens: Count | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weight: Positive = 1.0
    complete: bool = False
    exclude: str | None = None
    resplit: ResplitSection | None = None
    hide: HideSection | None = None
    needs: str | None = None

    @model_validator(mode="after")
    def _one(self) -> SourceSection:
        if sum(given is not None for given in (self.dataset, self.features, self.manifest, self.collection)) != 1:
            raise ValueError("give one of dataset (a name), features (a path), manifest (a path) and collection")
        if self.allow_missing and not self.is_media:
            raise ValueError(
                "allow_missing belongs to a manifest or a collection; features say themselves what is missing"
            )
        if self.manifest is None and (self.layout or self.media or self.part):
            raise ValueError("layout, media and part belong to a manifest")
        decoded = (self.frames, self.test_frames, self.slices, self.resize, self.text_tokens)
        if not self.is_media and any(decoded):
            raise ValueError("frames, test_frames, slices, resize and text_tokens belong to a manifest or a collection")
        return self

    @property
    def is_media(self) -> bool:
        """Whether the rows are raw files."""
        return self.manifest is not None or self.collection is not None


class ObjectiveSection(ChosenSection):
    """The objective and its arguments."""

    registry = LOSSES
    tag = "name"
    leave_out: ClassVar[frozenset[str]] = frozenset({"chunk_size", "names", "width"})
    defaults: ClassVar[dict[str, dict[str, object]]] = {"contrastive": {"anchor": None}}  # all pairs

    name: str


class ModelSection(ChosenSection):
    """The model and its arguments."""

    registry = MODELS
    tag = "kind"

    kind: str

    @classmethod
    def member(cls, name: str) -> type[Section]:
        section: type[Section] = MODELS[name].part("section")
        return section


class CalibrationSection(Section):
    """How missing representations are completed before the objective sees them."""

    imputer: ImputerSection = ImputerSection.choose({"method": "gaussian", "latent_dim": 64})
    update: Literal["auto", "stepwise", "frozen", "gradient"] = "auto"
    impute_from: Literal["current", "start"] = "current"
    refit: Count = 1
    impute_grad: bool = True
    renormalize: bool = True
    certainty: bool = False
    weight: Fraction = 1.0
    m_every: Count = 16
    momentum: Share | None = None


class MatchingSection(Section):
    """Instance matching on the observed modalities, added with a weight; re-ranks at test."""

    weight: Positive = 0.1
    anchor: str = "text"
    hidden: Count = 256
    layers: Count = 2
    heads: Count = 4


class StageSection(Section):
    """One pass of training: `epochs` or `steps` over some of the sources (by default all of them).

    `fresh_best` looks for the best model in this stage only.
    """

    name: str = "joint"
    sources: list[str] | None = None
    epochs: Positive | None = None
    steps: Count | None = None
    batches: Literal["mixed", "source", "pattern"] = "mixed"
    hide_one: bool = False
    complete_only: bool = False
    incomplete_only: bool = False
    fresh_best: bool = False
    rate: Positive = 1.0

    @model_validator(mode="after")
    def _length(self) -> StageSection:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


class OptimiserSection(Section):
    """AdamW with a linear schedule. `freeze` lists names of parameters to keep, with wildcards: "heads.text.*".

    `rates` are learning rates of single towers: {vision: 5.0e-7}. `decay` "names" is the public code's choice of what is
    not decayed; "matrices" decays matrices only.
    """

    learning_rate: Positive = 1e-3
    encoder_learning_rate: Positive | None = None
    rates: dict[str, Positive] = Field(default_factory=dict)
    betas: list[Share] = Field(default=[0.9, 0.98], min_length=2, max_length=2)
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.01
    decay: Literal["matrices", "names"] = "matrices"
    warmup_ratio: Share = 0.1
    clip: Positive | None = 1.0
    ema: Share | None = None
    accumulate: Count = 1
    freeze: list[str] = Field(default_factory=list)


class ValidationSection(Section):
    """When to measure on validation rows, and what decides. `relevant` names a column: rows with the query's value count."""

    metric: Literal["MRR", "recall", "R@1", "R@5", "R@10"] = "MRR"
    every: Annotated[int, Field(ge=0)] | None = None
    patience: Count | None = None
    fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.1
    relevant: str | None = None


class CheckpointSection(Section):
    """When to save (in steps; by default every epoch; 0: at the end of a stage) and how many to keep beside the best."""

    every: Annotated[int, Field(ge=0)] | None = None
    keep: Count = 2


def check_method(name: str) -> str:
    """A name that `calmrl train` takes for `method`."""
    try:
        method = find_method(name)
    except InputError as error:
        if str(error) == RENAMED:
            raise ValueError(RENAMED) from None
        *names, last = (f"'{known}'" for known, method in METHODS.items() if not method.ideal)
        expected = f"{', '.join(names)} or {last}"
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected}) from None
    if method.ideal:
        raise ValueError(f"{name} is a row of comparisons only; to train on complete rows, hide nothing")
    if method.hubs is not None:
        raise ValueError(f"{name} is a row of comparisons only: the model is the same without +{method.hubs}")
    return name


class TrainConfig(Section):
    """How `calmrl train` trains. No stages: no step is made, so that with `model.init: latent` it is the closed form."""

    kind: Literal["train"]
    method: Annotated[str, AfterValidator(check_method)] = "aligner"
    root: str | None = None  # the folder that paths of features start from; by default where the command runs
    sources: Annotated[dict[str, SourceSection], Field(min_length=1)]
    modalities: list[str] | None = None
    model: ModelSection = ModelSection.choose({"kind": "heads"})
    objective: ObjectiveSection | None = None
    calibration: CalibrationSection | None = None
    matching: MatchingSection | None = None
    matching_weight: NotNegative = 0.1  # of the matching head of a model that has its own; at 0 it is not trained
    fused_weight: NotNegative = 0.0  # of the contrast of texts with the vectors of a model's fused heads
    stages: list[StageSection] = Field(default_factory=list)
    batch_size: Annotated[int, Field(ge=2)] = 64
    optimiser: OptimiserSection = OptimiserSection()
    validation: ValidationSection = ValidationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    log_every: Count = 10
    trackers: list[Literal["tensorboard", "wandb"]] = Field(default_factory=list)
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, values: Any) -> Any:
        """Keys that are not given have the values of the method's recipe."""
        return fill_in(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        method = find_method(self.method)
        if self.objective is not None and not method.calibrated and self.objective.name != method.objective:
            raise ValueError(
                f"method {self.method} is the objective {method.objective}, but objective.name is "
                f"{self.objective.name}; set method={self.objective.name}, or method=calibrated to calibrate it"
            )
        objective = method.objective if self.objective is None else self.objective.name
        if method.calibrated and objective in OF_FEATURES:
            raise ValueError(
                f"the objective {objective} uses what goes into the heads, and imputed vectors have no such features; "
                f"set method={objective}"
            )
        if self.calibration is not None and not method.calibrated:
            raise ValueError(f"method {self.method} does not calibrate; remove calibration, or set method=calibrated")
        kinds = self.model.kind, method.model
        if kinds[0] != kinds[1] and not all(MODELS[kind].steps for kind in kinds):
            fitting = "calibrated or contrastive" if MODELS[self.model.kind].steps else self.model.kind
            raise ValueError(
                f"method {self.method} does not go with model.kind {self.model.kind}; set method={fitting}, "
                "or leave model.kind out"
            )
        if not method.steps and self.stages:
            raise ValueError(f"method {self.method} is in closed form and makes no step; leave out stages")
        raw = MODELS[self.model.kind].reads == "media"
        for name, source in self.sources.items():
            if raw != source.is_media:
                what = "a manifest or a collection" if raw else "dataset or features"
                raise ValueError(f"model.kind {self.model.kind} reads {what}, but source {name} is something else")
        if raw and objective in OF_FEATURES:
            raise ValueError(
                f"the objective {objective} uses what goes into the heads, but model.kind {self.model.kind} reads raw media; "
                "extract features first, or set another objective"
            )
        if raw and self.matching is not None:
            raise ValueError(
                f"model.kind {self.model.kind} has a matching head of its own: model.matching and matching_weight"
            )
        if self.fused_weight and getattr(self.model, "first_stage", None) != "fused":
            raise ValueError("fused_weight needs a model with fused heads: one with model.first_stage fused")
        for stage in self.stages:
            for name in stage.sources or ():
                if name not in self.sources:
                    raise ValueError(f"stage {stage.name} names the source {name}; there are {', '.join(self.sources)}")
        return self

    @property
    def chosen_objective(self) -> Section:
        """The objective, with the method's own where none is given."""
        return self.objective or ObjectiveSection.choose({"name": find_method(self.method).objective})


def fill_in(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a training config over the recipe of its method; what is given stays."""
    name = values.get("method", TrainConfig.model_fields["method"].default)
    try:
        method = find_method(name)
    except (InputError, TypeError, AttributeError):
        return values  # the check of `method` says what is wrong
    model = values.get("model", {})
    same = isinstance(model, dict) and model.get("kind", method.model) == method.model
    filled = values | {"stages": values.get("stages", method.stages("epochs", EPOCHS))}
    if same:
        filled["model"] = {"kind": method.model} | model
    objective = values.get("objective") or {}
    own = not isinstance(objective, dict) or objective.get("name", method.objective) == method.objective
    for key, value in method.configs(1)[0].items():
        fits = own if key == TEMPERATURE else same or not key.startswith("model.")
        if value is not None and fits:
            filled = _beneath(filled, key.split("."), value)
    return filled


def _beneath(values: Any, path: list[str], value: Any) -> Any:
    """`values` with `value` at `path` unless something is there; sections of the same name are merged key by key."""
    if not isinstance(values, dict):
        return values
    key, *rest = path
    if rest:
        return values | {key: _beneath(values.get(key, {}), rest, value)}
    if key not in values:
        return values | {key: value}
    given = values[key]
    if isinstance(value, dict) and isinstance(given, dict):
        tags = [tag for tag in ("name", "method") if tag in value]
        if all(given.get(tag, value[tag]) == value[tag] for tag in tags):
            return values | {key: value | given}
    return values
