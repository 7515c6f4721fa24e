"""`anndata.AnnData`: one matrix whose columns belong to several modalities.

| where | what |
|---|---|
| `X` | observed values; NaN in the columns of a modality that a row lacks |
| `var["modality"]` | the modality of each column |
| `layers["imputed"]` | `X` with missing modalities imputed |
| `layers["imputed_std"]` | standard deviations of what was imputed, 0 where observed |
| `obsm["observed"]` | which modalities each row really has, a column each |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from calmrl.data.features.arrow_table import plain_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.row_table import check_ids
from calmrl.errors import InputError, need

MODALITY = ("modality", "feature_types")  # columns of var that say it, ours and that of 10x Genomics
IMPUTED, STD, OBSERVED = "imputed", "imputed_std", "observed"


def from_anndata(adata: Any, by: str | None = None, layer: str | None = None) -> FeatureSet:
    """Features from an `AnnData`; sparse matrices become dense.

    Parameters
    ----------
    adata : anndata.AnnData
    by : str, optional
        The column of `adata.var` that names the modality of each variable; by default "modality" or "feature_types".
    layer : str, optional
        Take the values from this layer instead of `X`.

    Returns
    -------
    FeatureSet
        A modality is missing where `obsm["observed"]` says so, or where its values are NaN throughout.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_anndata(to_anndata(features)).present.tolist()
    [[True, True], [True, False]]
    """
    columns = columns_by_modality(adata, by)
    values = matrix(adata, layer)
    z = {name: values[:, at] for name, at in columns.items()}
    present = _observed(adata, z)
    imputed, std = None, {}
    if IMPUTED in adata.layers:
        guess = matrix(adata, IMPUTED)
        deviation = matrix(adata, STD) if STD in adata.layers else None
        imputed = np.zeros_like(present)
        for j, (name, at) in enumerate(columns.items()):
            imputed[:, j] = add_imputed(z[name], present[:, j], guess[:, at])
            if deviation is not None:
                std[name] = deviation[:, at]
    about = _about(adata)
    return FeatureSet(z, present, about, imputed=imputed, std=std or None, name="AnnData", source="AnnData")


def to_anndata(features: FeatureSet, like: Any = None) -> Any:
    """An `AnnData` of features; `X` holds observed values only.

    Parameters
    ----------
    features : FeatureSet
    like : anndata.AnnData, optional
        The object that the features come from: everything in it is kept as it is, and layers and masks are added.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_anndata(to_anndata(features)).present.tolist()
    [[True, True], [True, False]]
    """
    anndata = need("anndata", "interop", "An AnnData object")
    if like is None:
        pandas = need("pandas", "interop", "An AnnData object")
        names = [name for name, block in features.z.items() for _ in range(block.shape[1])]
        variables = [f"{name}:{j}" for name, block in features.z.items() for j in range(block.shape[1])]
        observed = {
            name: np.where(features.present[:, j, None], block, np.nan) for j, (name, block) in _blocks(features)
        }
        result = anndata.AnnData(
            np.concatenate(list(observed.values()), axis=1),
            obs=obs_frame(features),
            var=pandas.DataFrame({MODALITY[0]: names}, index=variables),
        )
    else:
        result = like.copy()
        check_rows(features, like)
    columns = columns_by_modality(result, None)
    if unknown := [name for name in features.names if name not in columns]:
        raise InputError(f"the AnnData object has no columns for {', '.join(unknown)}; write a new one without like=")
    if features.imputed is not None:
        result.layers[IMPUTED] = _side_by_side(result, features.z, columns)
        if features.std is not None:
            result.layers[STD] = _side_by_side(result, features.std, columns)
    pandas = need("pandas", "interop", "An AnnData object")
    result.obsm[OBSERVED] = pandas.DataFrame(
        np.asarray(features.present), index=result.obs_names, columns=list(features.names)
    )
    return result


def columns_by_modality(adata: Any, by: str | None) -> dict[str, np.ndarray]:
    """{modality: numbers of its columns}, in the order of their first column."""
    by = by or next((column for column in MODALITY if column in adata.var.columns), None)
    if by is None or by not in adata.var.columns:
        raise InputError(
            f"adata.var has no column {by or ' or '.join(map(repr, MODALITY))} that says which modality a variable belongs "
            f"to; it has {', '.join(map(str, adata.var.columns)) or 'none'}. Add it, or use a MuData object"
        )
    modality = [str(value) for value in adata.var[by]]
    return {name: np.flatnonzero([value == name for value in modality]) for name in dict.fromkeys(modality)}


def matrix(adata: Any, layer: str | None = None) -> np.ndarray:
    """`X` or a layer as a new dense array of floats."""
    if layer is not None and layer not in adata.layers:
        raise InputError(f"there is no layer {layer!r}; there are {', '.join(adata.layers) or 'none'}")
    if adata.isbacked:
        adata = adata.to_memory()
    values = adata.X if layer is None else adata.layers[layer]
    if values is None:
        raise InputError(f"X is empty; name a layer instead, of {', '.join(adata.layers) or 'none'}")
    dense = np.array(values.toarray() if hasattr(values, "toarray") else values)
    if dense.dtype.kind in "biu":
        return dense.astype(np.float64)
    if dense.dtype.kind != "f":
        raise InputError(f"{layer or 'X'} holds {dense.dtype}; representations must be numbers")
    return dense


def add_imputed(values: np.ndarray, present: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Which missing rows a layer of imputed values has, (N,); puts them into `values`."""
    imputed = ~present & np.isfinite(guess).all(axis=1)
    values[imputed] = guess[imputed]
    return imputed


