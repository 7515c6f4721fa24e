"""The media files below a folder, found by the names that downloaders give them."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from calmrl.data.media.suffixes import AUDIO, VIDEO
from calmrl.errors import InputError

FILMS = tuple(dict.fromkeys((".mp4", ".avi", ".webm", ".mkv", *VIDEO)))
COLLECTION_SUFFIXES = {"vision": FILMS, "audio": tuple(dict.fromkeys((*AUDIO, *FILMS)))}  # the sound of a film counts


class MediaFiles:
    """Files by name, in any folder below one, read once.

    A name matches a file that is called so; else files that are called so before their suffixes, all of them
    (`x` matches x.mp4 and x.mov.mp4). Earlier suffixes are preferred, then outer folders.

    Parameters
    ----------
    folder : Path
    suffixes : sequence of str
        Those that count, the preferred ones first.
    """

    def __init__(self, folder: Path, suffixes: Sequence[str]) -> None:
        if not folder.is_dir():
            raise InputError(f"no folder {folder}")
        self.folder, self.suffixes = folder, tuple(suffixes)
        self._whole: dict[str, list[str]] = {}  # file name, and path -> paths relative to the folder
        self._bare: dict[str, list[str]] = {}  # the same without suffixes
        for name in self._listed():
            for key in {name, PurePosixPath(name).name}:
                self._whole.setdefault(_plain(key), []).append(name)
                self._bare.setdefault(_plain(self.bare(key)), []).append(name)

    def find(self, names: Iterable[str]) -> str | None:
        """The path of the first of these names that a file has; None if there is none."""
        for name in names:
            for matches in (self._whole.get(_plain(name), []), self._bare.get(_plain(self.bare(name)), [])):
                if matches:
                    return str((self.folder / self._best(name, matches)).absolute())
        return None

    def expected(self, name: str) -> str:
        """The path that a file of this name would have."""
        file = name if name.lower().endswith(self.suffixes) else name + self.suffixes[0]
        return str((self.folder / file).absolute())

    def bare(self, name: str) -> str:
        """The name without suffixes of media: x.mov.mp4 -> x, but dQw4.12 stays."""
        while name.lower().endswith((*FILMS, *AUDIO, *self.suffixes)):
            name = name.rpartition(".")[0]
        return name

    def _listed(self) -> Iterable[str]:
        for folder, folders, files in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            home = PurePosixPath(Path(folder).relative_to(self.folder).as_posix())
            yield from (str(home / name) for name in sorted(files) if name.lower().endswith(self.suffixes))

    def _best(self, name: str, matches: list[str]) -> str:
        def rank(file: str) -> tuple[int, int, int]:
            suffix = next(place for place, suffix in enumerate(self.suffixes) if file.lower().endswith(suffix))
            return suffix, file.count("/"), len(PurePosixPath(file).name)

        ranked = sorted(matches, key=rank)
        if len(ranked) > 1 and rank(ranked[0]) == rank(ranked[1]):
            raise InputError(
                f"{self.folder} holds {name} more than once ({ranked[0]}, {ranked[1]}); name the folder of the one to use "
                "as media"
            )
        return ranked[0]


def _plain(name: str) -> str:
    """One spelling of accents: archives and file systems differ in it."""
    return unicodedata.normalize("NFC", name)
