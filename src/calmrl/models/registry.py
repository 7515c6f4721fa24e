"""The kinds of model one can train. MODELS is the one table: what a kind's config holds, how to build it, how to load it."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

from calmrl._support.registry import Registry


@dataclass(frozen=True)
class ModelKind:
    """A kind of model; the parts are written as "package.module:name" and imported when they are used."""

    about: str
    reads: Literal["features", "media"]  # arrays, or files of a manifest
    section: str  # the keys of `model` in a training config
    build: str  # (section, data, names, seed, root) -> model, before its first step
    restore: str  # the `arguments` of a saved model -> a model of the same shape
    steps: bool = True  # whether it learns by gradient steps; otherwise it is ready once it is built

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.about

    def part(self, name: Literal["section", "build", "restore"]) -> Any:
        """One of the parts, imported."""
        return resolve_name(getattr(self, name))


MODELS: Registry[ModelKind] = Registry(
    "kind of model",
    {
        "heads": ModelKind(
            "a projector per modality on frozen features",
            "features",
            "calmrl.models.sections:HeadsSection",
            "calmrl.models.heads:build_heads",
            "calmrl.models.heads:Heads",
        ),
        "aligner": ModelKind(
            "one space in closed form, chosen by cross-validation, on frozen features",
            "features",
            "calmrl.models.sections:AlignerSection",
            "calmrl.models.aligned:build_aligner",
            "calmrl.models.aligned:AlignedModel",
            steps=False,
        ),
        "vast": ModelKind(
            "the paper's towers on raw video, audio and text",
            "media",
            "calmrl.models.vast.section:VastSection",
            "calmrl.models.vast.build:build_vast",
            "calmrl.models.vast.model:VastModel.restore",
        ),
    },
)
