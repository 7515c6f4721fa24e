"""The config of `calmrl extract`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from calmrl._support.arguments import Count
from calmrl._support.section import Section


class ExtractConfig(Section):
    """Which collection is encoded, and by what. The words are those of the options of the command."""

    kind: Literal["extract"]
    manifest: str  # a folder, a table, or with `layout` an annotation file
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
