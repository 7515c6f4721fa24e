"""The section of a config that names a public collection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from calmrl._support.section import Section
from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.data.media.collections.public_collection import PublicCollection


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
        from calmrl.data.media.collections.public_collection import PublicCollection

        home = Path(folder or ".")
        return PublicCollection(
            self.name,
            home / self.root,
            self.split,
            None if self.annotations is None else home / self.annotations,
            {modality: home / path for modality, path in self.media.items()},
        )
