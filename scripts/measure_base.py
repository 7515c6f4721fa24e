"""A base beside a collection's own pairs: R@1 by number of pairs, each collection with a base that has not seen it.

    python scripts/base_sources.py --work DIR
    python scripts/measure_base.py DIR                     three seeds, gallery of 250, 0 to 400 pairs
    python scripts/measure_base.py DIR --split item        siblings of a concept may be on both sides, as random rows are
    python scripts/measure_base.py DIR --captions          words for pictures, of which some have a caption
    python scripts/measure_base.py DIR --time              processor time of an index and of a query, with and without a base
    python scripts/measure_base.py DIR --study             the rows and holes of `calmrl compare study`, with and without a base
    python scripts/measure_base.py DIR --calibration OUT   CalMRL and PMRL, both continued from a base; resumes in OUT

Own rows: so many pairs, and the rest of the collection with one modality each. Test items are of concepts that no own row shows
(--split concept). Everything is chosen without them.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from build_base import COLLECTIONS as SOURCES
from build_base import ENCODERS, TESTED, Rows, make, one_per_concept, read

from calmrl import Aligner, Index
from calmrl.aligner import found_in
from calmrl.config import CompareConfig, load
from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.formats import copy_features
from calmrl.datasets import load_dataset
from calmrl.datasets.emoji import BUNDLE, REDUCED
from calmrl.datasets.registry import indexing_of
from calmrl.metrics import retrieval
from calmrl.workflows.compare.plan import open_rows
from calmrl.workflows.compare.run import compare

PAIRS = (0, 25, 50, 150, 400)
COLLECTIONS = ("stamps", "emoji", "clipart")
GALLERY = 250
POOL = 500  # pictures of an index
QUERIES = 200  # by which one is timed
DIRECTIONS = ("image->text", "text->image")
WIDTH = 256  # of the vectors that heads start from
MODALITIES = {  # modality of a comparison -> columns of a source
    "stamps": {"image": "image", "text": "text", "speech": "speech"},
    "emoji": {"image": "image", "drawing": "image2", "text": "text", "french": "multilingual2"},
    "clipart": {"image": "image", "text": "text", "multilingual": "multilingual"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("features", type=Path, help="folder that scripts/base_sources.py has written")
    parser.add_argument("--only", action="append", choices=COLLECTIONS)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--pairs", type=int, action="append", help="only with so many pairs")
    parser.add_argument("--split", choices=("concept", "item"), default="concept")
    parser.add_argument("--text", choices=("text", "multilingual"), default="text", help="encoder of the words")
    parser.add_argument("--study", action="store_true", help="the rows of the study instead")
    parser.add_argument("--captions", action="store_true", help="search an index in which some pictures have a caption")
    parser.add_argument("--calibration", type=Path, metavar="OUT", help="compare CalMRL and PMRL from a base instead")
    parser.add_argument("--time", action="store_true", help="what a base costs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sources = {path.stem: read(path) for path in sorted(options.features.glob("*.npz"))}
    seeds = range(options.first, options.first + options.seeds)
    if options.captions:
        captioned(sources, options.only or COLLECTIONS, seeds)
        return
    if options.calibration is not None:
        calibration(sources, options.only or COLLECTIONS, seeds, options.calibration)
        return
    if options.time:
        timed(sources)
        return
    if options.study:
        study(sources, options.only or ("stamps", "emoji"), seeds)
        return
    print(
        "| collection | pairs | base | own | side by side | with its hubs | share of own | expected covers | processor s |\n"
        + "|---" * 9
        + "|"
    )
    for name in options.only or COLLECTIONS:
        base = make(sources, SOURCES, without=name)
        others = [source for source in SOURCES if source != name]
        base.elsewhere_ = {
            other: found_in(make(sources, others, without=other), one_per_concept(sources[other]))
            for other in TESTED
            if other != name
        }
        rows = {"image": sources[name]["image"], "text": sources[name][options.text]}
        held = ~np.isnan(rows["image"]).any(1) & ~np.isnan(rows["text"]).any(1)
        if "glyph" in sources[name]:
            held &= ~sources[name]["glyph"].astype(bool)
        rows = {modality: values[held].astype(np.float32) for modality, values in rows.items()}
        if options.text != "text":
            base = renamed(base, options.text)
        concepts = sources[name]["group"][held]
        for pairs in options.pairs or PAIRS:
            line(name, pairs, [trial(rows, concepts, base, pairs, seed, options.split) for seed in seeds])


def captioned(sources: dict[str, Rows], names: Iterable[str], seeds: range) -> None:
    """R@1 of every item's words in an index of pictures, of which so many have a caption, by similarity and as answered.

    Of emoji, captions are names, and queries are keywords; elsewhere both are the title.
    """
    print("| collection | captions | by similarity: all | without caption | as answered: all | without caption |")
    print("|---" * 6 + "|")
    for name in names:
        rows, base = sources[name], make(sources, SOURCES, without=name)
        held = ~np.isnan(rows["image"]).any(1) & ~np.isnan(rows["text"]).any(1)
        if "glyph" in rows:
            held &= ~rows["glyph"].astype(bool)
        for captions in (0, 5, 50, 200):
            found = []
            for seed in seeds:
                order = np.random.default_rng(seed).permutation(np.flatnonzero(held))
                _, first = np.unique(rows["group"][order], return_index=True)
                found.append(in_index(rows, order[np.sort(first)][:POOL], captions, base))
            cells = [
                f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(np.mean(found, 0), np.std(found, 0, ddof=1), strict=True)
            ]
            print(f"| {name} | {captions} | " + " | ".join(cells) + " |", flush=True)


def in_index(rows: Rows, items: np.ndarray, captions: int, base: Aligner) -> list[float]:
    """R@1 in percent of all items and of those without a caption, by similarity, and the same as answered."""
    asked = rows["text2" if "text2" in rows else "text"][items].astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(items_with(rows, items, captions), Path(folder) / "index", base=base)
        first = []
        for number in np.flatnonzero(~np.isnan(asked).any(1)):
            hits = index.search(text=asked[number], k=len(items), words=False)
            first.append([max(hits, key=lambda hit: hit.similarity).id == str(number), hits[0].id == str(number)])
    right = 100 * np.array(first, float)
    lacking = np.flatnonzero(~np.isnan(asked).any(1)) >= captions
    return [right[:, 0].mean(), right[lacking, 0].mean(), right[:, 1].mean(), right[lacking, 1].mean()]


def items_with(rows: Rows, items: np.ndarray, captions: int) -> FeatureSet:
    """Pictures, of which the first so many have a caption."""
    z = {"image": rows["image"][items].astype(np.float32), "text": rows["text"][items].astype(np.float32)}
    z["text"][captions:] = np.nan
    present = np.stack([~np.isnan(values).any(1) for values in z.values()], axis=1)
    return FeatureSet(
        z, present, meta_table(len(items), ids=[str(number) for number in range(len(items))]), name="items"
    )


def timed(sources: dict[str, Rows]) -> None:
    """Processor seconds of an index of all clip art, half of it with a caption, milliseconds of a query, and megabytes."""
    rows, base = sources["clipart"], make(sources, SOURCES)
    held = np.flatnonzero(~np.isnan(rows["image"]).any(1) & ~np.isnan(rows["text"]).any(1))
    print(f"{len(held)} items\n| | index, s | a query, ms | MB |\n" + "|---" * 4 + "|")
    for name, given in 2 * (("without a base", None), ("with one", base)):
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            index = Index.build(items_with(rows, held, len(held) // 2), Path(folder) / "index", base=given)
            built, began = time.process_time() - began, time.process_time()
            for number in held[:QUERIES]:
                index.search(text=rows["text"][number].astype(np.float32), k=10, words=False)
            asked = 1000 * (time.process_time() - began) / QUERIES
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6
        print(f"| {name} | {built:.1f} | {asked:.1f} | {size:.0f} |", flush=True)


def study(sources: dict[str, Rows], names: Iterable[str], seeds: range) -> None:
    """Mean R@1 over all directions of the test rows of the study, from `Aligner()` and from the same beside a base."""
    print("| collection | setting | aligner | aligner from the base | difference |\n" + "|---" * 5 + "|")
    for name in names:
        base = make(sources, SOURCES, without=name)
        for setting in ("two-source", "one-source"):
            pairs = [of_study(name, setting, seed, base) for seed in seeds]
            own, both = (np.array(column) for column in zip(*pairs, strict=True))
            cells = [f"{part.mean():.1f} ± {part.std(ddof=1):.1f}" for part in (own, both, both - own)]
            print(f"| {name} | {setting} | " + " | ".join(cells) + " |", flush=True)


def of_study(name: str, setting: str, seed: int, base: Aligner) -> tuple[float, float]:
    """(R@1 of the own space, R@1 beside the base) of one split."""
    config = load("study", [], kind="compare").only(name)
    rows = open_rows(config, setting, seed, None)
    raw, encoders = load_dataset(name, standardize=False), indexing_of(name).encoders
    train, test = (as_encoded(raw, part) for part in (next(iter(rows.data.train.values())), rows.test))
    groups = list(rows.features.column(config.source.resplit.by)[next(iter(rows.data.train.values())).home])
    own = Aligner(random_state=seed).fit(train, groups=groups)
    both = Aligner(random_state=seed, base=base).fit(train, groups=groups, encoders=encoders)
    return mean_recall(own, test), mean_recall(both, test)


def calibration(sources: dict[str, Rows], names: Iterable[str], seeds: range, out: Path) -> None:
    """`calmrl compare calibration` with heads that start as the identity on the vectors of a base."""
    shipped = load("calibration", [], kind="compare").model_dump(mode="json")
    datasets = {}
    for name in names:
        path = out / name
        if not path.exists():
            copy_features(from_base(sources, name), path)
        section = shipped["datasets"].get(name) or {
            "settings": settings_of([["image", "text"], ["text", "multilingual"]])
        }
        section["modalities"] = list(MODALITIES[name])
        source = {"features": str(path), "resplit": {"by": "group", "val": 0.1, "test": 0.3}}
        datasets[name] = {**section, "source": source}
    methods = [f"calmrl+identity{ending}" for ending in ("", "+observed", "+init")]
    changed = {"datasets": datasets, "methods": methods, "seeds": list(seeds), "width": WIDTH, "workers": 1}
    compare(
        CompareConfig.model_validate(shipped | changed),
        out / "compared",
        progress=lambda done, total, text: print(f"{done} of {total}: {text}", flush=True),
    )


def settings_of(groups: list[list[str]]) -> dict[str, Any]:
    """Two sources, all rows together and in stages, as in `calmrl compare calibration`."""
    section = {"kind": "source", "rate": 0.7, "groups": groups}
    return {"two-source": section, "continual": section | {"regime": "continual"}}


def from_base(sources: dict[str, Rows], name: str) -> FeatureSet:
    """Complete items of a collection: in the first WIDTH columns the vectors of a base that has not seen it, on the leading
    directions that all modalities share, beside them their own features on as many leading directions, just as long.

    The base is centred by the rows, one modality of each: it sees no pair.
    """
    rows = sources[name]
    z = {modality: rows[column].astype(np.float32) for modality, column in MODALITIES[name].items()}
    kept = ~np.any([np.isnan(values).any(1) for values in z.values()], axis=0)
    if "glyph" in rows:
        kept &= ~rows["glyph"].astype(bool)
    z = {modality: values[kept] for modality, values in z.items()}
    alone = {modality: values.copy() for modality, values in z.items()}
    for j, values in enumerate(alone.values()):
        values[np.arange(len(values)) % len(z) != j] = np.nan
    encoders = {modality: ENCODERS[column.rstrip("2")] for modality, column in MODALITIES[name].items()}
    base = Aligner(base=make(sources, SOURCES, without=name)).fit(alone, encoders=encoders)
    found = {modality: np.asarray(base.embed({modality: values})) for modality, values in z.items()}
    print(f"{name}: R@1 {mean_recall(base, z):.1f} among {kept.sum()} items with the base alone", flush=True)
    axes = np.linalg.svd(np.concatenate(list(found.values())), full_matrices=False)[2][:WIDTH].T
    beside = {modality: np.concatenate([found[modality] @ axes, leading(x)], axis=1) for modality, x in z.items()}
    meta = meta_table(int(kept.sum()), ids=rows["ids"][kept].tolist(), columns={"group": rows["group"][kept].tolist()})
    return FeatureSet({modality: x.astype(np.float32) for modality, x in beside.items()}, meta=meta, name=name)


def leading(values: np.ndarray) -> np.ndarray:
    """Centred rows of unit length on their WIDTH leading directions."""
    rows = values - values.mean(0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows @ np.linalg.svd(rows, full_matrices=False)[2][:WIDTH].T)


def as_encoded(raw: FeatureSet, part: Any) -> Rows:
    """The rows of a part of the study, NaN where they are missing, with reduced features back in the space of their encoder."""
    z = {}
    for j, name in enumerate(part.fetch(np.arange(1), part.present[:1], 0)):
        values = np.array(raw.z[name][part.home])
        encoder = next((encoder for encoder, modalities in REDUCED.items() if name in modalities), None)
        if raw.name == "emoji" and encoder is not None:
            with np.load(BUNDLE) as saved:
                values = values @ saved[f"{encoder}_basis"].astype(np.float32).T + saved[f"{encoder}_centre"]
        values[~part.present[:, j]] = np.nan
        z[name] = values
    return z


def mean_recall(aligner: Aligner, z: Rows) -> float:
    """R@1 in percent, over all directions alike."""
    found = []
    for asked, wanted in permutations(z, 2):
        both = ~np.isnan(z[asked]).any(1) & ~np.isnan(z[wanted]).any(1)
        if both.sum() > 1:
            queries, gallery = (aligner.embed({name: z[name][both]}) for name in (asked, wanted))
            found.append(retrieval(queries, gallery)["R@1"])
    return float(np.mean(found))


def renamed(base: Aligner, name: str) -> Aligner:
    """The base with another text encoder under the name `text`."""
    for number, part in enumerate(base.base_):
        names = {"text" if own == name else own: inner for own, inner in part.names.items() if own != "text"}
        base.base_[number] = replace(part, names=names)
    return base


def trial(rows: Rows, concepts: np.ndarray, base: Aligner, pairs: int, seed: int, split: str) -> dict:
    """R@1 of base, own and both on held-out items, both directions, and whether what was expected covers it.

    Beside a base hubs are corrected for, where that does not lose; "hubs" is the same space without the correction.
    """
    test, train = divided(concepts, seed, split)
    z = {name: values[train].copy() for name, values in rows.items()}
    alone = np.arange(pairs, len(train))
    z["text"][alone[::2]], z["image"][alone[1::2]] = np.nan, np.nan
    groups = concepts[train] if split == "concept" else None
    new = {name: values[test] for name, values in rows.items()}
    began = time.process_time()
    both = Aligner(base=base).fit(z, groups=groups)
    seconds = time.process_time() - began
    unlinked = {name: values[alone] for name, values in z.items()}
    found = {
        "base": recalls(Aligner(base=base).fit(unlinked), new),
        "own": recalls(own_space(both, z, groups), new) if pairs else [100 / GALLERY] * 2,
        "both": recalls(both, new),
        "hubs": recalls(altered(both, references_={}), new),
    }
    expected = both.expected(GALLERY)
    covered = [
        expected[key]["low"] <= reached <= expected[key]["high"]
        for key, reached in zip(DIRECTIONS, found["both"], strict=True)
        if key in expected
    ]
    share = both.choice_["beside"].get("share", 0.0)
    return {**found, "covered": covered, "share": share, "seconds": seconds}


def own_space(both: Aligner, z: Rows, groups: np.ndarray | None) -> Aligner:
    """`Aligner()` on these rows: the own space, which is chosen as if there were no base."""
    if both.space_ is None:
        return Aligner().fit(z, groups=groups)
    return altered(both, base_=[], references_={}, own_weight_=1.0)


def altered(aligner: Aligner, **attributes: Any) -> Aligner:
    """A copy with other fitted attributes."""
    other = copy.copy(aligner)
    vars(other).update(attributes)
    return other


def divided(concepts: np.ndarray, seed: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(items to test, rows to learn from): of different concepts, one item each; or any items."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(concepts))
    if split == "item":
        return order[:GALLERY], order[GALLERY:]
    _, first = np.unique(concepts[order], return_index=True)
    test = order[np.sort(first)[:GALLERY]]
    return test, order[~np.isin(concepts[order], concepts[test])]


def recalls(aligner: Aligner, new: Rows) -> list[float]:
    """R@1 in percent of both directions, by similarity."""
    sides = [{name: new[name]} for name in ("image", "text")]
    scores = [aligner.similarity(asked, wanted) for asked, wanted in (sides, sides[::-1])]
    return [100 * float((one.argmax(1) == np.arange(len(one))).mean()) for one in scores]


def line(name: str, pairs: int, trials: list[dict]) -> None:
    cells = []
    for row in ("base", "own", "both", "hubs"):
        means = [np.mean(one[row]) for one in trials]
        cells.append(f"{np.mean(means):.1f} ± {np.std(means, ddof=1):.1f}" if len(means) > 1 else f"{means[0]:.1f}")
    covered = [hit for one in trials for hit in one["covered"]]
    share, seconds = np.mean([one["share"] for one in trials]), np.mean([one["seconds"] for one in trials])
    cells += [f"{share:.2f}", f"{sum(covered)} of {len(covered)}", f"{seconds:.0f}"]
    print(f"| {name} | {pairs} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