def mask_of(values: Any, label: str) -> np.ndarray:
    """A stored mask as bools."""
    mask = np.asarray(values)
    if mask.dtype != bool:
        raise InputError(
            f"{label} must be boolean, for it says what was observed; got {mask.dtype}. Rename or convert it"
        )
    return mask


def obs_frame(features: FeatureSet) -> Any:
    """What is known about each row, by id; lists become texts with commas, for h5ad files hold none."""
    pandas = need("pandas", "interop", "An AnnData object")
    columns = {
        name: [", ".join(map(str, value)) if isinstance(value, list) else value for value in features.column(name)]
        for name in features.meta.column_names
        if name != "id"
    }
    return pandas.DataFrame(columns, index=[str(name) for name in features.ids])


def check_rows(features: FeatureSet, like: Any) -> None:
    """Features have the rows of the object that they are written into."""
    if len(features) != like.n_obs or list(features.ids) != [str(name) for name in like.obs_names]:
        raise InputError(f"the features have {len(features)} rows with other ids than the {like.n_obs} of the object")


def obs_table(obs: Any, ids: list[str]) -> pa.Table:
    """A frame of observations as a table of rows."""
    columns: dict[str, Any] = {"id": ids}
    for name in obs.columns:
        if str(name) == "id":
            continue
        try:
            columns[str(name)] = pa.Array.from_pandas(obs[name])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f'obs["{name}"] mixes kinds of values ({error}); use one kind per column') from error
    return plain_table(pa.table(columns))


def _observed(adata: Any, z: dict[str, np.ndarray]) -> np.ndarray:
    if OBSERVED not in adata.obsm:
        return np.stack([~np.isnan(block).all(axis=1) for block in z.values()], axis=1)
    stored = adata.obsm[OBSERVED]
    if not hasattr(stored, "columns") or not set(z) <= set(map(str, stored.columns)):
        raise InputError(f'obsm["{OBSERVED}"] must be a frame with a column for each of {", ".join(z)}')
    return np.stack([mask_of(stored[name], f'obsm["{OBSERVED}"]["{name}"]') for name in z], axis=1)


def _about(adata: Any) -> Any:
    ids = [str(name) for name in adata.obs_names]
    check_ids(ids)
    return lambda: obs_table(adata.obs, ids)


def _blocks(features: FeatureSet) -> Any:
    return enumerate(features.z.items())


def _side_by_side(adata: Any, blocks: dict[str, np.ndarray], columns: dict[str, np.ndarray]) -> np.ndarray:
    """Blocks in the columns of the object; NaN in columns of other modalities."""
    dtype = np.result_type(*(block.dtype for block in blocks.values()))
    whole = np.full(adata.shape, np.nan, dtype)
    for name, block in blocks.items():
        if block.shape[1] != len(columns[name]):
            raise InputError(
                f"{name} has width {block.shape[1]} but the object has {len(columns[name])} columns for it"
            )
        whole[:, columns[name]] = block
    return whole
