"""The annotation files of public collections as manifest rows, with the file names that each collection uses.

JSON lists in the manner of VAST (MSR-VTT, DiDeMo, ActivityNet, VATEX, AudioCaps, Clotho, VAST-150K), and the label
lists of VGGSound, UCF101, AudioSet and ESC-50. Modalities are called vision, audio, text and subtitle. A file that is
not in its folder is kept as a path, so that the check reports it as not found.
"""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from calmrl._support.registry import lookup
from calmrl.data.media.table_files import Row
from calmrl.errors import InputError

MEDIA_SUFFIXES = {
    "vision": (".mp4", ".avi", ".webm", ".mkv", ".jpg", ".png"),
    "audio": (".wav", ".mp3", ".mkv", ".flac", ".ogg", ".m4a", ".mp4", ".webm", ".avi"),
}
ID_KEYS = ("clip_id", "video_id", "image_id", "image", "id")
TEXT_KEYS = ("desc", "caption", "vast_cap")
KEPT = ("vision_cap", "audio_cap")
Names = list[str]  # possible file names, without suffix


def read_annotations(path: Path, layout: str, folders: Mapping[str, Path], wanted: Collection[str]) -> list[Row]:
    """The rows of an annotation file. `folders` says where the files of vision and audio are.

    Only the modalities in `wanted` get a column.
    """
    reader = lookup(LAYOUTS, layout, "layout")
    for name in wanted:
        if name in MEDIA_SUFFIXES and name not in folders:
            raise InputError(f"say where the files of {name} are: --media {name}=FOLDER")
        if name not in (*MEDIA_SUFFIXES, "text", "subtitle"):
            raise InputError(f'layout "{layout}" has no modality "{name}"; it has vision, audio, text and subtitle')
    if not Path(path).is_file():
        raise InputError(f"no annotation file at {path}")
    listed = {name: _listing(folders[name]) for name in wanted if name in MEDIA_SUFFIXES}
    rows: list[Row] = []
    for line, names, values in reader(Path(path)):
        files = {name: _find(folders[name], listed[name], names, MEDIA_SUFFIXES[name]) for name in listed}
        kept = {key: value for key, value in values.items() if key != "subtitle" or key in wanted}
        rows.append((line, kept | files))
    return rows


def _listing(folder: Path) -> set[str]:
    """All files below a folder, read once."""
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}


def _find(folder: Path, listed: set[str], names: Names, suffixes: tuple[str, ...]) -> str:
    """The first file that is there, else the path that was looked for first."""
    candidates = [name if name.endswith(suffixes) else name + suffix for name in names for suffix in suffixes]
    file = next((name for name in candidates if name in listed), candidates[0])
    return str((folder / file).absolute())


