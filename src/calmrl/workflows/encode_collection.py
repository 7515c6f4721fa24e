"""The two halves of `extract`: encode what is not encoded yet, then lay the vectors out as a feature directory."""

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, LocalEngine
from calmrl.convention import blocks_of_rows
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.item_files import file_columns
from calmrl.data.features.writer import FeatureWriter
from calmrl.data.media.collection_problems import MediaProblem
from calmrl.data.media.manifest import Item, Manifest
from calmrl.data.media.unreadable import Unreadable
from calmrl.encoders.encoder_set import EncoderSet, mean_of
from calmrl.encoders.spread import spread_files, spread_texts
from calmrl.encoders.vector_store import VectorStore, file_key, text_key
from calmrl.workflows.check_collection import Progress, beside, cell_problem

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
    progress(f"encode {name}", start, len(texts))
    for first, vectors in spread_texts(engine, encoders, name, [[texts[key]] for key in todo], batch_size):
        keys = todo[first : first + batch_size]
        store.add(keys, vectors)
        progress(f"encode {name}", start + first + len(keys), len(texts))


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
    progress(f"encode {name}", start, len(by_key))
    sources = [by_key[key][0].cells[name] for key in todo]
    batches = (
        encoders.encode_files(name, sources, pool=pool, batch_size=batch_size)
        if engine is None
        else spread_files(engine, encoders, name, sources, batch_size)
    )
    for first, results in batches:
        keys = todo[first : first + len(results)]
        good = [(key, result) for key, result in zip(keys, results, strict=True) if not isinstance(result, Unreadable)]
        if good:
            store.add([key for key, _ in good], np.stack([vector for _, vector in good]))
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, Unreadable):
                problems += [cell_problem(item, name, result) for item in by_key[key]]
        progress(f"encode {name}", start + first + len(results), len(by_key))
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
