"""Tux Paint stamps: real drawings and photographs with captions, spoken French and sounds, most of them incomplete."""

from pathlib import Path

import numpy as np

from calmrl._support.registry import lookup
from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.preparation import bundled, standardized
from calmrl.datasets.registry import Indexing

BUNDLE = Path(__file__).with_name("stamps.npz")
MODALITIES = ("image", "text", "speech", "sound")
SPLITS = {"caption": "split", "folder": "split_folder"}
INDEXING = Indexing(
    encoders={"image": "efficientnet_lite0", "text": "minilm", "speech": "whisper_base", "sound": "yamnet"}
)


def stamps(split: str = "caption", standardize: bool = True) -> FeatureSet:
    """963 stamps of Tux Paint: image (1280), English text (384), spoken French (1024), sound effect (1024).

    Labels are the 16 categories; the columns `second` and `folder` name the 75 and 125 finer ones, `group` the concept,
    `glyph` the 178 letters and digits, which are in train so that no score sees them.

    Parameters
    ----------
    split : {"caption", "folder"}
        Keep the stamps of a concept together, or whole folders (harder).
    standardize : bool
        Centre every feature and divide each modality by one number, both measured on train; otherwise features are as
        the encoders gave them.
    """
    saved = bundled(BUNDLE)
    present, home = saved["present"].copy(), saved[lookup(SPLITS, split, "split of stamps")]
    z = {name: saved[name].astype(np.float32) for name in MODALITIES}
    z = standardized(z, present, (home == "train") & ~saved["glyph"]) if standardize else z
    parts = [name.split("/")[:-1] for name in saved["ids"]]
    return FeatureSet(
        z,
        present,
        meta_table(
            len(present),
            ids=saved["ids"],
            split=home,
            labels=[part[0] for part in parts],
            text=[str(caption) or None for caption in saved["caption"]],
            columns={
                "second": ["/".join(part[:2]) for part in parts],
                "folder": ["/".join(part) for part in parts],
                "group": saved["group"],
                "glyph": saved["glyph"],
            },
        ),
        name="stamps",
        source="Tux Paint stamps, Debian package tuxpaint-stamps-default 2022.06.04-1 (GPL-2); docs/reference/stamps.md",
    )