def _vast(path: Path) -> Iterator[tuple[int, Names, dict[str, Any]]]:
    """A JSON list of objects: an id, a text or a list of texts, perhaps a subtitle. Entries of one id are joined."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error})") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path} is not a JSON list of objects")
    joined: dict[str, tuple[int, dict[str, Any]]] = {}
    for number, entry in enumerate(entries, start=1):
        key = next((key for key in ID_KEYS if entry.get(key) not in (None, "")), None)
        if key is None:
            raise InputError(f"entry {number} of {path} has no id; it needs one of {', '.join(ID_KEYS)}")
        name = str(entry[key])
        texts: Any = next((entry[key] for key in TEXT_KEYS if entry.get(key)), [])
        texts = texts if isinstance(texts, list) else [texts]
        _, values = joined.setdefault(name, (number, {"id": name, "text": []}))
        values["text"] += texts
        for key in ("subtitle", "split"):
            if entry.get(key):
                values[key] = entry[key]
        for key in KEPT:
            if entry.get(key):
                values[f"meta.{key}"] = entry[key]
    for number, values in joined.values():
        yield number, [values["id"].rsplit(".", 1)[0] if values["id"].endswith(ALL_SUFFIXES) else values["id"]], values


ALL_SUFFIXES = tuple({suffix for suffixes in MEDIA_SUFFIXES.values() for suffix in suffixes})


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    with open(path, newline="", encoding="utf-8") as stream:
        reader = csv.reader((line for line in stream), skipinitialspace=True)
        for row in reader:
            if row and not row[0].startswith("#"):
                yield reader.line_num, row


def _clotho(path: Path) -> Iterator[tuple[int, Names, dict[str, Any]]]:
    """clotho_captions_*.csv: file_name, caption_1, ... caption_5; or a JSON list."""
    if path.suffix == ".json":
        yield from _vast(path)
        return
    with open(path, newline="", encoding="utf-8") as stream:
        for number, row in enumerate(csv.DictReader(stream), start=2):
            texts = [row[key] for key in row if key and key.startswith("caption_") and row[key]]
            yield number, [row["file_name"]], {"id": row["file_name"], "text": texts}


def _vggsound(path: Path) -> Iterator[tuple[int, Names, dict[str, Any]]]:
    """vggsound.csv, without a header: YouTube id, start second, label, train or test."""
    for number, row in _lines(path):
        if len(row) != 4 or not row[1].isdigit():
            raise InputError(f"{path} line {number}: expected YouTube id, start second, label, split; got {row}")
        name = f"{row[0]}_{int(row[1]):06d}"
        yield number, [name, f"{row[0]}_{int(row[1])}", row[0]], {"id": name, "labels": row[2], "split": row[3]}


def _ucf101(path: Path) -> Iterator[tuple[int, Names, dict[str, Any]]]:
    """trainlist0X.txt or testlist0X.txt: Class/v_Class_gXX_cXX.avi, perhaps followed by a number."""
    split = "test" if path.name.startswith("test") else "train" if path.name.startswith("train") else None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            file = line.split()[0]
            stem = file.rpartition("/")[2].removesuffix(".avi")
            label = file.partition("/")[0]
            yield number, [file.removesuffix(".avi"), stem], {"id": stem, "labels": label, "split": split}


def _audioset(path: Path) -> Iterator[tuple[int, Names, dict[str, Any]]]:
    """*_segments.csv: YTID, start_seconds, end_seconds, labels; names from class_labels_indices.csv beside it."""
    names: dict[str, str] = {}
    if (path.parent / "class_labels_indices.csv").exists():
        with open(path.parent / "class_labels_indices.csv", newline="", encoding="utf-8") as stream:
            names = {row["mid"]: row["display_name"] for row in csv.DictReader(stream)}
    split = "test" if path.name.startswith("eval") else "train"
    for number, row in _lines(path):
        if len(row) != 4:
            raise InputError(f"{path} line {number}: expected YTID, start, end, labels; got {len(row)} fields")
        start = float(row[1])
        labels = [names.get(mid, mid) for mid in row[3].split(",")]
        files = [row[0], f"Y{row[0]}", f"{row[0]}_{start:.0f}", f"{row[0]}_{start * 1000:.0f}"]
        yield number, files, {"id": f"{row[0]}_{start:.0f}", "labels": labels, "split": split}


def _esc50(path: Path) -> Iterator[tuple[int, Names, dict[str, Any]]]:
    """esc50.csv: filename, fold, target, category, ...; fold 5 is test, the others are train."""
    with open(path, newline="", encoding="utf-8") as stream:
        for number, row in enumerate(csv.DictReader(stream), start=2):
            split = "test" if row["fold"] == "5" else "train"
            values = {"id": row["filename"], "labels": row["category"], "split": split, "meta.fold": row["fold"]}
            yield number, [row["filename"]], values


Reader = Callable[[Path], Iterator[tuple[int, Names, dict[str, Any]]]]
LAYOUTS: dict[str, Reader] = {
    **dict.fromkeys(("msrvtt", "didemo", "activitynet", "vatex", "audiocaps", "vast150k"), _vast),
    "clotho": _clotho,
    "vggsound": _vggsound,
    "ucf101": _ucf101,
    "audioset": _audioset,
    "esc50": _esc50,
}
