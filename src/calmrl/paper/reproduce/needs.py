"""What a table needs on disk, what of it is there, and where the rest comes from; looked at before anything runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from calmrl.data.media.public_collections import COLLECTIONS, PublicCollection
from calmrl.errors import InputError
from calmrl.paper.reproduce.by_name import check_names
from calmrl.paper.reproduce.tables import CLASSIFICATION, COUNTS, IMAGEBIND, OTHERS, RUNS, PaperTable

TOKENIZER = "pretrained_weights/bert/bert-base-uncased"
CHECKPOINT = "pretrained_weights/vast/model_step_204994.pt"
ORIGINS = {
    "msrvtt": "MSR-VTT, captions in MSRVTT_data.json; lists of the 1k-A split as in CLIP4Clip",
    "didemo": "DiDeMo: LocalizingMoments on GitHub",
    "activitynet": "ActivityNet Captions: captions.zip of the project page",
    "vatex": "VATEX, version 1.1 of the public test",
    "audiocaps": "AudioCaps: cdjkim/audiocaps on GitHub; clips of AudioSet",
    "clotho": "Clotho v2.1 on Zenodo",
    "vast150k": "VAST-150K: ispamm/GRAM on GitHub; clips of VAST-27M",
}
CLASSIFIED = ("vggsound", "ucf101", "audioset", "esc50")


@dataclass(frozen=True)
class Need:
    """Something that a table needs: where it belongs below --root, whether it is there, what is known of it."""

    where: str
    there: bool
    about: str

    def __str__(self) -> str:
        return f"{'there  ' if self.there else 'missing'}  {self.where}: {self.about}"


def needs_of(table: PaperTable, root: Path) -> list[Need]:
    """Everything that a table needs, in the order of its use. Features of models of others are not needed, but used."""
    runs = [RUNS[producer] for producer in table.producers if producer in RUNS]
    media = [run for run in runs if run.config != CLASSIFICATION]
    wanted = [(name, "train") for run in media for name in run.collections]
    trained = {run.name for run in media}
    wanted += [(v.collection, "test") for v in table.values if v.producer in trained and v.collection]
    wanted += [(v.collection, v.task) for v in table.values if v.producer == COUNTS]
    parts: dict[str, set[str]] = {}
    for name, part in wanted:
        parts.setdefault(name, set()).add(part)
    needs = []
    if media:
        advice = 'not installed; pip install "calmrl[encoders]"'
        needs += [
            Need(f"the package {name}", False, advice) for name in ("av", "transformers") if find_spec(name) is None
        ]
        tokenizer = any((root / TOKENIZER).glob("*token*"))
        needs.append(Need(TOKENIZER, tokenizer, "the tokenizer: google-bert/bert-base-uncased on Hugging Face"))
        weights = (root / CHECKPOINT).is_file()
        needs.append(Need(CHECKPOINT, weights, "the checkpoint of VAST: TXH-mercury/VAST on GitHub"))
    needs += [_collection(name, root, sorted(some, reverse=True)) for name, some in parts.items()]
    if len(runs) > len(media):
        needs += [_features(name, root) for name in CLASSIFIED]
    return needs


def features_of_others(root: Path, model: str, collection: str) -> Path:
    """Where the features of a model of others on a collection belong."""
    return root / "features" / model / collection


def check(table: PaperTable, needs: Iterable[Need]) -> None:
    """An error with everything that is missing."""
    missing = [need for need in needs if not need.there]
    if missing:
        listed = "\n".join(f"  {need}" for need in missing)
        raise InputError(f"{table.name} needs what is not there:\n{listed}")


def _collection(name: str, root: Path, parts: list[str]) -> Need:
    """Annotation files and media of some parts of a collection; a few absent files are no obstacle, all of them are."""
    publisher = COLLECTIONS[name]()
    split, published = next(iter(publisher.splits.items()))
    files = [published.files[part][0] for part in parts if part in published.files]
    origin = f"{', '.join(files)} and media of {' and '.join(parts)} ({ORIGINS[name]})"
    if not (root / name).is_dir():
        return Need(name, False, origin)
    try:
        rows = [columns for _, columns in PublicCollection(name, root / name, split).read().rows]
    except InputError as error:
        return Need(name, False, f"{error}; needed: {origin}")
    counts = {}
    for part in parts:
        items = [columns for columns in rows if columns.get("split") == part]
        with_media = sum(
            any(Path(str(columns[modality])).is_file() for modality in publisher.media if columns.get(modality))
            for columns in items
        )
        if not with_media:
            what = f"none of {len(items):,} {part} items has a media file" if items else f"no {part} items"
            return Need(name, False, f"{what}; needed: {origin}")
        counts[part] = f"{part} {with_media:,} of {len(items):,} items with media"
    return Need(name, True, ", ".join(counts.values()))


def _features(name: str, root: Path) -> Need:
    where = f"{IMAGEBIND}/{name}"
    about = f"features of ImageBind on {name}, with labels and the names of the classes as text"
    if not (root / where).is_dir():
        return Need(where, False, about)
    try:
        check_names(root / where)
    except InputError as error:
        return Need(where, False, str(error))
    return Need(where, True, about)


def others_without_features(table: PaperTable, root: Path) -> list[str]:
    """Models of others in this table of which no features are given at all."""
    return [
        model
        for model in OTHERS.values()
        if model in table.producers
        and not any(
            features_of_others(root, model, value.collection).is_dir()
            for value in table.values
            if value.producer == model
        )
    ]
