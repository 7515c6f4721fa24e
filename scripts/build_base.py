"""Make the base that comes with calmrl, `named-things`, from the features that `scripts/base_sources.py` writes.

    python scripts/base_sources.py --work DIR            download the packages and encode what is in them
    python scripts/build_base.py DIR                     leave collections out one at a time, and print the tables
    python scripts/build_base.py DIR --write             the same, and replace the base in the package

Two spaces side by side: one from the classifier heads of EfficientNet-lite0 and YAMNet (a class is a row of the head's weights
and its name), one from collections of named pictures, voices and sounds. A collection is tested with a base that has not seen
it. Open Clip Art is in no base: it is the control.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from calmrl import Aligner
from calmrl.aligner import found_in
from calmrl.encoders.encoder_set import EncoderSet

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src/calmrl/aligner/bases/named-things"
ENCODERS = {
    "image": "efficientnet_lite0",
    "text": "minilm",
    "multilingual": "use_multilingual",
    "speech": "whisper_base",
    "sound": "yamnet",
}
HEADS = ("head_efficientnet", "head_yamnet")
COLLECTIONS = ("emoji", "stamps", "gcompris", "pysiogame", "scratch", "opensfx")
DROPPED = ("wesnoth", "spoken", "ktuberling")  # tried, without gain
TESTED = ("stamps", "emoji", "gcompris", "pysiogame")  # left out in turn
CONTROL = "clipart"
SETTINGS = {"features": "kernel", "unit_rows": True, "whitening": 0.5, "prior": 550.0}
LATENTS = {"heads": 256, "collections": 512}
SHARES = (0.4, 0.6)  # of the spread: heads, collections
LANDMARKS = 1000
GALLERY = 250

Rows = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, metavar="DIR", help="folder that base_sources.py has written")
    parser.add_argument("--write", action="store_true", help="replace the base in the package")
    parser.add_argument("--sources", action="store_true", help="also say what each source brings, by leaving it out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sources = {path.stem: read(path) for path in sorted(options.features.glob("*.npz"))}
    began = time.perf_counter()
    elsewhere = {}
    for name in TESTED:
        elsewhere[name] = found_in(make(sources, COLLECTIONS, without=name), one_per_concept(sources[name]))
        show(name, elsewhere[name])
    whole = make(sources, COLLECTIONS)
    seconds = time.perf_counter() - began
    show(CONTROL, found_in(whole, one_per_concept(sources[CONTROL])))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{len(TESTED) + 1} bases in {seconds:.0f} s, at most {memory:.1f} GB")
    if options.sources:
        compare_sources(sources)
    if options.write:
        whole.elsewhere_ = elsewhere
        whole.encoders_ = EncoderSet(ENCODERS).describe()
        whole.save(TARGET, overwrite=TARGET.exists(), compact=True)
        size = sum(file.stat().st_size for file in TARGET.iterdir())
        print(f"{TARGET.relative_to(ROOT)}: {size / 1e6:.1f} MB")


def read(path: Path) -> Rows:
    """The arrays of a source."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def make(sources: dict[str, Rows], names: Iterable[str], without: str = "") -> Aligner:
    """The base of some collections, without one of them; its voices are left out as well."""
    kept = [name for name in names if name != without]
    heads = fitted(HEADS, sources, LATENTS["heads"])
    collections = fitted(kept, sources, LATENTS["collections"])
    base = Aligner(base=[heads, collections], hubs="never").fit(sample(sources, kept))
    raw = [share * part.weight for share, part in zip(SHARES, base.base_, strict=True)]
    base.base_ = [replace(part, weight=weight / sum(raw)) for weight, part in zip(raw, base.base_, strict=True)]
    base.choice_["beside"] |= {part.name: part.weight for part in base.base_}
    base.encoders_ = {"encoders": {name: {"name": encoder} for name, encoder in ENCODERS.items()}}
    return base


