"""The config of `calmrl extract`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from calmrl._support.arguments import Count
from calmrl._support.section import Section
from calmrl.config.schema.collection import CollectionSection


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
