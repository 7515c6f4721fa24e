"""The methods one can train, and the objectives they are made of."""

from __future__ import annotations

from dataclasses import dataclass

from calmrl._support.registry import Registry


@dataclass(frozen=True)
class Method:
    """An objective, applied to the observed modalities, or to completed rows if `calibrated`."""

    objective: str
    calibrated: bool
    about: str

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.about


_ENTRIES = {
    "calmrl": Method("pmrl", True, "complete rows with a latent model, then align them; any objective, any imputer"),
    "pmrl": Method("pmrl", False, "leading singular value of the observed modalities, and anchors told apart"),
    "gram": Method("gram", False, "contrastive over the volume spanned by the modalities"),
    "triangle": Method("triangle", False, "contrastive over the area of the triangle of three modalities"),
    "vast": Method("vast", False, "contrastive of text with each other modality, learned temperature"),
    "contrastive": Method("contrastive", False, "contrastive over all pairs of modalities, learned temperature"),
}
METHODS = Registry[Method]("method", _ENTRIES)
