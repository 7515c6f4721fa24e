"""`mudata.MuData`, the object of muon and of MOFA's users: one AnnData per modality, each with the observations it has.

An observation that a modality does not list is missing there, and so is a row that is NaN throughout. What is imputed
comes back in an object whose modalities all list every observation:

| where, in each modality | what |
|---|---|
| `X` | as it was; NaN in rows that were not listed (nothing in them, if it is sparse) |
| `layers["imputed"]` | `X` with missing rows imputed |
| `layers["imputed_std"]` | standard deviations of what was imputed, 0 where observed |
| `obs["observed"]` | whether the row was observed |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.row_table import check_ids
from calmrl.errors import InputError, need
from calmrl.interop.annotated import (
    IMPUTED,
    OBSERVED,
    STD,
    add_imputed,
    check_rows,
    mask_of,
    matrix,
    obs_frame,
    obs_table,
)


def from_mudata(mdata: Any, layers: Mapping[str, str] | None = None) -> FeatureSet:
    """Features from a `MuData`: a row per observation of any modality, in the order of `mdata.obs_names`.

    Parameters
    ----------
    mdata : mudata.MuData
    layers : mapping of str to str, optional
        Modality -> the layer that holds its values, where that is not `X`. Sparse matrices become dense.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_mudata(to_mudata(features)).present.tolist()
    [[True, True], [True, False]]
    """
    if mdata.axis != 0:
        raise InputError(
            f"the modalities of this MuData share variables (axis={mdata.axis}); they must share observations"
        )
    if unknown := [name for name in layers or {} if name not in mdata.mod]:
        raise InputError(f"no modality {unknown[0]!r} in the MuData object; it has {', '.join(mdata.mod)}")
    ids = [str(name) for name in mdata.obs_names]
    check_ids(ids)
    present = np.zeros((len(ids), len(mdata.mod)), dtype=bool)
    imputed, z, std = np.zeros_like(present), {}, {}
    for j, (name, adata) in enumerate(mdata.mod.items()):
        rows = _places(mdata, name, adata)
        values = matrix(adata, (layers or {}).get(name))
        seen = mask_of(adata.obs[OBSERVED], f'mod["{name}"].obs["{OBSERVED}"]') if OBSERVED in adata.obs else None
        seen = ~np.isnan(values).all(axis=1) if seen is None else seen
        present[rows, j] = seen
        if IMPUTED in adata.layers:
            imputed[rows, j] = add_imputed(values, seen, matrix(adata, IMPUTED))
            if STD in adata.layers:
                std[name] = _spread(matrix(adata, STD), rows, len(ids))
        values[~seen & ~imputed[rows, j]] = np.nan
        z[name] = _spread(values, rows, len(ids))
    return FeatureSet(
        z,
        present,
        lambda: obs_table(mdata.obs.drop(columns=[f"{name}:{OBSERVED}" for name in z], errors="ignore"), ids),
        imputed=imputed if any(IMPUTED in adata.layers for adata in mdata.mod.values()) else None,
        std=std or None,
        name="MuData",
        source="MuData",
    )


def to_mudata(features: FeatureSet, like: Any = None) -> Any:
    """A `MuData` whose modalities all list every row, with masks, and with layers where something was imputed.

    Parameters
    ----------
    features : FeatureSet
    like : mudata.MuData, optional
        The object that the features come from; `X`, variables, other layers and annotations are taken over from it.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_mudata(to_mudata(features)).present.tolist()
    [[True, True], [True, False]]
    """
    mudata = need("mudata", "interop", "A MuData object")
    if like is not None:
        check_rows(features, like)
    modalities = {}
    for j, name in enumerate(features.names):
        known = None if like is None else like.mod.get(name)
        modalities[name] = _new(features, j) if known is None else _stretched(known, like.obs_names)
        _add_layers(modalities[name], features, j)
    with mudata.set_options(pull_on_update=False):
        result = mudata.MuData(modalities)
    if like is None:
        result.obs = obs_frame(features)
    else:
        _take_over(like, result)
    return result


def _places(mdata: Any, name: str, adata: Any) -> np.ndarray:
    """The rows of all observations that a modality lists."""
    if not hasattr(adata, "layers"):
        raise InputError(f"modality {name!r} is a {type(adata).__name__}; every modality must be an AnnData object")
    rows = mdata.obs_names.get_indexer(adata.obs_names)
    if (rows < 0).any() or not adata.obs_names.is_unique:
        raise InputError(
            f"observations of modality {name!r} are not unique, or not all in mdata.obs; call mdata.update()"
        )
    return rows


def _spread(values: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
    block = np.full((n, values.shape[1]), np.nan, values.dtype)
    block[rows] = values
    return block


def _new(features: FeatureSet, j: int) -> Any:
    """An AnnData of observed values."""
    anndata = need("anndata", "interop", "A MuData object")
    pandas = need("pandas", "interop", "A MuData object")
    name = features.names[j]
    block = np.where(features.present[:, j, None], features.z[name], np.nan)
    return anndata.AnnData(
        block,
        obs=pandas.DataFrame(index=[str(row) for row in features.ids]),
        var=pandas.DataFrame(index=[f"{name}:{column}" for column in range(block.shape[1])]),
    )


def _add_layers(adata: Any, features: FeatureSet, j: int) -> None:
    name = features.names[j]
    adata.obs[OBSERVED] = np.asarray(features.present[:, j])
    if features.imputed is not None:
        adata.layers[IMPUTED] = np.asarray(features.z[name])
        if features.std is not None and name in features.std:
            adata.layers[STD] = np.asarray(features.std[name])


def _stretched(adata: Any, names: Any) -> Any:
    """A copy that lists all observations; new rows are NaN, or empty in sparse matrices."""
    if len(names) == adata.n_obs and list(names) == list(adata.obs_names):
        return adata.copy()
    anndata = need("anndata", "interop", "A MuData object")
    rows = names.get_indexer(adata.obs_names)
    adata = adata.to_memory() if adata.isbacked else adata
    n = len(names)
    place = sparse.csr_matrix((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=(n, len(rows)))
    return anndata.AnnData(
        None if adata.X is None else _more_rows(adata.X, rows, place),
        obs=adata.obs.reindex(names),
        var=adata.var.copy(),
        uns=adata.uns.copy(),
        obsm={key: _more_rows(value, rows, place, names) for key, value in adata.obsm.items()},
        varm=dict(adata.varm),
        layers={key: _more_rows(value, rows, place) for key, value in adata.layers.items()},
        obsp={key: place @ sparse.csr_matrix(value) @ place.T for key, value in adata.obsp.items()},
        varp=dict(adata.varp),
    )


def _more_rows(values: Any, rows: np.ndarray, place: Any, names: Any = None) -> Any:
    if hasattr(values, "reindex"):
        return values.reindex(names)
    if sparse.issparse(values):
        return (place @ values).tocsr().astype(values.dtype)
    dense = np.asarray(values)
    kept = dense if dense.dtype.kind == "f" else dense.astype(np.float64)
    stretched = np.full((place.shape[0], *kept.shape[1:]), np.nan, kept.dtype)
    stretched[rows] = kept
    return stretched


def _take_over(like: Any, result: Any) -> None:
    """What a MuData knows about all observations together, and about all variables if these are the same."""
    for column in like.obs.columns:
        if column not in result.obs.columns:
            result.obs[column] = like.obs[column].reindex(result.obs_names)
    result.uns = like.uns.copy()
    for key, value in like.obsm.items():
        if key not in like.mod:  # those of a modality's name say which observations it lists
            result.obsm[key] = value
    for key, value in like.obsp.items():
        if key not in like.mod:
            result.obsp[key] = value
    if list(like.var_names) == list(result.var_names):
        for column in like.var.columns:
            if column not in result.var.columns:
                result.var[column] = like.var[column].to_numpy()
        for key, value in like.varm.items():
            if key not in like.mod:
                result.varm[key] = value
