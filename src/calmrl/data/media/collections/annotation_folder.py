"""The annotation files below a folder, found by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from calmrl.errors import InputError

SUFFIXES = (".csv", ".json", ".jsonl", ".txt", ".parquet")


class AnnotationFolder:
    """All lists below a folder. Hidden folders are not entered.

    Parameters
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise InputError(f"no folder {path}; give the folder that holds the annotation files of the collection")
        self.path = path
        self.names: list[str] = []  # relative to the folder
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            home = PurePosixPath(Path(folder).relative_to(path).as_posix())
            self.names += [str(home / name) for name in sorted(files) if name.lower().endswith(SUFFIXES)]

    def find(self, patterns: Iterable[str]) -> Path | None:
        """The file that matches the first pattern that any file matches, in the outermost folder that has one.

        A pattern is a name or the end of a path, or with ./ before it a file of the folder itself; case does not matter.
        """
        for pattern in patterns:
            matches = [name for name in self.names if _matches(name.lower(), pattern.lower())]
            if not matches:
                continue
            depth = min(name.count("/") for name in matches)
            outermost = [name for name in matches if name.count("/") == depth]
            if len(outermost) > 1:
                raise InputError(
                    f"{self.path} holds {pattern} more than once ({', '.join(outermost)}); name the folder of the one "
                    "to use as annotations"
                )
            return self.path / outermost[0]
        return None

    def nothing(self, wanted: Iterable[tuple[str, ...]]) -> InputError:
        """The error for a folder that lacks all of these files."""
        listed = ", ".join(self.names[:5]) or "no list at all"
        more = f" and {len(self.names) - 5} more" if len(self.names) > 5 else ""
        return InputError(
            f"{self.path} holds none of the annotation files {', '.join(names[0] for names in wanted)}; it holds "
            f"{listed}{more}; name the folder that has them as annotations"
        )


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("./"):
        return fnmatchcase(name, pattern.removeprefix("./"))
    parts = pattern.count("/") + 1
    return fnmatchcase("/".join(name.split("/")[-parts:]), pattern)
