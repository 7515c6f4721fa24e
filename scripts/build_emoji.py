"""Make the bundled collection `emoji` again from the packages of its sources.

    python scripts/build_emoji.py --work DIR --download     download, rasterise, speak, extract, compare with the bundle
    python scripts/build_emoji.py --work DIR --write        the same with what is in DIR, and replace the bundled files

It needs `apt-get`, `dpkg`, `npm`, espeak-ng 1.51, `pip install resvg-py==0.5.0 fonttools`, and the packages of the
encoders (docs/how-to/files.md). DIR/emoji.csv is an ordinary manifest: `calmrl extract DIR/emoji.csv` with the encoders
below makes the same features, before they are reduced.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
from bundling import Groups, compare_bundles, encode
from emoji_sources import (
    download,
    noto_pictures,
    other_words,
    read_annotations,
    read_emoji,
    save_picture,
    speak,
    twemoji_drawings,
)

from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.emoji import BUNDLE, MODALITIES, PICTURES, REDUCED, THUMBNAILS
from calmrl.datasets.preparation import split_by_group
from calmrl.encoders import load_encoder

ENCODERS = {
    "image": "efficientnet_lite0",
    "drawing": "efficientnet_lite0",
    "text": "minilm",
    "keywords": "minilm",
    "french": "use_multilingual",
    "speech": "whisper_base",
}
VOICE = "fr"  # of espeak-ng
WIDTH = 256  # of reduced features
SIDE, QUALITY = 56, 60  # pixels and WebP quality of a thumbnail
LARGEST = 40  # rows of a group that may be outside train
TWIN = 0.9  # cosine of two image features from which two emoji count as the same picture
WHOLE = ("family", "person", "keycap", "zodiac", "cat-face", "monkey-face", "arrow", "geometric")  # subgroups
GENDER = r"\b(wo)?m[ae]n\b|\bperson\b|\bpeople\b"
GENDER_SIGNS = "\u200d[\u2640\u2642]\ufe0f?"
QUERIES = (
    "birthday", "music", "angry", "fruit", "rain", "love", "sad", "happy", "tired", "winter", "summer", "breakfast",
    "dinner", "sports", "learning", "holiday", "travel", "money", "time", "night", "sea", "garden", "farm animals",
    "pets", "insects", "vegetables", "sweets", "something to drink", "weather", "clothes", "shoes", "medicine",
    "science", "work", "danger", "getting married", "cleaning the house", "fast vehicle", "public transport",
    "computers", "writing", "war", "magic", "religion", "sick", "laughing", "surprised", "friends", "sleep", "party",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for everything that is made on the way")
    parser.add_argument("--download", action="store_true", help="download and unpack the packages first")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="replace the bundled files")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.download:
        download(options.work)
    manifest = options.work / "emoji.csv"
    write_manifest(options.work, manifest)
    features = encode(manifest, ENCODERS, options.work / "features", options.workers)
    arrays = bundle(features)
    small = thumbnails(manifest)
    if BUNDLE.exists():
        with np.load(BUNDLE, allow_pickle=False) as saved:
            compare_bundles(dict(saved), arrays, MODALITIES)
    for split in ("split", "split_subgroup"):
        print(f"rows per {split}:", dict(Counter(arrays[split].tolist())))
    if options.write:
        np.savez_compressed(BUNDLE, **arrays)
        np.savez(THUMBNAILS, **small)
        for path in (BUNDLE, THUMBNAILS):
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def slug(name: str) -> str:
    """The id of an emoji: its name in plain letters, as in "dog-face"."""
    name = name.replace("#", "hash").replace("*", "asterisk").replace("ñ", "n")
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain.replace("'", "")).strip("-")


def write_manifest(work: Path, manifest: Path) -> None:
    """One row per emoji; pictures, rasterised drawings and recordings go into the work folder."""
    names, keywords = read_annotations(work, "en")
    french, _ = read_annotations(work, "fr")
    pictures, drawings = noto_pictures(work), twemoji_drawings(work)
    columns = ("emoji", "name", "subgroup", "keywords", "french")
    with open(manifest, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", *MODALITIES, "labels", *(f"meta.{column}" for column in columns)])
        for emoji in read_emoji(work):
            key, file = emoji.plain, slug(emoji.name)
            words = ", ".join(other_words(keywords.get(key, []), names.get(key, "")))
            cells = {
                "image": save_picture(work / f"noto/{file}.png", pictures[key]) if key in pictures else "",
                "drawing": save_picture(work / f"drawn/{file}.png", drawings[key]) if key in drawings else "",
                "text": names.get(key, ""),
                "keywords": words,
                "french": french.get(key, ""),
                "speech": speak(french[key], VOICE, work / f"spoken/{file}.wav") if key in french else "",
            }
            about = (emoji.text, emoji.name, emoji.subgroup, words, french.get(key, ""))
            writer.writerow([file, *(cells[name] for name in MODALITIES), emoji.group, *about])


def bundle(features: FeatureSet) -> dict[str, np.ndarray]:
    """The arrays of the bundled file."""
    ids = [str(name) for name in features.ids]
    about: dict[str, list[str]] = {name: [str(value or "") for value in features.column(name)] for name in
                             ("emoji", "name", "subgroup", "keywords", "french")}  # fmt: skip
    groups = concepts(ids, about, features)
    first = {group: about["subgroup"][ids.index(group)] for group in set(groups)}
    split = split_by_group(groups, LARGEST).astype("<U5")
    assert features.text is not None
    assert features.labels is not None
    return reduced(features, split == "train") | {
        "present": np.asarray(features.present),
        "ids": np.array(ids),
        "label": np.array([str(value) for value in features.labels]),
        "caption": np.array(["" if text is None else text[0] for text in features.text]),
        **{f"about_{name}": np.array(values) for name, values in about.items()},
        "group": np.array(groups),
        "split": split,
        "split_subgroup": split_by_group([first[group] for group in groups], LARGEST).astype("<U5"),
        "queries": np.array(QUERIES),
        "query_vectors": load_encoder("minilm").encode(list(QUERIES)).astype(np.float16),
    }


def reduced(features: FeatureSet, train: np.ndarray) -> dict[str, np.ndarray]:
    """Features of each modality; wide ones as their first principal components on train, one basis per encoder."""
    arrays = {name: np.asarray(features.z[name]) for name in MODALITIES}
    for encoder, names in REDUCED.items():
        seen = [arrays[name][train & features.present[:, MODALITIES.index(name)]] for name in names]
        rows = np.concatenate(seen).astype(np.float64)
        centre = rows.mean(axis=0)
        basis = np.linalg.eigh((rows - centre).T @ (rows - centre))[1][:, ::-1][:, :WIDTH]
        basis *= np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(WIDTH)])
        kept = ((rows - centre) @ basis).var(axis=0).sum() / rows.var(axis=0).sum()
        print(f"{encoder}: {WIDTH} of {len(basis)} components hold {kept:.1%} of the variance on train")
        centre, basis = centre.astype(np.float32), basis.astype(np.float16)
        for name in names:
            arrays[name] = ((arrays[name] - centre) @ basis.astype(np.float32)).astype(np.float16)
        arrays |= {f"{encoder}_centre": centre, f"{encoder}_basis": basis}
    return arrays


def concepts(ids: list[str], about: dict[str, list[str]], features: FeatureSet) -> list[str]:
    """A group name per emoji; emoji of one group are never in different splits.

    Together: the same characters or the same name but for man, woman and person; the same last word before "with" in
    one subgroup; an animal and its face; all of a subgroup whose members vary one thing (families, hands, kinds of
    face, keycaps, arrows, ...); clock faces; moons; hearts; pictures whose features are almost equal; the same
    recording.
    """
    groups = Groups(ids)
    for row, (text, name, subgroup) in enumerate(zip(about["emoji"], about["name"], about["subgroup"], strict=True)):
        plain = re.sub(GENDER, "", name.lower().partition(":")[0])
        plain = re.sub(r"\bface\b", "", plain) if subgroup.startswith("animal") else plain
        words = re.findall(r"\w+", plain)
        head = re.findall(r"\w+", plain.partition(" with ")[0])
        last = head[-1] if head else ""
        whole = subgroup.partition("-")[0] if subgroup.startswith("hand") else subgroup
        groups.share(row, [
            ("characters", re.sub(GENDER_SIGNS, "", text)),
            ("name", " ".join(words)) if words else "",
            ("last", subgroup, last) if last else "",
            ("whole", whole.rstrip("s")) if subgroup in WHOLE or subgroup.startswith(("hand", "face-")) else "",
            "moon" if subgroup == "sky & weather" and "moon" in name else "",
            "heart" if subgroup == "heart" and "heart" in name.split() else "",
            "clock" if re.search(r"o’clock|-thirty$", name) else "",
        ])  # fmt: skip
    groups.join_twins(features, "image", TWIN)
    groups.join_equal(features, "speech")
    return groups.group_names()


def thumbnails(manifest: Path) -> dict[str, np.ndarray]:
    """Small WebP pictures: for each modality with pictures, their bytes in one row and where each ends."""
    from PIL import Image

    small: dict[str, np.ndarray] = {}
    with open(manifest, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for name in PICTURES:
        ends, content = [], bytearray()
        for row in rows:
            if row[name]:
                picture = Image.open(row[name]).convert("RGBA")
                picture = picture.crop(picture.getbbox())
                picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
                file = io.BytesIO()
                picture.save(file, "WEBP", quality=QUALITY, alpha_quality=50, method=6)
                content += file.getvalue()
            ends.append(len(content))
        small |= {name: np.frombuffer(bytes(content), np.uint8), f"{name}_ends": np.array(ends, np.int32)}
    return small


if __name__ == "__main__":
    main()
