"""Impute features on disk: check the rows, fit an imputer, and write every block, by whatever engine.

All of it happens in `<out>.part`, which a stopped run leaves behind and the same command resumes: the fitted imputer,
the iterations of EM of a fit that an engine makes, and the blocks that are written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.engine import Engine, LocalEngine, opened
from calmrl._support.filesystem import put_in_place, read_steadily
from calmrl._support.output import check_free, check_free_file, part_folder
from calmrl._support.tensor_files import load_state, save_state
from calmrl.arrays import blocks_of_rows, check
from calmrl.config import ImputeConfig, dump
from calmrl.data.features.directory import HEADER, described, read_header
from calmrl.data.features.distributed_rows import DistributedDirectory, StoredRows, stored_rows
from calmrl.data.features.feature_set import FeatureSet, checked_table, open_features, read_table
from calmrl.data.features.formats import copy_features
from calmrl.data.features.writer import FeatureFiles, FeatureWriter
from calmrl.errors import InputError
from calmrl.imputers.kinds import MixedImputer
from calmrl.imputers.registry import make_imputer
from calmrl.interop.annotated import read_h5mu, to_h5mu
from calmrl.latent.held_out import coverage_fault
from calmrl.protocols import Progress, StatefulImputer
from calmrl.sources import dataset_or_path

IMPUTE_BYTES = 1 << 25  # rows are imputed in blocks of about this size
USELESS = 0.98  # normalised error from which imputed values count as no better than the column means
FEW_BLOCKS = 10  # held-out blocks of a modality, below which they check little
H5MU = ".h5mu"
WORTH = ("em-*", "imputer")  # files of a stopped run that are worth keeping: what need not be fitted again


@dataclass(frozen=True)
class Imputation:
    """What `impute` wrote at `path`: of the `blocks` (rows x modalities), `imputed` were missing.

    `holes` counts, per modality, single values that were missing inside observed blocks and were imputed too.
    `damaged` counts, per modality, observed blocks that hold values that are not finite and were imputed with the others.
    `choice` is what an imputer that chooses has chosen: held-out errors, weights per modality, scales of deviations.
    """

    path: Path
    rows: int
    blocks: int
    imputed: int
    choice: dict[str, Any] | None = None
    damaged: dict[str, int] = field(default_factory=dict)
    holes: dict[str, int] = field(default_factory=dict)


def impute(
    features: FeatureSet | str | Path,
    out: str | Path,
    config: ImputeConfig | None = None,
    *,
    engine: str | Engine = "local",
    address: str | None = None,
    allow_missing: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Imputation:
    """Impute the missing modalities of features, and single missing values, and write a new feature directory.

    A single value is missing if it is NaN (or null in a table) in a row that has other values of its modality. A block with
    such values counts as observed in the output; where deviations are written, those above 0 tell what was imputed in it.

    Parameters
    ----------
    features : FeatureSet, str or Path
        Features, where they are, or the name of a bundled data set.
    out : str or Path
        The directory to write; it is written atomically. A name that ends in .h5mu becomes a file of muon and MOFA instead,
        with layers "imputed" and "imputed_std"; where the features are such a file, everything in it is kept.
    config : ImputeConfig, optional
        Imputer, seed, and whether to write standard deviations; by default what imputes held-out blocks best.
    engine : {"local", "ray"} or Engine
        Where the work is done: in this process, or on a Ray cluster that shares files with it. The result is the same.
    address : str, optional
        Of the Ray cluster; by default the one of this machine, or one that is started on its cores.
    allow_missing : bool
        Count observed blocks with values that are not finite as missing, and impute them too. Otherwise they are an
        error.
    force : bool
        Replace an earlier output of calmrl.
    progress : callable, optional
        Called with (rows done, rows in all, "imputing") after every block.

    Examples
    --------
    >>> impute("features", "imputed")  # doctest: +SKIP
    """
    config = ImputeConfig(kind="impute") if config is None else config
    out = Path(out)
    free = check_free_file if out.suffix == H5MU else check_free
    free(out, force=force)
    features = dataset_or_path(features)
    config = config.model_copy(update={"std": True}) if out.suffix == H5MU else config
    settings = config.model_dump(mode="json")
    arguments = {"features": _identity(features), "config": settings, "allow_missing": allow_missing}
    place = Path(os.path.realpath(out))
    with opened(engine, address) as workers, part_folder(place, WORTH, arguments, named=out) as part:
        given = _given(features, part, workers)
        store, damaged, holes = _checked(given.store, part, workers, allow_missing)
        info = {"made_by": "calmrl impute", "config": settings, "features": given.info}
        info |= {"damaged": damaged} if sum(damaged.values()) else {}
        info |= {"holes": holes} if holes else {}
        imputer = _write(replace(given, store=store, info=info), part / "new", config, workers, progress)
        dump(config, part / "new" / "config.yaml", force=True)
        free(out, force=force)
        missing = store.rows * len(store.names) - int(np.count_nonzero(store.mask()))
        if out.suffix == H5MU:
            _write_h5mu(part, features)
            os.replace(part / "new.h5mu", place)
        else:
            put_in_place(part / "new", place)
    choice = getattr(getattr(imputer, "imputer_", imputer), "choice_", None)
    blocks = store.rows * len(store.names)
    return Imputation(out, store.rows, blocks, missing, choice, damaged if allow_missing else {}, holes)


@dataclass(frozen=True)
class _Given:
    """Features to impute: where the rows are, the table that describes them, and how they were made."""

    store: StoredRows
    table: pa.Table
    info: dict[str, Any]


def _identity(features: FeatureSet | str | Path) -> list[Any]:
    """What tells the features of one run from those of another."""
    if isinstance(features, FeatureSet) and features.path is None:
        digest = hashlib.sha256()
        for array in (*features.z.values(), features.present):
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return [list(features.z), len(features), digest.hexdigest()]
    path = features.path if isinstance(features, FeatureSet) else Path(features)
    assert path is not None
    if not path.exists():
        open_features(path)  # raises what there is to say
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    names = list(features.z) if isinstance(features, FeatureSet) else None
    return [str(path.absolute()), names, *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files)]


def _given(features: FeatureSet | str | Path, part: Path, engine: Engine) -> _Given:
    """The features as the engine can read them: workers open a directory, so that others are first written as one."""
    here = isinstance(engine, LocalEngine)
    if not isinstance(features, FeatureSet):
        path = Path(features)
        if path.is_dir():
            return read_steadily(path, lambda: _from_directory(path))
        features = open_features(path, holes=True) if here else path
    if isinstance(features, FeatureSet) and here:
        mask = part / "observed.npy"
        np.save(mask, features.present)
        widths = tuple(array.shape[1] for array in features.z.values())
        where = features.source or features.name or "features"
        store = StoredRows(where, features.names, widths, len(features), str(mask.absolute()), features.z)
        return _Given(store, features.meta, features.info)
    if isinstance(features, FeatureSet) and features.path is not None:
        stored = _from_directory(features.path)
        if stored.store.names == features.names:  # not some of its modalities
            return stored
    copy_features(features, part / "rows")
    return _from_directory(part / "rows")


def _from_directory(folder: Path) -> _Given:
    store = stored_rows(folder, folder / "present.npy")
    header = read_header(folder) if (folder / HEADER).exists() else None
    file = folder / "meta.parquet"
    table = read_table(file) if header is not None or file.exists() else None
    return _Given(store, checked_table(table, store.rows, folder), {} if header is None else header["info"])


def _checked(
    store: StoredRows, part: Path, engine: Engine, allow_missing: bool
) -> tuple[StoredRows, dict[str, int], dict[str, int]]:
    """(the rows with the mask of what is used of them, damaged value blocks per modality, holes per modality with any)."""
    file, shape = part / "present.npy", (store.rows, len(store.names))
    mask = np.lib.format.open_memmap(file, "w+", bool, shape) if store.rows else np.zeros(shape, bool)
    damaged, holes = np.zeros(len(store.names), dtype=np.int64), np.zeros(len(store.names), dtype=np.int64)
    blocks = store.blocks()
    for (start, stop), (present, bad, gaps) in zip(
        blocks, engine.map(check_block, blocks, store, allow_missing), strict=True
    ):
        mask[start:stop] = present
        damaged += bad
        holes += gaps
    del mask  # it is on disk
    counts = {name: int(n) for name, n in zip(store.names, damaged, strict=True)}
    torn = {name: int(n) for name, n in zip(store.names, holes, strict=True) if n}
    return replace(store, mask_file=str(file.absolute()), holes=frozenset(torn)), counts, torn


def check_block(
    block: tuple[int, int], store: StoredRows, allow_missing: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(what is used of some rows, damaged value blocks and holes per modality); a damaged one is an error unless allowed."""
    start, stop = block
    z = {name: array[start:stop] for name, array in store.arrays().items()}
    given = np.array(store.mask()[start:stop]) if Path(store.mask_file).exists() else None
    if given is None:
        given = np.stack([~np.isnan(array).all(axis=1) for array in z.values()], axis=1)
    present = given.copy()
    try:
        if allow_missing:
            for m, array in enumerate(z.values()):
                gap = np.isnan(array)
                present[:, m] &= (np.isfinite(array) | gap).all(axis=1) & ~gap.all(axis=1)
        torn = check(z, present, holes=True).holes
        holes = [int(np.isnan(z[n][present[:, m]]).sum()) if n in torn else 0 for m, n in enumerate(store.names)]
    except InputError as error:
        raise InputError(f"{store.path}, rows {start} to {stop - 1}, counted from {start}: {error}") from error
    finally:
        store.release()
    return present, given.sum(axis=0) - present.sum(axis=0), np.array(holes)


