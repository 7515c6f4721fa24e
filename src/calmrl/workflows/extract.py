"""Raw media -> a feature directory: every file is decoded and encoded once, and what cannot be used is listed.

The features of an item depend on nothing but the item: batch size, workers and interruptions do not change a bit.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, LocalEngine, opened, worker_pool
from calmrl._support.filesystem import locked
from calmrl._support.output import check_directory, writing
from calmrl.arrays import blocks_of_rows
from calmrl.data.features.feature_set import FeatureSet, file_columns, open_features
from calmrl.data.features.writer import FeatureWriter
from calmrl.data.media.decode import decoded
from calmrl.data.media.folder import read_folder
from calmrl.data.media.manifest import Item, Manifest, build, drop_empty, guess_kinds, read_manifest, read_rows
from calmrl.data.media.problems import MediaProblem, Problems, Unreadable, count_skipped
from calmrl.data.media.public_collections import PublicCollection, read_annotations
from calmrl.encoders.encoder_set import EncoderSet, mean_of
from calmrl.encoders.registry import default_encoders
from calmrl.encoders.vector_store import (
    VectorStore,
    encode_files_distributed,
    encode_texts_distributed,
    file_key,
    open_stores,
    remove_stores,
    text_key,
)
from calmrl.errors import InputError
from calmrl.protocols import Progress, no_progress
from calmrl.workflows.survey import absent_files, beside, cell_problem, file_cells, stop_at_problems, take_out

Stores = dict[str, VectorStore]


def encode_collection(
    manifest: Manifest,
    encoders: EncoderSet,
    stores: Stores,
    pool: Executor | None,
    batch_size: int,
    progress: Progress,
    engine: Engine | None = None,
) -> list[MediaProblem]:
    """Encode every text and file that is not in the stores; a problem for each file that cannot be decoded.

    An engine takes the place of this process and of the pool.
    """
    problems: list[MediaProblem] = []
    for name, kind in manifest.kinds.items():
        having = [item for item in manifest.items if name in item.cells]
        if kind == "text":
            _encode_texts(name, having, encoders, stores[name], batch_size, progress, engine or LocalEngine())
        else:
            problems += _encode_files(name, having, encoders, stores[name], pool, batch_size, progress, engine)
    return problems


def _encode_texts(
    name: str,
    items: list[Item],
    encoders: EncoderSet,
    store: VectorStore,
    batch_size: int,
    progress: Progress,
    engine: Engine,
) -> None:
    texts = {text_key(text): text for item in items for text in item.cells[name]}  # each only once
    todo = [key for key in texts if key not in store]
    start = len(texts) - len(todo)
    progress(start, len(texts), f"encode {name}")
    for first, vectors in encode_texts_distributed(engine, encoders, name, [[texts[key]] for key in todo], batch_size):
        keys = todo[first : first + batch_size]
        store.add(keys, vectors)
        progress(start + first + len(keys), len(texts), f"encode {name}")


def _encode_files(
    name: str,
    items: list[Item],
    encoders: EncoderSet,
    store: VectorStore,
    pool: Executor | None,
    batch_size: int,
    progress: Progress,
    engine: Engine | None,
) -> list[MediaProblem]:
    by_key: dict[str, list[Item]] = {}
    for item in items:
        by_key.setdefault(file_key(item.cells[name]), []).append(item)
    todo = [key for key in by_key if key not in store]
    start = len(by_key) - len(todo)
    problems = []
    progress(start, len(by_key), f"encode {name}")
    sources = [by_key[key][0].cells[name] for key in todo]
    batches = (
        encoders.encode_files(name, sources, pool=pool, batch_size=batch_size)
        if engine is None
        else encode_files_distributed(engine, encoders, name, sources, batch_size)
    )
    for first, results in batches:
        keys = todo[first : first + len(results)]
        good = [(key, result) for key, result in zip(keys, results, strict=True) if not isinstance(result, Unreadable)]
        if good:
            store.add([key for key, _ in good], np.stack([vector for _, vector in good]))
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, Unreadable):
                problems += [cell_problem(item, name, result) for item in by_key[key]]
        progress(start + first + len(results), len(by_key), f"encode {name}")
    return problems


def write_collection(
    manifest: Manifest, encoders: EncoderSet, stores: Stores, out: Path, info: dict[str, Any]
) -> FeatureSet:
    """The feature directory of a collection whose cells are all in the stores."""
    items = manifest.items
    widths = {name: encoders.width(name) for name in encoders.modalities}
    about: dict[str, Any] = {name: manifest.column(name) for name in ("split", "labels", "text")}
    files = [{m: cell for m, cell in item.cells.items() if manifest.kinds[m] != "text"} for item in items]
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
    if kind == "text":
        for place in having:
            values[place] = mean_of(store.get([text_key(text) for text in items[place].cells[name]]))
    elif having:
        values[having] = store.get([file_key(items[place].cells[name]) for place in having])
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
    tell: Callable[[str], None] | None = None,
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
    tell : callable, optional
        Gets sentences for people.

    Examples
    --------
    >>> extract("items.csv", {"image": "efficientnet_lite0", "text": "minilm"}, "features")  # doctest: +SKIP
    """
    out, problems = Path(out), Problems()
    tell = tell or (lambda line: None)
    progress = progress or no_progress
    source = manifest if isinstance(manifest, PublicCollection) else Path(manifest)
    check_directory(out)
    _check_options(source, layout, media, captions, root)
    if encoders is None:
        encoders = default_encoders(_kinds_of(source, layout))
        tell("encoders: " + ", ".join(f"{name}={encoder}" for name, encoder in encoders.items()))
    chosen = EncoderSet(encoders, frames=frames, dtype=dtype, device=device)
    if isinstance(source, PublicCollection):
        collection = _of_collection(source, chosen, problems, ignore, tell)
    else:
        collection = _read(source, chosen, problems, root, captions, layout, media, ignore, tell)
    info: dict[str, Any] = {
        "made_by": "calmrl extract",
        "encoders": chosen.names,
        "frames": frames,
        "listed": collection.digest(),
    }
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        return _reuse(out, info, tell)
    report, parts = beside(out, "problems.csv"), collection.parts()
    drop_empty(collection, problems)
    processes = workers if len(file_cells(collection)) > FEW else 0
    with locked(beside(out, "vectors"), out), writing(out):
        with opened(engine, address) as started, worker_pool(processes) as pool:
            absent = absent_files(collection)
            if (absent or problems.blocking()) and not allow_missing:  # list everything, encode nothing
                checked = take_out(collection, problems, _undecodable(collection, chosen, pool, progress))
                _tell_all(checked.lines(allow_missing), tell)
                stop_at_problems(checked, report, allow_missing)
            take_out(collection, problems, absent)
            stores, info["encoding"] = open_stores(beside(out, "vectors"), chosen)
            spread = None if engine == "local" else started
            undecodable = encode_collection(collection, chosen, stores, pool, batch_size, progress, spread)
            checked = take_out(collection, problems, undecodable)
        _tell_all(checked.lines(allow_missing), tell)
        stop_at_problems(checked, report, allow_missing)
        info |= {"collection": collection.digest(), "problems": len(problems.blocking())}
        info |= {"left_out": left_out} if (left_out := count_skipped(parts, problems)) else {}
        features = write_collection(collection, chosen, stores, out, info)
        remove_stores(beside(out, "vectors"))
        return features


