"""What imputing features on disk gives back, however it is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, opened
from calmrl._support.filesystem import put_in_place
from calmrl._support.output import check_free, new_directory, part_folder
from calmrl._support.tensor_files import load_state, save_state
from calmrl.arrays import blocks_of_rows, check
from calmrl.config import ImputeConfig, dump
from calmrl.data.features.directory import HEADER, described, meta_table, open_npy, read_header
from calmrl.data.features.distributed_rows import DistributedDirectory, StoredRows, stored_rows
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.formats import copy_parquet
from calmrl.data.features.writer import DraftFiles, FeatureWriter, write_features
from calmrl.errors import InputError
from calmrl.imputers.base import coverage_fault
from calmrl.imputers.registry import make_imputer
from calmrl.protocols import FittableImputer, Progress

IMPUTE_BYTES = 1 << 25  # rows are imputed in blocks of about this size


@dataclass(frozen=True)
class Imputation:
    """What `impute` wrote at `path`: of the `blocks` (rows x modalities), `imputed` were missing.

    `damaged` counts, per modality, observed blocks that hold values that are not finite and were imputed with the others.
    `choice` is what an imputer that chooses has chosen: held-out errors, weights per modality, scales of deviations.
    """

    path: Path
    rows: int
    blocks: int
    imputed: int
    choice: dict[str, Any] | None = None
    damaged: dict[str, int] = field(default_factory=dict)


USELESS = 0.98  # normalised error from which imputed values count as no better than the column means
FEW_BLOCKS = 10  # held-out blocks of a modality, below which they check little


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
    """Impute the missing modalities of features and write a new feature directory.

    Parameters
    ----------
    features : FeatureSet, str or Path
        Features, or where they are.
    out : str or Path
        The directory to write; it appears whole or not at all.
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
    if engine != "local" or address is not None or allow_missing:
        with opened(engine, address) as started:
            return impute_distributed(
                features, out, config, started, allow_missing=allow_missing, force=force, progress=progress
            )
    check_free(out, force=force)
    source = features if isinstance(features, FeatureSet) else open_features(features)
    settings = config.model_dump(mode="json")
    with new_directory(out, force=force) as draft:
        imputer = make_imputer(seed=config.seed, **config.imputer.model_dump())
        info = {"made_by": "calmrl impute", "config": settings, "features": source.info}
        write_imputed(source, imputer, draft, std=config.std, info=info, progress=progress)
        dump(config, draft / "config.yaml")
    choice = getattr(imputer, "choice_", None)
    return Imputation(out, len(source), source.present.size, int((~source.present).sum()), choice)


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


def write_imputed(
    features: FeatureSet,
    imputer: FittableImputer,
    out: str | Path,
    *,
    std: bool = False,
    info: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> FeatureSet:
    """Fit `imputer` on `features` and write the imputed features to the new directory `out`.

    `std=True` also writes `<modality>.std.npy`, the standard deviation of every imputed value (0 where observed).
    """
    check(features.z, features.present)
    imputer.fit(features.z, features.present)
    widths = {name: array.shape[1] for name, array in features.z.items()}
    dtype = np.result_type(*(array.dtype for array in features.z.values()))
    about = described(features.meta)
    with FeatureWriter(out, widths, features.ids, dtype=dtype.name, std=std, info=info, **about) as writer:
        for start, stop in blocks_of_rows(len(features), sum(widths.values()) * dtype.itemsize, IMPUTE_BYTES):
            z = {name: np.asarray(array[start:stop]) for name, array in features.z.items()}
            present = np.asarray(features.present[start:stop])
            imputed = imputer.impute(z, present, return_std=std)
            values, deviation = imputed if std else (imputed, None)
            writer.fill(slice(start, stop), values, present, imputed=~present, std=deviation)
            if progress is not None:
                progress(stop, len(features), "imputing")
        return writer.finish()


DONE = "blocks.done"
WORTH = ("em-*", "imputer", DONE)  # what a run that is started again need not do again


def impute_distributed(
    features: FeatureSet | str | Path,
    out: Path,
    config: ImputeConfig,
    engine: Engine,
    *,
    allow_missing: bool,
    force: bool,
    progress: Progress | None,
) -> Imputation:
    """As `calmrl.workflows.impute`, with an engine."""
    check_free(out, force=force)
    where = features.path or features.source if isinstance(features, FeatureSet) else features
    settings = config.model_dump(mode="json")
    arguments = {"features": _identity(Path(where)), "config": settings, "allow_missing": allow_missing}
    place = Path(os.path.realpath(out))
    with part_folder(place, WORTH, arguments) as part:
        folder = _directory(features, part)
        draft, store = _begin(folder, part, config.std)
        damaged, missing = _check_all(store, draft, engine, allow_missing)
        rows = DistributedDirectory(
            replace(store, mask_file=str(Path(draft.folder) / "present.npy")), engine, keep=part
        )
        imputer = _fitted(rows, config, part)
        _impute_all(rows.store, imputer, draft, engine, part / DONE, progress)
        header = read_header(folder) if (folder / HEADER).exists() else {"info": {}}
        info = {"made_by": "calmrl impute", "config": settings, "features": header["info"]}
        draft.finish(info | ({"damaged": damaged} if sum(damaged.values()) else {}), engine, missing > 0)
        dump(config, Path(draft.folder) / "config.yaml")
        check_free(out, force=force)
        put_in_place(Path(draft.folder), place)
    choice = getattr(imputer, "choice_", None)
    return Imputation(out, store.rows, store.rows * len(store.names), missing, choice, damaged)


def _identity(path: Path) -> list[Any]:
    """What tells the features of one run from those of another."""
    if not path.exists():
        raise InputError(f"no features at {path}")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    return [str(path.absolute()), *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files)]