def _write(given: _Given, out: Path, config: ImputeConfig, engine: Engine, progress: Progress | None) -> Any:
    """Write the imputed features to the directory `out`, and return the fitted imputer."""
    store = given.store
    if out.exists():  # an earlier run was stopped just before the end
        return _fitted(store, config, out.parent, engine)
    dtype = np.result_type(*(array.dtype for array in store.arrays().values()))
    widths = dict(zip(store.names, store.widths, strict=True))
    ids = given.table["id"].to_pylist()
    about = {"dtype": dtype.name, "std": config.std, "info": given.info, **described(given.table)}
    with FeatureWriter(out, widths, ids, **about) as writer:
        imputer = _fitted(store, config, out.parent, engine)
        left = set(writer.todo(store.names[0]).tolist())
        blocks = list(blocks_of_rows(store.rows, sum(widths.values()) * dtype.itemsize, IMPUTE_BYTES))
        blocks = [block for block in blocks if block[0] in left]
        for (start, stop), _ in zip(
            blocks, engine.map(impute_block, blocks, store, imputer, writer.files), strict=True
        ):
            present = np.array(store.mask()[start:stop])
            writer.mark(np.arange(start, stop), store.names, present, np.ones_like(present))
            if progress is not None:
                progress(stop, store.rows, "imputing")
        writer.complete(engine)
    return imputer


