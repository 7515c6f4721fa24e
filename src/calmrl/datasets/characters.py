"""Chinese characters: 23,259 with an English definition, their readings in five languages, strokes and pictures.

The bundled file has texts, strokes and pictures; features are computed from them when they are first asked for.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path

import numpy as np

from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.preparation import bundled, split_by_group, standardized
from calmrl.errors import InputError

BUNDLE = Path(__file__).with_name("characters.npz")
NOTICE = Path(__file__).with_name("characters_NOTICE.txt")  # licences of the data
READINGS = ("mandarin", "cantonese", "japanese", "korean", "vietnamese")
MODALITIES = ("definition", *READINGS, "strokes", "glyph")
WIDTHS = dict.fromkeys(MODALITIES, 128) | {"definition": 256}
SIDE = 24  # pixels of a glyph
GRID = 64  # steps of the square in which strokes are drawn
CELLS, DIRECTIONS = 8, 8  # of the histograms of strokes
KANGXI = 0x2F00  # the first of the 214 radicals in Unicode


def characters(
    rows: int | None = None, gallery: int | None = None, seed: int = 0, standardize: bool = True
) -> FeatureSet:
    """23,259 Chinese characters: definition (256 wide), readings in five languages, strokes and glyph (128 each).

    Every character lacks what its sources lack. Ids are the characters, labels their radicals, `text` the definitions;
    the columns of the readings have their spelling, and `group` names the first of a character's variants, which are in
    the same split. Features are fitted on all rows of their own modality, without labels and without pairs.

    Parameters
    ----------
    rows : int, optional
        How many rows, drawn at random; by default all. For one seed, fewer rows are a part of more.
    gallery : int, optional
        How many of them are validation rows, and how many test rows: the same ones whatever `rows` is, for learning
        curves. By default as many as fall to their lot, about 10 and 20 %.
    seed : int
        Of the draw.
    standardize : bool
        Centre every feature and divide each modality by one number, both measured on the train rows.

    Examples
    --------
    >>> data = characters(rows=2000)
    >>> data.present.shape
    (2000, 8)
    """
    saved, features = _bundle(), _features()
    kept = _draw(saved["split"], rows, gallery, seed)
    present, home = saved["present"][kept], saved["split"][kept]
    z = {name: values[kept] for name, values in features.items()}
    z = standardized(z, present, home == "train") if standardize else z
    return FeatureSet(
        z,
        present,
        meta_table(
            len(kept),
            ids=saved["ids"][kept],
            split=home,
            labels=saved["label"][kept],
            text=saved["definition"][kept],
            columns={name: [text or None for text in saved[name][kept]] for name in READINGS}
            | {"group": saved["group"][kept]},
        ),
        name="characters",
        source="Unihan 15.1, hanzi-writer-data 2.0.1, Noto Sans CJK SC; docs/reference/datasets.md",
    )


def _draw(split: np.ndarray, rows: int | None, gallery: int | None, seed: int) -> np.ndarray:
    """The numbers of the rows that are kept, in order."""
    total = len(split)
    for name, value in (("rows", rows), ("gallery", gallery)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1; got {value}")
    order = np.random.default_rng(seed).permutation(total)
    if gallery is not None:
        parts = {name: order[split[order] == name] for name in ("train", "val", "test")}
        most = min(len(parts["val"]), len(parts["test"]))
        if gallery > most:
            raise InputError(f"gallery must be at most {most:,}, the number of validation rows; got {gallery:,}")
        order = np.concatenate([parts["test"][:gallery], parts["val"][:gallery], parts["train"]])
    if rows is not None and rows > len(order):
        given = "" if gallery is None else f" with gallery={gallery}"
        raise InputError(f"there are {len(order):,} characters{given}; got rows={rows:,}")
    if rows is not None and gallery is not None and rows <= 2 * gallery:
        raise InputError(
            f"rows={rows} leaves none to train on: gallery={gallery} takes {gallery} validation and {gallery} test rows"
        )
    return np.sort(order[:rows])


def glyph(character: str) -> np.ndarray | None:
    """The picture of a character, (24, 24) bool, True where there is ink; None if the font lacks it.

    Examples
    --------
    >>> int(glyph("一").any(axis=1).sum())
    2
    """
    saved, row = _bundle(), _row(character)
    if not saved["has_glyph"][row]:
        return None
    return np.asarray(saved["pictures"][saved["has_glyph"][:row].sum()])


def strokes(character: str) -> list[np.ndarray] | None:
    """The strokes of a character in the order of writing, each the points (x, y) of its middle line on a grid of 64, y
    upwards; None if they are unknown.

    Examples
    --------
    >>> len(strokes("水"))
    4
    """
    saved, row = _bundle(), _row(character)
    first = int(saved["stroke_numbers"][:row].sum())
    ends = saved["stroke_ends"][first : first + saved["stroke_numbers"][row]]
    starts = ends - saved["stroke_points"][first : first + len(ends)]
    return [saved["points"][start:end] for start, end in zip(starts, ends, strict=True)] or None


def _row(character: str) -> int:
    rows = _rows()
    if character not in rows:
        raise InputError(
            f'"{character}" is none of the {len(rows):,} characters; load_dataset("characters").ids has them'
        )
    return rows[character]


@cache
def _rows() -> dict[str, int]:
    return {character: row for row, character in enumerate(_bundle()["ids"])}


@cache
def _bundle() -> dict[str, np.ndarray]:
    """What the file has, unpacked: texts per row, pictures, and the points of all strokes one after the other."""
    packed = bundled(BUNDLE)
    ids = np.array([chr(point) for point in packed["points"]], dtype=object)
    texts = {
        name: np.array(packed[name].tobytes().decode().split("\n"), dtype=object) for name in ("definition", *READINGS)
    }
    lengths, steps = packed["stroke_points"].astype(np.int64), packed["strokes"].astype(np.int64)
    ends, walked = lengths.cumsum(), steps.cumsum(axis=0)
    before = walked[ends - lengths] - steps[ends - lengths]  # where the stroke before ended; each starts anew from 0
    numbers = packed["stroke_numbers"].astype(np.int64)
    has = {name: np.array([bool(text) for text in values]) for name, values in texts.items()}
    has |= {"strokes": numbers > 0, "glyph": packed["has_glyph"]}
    return {
        "ids": ids,
        **texts,
        "label": np.array(
            [unicodedata.normalize("NFKC", chr(KANGXI - 1 + n)) for n in packed["radical"].tolist()], dtype=object
        ),
        "group": ids[packed["group"]],
        "split": split_by_group(ids[packed["group"]]),
        "present": np.stack([has[name] for name in MODALITIES], axis=1),
        "has_glyph": packed["has_glyph"],
        "pictures": np.unpackbits(packed["glyph"], axis=1).reshape(-1, SIDE, SIDE).astype(bool),
        "points": walked - np.repeat(before, lengths, axis=0),
        "stroke_numbers": numbers,
        "stroke_points": lengths,
        "stroke_ends": ends,
    }


@cache
def _features() -> dict[str, np.ndarray]:
    """(23259, d) per modality, NaN where it is missing."""
    saved, made = _bundle(), {}
    for name, has in zip(MODALITIES, saved["present"].T, strict=True):
        if name == "strokes":
            values = _components(_stroke_histograms(), WIDTHS[name])
        elif name == "glyph":
            values = _components(_glyph_histograms(saved["pictures"]), WIDTHS[name])
        else:
            values = _text_features(saved[name][has].tolist(), WIDTHS[name], sounds=name in READINGS)
        made[name] = np.full((len(has), WIDTHS[name]), np.nan, dtype=np.float32)
        made[name][has] = values
    return made


def _text_features(texts: list[str], width: int, sounds: bool) -> np.ndarray:
    """Singular vectors of TF-IDF over whole words and their n-grams; of readings, letters and accents one by one."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    if sounds:
        texts = [unicodedata.normalize("NFD", text) for text in texts]
        words = TfidfVectorizer(token_pattern=r"\S+", max_features=2048, sublinear_tf=True)
        parts = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), max_features=1024, sublinear_tf=True)
    else:
        words = TfidfVectorizer(min_df=3, sublinear_tf=True)
        parts = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), max_features=4096, sublinear_tf=True)
    counts = make_union(words, parts).fit_transform(texts)
    return np.asarray(TruncatedSVD(width, n_iter=3, random_state=0).fit_transform(counts))


