"""Frames of pandas and polars.

A modality is a column whose cells are vectors, None where it is missing; or numbered columns `image.0`, `image.1`, ...; or
columns of numbers that `modalities` names. In pandas two levels of columns will do as well: the first names the modality.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from calmrl.data.features.arrow_table import NUMBERED, Groups, from_arrow, to_arrow
from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import InputError, need

ORIGIN = "the frame"


def to_pandas(features: FeatureSet, wide: bool = False) -> Any:
    """A `pandas.DataFrame` whose index is the ids.

    Parameters
    ----------
    features : FeatureSet
    wide : bool
        Columns of numbers (`image.0`, `image.1`, ...), NaN where missing, instead of one column of vectors per modality.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> z = {"image": np.array([[1.0, 2.0], [np.nan, np.nan]]), "text": np.array([[3.0], [4.0]])}
    >>> print(to_pandas(FeatureSet(z), wide=True))  # doctest: +NORMALIZE_WHITESPACE
        image.0  image.1  text.0
    id
    0       1.0      2.0     3.0
    1       NaN      NaN     4.0
    """
    need("pandas", "interop", "A pandas frame")
    return to_arrow(features, wide).to_pandas().set_index("id")


def from_pandas(frame: Any, modalities: Groups | None = None) -> FeatureSet:
    """Features from a `pandas.DataFrame`; ids are its column or index "id", or any other index that is not a range.

    Parameters
    ----------
    frame : pandas.DataFrame
    modalities : sequence of str, or mapping of str to sequence of str, optional
        The modalities wanted; or for each modality its columns of numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_pandas(to_pandas(features)).present.tolist()
    [[True, True], [True, False]]
    """
    frame = _one_level(frame)
    if "id" not in frame.columns and type(frame.index).__name__ != "RangeIndex":
        frame = frame.assign(id=[str(value) for value in frame.index])
    if len({str(name) for name in frame.columns}) < len(frame.columns):
        raise InputError(f"{ORIGIN} has several columns of the same name; rename them")
    columns = {str(name): _column(str(name), frame[name]) for name in frame.columns}
    return from_arrow(pa.table(columns), modalities, origin=ORIGIN)


def to_polars(features: FeatureSet, wide: bool = False) -> Any:
    """A `polars.DataFrame`; `wide` as in `to_pandas`.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_polars(to_polars(features)).present.tolist()
    [[True, True], [True, False]]
    """
    polars = need("polars", "interop", "A polars frame")
    return polars.from_arrow(to_arrow(features, wide))


def from_polars(frame: Any, modalities: Groups | None = None) -> FeatureSet:
    """Features from a `polars.DataFrame`; `modalities` as in `from_pandas`.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_polars(to_polars(features)).present.tolist()
    [[True, True], [True, False]]
    """
    return from_arrow(frame.to_arrow(), modalities, origin=ORIGIN)


def has_vectors(frame: Any) -> bool:
    """Whether a frame holds modalities by itself: cells that are vectors, numbered columns, or two levels of columns."""
    if getattr(frame.columns, "nlevels", 1) == 2 or any(NUMBERED.fullmatch(str(name)) for name in frame.columns):
        return True
    if hasattr(frame, "iloc"):
        return any(_first(frame[name]) is not None for name in frame.columns if frame[name].dtype == object)
    return any(type(dtype).__name__ in ("List", "Array") for dtype in frame.dtypes)


def _first(column: Any) -> Any:
    """The first cell of a column of objects that is a vector, if the first that is known is one."""
    known = column.dropna()
    return known.iloc[0] if len(known) and isinstance(known.iloc[0], (np.ndarray, list, tuple)) else None


def _one_level(frame: Any) -> Any:
    """Two levels of columns become numbered columns; (name, "") is a column of its own."""
    if frame.columns.nlevels == 1:
        return frame
    if frame.columns.nlevels > 2:
        raise InputError(f"{ORIGIN} has {frame.columns.nlevels} levels of columns; two name modality and entry")
    names, count = [], dict[str, int]()
    for modality, entry in frame.columns:
        if entry == "":
            names.append(str(modality))
            continue
        names.append(f"{modality}.{count.get(modality, 0)}")
        count[modality] = count.get(modality, 0) + 1
    flat = frame.copy()
    flat.columns = names
    return flat


def _column(name: str, values: Any) -> pa.Array:
    try:
        return pa.Array.from_pandas(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f'column "{name}" of {ORIGIN} mixes kinds of values ({error}); use one kind per column'
        ) from error
