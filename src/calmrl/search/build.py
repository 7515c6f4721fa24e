"""Make an index: features, one space, places, a table; written atomically, and a killed run continues where it stopped.

Everything is made in `<path>.part` beside the index and takes its name at the end. An index in an object store is written there
directly; it is not an index before its last table is there.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import clone

from calmrl._support.engine import Engine, LocalEngine
from calmrl._support.filesystem import put_in_place
from calmrl._support.output import check_directory, new_file, part_folder
from calmrl._support.parsing import read_json
from calmrl._support.tensor_files import from_files, to_files
from calmrl.aligner.base import BASES, MIN_PAIRS, fitting_base, load_base
from calmrl.aligner.estimator import GROUP, Aligner
from calmrl.aligner.posterior import embed_with_certainty
from calmrl.aligner.storage import from_state, to_state
from calmrl.arrays import check
from calmrl.data.features.distributed_rows import DistributedArrays
from calmrl.data.features.feature_set import ROW, relevance_texts
from calmrl.data.patterns import connected, rows_together
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.registry import DEFAULTS, default_encoders, full_name, is_installed, joint_space, kind_of
from calmrl.errors import InputError
from calmrl.models.saved import load
from calmrl.protocols import Progress
from calmrl.search import checksums, neighbours, store
from calmrl.search.collection import Collection, ItemRecord, described, from_features, kinds_of, sha256
from calmrl.search.encoding import encode, records_of
from calmrl.sources import DATASET, ITEMS, PARTS, Source, is_remote, open_source

ROWS = 2048  # written at once
PLACE_ROWS = 1 << 14  # items that are placed at once; a whole number of the blocks that `embed_with_certainty` works in
HEADER = "aligner.json"  # of a saved aligner
LEARNED = "learned"  # the part that holds the marks of the items whose pairs the aligner has seen
AUTO = "auto"  # the base that fits the encoders
ASKED_WITH = ("text", "image")  # kinds that an index can be asked with although no item has them


@dataclass(frozen=True)
class BuildOptions:
    """How an index is made: the arguments of `Index.build`."""

    encoders: Mapping[str, str] | None = None
    model: str | Path | Aligner | None = None
    groups: str | Sequence[Any] | None = None
    relevant: str | Sequence[Any] | None = None
    progress: Progress | None = None
    engine: Engine | None = None  # None: this process
    base: str | Path | Aligner | None = AUTO


def build(source: Any, path: str | Path, options: BuildOptions) -> None:
    """Write the index of a source; see `calmrl.Index.build`."""
    if isinstance(options.base, (str, Path)) and options.base != AUTO:
        load_base(options.base)  # to be told now, not after hours of encoding
    with working_folder(path) as part:
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
        collection, description = _collect(opened, encoders, part, options)
        aligner, layout = _align(collection, part, options)
        if description is not None:
            entries = {name: extra for name in layout["modalities"] if (extra := _description_in(aligner, name))}
            description = {**description, "encoders": {**entries, **description["encoders"]}}
        layout |= {
            "encoders": description,
            "source": {"type": opened.form, "path": opened.root},
            "problems": collection.problems.lines(True),
        }
        _write(collection, aligner, layout, path, part, options)


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
def working_folder(path: str | Path) -> Iterator[Path]:
    """`<path>.part`, for one run at a time; kept if the run does not come to its end."""
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
    collection = encode(opened, records, chosen, part / "cells", progress=options.progress, engine=options.engine)
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
        ITEMS: ITEMS,
    }
    return aligner, layout


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
    vectors, certainty, hubness = place_all(aligner, collection, options.engine)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(collection), ROWS):
            rows = list(range(start, min(start + ROWS, len(collection))))
            levels = hub_levels(aligner, vectors[rows])
            yield store.batch(collection.take(rows), vectors[rows], certainty[rows], hubness[rows], layout, levels)
            if options.progress is not None:
                options.progress(rows[-1] + 1, len(collection), "write items")

    write_tables(target, batches(), vectors, aligner, layout, collection)
    if target is not path:
        checksums.record(Path(target))
        put_in_place(Path(target), Path(path))


def write_tables(
    path: str | Path,
    batches: Iterator[pa.RecordBatch],
    vectors: np.ndarray,
    aligner: Aligner | None,
    layout: dict[str, Any],
    collection: Collection,
) -> None:
    """The items, at these places; then the parts, by which they become the index."""
    table = store.create_items(path, batches, layout)
    layout["search"] = None
    if int(vectors.any(axis=1).sum()) > neighbours.EXACT_ROWS:
        layout["search"] = neighbours.build_ann(table, len(collection), layout["metric"])
    parts = {store.LAYOUT: json.dumps(layout).encode(), **aligner_parts(aligner)}
    if layout["fit"] is not None and aligner is not None and aligner.evidence_:
        paired = collection.present.sum(axis=1) > 1
        parts[LEARNED] = marks([item for item, has in zip(collection.records, paired, strict=True) if has]).tobytes()
    store.write_parts(path, parts)


# ---- the shared space


def recipe(settings: Aligner, collection: Collection, options: BuildOptions) -> dict[str, Any] | None:
    """What the space was fitted with and on, so that it can be fitted again; None where a file cannot say it."""
    groups, relevant = options.groups, options.relevant
    bases = settings.base if isinstance(settings.base, (list, tuple)) else [settings.base]
    if any(not isinstance(given, (str, Path, type(None))) for given in (groups, relevant, *bases)):
        return None
    if groups is None and collection.groups is not None:
        groups = GROUP
    named = [str(base) if str(base) in BASES else str(Path(base).absolute()) for base in bases if base is not None]
    entry = {
        "settings": settings.get_params(deep=False) | {"base": named or None},
        "groups": groups,
        "relevant": relevant,
        "pairs": pair_counts(list(collection.z), collection.present),
    }
    try:
        return json.loads(json.dumps(entry))
    except TypeError:
        return None


def pair_counts(names: Sequence[str], present: np.ndarray) -> dict[str, int]:
    """ "image + text" -> how many items have both."""
    together = rows_together(present)
    return {f"{names[a]} + {names[b]}": int(together[a, b]) for a, b in combinations(range(len(names)), 2)}


def marks(records: Sequence[ItemRecord]) -> np.ndarray:
    """A number per item, (N,) uint64, that changes with its id and with what it was made of."""
    content = [[item.id, {name: print_[0] for name, print_ in item.fingerprints.items()}] for item in records]
    return np.array([int(sha256(json.dumps(one, sort_keys=True).encode())[:16], 16) for one in content], np.uint64)


def fit_linked(
    collection: Collection,
    groups: Sequence[Any] | None,
    keep: Path,
    settings: Aligner,
    relevant: Sequence[Any] | None,
    options: BuildOptions,
) -> tuple[Aligner | None, list[str], dict[str, str]]:
    """(the aligner of all modalities that pairs or a base link, these, why the others are not among them)"""
    names = list(collection.z)
    inside, why = linked(names, collection.present)
    if settings.base is not None or settings.shared is not None:
        inside = names
    if options.progress is not None and inside:
        what = f"align {', '.join(inside)} ({len(collection)} items)"
        options.progress(0, 0, what)  # how long is not known
    aligner = fit(collection, inside, groups, keep, settings, relevant, options.engine)
    if aligner is not None:
        inside = [name for name in names if name in aligner.widths_]
    return aligner, inside, why


def linked(names: Sequence[str], present: np.ndarray) -> tuple[list[str], dict[str, str]]:
    """(modalities that enough items link with each other, why each of the others is not among them)."""
    together = rows_together(present)
    groups = [group for group in connected(together, MIN_PAIRS) if len(group) > 1]
    inside = max(groups, key=lambda group: int(np.asarray(present)[:, group].any(axis=1).sum()), default=[])
    return [names[j] for j in inside], {
        name: _reason(name, names, together, j) for j, name in enumerate(names) if j not in inside
    }


def _reason(name: str, names: Sequence[str], together: np.ndarray, j: int) -> str:
    if not together[j, j]:
        return "no item has it"
    others = [(int(together[j, other]), names[other]) for other in range(len(names)) if other != j]
    if not others:
        return "it is the only modality, so nothing else can find it"
    pairs, other = max(others)
    with_other = f"{pairs} items have both {name} and {other}"
    return (
        f"{with_other if pairs else f'no item has both {name} and another modality'}; {MIN_PAIRS} are needed to align"
    )


def fit(
    collection: Collection,
    names: list[str],
    groups: Sequence[Any] | None,
    keep: Path,
    settings: Aligner,
    relevant: Sequence[Any] | None = None,
    engine: Engine | None = None,
) -> Aligner | None:
    """The aligner of these modalities; kept in a folder until the index is whole, so that a killed run need not refit."""
    if not names:
        return None
    digest = _digest(collection, names, groups, settings, relevant)
    marker = keep / "fitted.json"
    if marker.is_file() and read_json(marker, "remove its folder, and the aligner is fitted again") == digest:
        return Aligner.load(keep / "aligner")
    columns = [list(collection.z).index(name) for name in names]
    rows = np.flatnonzero(collection.present[:, columns].any(axis=1))
    whole = len(rows) == len(collection)
    z = {name: collection.z[name] if whole else np.asarray(collection.z[name][rows]) for name in names}
    labels, values = (None if given is None else [given[int(row)] for row in rows] for given in (groups, relevant))
    present = collection.present[rows][:, columns]
    given: Any = (z, present)
    if engine is not None:
        check(z, present)
        given = (DistributedArrays(z, present, engine), None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no row has both")  # `expected` says it for each direction
        warnings.filterwarnings("ignore", message="no two modalities are linked")  # and the summary this
        encoders = {name: collection.encoders[name] for name in names if name in collection.encoders}
        aligner = clone(settings).fit(*given, groups=labels, relevant=values, encoders=encoders)
    marker.unlink(missing_ok=True)
    aligner.save(keep / "aligner", overwrite=(keep / "aligner").exists())
    with new_file(marker) as draft:
        draft.write_text(json.dumps(digest), encoding="utf-8")
    return aligner


def with_base(settings: Aligner, base: Any, collection: Collection) -> Aligner:
    """The settings of the aligner with what fits the encoders: a base, and both sides of a joint model as one of their own."""
    if settings.base is not None or settings.shared is not None:
        return settings
    joint: dict[str, list[str]] = {}
    for name, encoder in collection.encoders.items():
        if (space := joint_space(encoder)) is not None:
            joint.setdefault(space, []).append(name)
    shared = [tuple(names) for names in joint.values() if len(names) > 1] or None
    widths = {name: int(values.shape[1]) for name, values in collection.z.items()}
    if base == AUTO:
        base = fitting_base(widths, collection.encoders)
    return clone(settings).set_params(base=base, shared=shared)


def only_asked_with(aligner: Aligner, collection: Collection) -> dict[str, dict[str, Any]]:
    """Texts or pictures that no item has but that a base knows, so that one can ask with them: entries of the layout.

    The aligner gives them the name of their kind, by which files that are added later are recognised.
    """
    entries: dict[str, dict[str, Any]] = {}
    there = set(collection.kinds.values())
    for number, base in enumerate(aligner.base_):
        known = {name: str(entry["name"]) for name, entry in (base.aligner.encoders_ or {}).get("encoders", {}).items()}
        names = {name: inner for name, inner in base.names.items() if name in collection.z}
        for kind in ASKED_WITH:
            sides = [inner for inner, encoder in known.items() if kind_of(encoder) == kind and is_installed(encoder)]
            if kind in there or kind in collection.z or kind in entries or not sides:
                continue
            inner = min(sides, key=lambda side: known[side] != DEFAULTS[kind])
            names[kind] = inner
            width = base.aligner.widths_[inner]
            entries[kind] = {"kind": kind, "width": width, "encoder": known[inner], "aligned": True, "why": None}
        aligner.base_[number] = replace(base, names=names)
    return entries


def _description_in(aligner: Aligner | None, name: str) -> dict[str, Any] | None:
    """How a base describes the encoder of a modality."""
    for base in [] if aligner is None else aligner.base_:
        if name in base.names and base.aligner.encoders_ is not None:
            return base.aligner.encoders_["encoders"].get(base.names[name])
    return None


def relevance_of_items(collection: Collection, relevant: str | Sequence[Any] | None) -> list[Any] | None:
    """One value per item: those of a column, or as given."""
    if relevant is None or (isinstance(relevant, str) and relevant == ROW):
        return None
    if not isinstance(relevant, str):
        if len(relevant) != len(collection):
            raise InputError(
                f"relevant has {len(relevant)} values but there are {len(collection)} items; pass one per item"
            )
        return list(relevant)
    values = column_of(collection.records, relevant)
    if not any(value is not None for value in relevance_texts(values)):
        raise InputError(f"no item has a value in the column {relevant!r}, so it cannot say which items are relevant")
    return values


def column_of(records: Sequence[ItemRecord], name: str) -> list[Any]:
    """One value per item: its text, its labels, or what it has in another column of the source."""
    if name in ("text", "labels"):
        return [item.texts if name == "text" else item.labels for item in records]
    known = dict.fromkeys(column for item in records for column in item.columns)
    if name not in known:
        raise InputError(f'no column "{name}"; there are {", ".join(("text", "labels", *known))}')
    return [item.columns.get(name) for item in records]


def _digest(
    collection: Collection,
    names: list[str],
    groups: Sequence[Any] | None,
    settings: Aligner,
    relevant: Sequence[Any] | None,
) -> str:
    """Changes with everything that the fit depends on."""
    content = [
        [item.id, {name: item.fingerprints[name][0] for name in names if name in item.fingerprints}]
        for item in collection.records
    ]
    encoders = {name: collection.encoders.get(name) for name in names}
    siblings = None if groups is None else [str(label) for label in groups]
    values = None if relevant is None else relevance_texts(relevant)
    arguments = {name: str(value) for name, value in settings.get_params(deep=False).items()}
    return sha256(json.dumps([content, encoders, siblings, values, arguments]).encode())


def load_aligner(path: str | Path) -> Aligner:
    """An aligner that was saved, or that `calmrl train` made."""
    if (Path(path) / HEADER).is_file():
        return Aligner.load(path)
    model = load(path).model
    if not hasattr(model, "aligner"):
        raise InputError(
            f"{path} holds a model of kind {model.kind!r}; an index takes a saved Aligner, or what "
            "calmrl train method=aligner made, because it fuses queries by the posterior of the latent model"
        )
    return model.aligner


def encoders_of(model: Any) -> dict[str, str]:
    """Modality -> encoder that a trained model was made with, where it says so."""
    if model is None or isinstance(model, Aligner) or (Path(model) / HEADER).is_file():
        return {}
    described = getattr(load(model), "encoders_", None) or {}
    return {name: entry["name"] for name, entry in described.get("encoders", {}).items()}


def check_aligner(aligner: Aligner, collection: Collection) -> tuple[list[str], dict[str, str]]:
    """(modalities that a given aligner covers, why the others are not searched)."""
    widths = aligner.widths_
    inside = [name for name in collection.z if name in widths]
    for name in inside:
        if collection.z[name].shape[1] != widths[name]:
            raise InputError(
                f"{name} has width {collection.z[name].shape[1]} but the model was fitted on width {widths[name]}; use "
                "the encoder that the model was made with"
            )
    if not inside:
        raise InputError(f"the model knows {', '.join(widths)}, the collection has {', '.join(collection.z)}")
    return inside, {name: "the model does not know it" for name in collection.z if name not in widths}


def place_all(
    aligner: Aligner | None, collection: Collection, engine: Engine | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(vectors (N, L), certainty (N,), hubness (N,)) of all items of an index."""
    vectors, certainty = place(aligner, collection, engine)
    placed = np.flatnonzero(vectors.any(axis=1))
    hubness = np.zeros(len(collection), np.float32)
    sample = vectors[placed[neighbours.hub_sample(len(placed))]]
    hubness[placed] = neighbours.hubness(vectors[placed], sample, own=len(placed) <= neighbours.SAMPLE)
    return vectors, certainty, hubness


