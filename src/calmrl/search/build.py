"""Make an index: features, one space, places, a table; written atomically, and a killed run continues where it stopped.

Everything is made in `<path>.part` beside the index and takes its name at the end. An index in an object store is written there
directly; it is not an index before its last table is there.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.filesystem import put_in_place
from calmrl._support.output import check_directory, part_folder
from calmrl._support.places import ITEMS, PARTS, is_remote
from calmrl._support.tensor_files import to_files
from calmrl.aligner.base import MIN_PAIRS, load_base
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.storage import to_state
from calmrl.data.features.feature_set import ROW
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.registry import DEFAULTS, default_encoders, full_name, is_installed
from calmrl.errors import InputError
from calmrl.search import checksums, neighbours, store
from calmrl.search.collection import (
    SEGMENTS,
    TEXTS,
    UNUSABLE,
    Collection,
    described,
    encode,
    from_features,
    has_videos,
    kinds_of,
    names_as_texts,
    names_say_something,
    records_of,
    words_as_texts,
)
from calmrl.search.levels import measured
from calmrl.search.space import (
    ALIGNER,
    AT_CHANCE,
    AUTO,
    LEARNED,
    BuildOptions,
    Places,
    check_aligner,
    column_of,
    description_in,
    encoders_of,
    fit_linked,
    load_aligner,
    marks,
    measures_of,
    only_asked_with,
    place_all,
    recipe,
    relevance_of_items,
    share_behind,
    threads_for,
    unrelated,
    with_base,
    with_repeats,
)
from calmrl.sources import DATASET, FOLDER, Source, open_source

ROWS = 2048  # written at once
TRIED = 120  # recordings, with another encoder than theirs
REPEATED = "repeated"  # modality -> [items, different files], where files are repeated
OCR = "ocr"  # of the layout: whether words in pictures were read
NAMES = "names"  # of the layout: whether names stand for texts that items of a folder lack


def build(source: Any, path: str | Path, options: BuildOptions) -> None:
    """Write the index of a source; see `calmrl.Index.build`."""
    if isinstance(options.base, (str, Path)) and options.base != AUTO:
        load_base(options.base)  # to be told now, not after hours of encoding
    with index_part_folder(path) as part:
        given = {modality: full_name(modality, name) for modality, name in (options.encoders or {}).items()}
        of_model = encoders_of(options.model)
        known = {**of_model, **given}
        opened = open_source(source, kinds_of(known) if known else None, some=bool(of_model))
        if opened.form == DATASET and options.base == AUTO:
            options = replace(options, base=None)  # it was learned from them, and would promise too much
        encoders = {name: known[name] for name in known if name in given or name in opened.modalities}
        if is_index(path):
            _check_same(path, opened, encoders)
            return  # nothing to do; or an earlier run was stopped after its last step
        _check_free(path)
        if options.ocr:
            if opened.form != FOLDER:
                raise InputError(
                    f"words in pictures are read in a folder of files; {opened.root} is of the form {opened.form}"
                )
            words_as_texts(opened, options.progress)
        named = _takes_names(opened, encoders, options)
        if named:
            names_as_texts(opened)
        collection, description = _collect(opened, encoders, part, options)
        with threads_for(len(collection)):
            aligner, layout = _align(collection, part, options)
            layout["modalities"] = _with_better_encoders(opened, collection, aligner, layout["modalities"], given, part)
        if description is not None:
            entries = {name: extra for name in layout["modalities"] if (extra := description_in(aligner, name))}
            description = {**description, "encoders": {**entries, **description["encoders"]}}
        if options.segments and opened.manifest is not None and has_videos(opened):
            layout[SEGMENTS] = options.segments
        layout |= {
            "encoders": description,
            "source": {"type": opened.form, "path": opened.root},
            "problems": collection.problems.lines(True),
            NAMES: named,
            OCR: options.ocr,
            UNUSABLE: collection.unusable,
        }
        _write(collection, aligner, layout, path, part, options)


def _takes_names(opened: Source, encoders: Mapping[str, str], options: BuildOptions) -> bool:
    """Whether names of files stand for texts that items lack: they say something, and an encoder reads them.

    A given aligner, or encoders for other modalities alone, say what is wanted: then only in a folder that has texts.
    """
    if not names_say_something(opened):
        return False
    fitted = options.model is not None and not (
        isinstance(options.model, Aligner) and not options.model.__sklearn_is_fitted__()
    )
    own = TEXTS in opened.modalities or TEXTS in encoders
    return own or not (fitted or encoders or not is_installed(DEFAULTS[TEXTS]))


def is_index(path: str | Path) -> bool:
    """Whether there is a whole index."""
    if not is_remote(path) and not Path(path).is_dir():
        return False
    return PARTS in store.table_names(store.connect(path))


def _check_same(path: str | Path, opened: Source, encoders: Mapping[str, str]) -> None:
    """Refuse to take the index of something else for the one that is asked for."""
    _, parts, _ = store.open_tables(path)
    layout = store.read_layout(parts, path)
    made = {name: entry["encoder"] for name, entry in layout["modalities"].items()}
    differs = [f"{name}={encoder}" for name, encoder in encoders.items() if made.get(name) != encoder]
    if layout["source"] != {"type": opened.form, "path": opened.root}:
        differs.append(f"source {layout['source']['path']}")
    if differs:
        raise InputError(f"{path} is an index already, made otherwise ({', '.join(differs)}); choose another name")


def _check_free(path: str | Path) -> None:
    if is_remote(path):
        if ITEMS in store.table_names(store.connect(path)):  # of a run that was stopped
            store.connect(path).drop_table(ITEMS)
        return
    target = Path(path)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target} exists and is not a calmrl index; choose another name")


@contextmanager
def index_part_folder(path: str | Path) -> Iterator[Path]:
    """`<path>.part`, where an index is made, for one run at a time; deleted at the end, kept if the run is stopped."""
    target = Path(str(path).rstrip("/").rpartition("/")[2]) if is_remote(path) else Path(path)
    check_directory(target)
    with part_folder(target, named=path) as part:
        yield part


def _collect(
    opened: Source, encoders: Mapping[str, str], part: Path, options: BuildOptions
) -> tuple[Collection, dict[str, Any] | None]:
    """(items with features, the description of their encoders if files were encoded)."""
    groups = options.groups if isinstance(options.groups, str) else None
    if opened.features is not None:
        collection = from_features(opened, groups)
        unknown = sorted(set(encoders) - set(collection.z))
        if unknown:
            raise InputError(f"`encoders` names {unknown[0]}, but the features have {', '.join(collection.z)}")
        collection.encoders |= encoders
        collection.kinds |= kinds_of(collection.encoders)
        return collection, None if encoders else described(opened.features)
    assert opened.manifest is not None
    kinds = opened.manifest.kinds
    unknown = sorted(set(encoders) - set(kinds))
    if unknown:
        raise InputError(f"`encoders` names {unknown[0]}, but the items have {', '.join(kinds)}")
    others = {name: kind for name, kind in kinds.items() if name not in encoders}
    names = {**encoders, **(default_encoders(others) if others else {})}
    chosen = EncoderSet({name: names[name] for name in kinds}, dtype="float32")
    records = records_of(opened)
    for column in (groups, options.relevant):
        if isinstance(column, str) and column != ROW:
            column_of(records, column)  # to be told now, not after hours of encoding
    collection = encode(
        opened,
        records,
        chosen,
        part / "cells",
        progress=options.progress,
        engine=options.engine,
        segments=options.segments if has_videos(opened) else 0.0,
    )
    if not len(collection):
        raise InputError("no item is left: " + "; ".join(collection.problems.lines(True)))
    if groups is not None:
        collection.groups = column_of(collection.records, groups)
    return collection, chosen.describe()


def _align(collection: Collection, part: Path, options: BuildOptions) -> tuple[Aligner | None, dict[str, Any]]:
    """(the aligner, the layout of the index)"""
    names, model, groups = list(collection.z), options.model, options.groups
    siblings = collection.groups if groups is None or isinstance(groups, str) else list(groups)
    if siblings is not None and len(siblings) != len(collection):
        raise InputError(f"groups has {len(siblings)} labels but there are {len(collection)} items; pass one per item")
    settings = (
        model
        if isinstance(model, Aligner) and not model.__sklearn_is_fitted__()
        else Aligner(hubs=AUTO, random_state=0)
    )
    siblings, repeated = with_repeats(collection, siblings)
    fits = model is None or model is settings
    if fits:
        settings = with_base(settings, options.base, collection)
        values = relevance_of_items(collection, options.relevant)
        aligner, inside, why = fit_linked(collection, siblings, part, settings, values, options)
    else:
        if options.relevant is not None:
            raise InputError(
                "relevant says how an aligner is chosen, but model is fitted already; leave one of them out"
            )
        aligner = model if isinstance(model, Aligner) else load_aligner(str(model))
        inside, why = check_aligner(aligner, collection)
    modalities = {
        name: {
            "kind": collection.kinds[name],
            "width": int(collection.z[name].shape[1]),
            "encoder": collection.encoders.get(name),
            "aligned": name in inside,
            "why": None if name in inside else why.get(name),
        }
        for name in names
    }
    if aligner is not None:
        modalities |= only_asked_with(aligner, collection)
    layout = {
        "format": store.FORMAT,
        "version": store.VERSION,
        "calmrl": version("calmrl"),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "modalities": modalities,
        "columns": store.columns_of(collection.records),
        **measures_of(aligner),
        "fitted_on": len(collection) if fits else None,
        "fit": recipe(settings, collection, options) if fits else None,
        REPEATED: repeated,
        **measured(aligner, collection, siblings, fits),
        ITEMS: ITEMS,
    }
    return aligner, layout


def _with_better_encoders(
    opened: Source,
    collection: Collection,
    aligner: Aligner | None,
    entries: dict[str, Any],
    given: Mapping[str, str],
    part: Path,
) -> dict[str, Any]:
    """Entries of the layout; of sounds that are unrelated to the rest, with the encoder of speech if it relates some of them.

    Few people name a folder of recordings of speech "speech", by which the encoder would be chosen. Where it is not installed,
    it cannot be tried, but is named.
    """
    speech = DEFAULTS["speech"]
    if opened.manifest is None:
        return entries
    apart = [] if aligner is None else unrelated(aligner)
    for j, name in enumerate(collection.z):
        entry = entries[name]
        at_chance = entry["why"] == AT_CHANCE or name in apart
        if not at_chance or name in given or entry["encoder"] != DEFAULTS["audio"]:
            continue
        if not is_installed(speech):
            entries = entries | {name: entry | {"better": {"encoder": speech, "tried": 0}}}
            continue
        rows = np.flatnonzero(collection.present[:, j] & (collection.present.sum(axis=1) > 1))
        rows = rows[np.linspace(0, len(rows) - 1, min(TRIED, len(rows))).astype(int)]
        encoder = EncoderSet({name: speech}, dtype="float32")
        sample = encode(opened, [collection.records[row] for row in rows], encoder, part / "cells")
        rows = rows[[collection.records[row].id in {item.id for item in sample.records} for row in rows]]
        if len(rows) < MIN_PAIRS:
            continue
        z = {other: np.asarray(values[rows]) for other, values in collection.z.items()} | {name: sample.z[name]}
        trial = Aligner("linear", refine="never", candidates=2, random_state=0).fit(z, collection.present[rows])
        found = share_behind(trial, name)
        if found is not None and found[0] > 0.5 + found[1]:
            better = {"encoder": speech, "tried": len(rows), "behind": found[0]}
            entries = entries | {name: entry | {"better": better}}
    return entries


def _write(
    collection: Collection,
    aligner: Aligner | None,
    layout: dict[str, Any],
    path: str | Path,
    part: Path,
    options: BuildOptions,
) -> None:
    """The tables, beside the place of the index, and then its name."""
    target: str | Path = path
    if not is_remote(path):
        target = part / "database"
        shutil.rmtree(target, ignore_errors=True)
    places = place_all(aligner, collection, options.engine)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(collection), ROWS):
            stop = min(start + ROWS, len(collection))
            yield store.batch(collection.take(range(start, stop)), layout, places.columns(layout, slice(start, stop)))
            if options.progress is not None:
                options.progress(stop, len(collection), "write items")

    write_tables(target, batches(), places, layout, collection)
    if target is not path:
        checksums.record(target)
        put_in_place(Path(target), Path(path))


def write_tables(
    path: str | Path,
    batches: Iterator[pa.RecordBatch],
    places: Places,
    layout: dict[str, Any],
    collection: Collection,
) -> None:
    """The items, at these places; then the parts, by which they become the index."""
    table, aligner = store.create_items(path, batches, layout), places.aligner
    layout["search"] = None
    if int(places.vectors.any(axis=1).sum()) > neighbours.EXACT_ROWS:
        layout["search"] = neighbours.build_ann(table, len(collection), layout["metric"])
    parts = {
        store.LAYOUT: json.dumps(layout).encode(),
        **({} if aligner is None else to_files(to_state(aligner), ALIGNER)),
    }
    if layout["fit"] is not None and aligner is not None and aligner.evidence_:
        paired = collection.present.sum(axis=1) > 1
        parts[LEARNED] = marks([item for item, has in zip(collection.records, paired, strict=True) if has]).tobytes()
    store.write_parts(path, parts)
