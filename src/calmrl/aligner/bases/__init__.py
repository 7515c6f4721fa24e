"""The bases that come with calmrl, by name. Each is a folder that `Aligner.save` wrote, beside this file."""

from dataclasses import dataclass
from pathlib import Path

from calmrl._support.registry import Registry


@dataclass(frozen=True)
class ShippedBase:
    """A base that comes with calmrl: its folder, and what it knows."""

    folder: str
    about: str

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.about

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(__file__).with_name(self.folder)


BASES: Registry[ShippedBase] = Registry(
    "base",
    {
        "named-things": ShippedBase(
            "named-things",
            "things with plain names: image (efficientnet_lite0), text (minilm), multilingual (use_multilingual), speech "
            "(whisper_base), sound (yamnet)",
        )
    },
)