def place(
    aligner: Aligner | None, collection: Collection, engine: Engine | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(vectors (N, L), certainty (N,)) of items; zero where nothing that is aligned was observed."""
    if aligner is None or not len(collection):
        width = 0 if aligner is None else aligner.width_
        return np.zeros((len(collection), width), np.float32), np.zeros(len(collection), np.float32)
    names = sorted(name for name in collection.z if name in aligner.widths_)
    present = collection.present[:, [list(collection.z).index(name) for name in names]]
    blocks = (
        (
            {name: np.array(collection.z[name][start : start + PLACE_ROWS]) for name in names},
            np.asarray(present[start : start + PLACE_ROWS]),
        )
        for start in range(0, len(collection), PLACE_ROWS)
    )
    parts = list((engine or LocalEngine()).map(_place_block, blocks, aligner))
    return np.concatenate([vectors for vectors, _ in parts]), np.concatenate([certainty for _, certainty in parts])


def _place_block(block: tuple[dict[str, np.ndarray], np.ndarray], aligner: Aligner) -> tuple[np.ndarray, np.ndarray]:
    """(vectors, certainty) of some items."""
    return embed_with_certainty(aligner, *block)


def measures_of(aligner: Aligner | None) -> dict[str, Any]:
    """What a layout says of an aligner: width of places, modalities of queries that correct for hubs, how places are compared."""
    if aligner is None:
        return {"width": 0, "hubs": [], "metric": neighbours.COSINE}
    metric = neighbours.DOT if aligner.base_ else neighbours.COSINE
    return {"width": aligner.width_, "hubs": sorted(aligner.references_), "metric": metric}


def hub_levels(aligner: Aligner | None, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """What is taken off the similarity of items to a query, by its modality: r(g) / 2."""
    return {} if aligner is None else {name: level / 2 for name, level in aligner.hub_levels(vectors).items()}


def aligner_parts(aligner: Aligner | None) -> dict[str, bytes]:
    """A fitted aligner as the files that it is saved in."""
    return {} if aligner is None else to_files(to_state(aligner), "aligner")


def aligner_from(parts: Mapping[str, bytes]) -> Aligner | None:
    """The inverse of `aligner_parts`."""
    return from_state(from_files(parts, "aligner")) if HEADER in parts else None
