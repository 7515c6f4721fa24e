"""The kinds of model one can train: MODELS. Sections of configs stand here too, so that configs are read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated, Any, Literal

from annotated_types import Ge

from calmrl._support.arguments import Auto, Count, Fraction, NotNegative
from calmrl._support.registry import Registry
from calmrl._support.section import Section


@dataclass(frozen=True)
class ModelKind:
    """A kind of model; the parts are written as "package.module:name" and imported when they are used.

    Attributes
    ----------
    about : str
        One line for `calmrl ls models`.
    section : str
        The keys of `model` in a training config.
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
    section: str
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
        return resolve_name(getattr(self, name))


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
                about,
                f"calmrl.models.registry:{section}",
                "calmrl.models.fitted:build_classical",
                "calmrl.models.fitted:ClassicalModel",
                steps=False,
            )
            for name, section, about in (
                ("cca", "CorrelationSection", "CCA of every pair of modalities, in closed form, on frozen features"),
                ("mcca", "CorrelationSection", "multi-set CCA, one space in closed form, on frozen features"),
                ("gcca", "CorrelationSection", "MAXVAR generalised CCA, one space in closed form, on frozen features"),
                ("asif", "AsifSection", "relative representations by rows that have both, on frozen features"),
                ("ridge", "RidgeSection", "ridge regression onto a hub modality, on frozen features"),
                ("procrustes", "ProcrustesSection", "rotation onto a hub modality, on frozen features"),
            )
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
    """Projectors on features. `init: latent` starts heads from a latent model of the features.

    `standardize` is the form of the features: turned and scaled, mildly whitened as well, or the kernel features of the
    aligner, with rows scaled to length one or ("kernel-plain") as they are.
    """

    kind: Literal["heads"]
    width: Count = 512
    hidden: Count | None = None
    standardize: Literal["scale", "whiten", "kernel", "kernel-plain"] | None = "scale"
    init: Literal["latent", "random"] = "random"
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


class BaselineSection(Section):
    """The arguments that all of `calmrl.baselines` have."""

    kind: str
    features: Literal["linear", "kernel"] = "kernel"
    unit_rows: bool = True
    landmarks: Count = 2000


class CorrelationSection(BaselineSection):
    """The arguments of `calmrl.baselines.CCA`, `MCCA` and `GCCA`."""

    kind: Literal["cca", "mcca", "gcca"]
    ridge: NotNegative = 1.0
    directions: Count = 256


class AsifSection(BaselineSection):
    """The arguments of `calmrl.baselines.ASIF`."""

    kind: Literal["asif"]
    nearest: Count = 800
    power: NotNegative = 8.0
    whitening: Fraction = 0.0
    anchors: Count = 2000


class RidgeSection(BaselineSection):
    """The arguments of `calmrl.baselines.RidgeMap`."""

    kind: Literal["ridge"]
    ridge: NotNegative = 1.0
    whitening: Fraction = 0.5
    hub: str | None = None


class ProcrustesSection(BaselineSection):
    """The arguments of `calmrl.baselines.ProcrustesMap`."""

    kind: Literal["procrustes"]
    directions: Count = 256
    whitening: Fraction = 0.0
    hub: str | None = None
