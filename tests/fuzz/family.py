"""A family of files: one valid sample, how to read it, and when what was read is what the damaged file really holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Sample:
    """Files to damage, and a reader.

    Parameters
    ----------
    files : list of Path
        One of them is damaged in each case.
    read : function
        Takes the damaged file and reads the sample; the result is compared with that of the whole sample.
    named : str
        What an error must contain: the name of the file or of its folder.
    same : function, optional
        (what was read, what the whole sample gave) -> whether that is no lie; by default both are equal.
    """

    files: list[Path]
    read: Callable[[Path], Any]
    named: str
    same: Callable[[Any, Any], bool] = lambda got, whole: got == whole


Make = Callable[[Path], Sample]  # an empty folder -> a sample in it