def _tell_all(lines: list[str], tell: Callable[[str], None]) -> None:
    for line in lines:
        tell(line)


def _check_options(source: Path | PublicCollection, layout: str | None, media: Any, captions: Any, root: Any) -> None:
    if isinstance(source, PublicCollection):
        if any(option for option in (layout, media, captions, root)):
            raise InputError("layout, media, captions and root go with a manifest; a collection has its own media")
        return
    if layout is None and media:
        raise InputError("`media` goes with `layout`; without it, paths are in the manifest and `root` is their folder")
    if layout is not None and (captions is not None or root is not None):
        raise InputError("captions and root go with a manifest; an annotation file holds texts and paths itself")
    if source.is_dir() and (layout is not None or captions is not None or root is not None):
        raise InputError(f"{source} is a folder: captions, root and layout go with a table; name the table instead")


def _kinds_of(source: Path | PublicCollection, layout: str | None) -> dict[str, str]:
    """Modality -> kind, for a collection whose encoders were not named."""
    if isinstance(source, PublicCollection):
        return source.read().kinds
    if layout is not None:
        raise InputError("an annotation file needs its encoders named, for instance `encoders={'vision': NAME}`")
    if source.is_dir():
        return read_folder(source, Problems()).kinds
    kinds = guess_kinds(row for _, row in read_rows(source, Problems()))
    if not kinds:
        raise InputError(
            f"{source} has no column that is called text or holds names of pictures, films or sounds; name the encoders, "
            "for instance `encoders={'image': 'efficientnet_lite0'}`"
        )
    return kinds


