"""`anndata.AnnData`, one matrix whose columns belong to several modalities, and `mudata.MuData`, a matrix for each.

| where | what |
|---|---|
| `X` | observed values; NaN in the columns of a modality that a row lacks |
| `var["modality"]` | the modality of each column |
| `layers["imputed"]` | `X` with missing modalities and single missing values imputed |
| `layers["imputed_std"]` | standard deviations of what was imputed, 0 where observed |
| `obsm["observed"]` | which modalities each row really has, a column each |
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from calmrl._support.output import new_file
from calmrl._support.parsing import naming, parsing
from calmrl.data.features.directory import check_ids
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.tables import imputed_holes, plain_table
from calmrl.errors import InputError, need
from calmrl.interop.containers import arrow_column

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
    >>> from calmrl.datasets import load_dataset
    >>> from_anndata(to_anndata(load_dataset("stamps"))).present.shape
    (963, 4)
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
    ids = _ids(adata)
    about = lambda: obs_table(adata.obs, ids)  # noqa: E731
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
    >>> from calmrl.datasets import load_dataset
    >>> to_anndata(load_dataset("stamps")).shape
    (963, 3712)
    """
    anndata = need("anndata", "interop", "An AnnData object")
    pandas = need("pandas", "interop", "An AnnData object")
    if like is None:
        names = [name for name, block in features.z.items() for _ in range(block.shape[1])]
        variables = [f"{name}:{j}" for name, block in features.z.items() for j in range(block.shape[1])]
        result = anndata.AnnData(
            np.concatenate([_observed_block(features, j) for j in range(len(features.names))], axis=1),
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
    """Which missing rows a layer of imputed values has, (N,); puts them, and single values that are missing, into `values`."""
    imputed = ~present & np.isfinite(guess).all(axis=1)
    values[imputed] = guess[imputed]
    holes = present[:, None] & np.isnan(values)
    values[holes] = guess[holes]
    return np.asarray(imputed)


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
    columns = {str(name): arrow_column(obs[name], f'obs["{name}"]') for name in obs.columns if str(name) != "id"}
    return plain_table(pa.table({"id": ids, **columns}))


def _observed(adata: Any, z: dict[str, np.ndarray]) -> np.ndarray:
    if OBSERVED not in adata.obsm:
        return np.stack([~np.isnan(block).all(axis=1) for block in z.values()], axis=1)
    stored = adata.obsm[OBSERVED]
    if not hasattr(stored, "columns") or not set(z) <= set(map(str, stored.columns)):
        raise InputError(f'obsm["{OBSERVED}"] must be a frame with a column for each of {", ".join(z)}')
    return np.stack([mask_of(stored[name], f'obsm["{OBSERVED}"]["{name}"]') for name in z], axis=1)


def _ids(annotated: Any) -> list[str]:
    ids = [str(name) for name in annotated.obs_names]
    check_ids(ids)
    return ids


def _observed_block(features: FeatureSet, j: int) -> np.ndarray:
    """The values of a modality, NaN where they were not observed."""
    seen = np.asarray(features.present[:, j])[:, None] & ~imputed_holes(features, j)
    return np.where(seen, features.z[features.names[j]], np.nan)


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


def from_mudata(
    mdata: Any, layers: Mapping[str, str] | None = None, modalities: Sequence[str] | None = None
) -> FeatureSet:
    """Features from a `MuData`: a row per observation of any modality, in the order of `mdata.obs_names`.

    Parameters
    ----------
    mdata : mudata.MuData
    layers : mapping of str to str, optional
        Modality -> the layer that holds its values, where that is not `X`. Sparse matrices become dense.
    modalities : sequence of str, optional
        The modalities wanted, in that order; all by default.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> from_mudata(to_mudata(load_dataset("stamps"))).present.shape
    (963, 4)
    """
    if mdata.axis != 0:
        raise InputError(
            f"the modalities of this MuData share variables (axis={mdata.axis}); they must share observations"
        )
    if unknown := [name for name in (*(layers or {}), *(modalities or ())) if name not in mdata.mod]:
        raise InputError(f"no modality {unknown[0]!r} in the MuData object; it has {', '.join(mdata.mod)}")
    ids = _ids(mdata)
    names = list(mdata.mod if modalities is None else modalities)
    present = np.zeros((len(ids), len(names)), dtype=bool)
    imputed, z, std = np.zeros_like(present), {}, {}
    for j, name in enumerate(names):
        adata = mdata.mod[name]
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
        imputed=imputed if any(IMPUTED in mdata.mod[name].layers for name in names) else None,
        std=std or None,
        name="MuData",
        source="MuData",
    )


