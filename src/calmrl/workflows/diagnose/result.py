"""What a diagnosis holds."""

from dataclasses import asdict, dataclass, field
from typing import Any

from calmrl.data.patterns import ModalityPattern
from calmrl.workflows.diagnose.predictable import Direction
from calmrl.workflows.diagnose.row_sample import Modality
from calmrl.workflows.diagnose.shift import Shift
from calmrl.workflows.diagnose.space import Pair


@dataclass(frozen=True)
class Diagnosis:
    """The numbers. Counts are over all rows; the rest is from `tested` rows of a sample."""

    name: str
    rows: int
    sampled: int
    modalities: list[Modality]
    patterns: list[ModalityPattern]
    groups: list[tuple[str, ...]]  # modalities that rows tie together; only the first group is examined
    tested: int = 0
    directions: list[Direction] = field(default_factory=list)
    recoverable: dict[str, tuple[float, int]] = field(default_factory=dict)  # name -> (explained share, missing blocks)
    as_given: list[Pair] = field(default_factory=list)  # empty if the widths differ
    latent: list[Pair] = field(default_factory=list)
    shared_space: bool = False  # the features as given are in one space already
    shift: Shift | None = None

    @property
    def missing(self) -> float:
        """Share of all blocks that is missing."""
        return sum(m.missing for m in self.modalities) / len(self.modalities)

    @property
    def incomplete(self) -> float:
        """Share of rows that lack something."""
        return float(sum(p.share for p in self.patterns if len(p.modalities) < len(self.modalities)))

    @property
    def back(self) -> float:
        """Explained share of what is missing: explained shares, weighted by missing blocks."""
        blocks = sum(count for _, count in self.recoverable.values())
        return sum(share * count for share, count in self.recoverable.values()) / blocks if blocks else 0.0

    @property
    def gain(self) -> float:
        """Expected gain: share of blocks that are missing x explained share of these, or 0 if that is negative."""
        return self.missing * max(0.0, self.back)

    @property
    def anchor_gain(self) -> float:
        """Expected fall of the mean anchor shift over all rows: share of incomplete rows x (shift before - after)."""
        return 0.0 if self.shift is None else self.incomplete * (self.shift.before - self.shift.after)

    @property
    def examined(self) -> list[Modality]:
        """The modalities that were tested against each other."""
        return [m for m in self.modalities if m.name in self.groups[0]]

    def whole(self, name: str) -> Direction | None:
        """How well a modality is predicted from all others."""
        every = len(self.groups[0]) - 1
        return next((d for d in self.directions if d.target == name and len(d.sources) == every), None)

    def as_text(self) -> str:
        """For a terminal of 80 columns: the verdict, the tables it rests on, remarks."""
        from calmrl.workflows.diagnose.text import as_text

        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, verdicts and sentences included."""
        from calmrl.workflows.diagnose.verdict import by_modality, overall
        from calmrl.workflows.diagnose.words import sentences

        verdict = overall(self)
        return {
            "verdict": verdict.verdict,
            "rests_on": {"value": verdict.number, "meaning": verdict.meaning},
            "expected_gain": {"variance": self.gain, "anchor_shift": self.anchor_gain},
            "missing_blocks": self.missing,
            "incomplete_rows": self.incomplete,
            "words": sentences(self),
            "modality_verdicts": [asdict(v) for v in by_modality(self)],
            **asdict(self),
        }
