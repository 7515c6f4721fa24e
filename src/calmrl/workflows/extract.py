"""Raw media -> a feature directory: check everything, report, then encode what is left, in batches, resumable.

The features of an item depend on nothing but the item: batch size, workers and interruptions do not change a bit.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.workers import worker_pool
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.writer import FeatureWriter
from calmrl.data.media.annotations import read_annotations
from calmrl.data.media.collection_problems import Problems
from calmrl.data.media.decode import decoded
from calmrl.data.media.manifest import Item, Manifest, build, read_manifest
from calmrl.data.media.unreadable import Unreadable
from calmrl.encoders.registry import load_encoder
from calmrl.errors import InputError
from calmrl.workflows.check_collection import Progress, Run, beside, check_collection, stop_at_problems


def extract(
    manifest: str | Path,
    encoders: Mapping[str, str],
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
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> FeatureSet:
    """Check a collection of files, report what is unusable, and encode the rest into a feature directory.

    Call it again to continue where it stopped. Items with several texts get the mean of their vectors, and every
    single vector goes to the feature directory `<out>.captions`.

    Parameters
    ----------
    manifest : str or Path
        CSV, TSV, JSONL or Parquet; with `layout` an annotation file.
    encoders : dict
        Modality -> name of an encoder.
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
        Count what cannot be used as missing. Otherwise it raises InputError before any encoding. In both cases
        `<out>.problems.csv` lists all of it.
    frames, batch_size, workers, dtype, device
        Frames per video; items per batch; processes that decode; "float16" or "float32"; where "hf:" encoders run.
    progress : callable, optional
        Called with (what is being done, done so far, of how many).
    tell : callable, optional
        Gets sentences for people.
    """
    out = Path(out)
    tell = tell or (lambda line: None)
    if layout is None and media:
        raise InputError("--media goes with --layout; without it, paths are in the manifest and --root is their folder")
    if layout is not None and (captions is not None or root is not None):
        raise InputError("captions and root go with a manifest; an annotation file holds texts and paths itself")
    loaded = {name: load_encoder(encoder, device) for name, encoder in encoders.items()}
    if not loaded:
        raise InputError("name at least one encoder, for instance image=efficientnet_lite0")
    kinds = {name: encoder.kind for name, encoder in loaded.items()}
    problems = Problems()
    if layout is None:
        items = read_manifest(manifest, kinds, problems, root=root, captions=captions, ignore=ignore)
    else:
        folders = {name: Path(folder) for name, folder in (media or {}).items()}
        rows = read_annotations(Path(manifest), layout, folders, list(encoders))
        items = build(rows, kinds, problems, root=Path(), ignore=ignore)
    with worker_pool(workers) as pool:
        run = Run(loaded, frames, batch_size, pool, progress or (lambda what, done, total: None))
        collection = check_collection(items, problems, run, out)
        for line in collection.lines(allow_missing):
            tell(line)
        stop_at_problems(collection, beside(out, "problems.csv"), allow_missing)
        info = {
            "made_by": "calmrl extract",
            "encoders": dict(encoders),
            "frames": frames,
            "collection": collection.manifest.digest(),
            "problems": len(problems),
        }
        if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
            features = _reuse(out, info, tell)
        else:
            features = _encode(collection.manifest, run, out, info, dtype)
    beside(out, "checked.json").unlink(missing_ok=True)
    return features


def _reuse(out: Path, info: dict[str, Any], tell: Callable[[str], None]) -> FeatureSet:
    """Features that are there already, if they are the same."""
    features = open_features(out)
    differs = [key for key in info if features.info.get(key) != info[key]]
    if differs:
        raise InputError(
            f"{out} holds features made otherwise ({', '.join(differs)} differ); remove it, or choose another"
        )
    tell(f"{out} is complete already; nothing to do")
    return features


def _encode(manifest: Manifest, run: Run, out: Path, info: dict[str, Any], dtype: str) -> FeatureSet:
    items = manifest.items
    widths = {name: encoder.width for name, encoder in run.encoders.items()}
    texts = [name for name, kind in manifest.kinds.items() if kind == "text"]
    several = [name for name in texts if any(len(item.cells.get(name, ())) > 1 for item in items)]
    about: dict[str, Any] = {name: manifest.column(name) for name in ("split", "labels", "text")}
    about |= {"columns": manifest.extra(), "info": info}
    with FeatureWriter(out, widths, [item.id for item in items], dtype=dtype, **about) as writer:
        for name in widths:
            rows = np.array([row for row in writer.todo(name) if name not in items[row].cells], dtype=np.int64)
            if len(rows):
                nothing = np.zeros((len(rows), widths[name]), np.float32)
                writer.fill(rows, {name: nothing}, np.zeros((len(rows), 1), dtype=bool))
            if name in several:
                target = beside(out, "captions" if several == ["text"] else f"captions.{name}")
                _encode_captions(items, name, run, target, writer, info, dtype)
            else:
                _encode_modality(items, name, run, writer)
        return writer.finish()


def _encode_modality(items: list[Item], name: str, run: Run, writer: FeatureWriter) -> None:
    todo = writer.todo(name)
    total = sum(name in item.cells for item in items)
    start = total - len(todo)
    kind = run.encoders[name].kind
    results = decoded(run.jobs(name, [items[row] for row in todo]), None if kind == "text" else run.pool)
    run.progress(f"encode {name}", start, total)
    for first in range(0, len(todo), run.batch_size):
        rows = todo[first : first + run.batch_size]
        batch = []
        for _ in rows:
            result = next(results)
            if isinstance(result, Unreadable):
                raise InputError(f"{result}: it could be read during the check; run the same command again")
            batch.append(result[0] if kind == "text" else result)
        writer.fill(rows, {name: run.encoders[name].encode(batch)}, np.ones((len(rows), 1), dtype=bool))
        run.progress(f"encode {name}", start + first + len(rows), total)


def _encode_captions(
    items: list[Item], name: str, run: Run, out: Path, main: FeatureWriter, info: dict[str, Any], dtype: str
) -> None:
    """Each text of each item into a directory of its own, and the mean of an item's vectors into the main one."""
    texts = [(row, text) for row, item in enumerate(items) for text in item.cells.get(name, ())]
    begins = np.cumsum([0] + [len(item.cells.get(name, ())) for item in items])
    encoder = run.encoders[name]
    if out.exists() and not len(main.todo(name)):
        return  # stopped between the two renamings at the end: everything is written
    ids = [f"{items[row].id}#{number - begins[row]}" for number, (row, _) in enumerate(texts)]
    about: dict[str, Any] = {"split": [items[row].columns.get("split") for row, _ in texts]}
    about |= {"text": [text for _, text in texts], "columns": {"item": [items[row].id for row, _ in texts]}}
    with FeatureWriter(out, {name: encoder.width}, ids, dtype=dtype, info=info, **about) as writer:
        todo = main.todo(name)
        run.progress(f"encode {name}", 0, len(todo))
        for done, row in enumerate(todo, start=1):
            vectors = encoder.encode(items[row].cells[name])
            writer.fill(slice(begins[row], begins[row + 1]), {name: vectors}, np.ones((len(vectors), 1), dtype=bool))
            main.fill(np.array([row]), {name: vectors.mean(axis=0, keepdims=True)}, np.ones((1, 1), dtype=bool))
            run.progress(f"encode {name}", done, len(todo))
        writer.finish()