def from_h5mu(path: str | Path, modalities: Sequence[str] | None = None) -> FeatureSet:
    """Read a file of muon or MOFA into memory; as `from_mudata`, with the modalities wanted.

    Examples
    --------
    >>> import tempfile
    >>> from calmrl.datasets import load_dataset
    >>> path = tempfile.mkdtemp() + "/stamps.h5mu"
    >>> to_h5mu(load_dataset("stamps"), path)
    >>> from_h5mu(path, ["text"]).names
    ('text',)
    """
    mdata = read_h5mu(path)
    with naming(path):
        features = from_mudata(mdata, modalities=modalities)
    features.name, features.source = Path(path).stem, str(path)
    return features


def read_h5mu(path: str | Path) -> Any:
    """The `MuData` of a file."""
    mudata = need("mudata", "interop", "An h5mu file")
    with parsing(path, "an h5mu file", "if it is damaged, copy or write it again"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about its own next version
        return mudata.read_h5mu(path)


def to_h5mu(features: FeatureSet, path: str | Path, like: Any = None) -> None:
    """Write a new file of a `MuData`; `like` as in `to_mudata`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> to_h5mu(load_dataset("stamps"), "stamps.h5mu")  # doctest: +SKIP
    """
    mudata = need("mudata", "interop", "An h5mu file")
    content = to_mudata(features, like)
    with new_file(path, advice="") as draft, mudata.set_options(pull_on_update=False):
        content.write(draft)


def to_mudata(features: FeatureSet, like: Any = None) -> Any:
    """A `MuData` whose modalities all list every row, with masks, and with layers where something was imputed.

    Parameters
    ----------
    features : FeatureSet
    like : mudata.MuData, optional
        The object that the features come from; `X`, variables, other layers and annotations are taken over from it.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> to_mudata(load_dataset("stamps")).shape
    (963, 3712)
    """
    mudata = need("mudata", "interop", "A MuData object")
    if like is not None:
        check_rows(features, like)
    modalities = {name: _annotated(features, j, like) for j, name in enumerate(features.names)}
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


def _annotated(features: FeatureSet, j: int, like: Any = None) -> Any:
    """The AnnData of a modality: observed values and their mask, and layers where something was imputed."""
    name = features.names[j]
    known = None if like is None else like.mod.get(name)
    if known is None:
        block = _observed_block(features, j)
        pandas = need("pandas", "interop", "A MuData object")
        adata = need("anndata", "interop", "A MuData object").AnnData(
            block,
            obs=pandas.DataFrame(index=[str(row) for row in features.ids]),
            var=pandas.DataFrame(index=[f"{name}:{column}" for column in range(block.shape[1])]),
        )
    else:
        adata = _stretched(known, like.obs_names)
    adata.obs[OBSERVED] = np.asarray(features.present[:, j])
    if features.imputed is not None:
        adata.layers[IMPUTED] = np.asarray(features.z[name])
        if features.std is not None and name in features.std:
            adata.layers[STD] = np.asarray(features.std[name])
    return adata


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
    same_variables = list(like.var_names) == list(result.var_names)
    for column in like.obs.columns.difference(result.obs.columns, sort=False):
        result.obs[column] = like.obs[column].reindex(result.obs_names)
    for column in like.var.columns.difference(result.var.columns, sort=False) if same_variables else ():
        result.var[column] = like.var[column].to_numpy()
    result.uns = like.uns.copy()
    for name in ("obsm", "obsp", *(["varm"] if same_variables else [])):
        kept = {
            key: value for key, value in getattr(like, name).items() if key not in like.mod
        }  # others are MuData's own
        getattr(result, name).update(kept)
