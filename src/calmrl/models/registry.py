"""The kinds of model one can train. MODELS is the one table: what a kind's config holds, how it is built, read and loaded."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

from calmrl._support.registry import Registry


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
            "calmrl.models.sections:HeadsSection",
            "calmrl.models.heads:build_heads",
            "calmrl.models.heads:Heads",
        ),
        "aligner": ModelKind(
            "one space in closed form, chosen by cross-validation, on frozen features",
            "calmrl.models.sections:AlignerSection",
            "calmrl.models.aligned:build_aligner",
            "calmrl.models.aligned:AlignedModel",
            steps=False,
        ),
        "vast": ModelKind(
            "the paper's towers on raw video, audio and text",
            "calmrl.paper.vast.section:VastSection",
            "calmrl.paper.vast.build:build_vast",
            "calmrl.paper.vast.model:VastModel.restore",
            "calmrl.paper.vast.media:VastInputs",
        ),
    },
)
