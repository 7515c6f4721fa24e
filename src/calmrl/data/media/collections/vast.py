"""JSON lists of the public code of VAST, GRAM and PMRL, and of VAST-27M and its samples."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from calmrl.data.media.collections.list_files import read_objects
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, part_of
from calmrl.errors import InputError

ID_KEYS = ("clip_id", "video_id", "image_id", "image", "id")
TEXT_KEYS = ("desc", "caption", "vast_cap")
KEPT = ("vision_cap", "audio_cap")


class Vast150K(Publisher):
    """A sample of VAST-27M (VAST-150K): clips with one caption of everything, subtitles, and captions of picture and sound."""

    subtitles = True
    splits: ClassVar = {"all": PublishedSplit({"train": ("vast150k.json", "*vast*150k*.json", "*vast*150k*.jsonl")})}

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        return vast_entries(path, read_objects(path, notes))


class Vast27M(Vast150K):
    """VAST-27M, or any part of it: JSON list, JSON lines or Parquet with clip_id, vast_cap, subtitle, vision_cap, audio_cap."""

    names: ClassVar = ("vast27m.json", "*vast*27m*.json", "*vast*27m*.jsonl", "*vast*27m*.parquet", "annotations.json")
    splits: ClassVar = {"all": PublishedSplit({"train": names}, {"train": 27_000_000})}


def vast_entries(path: Path, objects: Iterable[dict[str, Any]]) -> list[Entry]:
    """An id, a text or a list of texts, perhaps a subtitle per object; objects of one id are joined.

    The name of the file gives the part of the split, unless the objects have one.
    """
    part = part_of(path)
    joined: dict[str, Entry] = {}
    for number, item in enumerate(objects, start=1):
        key = next((key for key in ID_KEYS if item.get(key) not in (None, "")), None)
        if key is None:
            got = ", ".join(map(str, list(item)[:6])) or "an empty object"
            raise InputError(f"entry {number} of {path} has no id; it needs one of {', '.join(ID_KEYS)}; got {got}")
        name = str(item[key])
        texts: Any = next((item[key] for key in TEXT_KEYS if item.get(key)), [])
        entry = joined.setdefault(name, Entry(number, [name], {"id": name, "text": [], "split": part}))
        entry.values["text"] += texts if isinstance(texts, list) else [texts]
        entry.values.update({key: item[key] for key in ("subtitle", "split") if item.get(key)})
        entry.values.update({f"meta.{key}": item[key] for key in KEPT if item.get(key)})
    return list(joined.values())
