"""Raw media -> a feature directory: every file is decoded and encoded once, and what cannot be used is listed.

The features of an item depend on nothing but the item: batch size, workers and interruptions do not change a bit.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from calmrl._support.engine import Engine, opened
from calmrl._support.filesystem import locked
from calmrl._support.output import check_directory, writing
from calmrl._support.workers import worker_pool
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.media.annotations import read_annotations
from calmrl.data.media.collection_problems import MediaProblem, Problems
from calmrl.data.media.collections.public_collection import PublicCollection
from calmrl.data.media.columns import guess_kinds
from calmrl.data.media.decode import decoded
from calmrl.data.media.folder import read_folder
from calmrl.data.media.left_out import count_left_out
from calmrl.data.media.manifest import Manifest, build, drop_empty, read_manifest
from calmrl.data.media.table_files import read_rows
from calmrl.data.media.unreadable import Unreadable
from calmrl.encoders.defaults import default_encoders
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.vector_store import open_stores, remove_stores
from calmrl.errors import InputError
from calmrl.workflows.check_collection import (
    Progress,
    absent_files,
    beside,
    cell_problem,
    file_cells,
    stop_at_problems,
    take_out,
)
from calmrl.workflows.encode_collection import encode_collection, write_collection

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
        Called with (what is being done, done so far, of how many).
    tell : callable, optional
        Gets sentences for people.

    Examples
    --------
    >>> extract("items.csv", {"image": "efficientnet_lite0", "text": "minilm"}, "features")  # doctest: +SKIP
    """
    out, problems = Path(out), Problems()
    tell = tell or (lambda line: None)
    progress = progress or (lambda what, done, total: None)
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
        info |= {"left_out": left_out} if (left_out := count_left_out(parts, problems)) else {}
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
        raise InputError("--media goes with --layout; without it, paths are in the manifest and --root is their folder")
    if layout is not None and (captions is not None or root is not None):
        raise InputError("captions and root go with a manifest; an annotation file holds texts and paths itself")
    if source.is_dir() and (layout is not None or captions is not None or root is not None):
        raise InputError(f"{source} is a folder: captions, root and layout go with a table; name the table instead")


def _kinds_of(source: Path | PublicCollection, layout: str | None) -> dict[str, str]:
    """Modality -> kind, for a collection whose encoders were not named."""
    if isinstance(source, PublicCollection):
        return source.read().kinds
    if layout is not None:
        raise InputError("an annotation file needs its encoders named, for instance --encoder vision=NAME")
    if source.is_dir():
        return read_folder(source, Problems()).kinds
    kinds = guess_kinds(row for _, row in read_rows(source, Problems()))
    if not kinds:
        raise InputError(
            f"{source} has no column that is called text or holds names of pictures, films or sounds; name the encoders, "
            "for instance --encoder image=efficientnet_lite0"
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
            problems.add("no encoder", "table", column=name, detail=f"give it one, or ignore it (--ignore {name})")
        for item in manifest.items:
            item.cells.pop(name, None)
    manifest.kinds = kinds
    return manifest


def _undecodable(manifest: Manifest, encoders: EncoderSet, pool: Any, progress: Progress) -> list[MediaProblem]:
    """Decode every file without encoding it; a problem for each that cannot be."""
    cells = file_cells(manifest)
    jobs = [encoders.job(encoders.encoder(name), cell) for _, name, cell in cells]
    problems = []
    progress("check", 0, len(cells))
    for done, ((item, name, _), result) in enumerate(zip(cells, decoded(jobs, pool, keep=False), strict=True), start=1):
        progress("check", done, len(cells))
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
