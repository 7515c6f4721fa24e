"""One annotation file of a public collection as manifest rows, with the file names that its downloaders use.

A whole collection, with its splits, is read by `calmrl.data.media.collections`. Here it is a single file: a publisher's
own, or a JSON list in the manner of VAST. Modalities are called vision, audio, text and subtitle. A file that is not in
its folder is kept as a path, so that the check reports it as not found.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from calmrl.data.media.collections.media_files import COLLECTION_SUFFIXES, MediaFiles
from calmrl.data.media.collections.registry import COLLECTIONS
from calmrl.data.media.suffixes import IMAGE
from calmrl.data.media.table_files import Row
from calmrl.errors import InputError

MEDIA_SUFFIXES = {
    name: (*suffixes, *IMAGE) if name == "vision" else suffixes for name, suffixes in COLLECTION_SUFFIXES.items()
}


def read_annotations(
    path: Path,
    layout: str,
    folders: Mapping[str, Path],
    wanted: Collection[str],
    notes: list[str] | None = None,
) -> list[Row]:
    """The rows of an annotation file.

    Parameters
    ----------
    path : Path
        The file.
    layout : str
        Whose file it is: a name of COLLECTIONS.
    folders : mapping of str to Path
        Where the files of vision and audio are; folders in them are searched too.
    wanted : collection of str
        The modalities that get a column.
    notes : list of str, optional
        Takes what a person should know about the file, for instance that it is not UTF-8.
    """
    publisher = COLLECTIONS[layout]()
    for name in wanted:
        if name in MEDIA_SUFFIXES and name not in folders:
            raise InputError(f"say where the files of {name} are: --media {name}=FOLDER")
        if name not in (*MEDIA_SUFFIXES, "text", "subtitle"):
            raise InputError(f'layout "{layout}" has no modality "{name}"; it has vision, audio, text and subtitle')
    if not Path(path).is_file():
        raise InputError(f"no annotation file at {path}")
    files = {name: MediaFiles(Path(folders[name]), MEDIA_SUFFIXES[name]) for name in wanted if name in MEDIA_SUFFIXES}
    rows: list[Row] = []
    for entry in publisher.read_file(Path(path), [] if notes is None else notes):
        cells = {name: listing.find(entry.names) or listing.expected(entry.names[0]) for name, listing in files.items()}
        kept = {key: value for key, value in entry.values.items() if key != "subtitle" or key in wanted}
        rows.append((entry.line, kept | cells))
    return rows
