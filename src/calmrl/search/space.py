"""The shared space of an index: on which items it is fitted, beside which base, what it leaves out, where it places items.

Of a held-out query, the share of the gallery behind its own item is 1/2 on average by chance, and 1 at best. A modality is at
chance where that share, on average over all directions to and from it, is within two standard errors of 1/2 and below USEFUL
even two standard errors higher: with few pairs nothing is called useless. It is left out of the space unless a base knows it,
for it would only add noise to what the others say.

Items that share a file are one item as far as held-out items go: both in one fold, or recall to expect is that of files already
seen.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import binom
from sklearn.base import clone

from calmrl._support.engine import Engine, LocalEngine, one_thread
from calmrl._support.output import new_file
from calmrl._support.parsing import read_json
from calmrl.aligner.base import BASES, MIN_PAIRS, fitting_base
from calmrl.aligner.estimator import GROUP, Aligner
from calmrl.aligner.expected import Evidence
from calmrl.aligner.posterior import embed_with_certainty
from calmrl.arrays import check
from calmrl.data.features.distributed_rows import DistributedArrays
from calmrl.data.features.feature_set import ROW, relevance_texts
from calmrl.data.patterns import connected, rows_together
from calmrl.encoders.encoder_set import encoder_names
from calmrl.encoders.registry import DEFAULTS, is_installed, joint_space, kind_of
from calmrl.errors import InputError
from calmrl.models.saved import load
from calmrl.protocols import Progress
from calmrl.search import neighbours, store
from calmrl.search.collection import Collection, ItemRecord, sha256
from calmrl.search.levels import ERROR, unit

PLACE_ROWS = 1 << 14  # items that are placed at once; a whole number of the blocks that `embed_with_certainty` works in
FEW = 2000  # items that are aligned on one thread
ALIGNER, HEADER = "aligner", "aligner.json"  # of a saved aligner
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
    ocr: bool = False
    segments: float = 10.0


def threads_for(items: int) -> AbstractContextManager[None]:
    """One thread for few items: there more gain little, and on a busy machine they wait for each other."""
    return one_thread() if items <= FEW else nullcontext()


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
    while aligner is not None and (useless := at_chance(aligner)):
        why |= dict.fromkeys(useless, AT_CHANCE)
        inside = [name for name in inside if name not in useless]
        alone = len(inside) < 2 and settings.base is None and settings.shared is None
        why |= {name: f"without {' and '.join(useless)} it is the only one" for name in inside if alone}
        inside = [] if alone else inside
        aligner = fit(collection, inside, groups, keep, settings, relevant, options.engine)
    if aligner is not None:
        inside = [name for name in names if name in aligner.widths_]
    return aligner, inside, why


def linked(names: Sequence[str], present: np.ndarray) -> tuple[list[str], dict[str, str]]:
    """(modalities that enough items link with each other, why each of the others is not among them)."""
    together = rows_together(present)
    groups = [group for group in connected(together, MIN_PAIRS) if len(group) > 1]
    inside = max(groups, key=lambda group: int(np.asarray(present)[:, group].any(axis=1).sum()), default=[])
    why = {name: _reason(j, names, together) for j, name in enumerate(names) if j not in inside}
    return [names[j] for j in inside], why


def _reason(j: int, names: Sequence[str], together: np.ndarray) -> str:
    name = names[j]
    if not together[j, j]:
        return "no item has it"
    others = [(int(together[j, other]), names[other]) for other in range(len(names)) if other != j]
    if not others:
        return "it is the only modality, so nothing else can find it"
    pairs, other = max(others)
    with_other = f"{pairs} item{' has' if pairs == 1 else 's have'} both {name} and {other}"
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
        known = encoder_names(base.aligner.encoders_)
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


def description_in(aligner: Aligner | None, name: str) -> dict[str, Any] | None:
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
    encoders = {name: collection.encoders.get(name) for name in names}
    siblings = None if groups is None else [str(label) for label in groups]
    values = None if relevant is None else relevance_texts(relevant)
    arguments = {name: str(value) for name, value in settings.get_params(deep=False).items()}
    observed = sha256(np.asarray(collection.present[:, [list(collection.z).index(name) for name in names]]).tobytes())
    return sha256(
        json.dumps([marks(collection.records).tolist(), observed, encoders, siblings, values, arguments]).encode()
    )


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
    return encoder_names(getattr(load(model), "encoders_", None))


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


@dataclass(frozen=True)
class Places:
    """Where items lie by an aligner: vectors (N, L), certainty (N,), hubness (N,); zero where nothing aligned was observed."""

    aligner: Aligner | None
    vectors: np.ndarray
    certainty: np.ndarray
    hubness: np.ndarray

    def columns(self, layout: Mapping[str, Any], rows: slice = slice(None)) -> dict[str, Any]:
        """Some of them as columns of the table; what is taken off for hubs is r(g) / 2, by modality of the query."""
        vectors = self.vectors[rows]
        hubs = {} if self.aligner is None else self.aligner.hub_levels(vectors)
        columns: dict[str, Any] = {f"hub_{j}": hubs[name] / 2 for j, name in enumerate(layout.get("hubs", ()))}
        columns |= {"certainty": self.certainty[rows], "nearness": self.hubness[rows]}
        return columns | (
            {"vector": store.lists(vectors, np.logical_not(vectors.any(axis=1)))} if layout["width"] else {}
        )


def place_all(aligner: Aligner | None, collection: Collection, engine: Engine | None = None) -> Places:
    """Places of all items of an index."""
    vectors, certainty = place(aligner, collection, engine)
    placed = np.flatnonzero(vectors.any(axis=1))
    hubness = np.zeros(len(collection), np.float32)
    sample = vectors[placed[neighbours.hub_sample(len(placed))]]
    hubness[placed] = neighbours.hubness(vectors[placed], sample, own=len(placed) <= neighbours.SAMPLE)
    return Places(aligner, vectors, certainty, hubness)


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
    """What a layout says of an aligner: the width of places, which queries correct for hubs, how places are compared."""
    if aligner is None:
        return {"width": 0, "hubs": [], "metric": neighbours.COSINE}
    metric = neighbours.DOT if aligner.base_ else neighbours.COSINE
    return {"width": aligner.width_, "hubs": sorted(aligner.references_), "metric": metric}


USEFUL = 0.6  # of the gallery behind the own item
GRADES = ((0.9, "find each other well"), (0.75, "find each other fairly well"), (0.0, "hardly find each other"))
FILES = ("image", "audio")  # kinds whose repetition says nothing about items; the same caption may be meant twice
SURE = 0.01  # probability at which so many unlike items would come together by chance
AT_CHANCE = "held-out items neither find it nor are found by it better than by chance"


def behind(evidence: Evidence) -> np.ndarray:
    """The share of the gallery behind the own item of each query, (n,)."""
    return 1 - (evidence.ranks - 1) / np.maximum(1, evidence.gallery - 1)


def at_chance(aligner: Aligner) -> list[str]:
    """Modalities that have nothing to do with the others, as far as held-out items show, and that no base knows."""
    known = {name for base in aligner.base_ for name in base.names}
    return [name for name in unrelated(aligner) if name not in known]


def unrelated(aligner: Aligner) -> list[str]:
    """Modalities whose items neither find the others nor are found by them, held out; a base may know them all the same."""
    out = []
    for name in aligner.names_:
        found = share_behind(aligner, name)
        if found is not None and found[0] < 0.5 + found[1] and max(found[0], 0.5) + found[1] < USEFUL:
            out.append(name)
    return out


def share_behind(aligner: Aligner, name: str) -> tuple[float, float] | None:
    """(share of the gallery behind the own item, mean over the directions to and from a modality; two standard errors)."""
    parts = [behind(one) for key, one in aligner.evidence_.items() if name in key.split("->")]
    if not parts:
        return None
    error = 2 / math.sqrt(12 * max(len(part) for part in parts))  # twice that of uniform shares
    return float(np.mean([part.mean() for part in parts])), error


def in_short(aligner: Aligner | None, why: Mapping[str, str | None]) -> str | None:
    """One sentence: with which other each modality goes best, and which are unrelated to the rest."""
    pairs: dict[tuple[str, ...], list[float]] = {}
    for key, one in ({} if aligner is None else aligner.evidence_).items():
        pairs.setdefault(tuple(sorted(key.split("->"))), []).append(float(behind(one).mean()))
    best = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        pair = max((pair for pair in pairs if name in pair), key=lambda pair: np.mean(pairs[pair]))
        grade = next(word for least, word in GRADES if np.mean(pairs[pair]) >= least)
        best[pair] = f"{pair[0]} and {pair[1]} {grade}"
    unrelated = [f"{name} is unrelated to the rest" for name, reason in why.items() if reason == AT_CHANCE]
    return "; ".join([*best.values(), *unrelated]) or None


def with_repeats(collection: Collection, siblings: list[Any] | None) -> tuple[list[Any] | None, dict[str, list[int]]]:
    """(a label per item, the same where items share a picture or sound; modality -> [items, different files] if fewer)."""
    repeated: dict[str, list[int]] = {}
    shared = [(row, (type(label).__name__, str(label))) for row, label in enumerate(siblings or ())]
    for name in (name for name, kind in collection.kinds.items() if kind in FILES):
        prints = [item.fingerprints.get(name) for item in collection.records]
        held = [(row, (name, one[0])) for row, one in enumerate(prints) if one is not None]
        different = len({content for _, content in held})
        if different < len(held):
            repeated[name] = [len(held), different]
            shared += held
    if not repeated:
        return siblings, repeated
    number = {key: n for n, key in enumerate(dict.fromkeys(key for _, key in shared), start=len(collection))}
    ends = [row for row, _ in shared], [number[key] for _, key in shared]
    size = len(collection) + len(number)
    links = coo_matrix((np.ones(len(shared)), ends), shape=(size, size))
    return connected_components(links, directed=False)[1][: len(collection)].tolist(), repeated


def unlike_line(name: str, values: np.ndarray, sample: np.ndarray, level: float) -> str | None:
    """What to say where more of the added values are far from all others than ERROR of them would be; None where not."""
    if not len(values) or not len(sample):
        return None
    far = int(((unit(values) @ sample.T).max(axis=1) < level).sum())
    if far < 2 or binom.sf(far - 1, len(values), ERROR) > SURE:
        return None
    return (
        f"{name}: {far} of {len(values)} added are unlike all that was there; `refit=True` (--refit) fits the space again with "
        "them"
    )
