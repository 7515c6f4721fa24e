"""The kinds of model one can train: MODELS. Sections of configs stand here too, so that configs are read without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from calmrl._support.arguments import Auto, Count, Fraction, NotNegative
from calmrl._support.registry import Registry
from calmrl._support.section import ChosenSection, Section
from calmrl.baselines.registry import BASELINES


@dataclass(frozen=True)
class ModelKind:
    """A kind of model; the parts are written as "package.module:name" and imported when they are used.

    Attributes
    ----------
    about : str
        One line for `calmrl ls models`.
    section : str or function
        The keys of `model` in a training config, or what gives them.
    build : str
        (section, data, names, seed, root) -> model, before its first step.
    restore : str
        The `arguments` of a saved model -> a model of the same shape.
    media : str, optional
        For a model of raw media, how it reads them: (section, modalities, root, seed) -> `calmrl.protocols.MediaInputs`.
        Without it a model reads features.
    steps : bool
        Whether it learns by gradient steps; otherwise it is ready once it is built.
    """

    about: str
    section: str | Callable[[], type[Section]]
    build: str
    restore: str
    media: str | None = None
    steps: bool = True

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.about

    @property
    def reads(self) -> Literal["features", "media"]:
        """Arrays, or files of a manifest."""
        return "features" if self.media is None else "media"

    def part(self, name: Literal["section", "build", "restore", "media"]) -> Any:
        """One of the parts, imported."""
        value = getattr(self, name)
        return value() if callable(value) else resolve_name(value)


class BaselineSection(ChosenSection):
    """The arguments of a baseline."""

    registry = BASELINES
    tag = "kind"
    leave_out: ClassVar[frozenset[str]] = frozenset({"random_state"})

    kind: str


MODELS: Registry[ModelKind] = Registry(
    "kind of model",
    {
        "heads": ModelKind(
            "a projector per modality on frozen features",
            "calmrl.models.registry:HeadsSection",
            "calmrl.models.heads:build_heads",
            "calmrl.models.heads:Heads",
        ),
        "aligner": ModelKind(
            "one space in closed form, chosen by cross-validation, on frozen features",
            "calmrl.models.registry:AlignerSection",
            "calmrl.models.fitted:build_aligner",
            "calmrl.models.fitted:AlignedModel",
            steps=False,
        ),
        **{
            name: ModelKind(
                f"{about}, on frozen features",
                partial(BaselineSection.member, name),
                "calmrl.models.fitted:build_classical",
                "calmrl.models.fitted:ClassicalModel",
                steps=False,
            )
            for name, about in {
                "cca": "CCA of every pair of modalities, in closed form",
                "mcca": "multi-set CCA, one space in closed form",
                "gcca": "MAXVAR generalised CCA, one space in closed form",
                "asif": "relative representations by rows that have both",
                "ridge": "ridge regression onto a hub modality",
                "procrustes": "rotation onto a hub modality",
                "gfa": "posterior means of group factor analysis",
                "mopoe": "posterior means of a multimodal VAE",
            }.items()
        },
        "vast": ModelKind(
            "the paper's towers on raw video, audio and text",
            "calmrl.paper.vast.section:VastSection",
            "calmrl.paper.vast.build:build_vast",
            "calmrl.paper.vast.model:VastModel.restore",
            "calmrl.paper.vast.build:VastInputs",
        ),
    },
)


class HeadsSection(Section):
    """Projectors on features. `init: latent` starts heads from a latent model of the features, `init: identity` from the
    first `width` columns of the features: for vectors that are comparable already.

    `standardize` is the form of the features: turned and scaled, mildly whitened as well, or the kernel features of the
    aligner, with rows scaled to length one or ("kernel-plain") as they are.
    """

    kind: Literal["heads"]
    width: Count = 512
    hidden: Count | None = None
    standardize: Literal["scale", "whiten", "kernel", "kernel-plain"] | None = "scale"
    init: Literal["latent", "identity", "random"] = "random"
    latent_prior: NotNegative = 100.0
    latent_iterations: Count = 10
    latent_rows: Literal["all", "complete"] = "all"


class AlignerSection(Section):
    """The arguments of `calmrl.Aligner`. `groups` names a column: rows with the same value stay in one fold. So does
    `relevant`: rows with the same value count as found for each other."""

    kind: Literal["aligner"]
    features: Literal["auto", "linear", "kernel"] = "auto"
    unit_rows: bool | Auto = "auto"
    whitening: Fraction | Auto = "auto"
    latent_dim: Count | Auto = "auto"
    prior: NotNegative | Auto = "auto"
    refine: Literal["auto", "never", "always"] = "auto"
    candidates: Count = 16
    folds: Annotated[int, Ge(2)] = 3
    landmarks: Count = 2000
    groups: str | None = None
    relevant: str | None = None