def fitted(names: Iterable[str], sources: dict[str, Rows], latents: int) -> Aligner:
    """One space from all rows of some sources."""
    z = joined([part for name in names for part in views(name, sources[name])])
    return Aligner(**SETTINGS, latent_dim=latents, refine="never", candidates=1, folds=2, landmarks=LANDMARKS).fit(z)


def views(name: str, rows: Rows) -> list[Rows]:
    """The rows of a source; a second hand, second words and names in a second language are rows of their own."""
    first = {modality: rows[modality] for modality in ENCODERS if modality in rows}
    second = {"image": "image2", "multilingual": "multilingual2"}
    others = {modality: rows[other] for modality, other in second.items() if other in rows and modality in first}
    if name == "emoji":
        others["text"] = rows["text2"]
    if "speech" in first and "multilingual2" in rows:  # spoken in that language
        others["speech"] = first.pop("speech")
    if others and "image" not in others and "image" in rows:
        others["image"] = rows["image"]
    return [_any(part) for part in (first, others) if len(part) > 1]


def _any(rows: Rows) -> Rows:
    """Without rows that have fewer than two modalities."""
    held = np.sum([~np.isnan(values).any(1) for values in rows.values()], axis=0) > 1
    return {name: values[held] for name, values in rows.items()}


def joined(parts: list[Rows]) -> Rows:
    """Rows of several sources below each other, NaN where one lacks a modality."""
    widths = {name: values.shape[1] for part in parts for name, values in part.items()}
    out = {}
    for name in (modality for modality in ENCODERS if modality in widths):
        blocks = [
            part[name] if name in part else np.full((len(next(iter(part.values()))), widths[name]), np.nan)
            for part in parts
        ]
        out[name] = np.concatenate(blocks).astype(np.float32)
    return out


def sample(sources: dict[str, Rows], names: Iterable[str]) -> Rows:
    """Unpaired rows of some sources, by which the two spaces get the same share of the spread."""
    z = joined([part for name in names for part in views(name, sources[name])])
    alone = []
    for modality, values in z.items():
        there = values[~np.isnan(values).any(1)]
        alone.append({modality: there[np.random.default_rng(0).permutation(len(there))[:300]]})
    return joined(alone)


def one_per_concept(rows: Rows) -> Rows:
    """The first row of every group that has a picture, and no letters; those without one in addition."""
    order = np.random.default_rng(0).permutation(len(rows["group"]))
    if "glyph" in rows:
        order = order[~rows["glyph"][order].astype(bool)]
    _, first = np.unique(rows["group"][order], return_index=True)
    kept = order[np.sort(first)]
    return {name: rows[name][kept] for name in ENCODERS if name in rows}


def show(name: str, found: dict[str, object]) -> None:
    """R@1 and R@10 of every direction in a gallery of GALLERY, or of what there is."""
    for direction, evidence in found.items():
        n = min(GALLERY, int(evidence.gallery.min()))
        recalls = [100 * evidence.recall(k, n) for k in (1, 10)]
        print(f"| {name} | {direction} | {n} | {recalls[0]:.1f} | {recalls[1]:.1f} | {100 / n:.1f} |", flush=True)


def compare_sources(sources: dict[str, Rows]) -> None:
    """Mean R@1 between image and text of every tested collection, with and without each source."""
    for source in (None, *COLLECTIONS, *DROPPED):
        names = [*COLLECTIONS, source] if source in DROPPED else [name for name in COLLECTIONS if name != source]
        row = []
        for tested in (*TESTED, CONTROL):
            if tested == source:
                row.append("")
                continue
            found = found_in(make(sources, names, without=tested), one_per_concept(sources[tested]))
            row.append(f"{50 * sum(found[key].recall(1, GALLERY) for key in ('image->text', 'text->image')):.1f}")
        what = "all" if source is None else f"with {source}" if source in DROPPED else f"without {source}"
        print(f"| {what} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