def _write_h5mu(part: Path, features: FeatureSet | str | Path) -> None:
    """The imputed features as `new.h5mu`, with what else is in the file that they come from."""
    path = features.path if isinstance(features, FeatureSet) else Path(features)
    like = read_h5mu(path) if path is not None and path.suffix == H5MU else None
    (part / "new.h5mu").unlink(missing_ok=True)  # of a run that was stopped here
    to_h5mu(open_features(part / "new"), part / "new.h5mu", like)


def _fitted(store: StoredRows, config: ImputeConfig, part: Path, engine: Engine) -> Any:
    """The imputer, fitted; or as an earlier run of the same command fitted it.

    In this process it is fitted on the arrays themselves, as its `fit` is by anyone.
    """
    imputer: Any = make_imputer(seed=config.seed, **config.imputer.model_dump())
    here = isinstance(engine, LocalEngine)
    if config.kinds:
        if not here:
            raise InputError("kinds need all rows in one process; leave out --engine")
        options = {name: value for name, value in config.imputer.model_dump().items() if name != "method"}
        imputer = MixedImputer(config.kinds, config.imputer.method, options, config.seed)
    saved = part / "imputer"
    if saved.exists():
        return imputer.set_state(load_state(saved))
    imputer.fit(store.arrays() if here else DistributedDirectory(store, engine, keep=part), store.mask())
    if isinstance(imputer, StatefulImputer):
        save_state(imputer.get_state(), saved, overwrite=False)
    return imputer


def impute_block(block: tuple[int, int], store: StoredRows, imputer: Any, files: FeatureFiles) -> None:
    """Impute some rows and write them."""
    start, stop = block
    z = {name: np.asarray(array[start:stop]) for name, array in store.arrays().items()}
    present = np.array(store.mask()[start:stop])
    imputed: Any = imputer.impute(z, present, return_std=files.std)
    values: Mapping[str, Any]
    values, deviation = imputed if files.std else (imputed, None)
    files.write(np.arange(start, stop), {name: values[name] for name in store.names}, np.ones_like(present), deviation)
    store.release()


def imputation_warnings(choice: Mapping[str, Any]) -> list[str]:
    """What to know before imputed values are used, from the `choice_` of an imputer that chooses, as sentences.

    Examples
    --------
    >>> checked = {"held_out_by_modality": {"text": 90}, "coverage_by_modality": {"text": 84.0}}
    >>> imputation_warnings({"error_by_modality": {"text": 0.7}, **checked})
    ['95 % intervals of text hold 84 % of the held-out values: they are too narrow']
    """
    sentences = []
    errors = choice["error_by_modality"].items()
    useless = [f"{name} ({error:.3f})" for name, error in errors if error is not None and error >= USELESS]
    if useless:
        sentences.append(
            f"what is observed does not predict {', '.join(useless)}: imputed values are about the column means, and carry "
            "no information about the single item"
        )
    for name, covered in choice["coverage_by_modality"].items():
        fault = None if covered is None else coverage_fault(covered)
        if fault:
            sentences.append(f"95 % intervals of {name} hold {covered:.0f} % of the held-out values: they are {fault}")
    few = [f"{name} ({n})" for name, n in choice["held_out_by_modality"].items() if n < FEW_BLOCKS]
    if few:
        sentences.append(
            f"few blocks could be held out of {', '.join(few)}: error and intervals are hardly checked there"
        )
    return sentences
