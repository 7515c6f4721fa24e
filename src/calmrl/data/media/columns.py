"""What the columns of a table hold, judged by their names and the suffixes of their cells."""

from collections.abc import Iterable
from typing import Any

from calmrl.data.media.manifest import COLUMNS, META
from calmrl.data.media.suffixes import KINDS, modality_of

TEXTS = ("text", "texts", "caption", "captions", "subtitle", "transcript", "description", "title", "sentence")
SHARE = 0.9  # of the cells of a column that must look like files


def guess_kinds(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Column -> "image", "audio" or "text", for columns that look like a modality; the others are left out.

    A column of files has cells that end in the suffixes of pictures, films or sounds; a column of texts is known by
    its name.
    """
    cells: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            cells.setdefault(str(name), []).extend([] if value is None or value == "" else [value])
    kinds = {}
    for name, values in cells.items():
        if (name in COLUMNS and name != "text") or name.startswith(META) or not values:
            continue
        if name.lower() in TEXTS:
            kinds[name] = "text"
            continue
        modalities = [modality_of(value) if isinstance(value, str) else None for value in values]
        seen = [KINDS[modality] for modality in modalities if modality is not None]
        if len(seen) >= SHARE * len(values):
            sound = name.lower() in ("sound", "audio", "speech", "voice", "music") or "image" not in seen
            kinds[name] = "audio" if sound else "image"
    return kinds
