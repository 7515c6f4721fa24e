"""Make an index: features, one space, places, a table; whole or absent, and a killed run goes on where it stopped.

Everything is made in `<path>.part` beside the index and takes its name at the end. An index in an object store is written there
directly; it is not an index before its last table is there.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.engine import Engine
from calmrl._support.filesystem import put_in_place
from calmrl._support.output import check_directory, part_folder
from calmrl.aligner.estimator import Aligner
from calmrl.encoders.defaults import default_encoders
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.registry import full_name
from calmrl.errors import InputError
from calmrl.search import checksums, neighbours, store
from calmrl.search.align import (
    aligner_parts,
    check_aligner,
    encoders_of,
    fit,
    linked,
    load_aligner,
    place,
    relevance_of_items,
)
from calmrl.search.bundled import ENCODERS_OF, with_thumbnails
from calmrl.search.collection import Collection, described, from_features
from calmrl.search.encoding import Progress, encode, survey
from calmrl.search.sources import OpenSource, kinds_of, open_source

ROWS = 2048  # written at once


def build(
    source: Any,
    path: str | Path,
    encoders: Mapping[str, str] | None = None,
    *,
    model: str | Path | Aligner | None = None,
    groups: str | Sequence[Any] | None = None,
    relevant: str | Sequence[Any] | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> None:
    """Write the index of a source; see `calmrl.Index.build`."""
    with working_folder(path) as part:
        given = {modality: full_name(modality, name) for modality, name in (encoders or {}).items()}
        of_model = encoders_of(model)
        known = {**of_model, **given}
        opened = open_source(source, kinds_of(known) if known else None, some=bool(of_model))
        encoders = {name: known[name] for name in known if name in given or name in opened.modalities}
        if is_index(path):
            _check_same(path, opened, encoders)
            return  # nothing to do; or an earlier run was stopped after its last step
        _check_free(path)
        collection, description = _collect(opened, encoders, part, groups, progress, engine)
        aligner, layout = _align(collection, model, groups, relevant, part, progress, engine)
        layout |= {
            "encoders": description,
            "source": {"type": opened.type, "path": opened.root},
            "problems": collection.problems.lines(True),
        }
        _write(collection, aligner, layout, path, part, progress, engine)


def is_index(path: str | Path) -> bool:
    """Whether there is a whole index."""
    if not store.is_remote(path) and not Path(path).is_dir():
        return False
    return store.PARTS in store.table_names(store.connect(path))


def _check_same(path: str | Path, opened: OpenSource, encoders: Mapping[str, str] | None) -> None:
    """Refuse to take the index of something else for the one that is asked for."""
    _, parts = store.open_tables(path)
    layout = store.read_layout(parts, path)
    made = {name: entry["encoder"] for name, entry in layout["modalities"].items()}
    differs = [f"{name}={encoder}" for name, encoder in (encoders or {}).items() if made.get(name) != encoder]
    if layout["source"] != {"type": opened.type, "path": opened.root}:
        differs.append(f"source {layout['source']['path']}")
    if differs:
        raise InputError(f"{path} is an index already, made otherwise ({', '.join(differs)}); choose another name")


def _check_free(path: str | Path) -> None:
    if store.is_remote(path):
        if store.ITEMS in store.table_names(store.connect(path)):  # of a run that was stopped
            store.connect(path).drop_table(store.ITEMS)
        return
    target = Path(path)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target} exists and is not a calmrl index; choose another name")


@contextmanager
def working_folder(path: str | Path) -> Iterator[Path]:
    """`<path>.part`, for one run at a time; kept if the run does not come to its end."""
    target = Path(str(path).rstrip("/").rpartition("/")[2]) if store.is_remote(path) else Path(path)
    check_directory(target)
    with part_folder(target, named=path) as part:
        yield part


def _collect(
    opened: OpenSource,
    encoders: Mapping[str, str] | None,
    part: Path,
    groups: str | Sequence[Any] | None,
    progress: Progress | None,
    engine: Engine | None,
) -> tuple[Collection, dict[str, Any] | None]:
    """(items with features, the description of their encoders if files were encoded)."""
    if opened.features is not None:
        column = groups if isinstance(groups, str) else None
        collection = from_features(opened.features, opened.root, column)
        unknown = sorted(set(encoders or {}) - set(collection.z))
        if unknown:
            raise InputError(f"--encoder names {unknown[0]}, but the features have {', '.join(collection.z)}")
        made_by = ENCODERS_OF.get(opened.root, {}) if opened.type == "dataset" else {}
        collection.encoders |= {name: made_by[name] for name in made_by if name in collection.z} | dict(encoders or {})
        collection.kinds |= kinds_of(collection.encoders)
        return with_thumbnails(opened, collection), None if encoders else described(opened.features)
    assert opened.manifest is not None
    kinds = {name: kind for name, kind in opened.manifest.kinds.items() if not encoders or name not in encoders}
    names = dict(encoders or {}) | (default_encoders(kinds) if kinds else {})
    unknown = sorted(set(names) - set(opened.manifest.kinds))
    if unknown:
        raise InputError(f"--encoder names {unknown[0]}, but the items have {', '.join(opened.manifest.kinds)}")
    chosen = EncoderSet({name: names[name] for name in opened.manifest.kinds}, dtype="float32")
    collection = encode(opened, survey(opened), chosen, part / "cells", progress=progress, engine=engine)
    if not len(collection):
        raise InputError("no item is left: " + "; ".join(collection.problems.lines(True)))
    if isinstance(groups, str):
        collection.groups = [item.columns.get(groups) for item in collection.known]
    return collection, chosen.describe()


def _align(
    collection: Collection,
    model: str | Path | Aligner | None,
    groups: str | Sequence[Any] | None,
    relevant: str | Sequence[Any] | None,
    part: Path,
    progress: Progress | None,
    engine: Engine | None,
) -> tuple[Aligner | None, dict[str, Any]]:
    """(the aligner, the layout of the index)"""
    names = list(collection.z)
    siblings = collection.groups if groups is None or isinstance(groups, str) else list(groups)
    if siblings is not None and len(siblings) != len(collection):
        raise InputError(f"groups has {len(siblings)} labels but there are {len(collection)} items; pass one per item")
    settings = model if isinstance(model, Aligner) and not model.__sklearn_is_fitted__() else Aligner(random_state=0)
    if model is None or model is settings:
        inside, why = linked(names, collection.present)
        values = relevance_of_items(collection, relevant)
        if progress is not None and inside:
            progress(f"align {', '.join(inside)} ({len(collection)} items)", 0, 0)  # how long is not known
        aligner = fit(collection, inside, siblings, part, settings, values, engine)
    else:
        if relevant is not None:
            raise InputError(
                "relevant says how an aligner is chosen, but model is fitted already; leave one of them out"
            )
        aligner = model if isinstance(model, Aligner) else load_aligner(model)
        inside, why = check_aligner(aligner, collection)
    modalities = {
        name: {
            "kind": collection.kinds[name],
            "width": int(collection.z[name].shape[1]),
            "encoder": collection.encoders.get(name),
            "aligned": name in inside,
            "why": why.get(name),
        }
        for name in names
    }
    layout = {
        "format": store.FORMAT,
        "version": store.VERSION,
        "calmrl": version("calmrl"),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "modalities": modalities,
        "columns": store.columns_of(collection.known),
        "width": 0 if aligner is None else aligner._space.latent_dim,
        "fitted_on": len(collection) if model is None or model is settings else None,
    }
    return aligner, layout


def _write(
    collection: Collection,
    aligner: Aligner | None,
    layout: dict[str, Any],
    path: str | Path,
    part: Path,
    progress: Progress | None,
    engine: Engine | None,
) -> None:
    """The tables, beside the place of the index, and then its name."""
    target: str | Path = path
    if not store.is_remote(path):
        target = part / "database"
        shutil.rmtree(target, ignore_errors=True)
    vectors, certainty = place(aligner, collection, engine)
    placed = np.flatnonzero(vectors.any(axis=1))
    near = np.zeros(len(collection), np.float32)
    sample = vectors[placed[neighbours.hub_sample(len(placed))]]
    near[placed] = neighbours.nearness(vectors[placed], sample, own=len(placed) <= neighbours.SAMPLE)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(collection), ROWS):
            rows = list(range(start, min(start + ROWS, len(collection))))
            yield store.batch(collection.take(rows), vectors[rows], certainty[rows], near[rows], layout)
            if progress is not None:
                progress("write items", rows[-1] + 1, len(collection))

    table = store.create_items(target, batches(), layout)
    layout["search"] = None
    if len(placed) > neighbours.EXACT_ROWS:
        layout["search"] = neighbours.build_ann(table, len(collection))
    store.write_parts(target, {store.LAYOUT: json.dumps(layout).encode(), **aligner_parts(aligner)})
    if target is not path:
        checksums.record(Path(target))
        put_in_place(Path(target), Path(path))
