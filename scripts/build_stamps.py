"""Make the bundled collection `stamps` again from the Debian package of Tux Paint's stamps.

    python scripts/build_stamps.py --work DIR            download, unpack, rasterise, extract, compare with the bundle
    python scripts/build_stamps.py --work DIR --write    the same, and replace the bundled file

It needs `apt-get` and `dpkg` (or the unpacked folder, --stamps), `pip install resvg-py==0.5.0`, and the packages of the
encoders (docs/how-to/files.md). DIR/stamps.csv is an ordinary manifest: `calmrl extract DIR/stamps.csv` with the
encoders below makes the same features.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
from bundling import Groups, compare_bundles, debian_package, encode, rasterise

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.media.streams import read_audio
from calmrl.datasets.preparation import split_by_group
from calmrl.datasets.stamps import BUNDLE, MODALITIES

PACKAGE, VERSION = "tuxpaint-stamps-default", "2022.06.04-1"
ENCODERS = {
    "image": "efficientnet_lite0",
    "text": "minilm",
    "speech": "whisper_base",
    "sound": "yamnet",
}
SILENT = 1e-3  # loudest sample up to which a recording counts as silent
TWIN = 0.85  # cosine of two image features from which two stamps count as the same picture


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for everything that is made on the way")
    parser.add_argument("--stamps", type=Path, help="folder with the unpacked stamps; by default they are downloaded")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="replace the bundled file")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    stamps = options.stamps or download(options.work)
    manifest = options.work / "stamps.csv"
    write_manifest(stamps.resolve(), options.work, manifest)
    features = encode(manifest, ENCODERS, options.work / "features", options.workers)
    arrays = bundle(features)
    if BUNDLE.exists():
        with np.load(BUNDLE, allow_pickle=False) as saved:
            compare_bundles(dict(saved), arrays, MODALITIES)
    print("rows per split:", dict(Counter(arrays["split"])), "by folder:", dict(Counter(arrays["split_folder"])))
    if options.write:
        np.savez_compressed(BUNDLE, **arrays)
        print(f"{BUNDLE}: {BUNDLE.stat().st_size / 1e6:.2f} MB")


def download(work: Path) -> Path:
    """The folder of stamps, from the Debian package."""
    return debian_package(PACKAGE, VERSION, work) / "usr/share/tuxpaint/stamps"


def write_manifest(stamps: Path, work: Path, manifest: Path) -> None:
    """One row per stamp. Drawings that exist only as SVG are rasterised into the work folder."""
    names = sorted(
        {
            file.relative_to(stamps).with_suffix("").as_posix()
            for file in stamps.rglob("*")
            if file.suffix in (".png", ".svg", ".txt") and "_desc" not in file.name
        }
    )
    with open(manifest, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", *MODALITIES, "labels", "meta.folder", "meta.glyph"])
        for name in names:
            folder = name.rpartition("/")[0]
            glyph = folder.startswith(("symbols/alphabets", "symbols/math"))
            cells = {
                "image": image(stamps, work, name),
                "text": caption(stamps / f"{name}.txt"),
                "speech": existing(stamps / f"{name}_desc_fr.ogg"),
                "sound": "" if glyph else sound(stamps, name),
            }
            writer.writerow([name, *(cells[m] for m in MODALITIES), name.split("/")[0], folder, int(glyph)])


def existing(path: Path) -> str:
    return str(path) if path.exists() else ""


def caption(path: Path) -> str:
    """The first line, in English; the others are translations."""
    return path.read_text(encoding="utf-8").splitlines()[0].strip() if path.exists() else ""


def sound(stamps: Path, name: str) -> str:
    """The sound effect; four stamps come with digital silence, which counts as none."""
    for suffix in (".ogg", ".wav"):
        path = stamps / f"{name}{suffix}"
        if path.exists():
            return str(path) if np.abs(read_audio(path)).max() > SILENT else ""
    return ""


def image(stamps: Path, work: Path, name: str) -> str:
    if (stamps / f"{name}.png").exists() or not (stamps / f"{name}.svg").exists():
        return existing(stamps / f"{name}.png")
    target = work / "rasterised" / f"{name}.png"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(rasterise(stamps / f"{name}.svg"))
    return str(target.resolve())


def bundle(features: FeatureSet) -> dict[str, np.ndarray]:
    """The arrays of the bundled file."""
    ids = [str(name) for name in features.ids]
    captions = ["" if text is None else text[0] for text in features.text]
    folder = [str(value) for value in features.column("folder")]
    glyph = np.array([bool(int(value)) for value in features.column("glyph")])
    groups = concepts(ids, captions, features)
    first = {group: folder[groups.index(group)] for group in set(groups)}
    arrays = {name: np.asarray(features.z[name]) for name in MODALITIES}
    return arrays | {
        "present": np.asarray(features.present),
        "ids": np.array(ids),
        "caption": np.array(captions),
        "glyph": glyph,
        "group": np.array(groups),
        "split": without_glyphs(groups, glyph),
        "split_folder": without_glyphs([first[group] for group in groups], glyph),
    }


def without_glyphs(groups: list[str], glyph: np.ndarray) -> np.ndarray:
    """Splits by group; letters and digits, which are left out of scores, are all in train."""
    split = np.full(len(groups), "train", dtype="<U5")
    rest = np.flatnonzero(~glyph)
    split[rest] = split_by_group([groups[i] for i in rest])
    return split


def concepts(ids: list[str], captions: list[str], features: FeatureSet) -> list[str]:
    """A group name per stamp; stamps of one group are never in different splits.

    Together: the same caption but for articles and case; a stamp, its mirror image and its numbered variants in the
    same folder; pictures whose features are almost equal; the same recording.
    """
    groups = Groups(ids)
    for row, (name, text) in enumerate(zip(ids, captions, strict=True)):
        words = re.findall(r"\w+", text.lower())
        plain = " ".join(word for word in words if word not in ("a", "an", "the", "some"))
        stem = re.sub(r"(_mirror|_flip)$", "", name)
        stem = re.sub(r"[-_]?\d+$", "", stem)
        groups.share(row, [f"caption {plain}" if plain else "", f"stem {stem}"])
    groups.join_twins(features, "image", TWIN)
    for name in ("speech", "sound"):
        groups.join_equal(features, name)
    return groups.group_names()


if __name__ == "__main__":
    main()
