"""Objects that hold features: what estimators accept beside a dict of arrays, and return in kind.

| object | a modality is |
|---|---|
| `FeatureSet` | an entry of `z` |
| `mudata.MuData` | one of its AnnData objects |
| `anndata.AnnData` | the columns with one value of `var["modality"]` or `var["feature_types"]` |
| `pandas.DataFrame`, `polars.DataFrame`, `datasets.Dataset`, `pyarrow.Table` | a column of vectors, or numbered columns |

None of these libraries is imported to look at an object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from calmrl import interop  # its parts are loaded when they are used
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.tables import from_arrow, to_arrow
from calmrl.errors import InputError
from calmrl.protocols import Imputer


class Container(NamedTuple):
    """How an object becomes features, and features an object like it."""

    read: Callable[[Any, bool], FeatureSet]  # the object, and whether rows may lack single entries
    write: Callable[[FeatureSet, Any], Any]  # features, and the object that they come from


CONTAINERS = {
    "calmrl.FeatureSet": Container(lambda features, _: features, lambda features, _: features),
    "mudata.MuData": Container(
        lambda value, _: interop.from_mudata(value), lambda features, given: interop.to_mudata(features, given)
    ),
    "anndata.AnnData": Container(
        lambda value, _: interop.from_anndata(value), lambda features, given: interop.to_anndata(features, given)
    ),
    "pandas.DataFrame": Container(
        lambda value, holes: interop.from_pandas(value, holes=holes),
        lambda features, given: interop.to_pandas(features, _is_wide(given)),
    ),
    "polars.DataFrame": Container(
        lambda value, holes: interop.from_polars(value, holes=holes),
        lambda features, given: interop.to_polars(features, _is_wide(given)),
    ),
    "datasets.Dataset": Container(
        lambda value, holes: interop.from_dataset(value, holes=holes), lambda features, _: interop.to_dataset(features)
    ),
    "pyarrow.Table": Container(
        lambda value, holes: from_arrow(value, holes=holes),
        lambda features, given: to_arrow(features, _is_wide(given)),
    ),
}


def is_container(value: Any) -> bool:
    """Whether `value` is an object that holds features; a frame of plain numbers is not, for it is one matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from calmrl.interop import to_pandas
    >>> is_container(to_pandas(features)), is_container({"image": np.ones((2, 3))})
    (True, False)
    """
    name = _name_of(value)
    return name is not None and (not name.endswith(".DataFrame") or _has_vectors(value))


def from_object(value: Any, holes: bool = False) -> FeatureSet:
    """Features from any object of CONTAINERS; with `holes` rows of a table may lack single entries.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from calmrl.interop import to_pandas
    >>> from_object(to_pandas(features)).names
    ('image', 'text')
    """
    name = _name_of(value)
    if name is None:
        raise InputError(f"features cannot be read from {type(value).__name__}; they can from {', '.join(CONTAINERS)}")
    return CONTAINERS[name].read(value, holes)


def to_object(features: FeatureSet, like: Any) -> Any:
    """Features as an object of the kind of `like`, which they come from.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from calmrl.interop import to_pandas
    >>> type(to_object(features, like=to_pandas(features))).__name__
    'DataFrame'
    """
    name = _name_of(like)
    if name is None:
        raise InputError(f"features cannot be written as {type(like).__name__}; they can as {', '.join(CONTAINERS)}")
    return CONTAINERS[name].write(features, like)


def impute_object(imputer: Imputer, value: Any) -> Any:
    """The object with its missing modalities imputed by a fitted imputer; a new one of the same kind.

    What was observed stays where it was. Imputed values, their standard deviations and masks stand beside it: layers in
    MuData and AnnData, columns `<modality>.imputed` and `<modality>.std` in tables, `imputed` and `std` in a FeatureSet. A row
    that lacked single entries keeps NaN there, and is whole among the imputed values.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from calmrl.imputers import MeanImputer
    >>> from calmrl.interop import to_pandas
    >>> frame = to_pandas(features)
    >>> impute_object(MeanImputer().fit(frame), frame)["text.imputed"].tolist()[1].tolist()
    [1.0, 2.0]
    """
    features = from_object(value, holes=True)
    present = np.asarray(features.present)
    z, std = imputer.impute(features.z, present, return_std=True)
    columns = [features.names.index(name) if name in features.names else None for name in z]
    nowhere = np.zeros(len(features), dtype=bool)
    seen = np.stack([nowhere if j is None else present[:, j] for j in columns], axis=1)
    done = FeatureSet(
        z, seen, features.meta, imputed=~seen, std=std, name=features.name, source=features.source, info=features.info
    )
    return to_object(done, value)


def _name_of(value: Any) -> str | None:
    """`package.Class` of an object, if it is one of CONTAINERS or inherits from one."""
    names = (f"{kind.__module__.split('.')[0]}.{kind.__qualname__}" for kind in type(value).__mro__)
    return next((name for name in names if name in CONTAINERS), None)


def _has_vectors(frame: Any) -> bool:
    from calmrl.interop.tables import has_vectors

    return has_vectors(frame)


def _is_wide(table: Any) -> bool:
    """Whether modalities are columns of numbers in a table, rather than columns of lists."""
    names = table.column_names if hasattr(table, "column_names") else table.columns
    if getattr(names, "nlevels", 1) == 2:
        return True
    return any(isinstance(name, str) and name.rpartition(".")[2].isdigit() and "." in name for name in names)