def _directory(features: FeatureSet | str | Path, part: Path) -> Path:
    """The feature directory that workers open; other formats are written as one first."""
    given = features.path if isinstance(features, FeatureSet) else Path(features)
    if given is not None and given.is_dir():
        return given
    copy = part / "rows"
    if copy.exists():
        return copy
    if not isinstance(features, FeatureSet) and Path(features).suffix == ".parquet":
        copy_parquet(Path(features), copy)
    else:
        opened = features if isinstance(features, FeatureSet) else open_features(features)
        write_features(copy, opened.z, opened.present, ids=opened.ids, info=opened.info, **described(opened.meta))
    return copy


def _begin(folder: Path, part: Path, std: bool) -> tuple[DraftFiles, StoredRows]:
    """(the files to write, the rows to read); files that do not fit together are an error before any work."""
    store = stored_rows(folder, folder / "present.npy")
    dtype = np.result_type(*(array.dtype for array in store.arrays().values()))
    new = part / "new"
    draft = DraftFiles(
        str(new.absolute()), dict(zip(store.names, store.widths, strict=True)), store.rows, dtype.name, std
    )
    if not new.exists():
        fresh = part / "begun"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        table = folder / "meta.parquet"
        if not table.exists():
            import pyarrow.parquet as pq

            table = part / "meta.parquet"
            pq.write_table(meta_table(store.rows), table)
        replace(draft, folder=str(fresh)).begin(table)
        os.replace(fresh, new)
    return draft, store


def _check_all(store: StoredRows, draft: DraftFiles, engine: Engine, allow_missing: bool) -> tuple[dict[str, int], int]:
    """(damaged value blocks per modality, value blocks to be imputed); writes what is used to present.npy."""
    damaged, missing = np.zeros(len(store.names), dtype=np.int64), 0
    for bad, lacking in engine.map(check_block, store.blocks(), store, draft, allow_missing):
        damaged += bad
        missing += lacking
    return {name: int(n) for name, n in zip(store.names, damaged, strict=True)}, missing


def check_block(
    block: tuple[int, int], store: StoredRows, draft: DraftFiles, allow_missing: bool
) -> tuple[np.ndarray, int]:
    """(damaged value blocks per modality, missing ones) of some rows; a damaged one is an error unless allowed."""
    start, stop = block
    z = {name: array[start:stop] for name, array in store.arrays().items()}
    given = np.array(store.mask()[start:stop]) if Path(store.mask_file).exists() else None
    if given is None:
        given = np.stack([~np.isnan(array).all(axis=1) for array in z.values()], axis=1)
    present = given.copy()
    try:
        if allow_missing:
            for m, array in enumerate(z.values()):
                present[:, m] &= np.isfinite(array).all(axis=1)
        check(z, present)
    except InputError as error:
        raise InputError(f"{store.path}, rows {start} to {stop - 1}, counted from {start}: {error}") from error
    finally:
        store.release()
    draft.write_mask("present.npy", start, present)
    return given.sum(axis=0) - present.sum(axis=0), int((~present).sum())


def _fitted(rows: DistributedDirectory, config: ImputeConfig, part: Path) -> Any:
    """The imputer, fitted; or as an earlier run of the same command fitted it."""
    imputer: Any = make_imputer(seed=config.seed, **config.imputer.model_dump())
    saved = part / "imputer"
    if saved.exists():
        return imputer.set_state(load_state(saved))
    imputer.fit(rows, open_npy(Path(rows.store.mask_file)))
    save_state(imputer.get_state(), saved, overwrite=False)
    return imputer


def _impute_all(
    store: StoredRows, imputer: Any, draft: DraftFiles, engine: Engine, done: Path, progress: Progress | None
) -> None:
    """Impute and write the blocks that are not written yet."""
    row_bytes = sum(store.widths) * np.dtype(draft.dtype).itemsize
    blocks = list(blocks_of_rows(store.rows, row_bytes, IMPUTE_BYTES))
    written = {int(line) for line in done.read_text(encoding="ascii").split()} if done.exists() else set()
    left = [block for block in blocks if block[0] not in written]
    with done.open("a", encoding="ascii") as file:
        for (start, stop), _ in zip(left, engine.map(impute_block, left, store, imputer, draft), strict=True):
            print(start, file=file, flush=True)
            if progress is not None:
                progress(stop, store.rows, "imputing")


def impute_block(block: tuple[int, int], store: StoredRows, imputer: Any, draft: DraftFiles) -> None:
    """Impute some rows and write them into the draft."""
    start, stop = block
    z = {name: np.asarray(array[start:stop]) for name, array in store.arrays().items()}
    present = np.array(store.mask()[start:stop])
    imputed: Any = imputer.impute(z, present, return_std=draft.std)
    values: Mapping[str, Any]
    values, deviation = imputed if draft.std else (imputed, None)
    draft.write_values(start, values, ~present, deviation)
    store.release()
