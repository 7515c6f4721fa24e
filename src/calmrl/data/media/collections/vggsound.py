"""VGGSound: one CSV with YouTube id, start, label and split; or train.csv and test.csv with file name and label."""

from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.annotation_folder import AnnotationFolder
from calmrl.data.media.collections.audiocaps import CLIP_SECONDS
from calmrl.data.media.collections.clip_names import ClipNames
from calmrl.data.media.collections.list_files import read_cells
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, part_of, wrong_form

WHOLE = ("vggsound.csv",)
FORMS = "YouTube id, start second, label, train or test; or file name (id_000030.mp4), label"


class VggSound(Publisher):
    """VGGSound: clips of YouTube in 309 classes; the text of an item is the name of its class."""

    splits: ClassVar = {
        "all": PublishedSplit(
            {part: (f"{part}.csv", f"vggsound_{part}.csv") for part in ("train", "test")},
            {"train": 183_730, "test": 15_496},
        )
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        entries = []
        for line, row in read_cells(path, notes):
            if len(row) == 4 and row[1].isdigit() and row[3] in ("train", "test"):
                video, start, label, part = row[0], int(row[1]), row[2], row[3]
            elif len(row) == 2 and _is_clip(row[0]):
                video, _, digits = row[0].rpartition(".")[0].rpartition("_")
                start, label, part = int(digits), row[1], part_of(path) or ""
            else:
                raise wrong_form(path, ",".join(row)[:80], FORMS, line=line)
            names = ClipNames(video, start, start + CLIP_SECONDS)
            values = {"id": names[0], "labels": label, "text": [label], "split": part or None}
            entries.append(Entry(line, names, values))
        return entries

    def read(self, folder: AnnotationFolder, split: str, notes: list[str]) -> list[Entry]:
        whole = folder.find(WHOLE)
        return super().read(folder, split, notes) if whole is None else self.read_file(whole, notes)


def _is_clip(name: str) -> bool:
    """Whether a file is called like id_000030.mp4."""
    stem, dot, _ = name.rpartition(".")
    return bool(dot) and stem.rpartition("_")[2].isdigit() and "_" in stem