def _read(
    source: Path,
    encoders: EncoderSet,
    problems: Problems,
    root: Any,
    captions: Any,
    layout: str | None,
    media: Mapping[str, str | Path] | None,
    ignore: Collection[str],
    tell: Callable[[str], None],
) -> Manifest:
    """The items of a folder, a table or an annotation file."""
    kinds = {name: encoders.kind(name) for name in encoders.modalities}
    if source.is_dir():
        return _of_folder(source, kinds, problems, ignore)
    if layout is None:
        return read_manifest(source, kinds, problems, root=root, captions=captions, ignore=ignore)
    folders = {name: Path(folder) for name, folder in (media or {}).items()}
    notes: list[str] = []
    rows = read_annotations(source, layout, folders, list(encoders.modalities), notes)
    _tell_all(notes, tell)
    return build(rows, kinds, problems, root=Path(), ignore=ignore)


def _of_collection(
    source: PublicCollection,
    encoders: EncoderSet,
    problems: Problems,
    ignore: Collection[str],
    tell: Callable[[str], None],
) -> Manifest:
    content = source.read(list(encoders.modalities))
    _tell_all([content.counts, *content.notes], tell)
    kinds = {name: encoders.kind(name) for name in encoders.modalities}
    return build(content.rows, kinds, problems, root=Path(), ignore=ignore)


def _of_folder(source: Path, kinds: dict[str, str], problems: Problems, ignore: Collection[str]) -> Manifest:
    manifest = read_folder(source, problems)
    for name, kind in kinds.items():
        if manifest.kinds.get(name) != kind:
            got = ", ".join(f"{other} ({own})" for other, own in manifest.kinds.items())
            raise InputError(f"{source} has no {name} for an encoder of kind {kind}; it has {got}")
    for name in [name for name in manifest.kinds if name not in kinds]:
        if name not in ignore:
            problems.add("no encoder", "table", column=name, detail=f"give it one, or ignore it (`ignore=[{name!r}]`)")
        for item in manifest.items:
            item.cells.pop(name, None)
    manifest.kinds = kinds
    return manifest


def _undecodable(manifest: Manifest, encoders: EncoderSet, pool: Any, progress: Progress) -> list[MediaProblem]:
    """Decode every file without encoding it; a problem for each that cannot be."""
    cells = file_cells(manifest)
    jobs = [encoders.job(encoders.encoder(name), cell) for _, name, cell in cells]
    problems = []
    progress(0, len(cells), "check")
    for done, ((item, name, _), result) in enumerate(zip(cells, decoded(jobs, pool, keep=False), strict=True), start=1):
        progress(done, len(cells), "check")
        if isinstance(result, Unreadable):
            problems.append(cell_problem(item, name, result))
    return problems


def _reuse(out: Path, info: dict[str, Any], tell: Callable[[str], None]) -> FeatureSet:
    """Features that are there already, if they are the same."""
    features = open_features(out)
    differs = [key for key in info if features.info.get(key) != info[key]]
    if differs:
        raise InputError(
            f"{out} holds features made otherwise ({', '.join(differs)} differ); remove it, or choose another"
        )
    remove_stores(beside(out, "vectors"))  # a run may have been stopped before it came to this
    tell(f"{out} is complete already; nothing to do")
    return features
