"""Raw media -> a feature directory: every file is decoded and encoded once, and what cannot be used is listed.

The features of an item depend on nothing but the item: batch size, workers and interruptions do not change a bit.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, worker_pool
from calmrl._support.engine import opened as opened_engine
from calmrl._support.filesystem import locked
from calmrl._support.output import check_directory, writing
from calmrl.arrays import blocks_of_rows
from calmrl.data.features.feature_set import FeatureSet, file_columns, open_features
from calmrl.data.features.writer import FeatureWriter
from calmrl.data.media.manifest import Item, Manifest, build, drop_empty, paths_of
from calmrl.data.media.problems import MediaProblem, Problems, count_skipped
from calmrl.data.media.public_collections import PublicCollection, read_annotations
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.registry import default_encoders
from calmrl.encoders.vector_store import VectorStore, encode_new, file_key, open_stores, remove_stores, text_key
from calmrl.errors import InputError
from calmrl.protocols import Progress, no_progress
from calmrl.sources import COLLECTION, FOLDER, MANIFEST, Source, form_of, open_source
from calmrl.workflows.survey import (
    absent_files,
    beside,
    cell_problem,
    file_cells,
    stop_at_problems,
    take_out,
    undecodable_files,
)

Stores = dict[str, VectorStore]
FILES = (FOLDER, MANIFEST, COLLECTION)  # what there is to encode
FEW = 64  # files that are decoded sooner than worker processes have started


def extract(
    manifest: str | Path | PublicCollection,
    encoders: Mapping[str, str] | None,
    out: str | Path,
    *,
    root: str | Path | None = None,
    captions: str | Path | None = None,
    layout: str | None = None,
    media: Mapping[str, str | Path] | None = None,
    ignore: Collection[str] = (),
    allow_missing: bool = False,
    frames: int = 8,
    batch_size: int = 16,
    workers: int = 0,
    dtype: str = "float16",
    device: str = "cpu",
    engine: str | Engine = "local",
    address: str | None = None,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> FeatureSet:
    """Encode a collection of files into a feature directory, and report what is unusable.

    Call it again to continue where it stopped. Items with several texts get the mean of their vectors, and every
    single vector goes to the feature directory `<out>.captions`. The directory records its encoders, so that a model
    fitted on it can read raw files.

    Parameters
    ----------
    manifest : str, Path or PublicCollection
        A folder (files with one stem are one item); CSV, TSV, JSONL or Parquet; with `layout` an annotation file; or a
        public collection.
    encoders : dict or None
        Modality -> name of an encoder. None takes those of `calmrl.encoders.default_encoders`.
    out : str or Path
        The feature directory to write.
    root : str or Path, optional
        What paths are relative to; by default the folder of the manifest.
    captions : str or Path, optional
        A second table with id and text: several captions per item.
    layout : str, optional
        The form of an annotation file, for instance "msrvtt".
    media : dict, optional
        With `layout`: modality -> folder that holds its files.
    ignore : collection of str
        Columns not to use.
    allow_missing : bool
        Count what cannot be used as missing. Otherwise it raises InputError, and what was encoded so far is kept for
        the next call. In both cases `<out>.problems.csv` lists all of it.
    frames, batch_size, workers, dtype, device
        Frames per video; items per batch; processes that decode; "float16" or "float32"; where "hf:" and "st:" encoders and
        those of official code run.
    engine : {"local", "ray"} or Engine
        Where files are decoded and encoded: in this process and its `workers`, or on a Ray cluster that shares files with
        it. The features are the same.
    address : str, optional
        Of the Ray cluster; by default the one of this machine, or one that is started on its cores.
    progress : callable, optional
        Called with (done so far, of how many, what is being done).
    report : callable, optional
        Gets sentences for people.

    Examples
    --------
    >>> extract("items.csv", {"image": "efficientnet_lite0", "text": "minilm"}, "features")  # doctest: +SKIP
    """
    out = Path(out)
    report = report or (lambda line: None)
    progress = progress or no_progress
    source = Path(manifest) if isinstance(manifest, (str, Path)) else manifest
    check_directory(out)
    _check_options(source, layout, media, captions, root)
    if encoders is None:
        if layout is not None:
            raise InputError("an annotation file needs its encoders named, for instance `encoders={'vision': NAME}`")
        found = open_source(source, accept=FILES).manifest
        encoders = default_encoders(found.kinds if found is not None else {})
        report("encoders: " + ", ".join(f"{name}={encoder}" for name, encoder in encoders.items()))
    chosen = EncoderSet(encoders, frames=frames, dtype=dtype, device=device)
    opened = _read(source, chosen, root, captions, layout, media, ignore)
    collection, problems = opened.manifest, opened.problems
    assert collection is not None
    _report_all(opened.remarks, report)
    info: dict[str, Any] = {
        "made_by": "calmrl extract",
        "encoders": chosen.names,
        "frames": frames,
        "listed": collection.digest(),
    }
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        return _reuse(out, info, report)
    listing, parts = beside(out, "problems.csv"), collection.parts()
    drop_empty(collection, problems)
    processes = workers if len(file_cells(collection)) > FEW else 0
    with locked(beside(out, "vectors"), out), writing(out):
        with opened_engine(engine, address) as started, worker_pool(processes) as pool:
            absent = absent_files(collection)
            if (absent or problems.blocking()) and not allow_missing:  # list everything, encode nothing
                undecodable = undecodable_files(collection, chosen.job_of, "check", progress, pool)
                checked = take_out(collection, problems, undecodable)
                _report_all(checked.lines(allow_missing), report)
                stop_at_problems(checked, listing, allow_missing)
            take_out(collection, problems, absent)
            stores, info["encoding"] = open_stores(beside(out, "vectors"), chosen)
            spread = None if engine == "local" else started
            undecodable = _encode(collection, chosen, stores, pool, batch_size, progress, spread)
            checked = take_out(collection, problems, undecodable)
        _report_all(checked.lines(allow_missing), report)
        stop_at_problems(checked, listing, allow_missing)
        info |= {"collection": collection.digest(), "problems": len(problems.blocking())}
        info |= {"left_out": left_out} if (left_out := count_skipped(parts, problems)) else {}
        features = _write(collection, chosen, stores, out, info)
        remove_stores(beside(out, "vectors"))
        return features


def _report_all(lines: list[str], report: Callable[[str], None]) -> None:
    for line in lines:
        report(line)


def _check_options(source: Any, layout: str | None, media: Any, captions: Any, root: Any) -> None:
    form = form_of(source)
    if form == COLLECTION:
        if any(option for option in (layout, media, captions, root)):
            raise InputError("layout, media, captions and root go with a manifest; a collection has its own media")
        return
    if layout is None and media:
        raise InputError("`media` goes with `layout`; without it, paths are in the manifest and `root` is their folder")
    if layout is not None and (captions is not None or root is not None):
        raise InputError("captions and root go with a manifest; an annotation file holds texts and paths itself")
    if form == FOLDER and (layout is not None or captions is not None or root is not None):
        raise InputError(f"{source} is a folder: captions, root and layout go with a table; name the table instead")


def _read(
    source: Any,
    encoders: EncoderSet,
    root: Any,
    captions: Any,
    layout: str | None,
    media: Mapping[str, str | Path] | None,
    ignore: Collection[str],
) -> Source:
    """The items of a folder, a table, an annotation file or a public collection, as far as there are encoders for them."""
    kinds = {name: encoders.kind(name) for name in encoders.modalities}
    if layout is None:
        opened = open_source(source, kinds, accept=FILES, root=root, captions=captions, ignore=ignore)
        return _restricted(opened, source, kinds, ignore) if opened.form == FOLDER else opened
    folders = {name: Path(folder) for name, folder in (media or {}).items()}
    notes: list[str] = []
    rows = read_annotations(source, layout, folders, list(encoders.modalities), notes)
    problems = Problems()
    manifest = build(rows, kinds, problems, root=Path(), ignore=ignore)
    return Source(MANIFEST, str(source), None, manifest, problems, notes)


def _restricted(opened: Source, path: Path, kinds: dict[str, str], ignore: Collection[str]) -> Source:
    """A folder without the modalities that have no encoder; each of them is a problem unless it is ignored."""
    manifest = opened.manifest
    assert manifest is not None
    for name, kind in kinds.items():
        if manifest.kinds.get(name) != kind:
            got = ", ".join(f"{other} ({own})" for other, own in manifest.kinds.items())
            raise InputError(f"{path} has no {name} for an encoder of kind {kind}; it has {got}")
    for name in [name for name in manifest.kinds if name not in kinds]:
        if name not in ignore:
            opened.problems.add(
                "no encoder", "table", column=name, detail=f"give it one, or ignore it (`ignore=[{name!r}]`)"
            )
        for item in manifest.items:
            item.cells.pop(name, None)
    manifest.kinds = kinds
    return opened


def _encode(
    manifest: Manifest,
    encoders: EncoderSet,
    stores: Stores,
    pool: Executor | None,
    batch_size: int,
    progress: Progress,
    engine: Engine | None,
) -> list[MediaProblem]:
    """Encode every text and file that is not in the stores; a problem for each file that cannot be decoded."""
    problems: list[MediaProblem] = []
    for name in manifest.kinds:
        having: dict[str, list[Item]] = {}  # by key; texts and files that repeat are encoded once
        cells: dict[str, Any] = {}
        for item in manifest.items:
            cell = item.cells.get(name, [])
            texts: list[str] = cell if isinstance(cell, list) else []
            keyed = {text_key(text): [text] for text in texts} | {file_key(path): path for path in paths_of(cell)}
            for key, value in keyed.items():
                cells.setdefault(key, value)
                having.setdefault(key, []).append(item)
        unreadable = encode_new(
            encoders,
            name,
            cells,
            stores[name],
            batch_size=batch_size,
            pool=pool,
            engine=engine,
            progress=progress,
        )
        problems += [
            cell_problem(item, name, why, path)
            for key, why in unreadable.items()
            for item in having[key]
            for path in paths_of(item.cells[name])
            if file_key(path) == key
        ]
    return problems


def _write(manifest: Manifest, encoders: EncoderSet, stores: Stores, out: Path, info: dict[str, Any]) -> FeatureSet:
    """The feature directory of a collection whose cells are all in the stores."""
    items = manifest.items
    widths = {name: encoders.width(name) for name in encoders.modalities}
    about: dict[str, Any] = {name: manifest.column(name) for name in ("split", "labels", "text")}
    files = [{m: paths_of(cell)[0] for m, cell in item.cells.items() if manifest.kinds[m] != "text"} for item in items]
    about |= {"columns": file_columns(files, out) | manifest.extra(), "info": info}
    texts = [name for name, kind in manifest.kinds.items() if kind == "text"]
    several = [name for name in texts if any(len(item.cells.get(name, ())) > 1 for item in items)]
    for name in several:
        target = beside(out, "captions" if several == ["text"] else f"captions.{name}")
        _write_captions(items, name, stores[name], target, info, encoders.dtype)
    with FeatureWriter(out, widths, [item.id for item in items], dtype=encoders.dtype, **about) as writer:
        for start, stop in blocks_of_rows(len(items), 4 * sum(widths.values())):
            rows = items[start:stop]
            present = np.array([[name in item.cells for name in widths] for item in rows], dtype=bool)
            z = {name: _vectors(rows, name, manifest.kinds[name], stores[name]) for name in widths}
            writer.fill(slice(start, stop), z, present)
        return writer.finish()


def _vectors(items: list[Item], name: str, kind: str, store: VectorStore) -> np.ndarray:
    """(items, width) float32, NaN where an item lacks the modality."""
    values = np.full((len(items), store.width), np.nan, np.float32)
    having = [place for place, item in enumerate(items) if name in item.cells]
    cells = [items[place].cells[name] for place in having]
    if having:
        values[having] = store.means(
            [[*map(text_key, cell)] if kind == "text" else [*map(file_key, paths_of(cell))] for cell in cells]
        )
    return values


def _write_captions(
    items: list[Item], name: str, store: VectorStore, out: Path, info: dict[str, Any], dtype: str
) -> None:
    """Each text of each item as a row of a directory of its own."""
    texts = [(item, number, text) for item in items for number, text in enumerate(item.cells.get(name, ()))]
    ids = [f"{item.id}#{number}" for item, number, _ in texts]
    about: dict[str, Any] = {"split": [item.columns.get("split") for item, _, _ in texts]}
    about |= {"text": [text for _, _, text in texts], "columns": {"item": [item.id for item, _, _ in texts]}}
    if out.is_dir() and _is_of(out, info):
        return  # stopped between the writing of the two directories
    with FeatureWriter(out, {name: store.width}, ids, dtype=dtype, info=info, **about) as writer:
        for start, stop in blocks_of_rows(len(texts), 4 * store.width):
            vectors = store.get([text_key(text) for _, _, text in texts[start:stop]])
            writer.fill(slice(start, stop), {name: vectors}, np.ones((len(vectors), 1), dtype=bool))
        writer.finish()


def _is_of(folder: Path, info: dict[str, Any]) -> bool:
    """Whether a complete feature directory was made from the same collection in the same way."""
    return (folder / "features.json").is_file() and open_features(folder).info == info


def _reuse(out: Path, info: dict[str, Any], report: Callable[[str], None]) -> FeatureSet:
    """Features that are there already, if they are the same."""
    features = open_features(out)
    differs = [key for key in info if features.info.get(key) != info[key]]
    if differs:
        raise InputError(
            f"{out} holds features made otherwise ({', '.join(differs)} differ); remove it, or choose another"
        )
    remove_stores(beside(out, "vectors"))  # a run may have been stopped before it came to this
    report(f"{out} is complete already; nothing to do")
    return features