def _components(values: np.ndarray, width: int) -> np.ndarray:
    from sklearn.decomposition import PCA

    return np.asarray(PCA(width, svd_solver="covariance_eigh").fit_transform(np.sqrt(values, dtype=np.float64)))


def _stroke_histograms() -> np.ndarray:
    """How much is drawn in which direction in each of 8 x 8 cells, per character that has strokes."""
    saved = _bundle()
    points, numbers = saved["points"], saved["stroke_numbers"]
    first = np.zeros(len(points), dtype=bool)
    first[saved["stroke_ends"] - saved["stroke_points"]] = True
    row = np.repeat(np.repeat(np.arange((numbers > 0).sum()), numbers[numbers > 0]), saved["stroke_points"])
    last = np.flatnonzero(~first)  # the end of every straight piece
    along = points[last] - points[last - 1]
    turn = np.arctan2(along[:, 1], along[:, 0]) / (2 * np.pi) * DIRECTIONS
    direction = np.round(turn).astype(np.int64) % DIRECTIONS
    length = np.abs(along).max(axis=1)
    piece = np.repeat(np.arange(len(last)), length)  # a sample per step
    step = np.arange(len(piece)) - np.repeat(length.cumsum() - length, length) + 0.5
    at = points[last - 1][piece] + along[piece] * (step / length[piece])[:, None]
    x, y = np.clip((at * CELLS / GRID).astype(np.int64), 0, CELLS - 1).T
    place = ((row[last][piece] * CELLS + y) * CELLS + x) * DIRECTIONS + direction[piece]
    shape = (row[-1] + 1, CELLS * CELLS * DIRECTIONS)
    return np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float32)


def _glyph_histograms(pictures: np.ndarray) -> np.ndarray:
    """Ink in 12 x 12 cells, and in 6 x 6 cells how strong edges of 8 directions are, per picture."""
    ink = pictures.astype(np.float32)
    down, right = np.gradient(ink, axis=(1, 2))
    strength = np.hypot(down, right)
    direction = np.floor(np.arctan2(down, right) / np.pi * DIRECTIONS).astype(np.int64) % DIRECTIONS
    edges = [_cells(np.where(direction == number, strength, 0), 4) for number in range(DIRECTIONS)]
    return np.concatenate([_cells(ink, 2), *edges], axis=1)


def _cells(values: np.ndarray, size: int) -> np.ndarray:
    """(N, 24, 24) -> (N, cells): the mean of every square of this many pixels."""
    n, side = len(values), SIDE // size
    return np.asarray(values.reshape(n, side, size, side, size).mean(axis=(2, 4)).reshape(n, side * side))
