"""What downloaders call a clip of a YouTube video."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass(slots=True)
class ClipNames(Sequence[str]):
    """id_000030, id_30, id_30_40, id_30000_40000, ..., the same after a Y, other names, and the id alone at last.

    They are made when they are asked for: two million items with twenty names each would not fit into memory.

    Parameters
    ----------
    video : str
        The id of the video.
    start, end : float
        Seconds.
    others : list of str
        Names that the clip has besides.
    whole : bool
        Whether a file that is called by the id alone is this clip.
    """

    video: str
    start: float
    end: float
    others: list[str] = field(default_factory=list)
    whole: bool = True

    def _all(self) -> list[str]:
        video, start, end = self.video, self.start, self.end
        names = [f"{video}_{start:06.0f}", f"{video}_{start:g}", f"{video}_{start:.3f}", f"{video}_{1000 * start:.0f}"]
        names += [f"{video}_{start:g}_{end:g}", f"{video}_{1000 * start:.0f}_{1000 * end:.0f}"]
        names += [
            f"{video}_{start:06.0f}_{end:06.0f}",
            f"{video}_{start:.3f}_{end:.3f}",
            f"{video}_{start:.1f}_{end:.1f}",
        ]
        alone = [video] if self.whole else []
        return list(
            dict.fromkeys([*names, *(f"Y{name}" for name in names), *self.others, *alone, *(f"Y{v}" for v in alone)])
        )

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._all()[place]
