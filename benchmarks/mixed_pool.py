"""A pool of incomplete items: does one posterior per item find more than the mean of what it has?

Stamps, emoji and digits; every block of the training rows and of the pool is missing with the same probability, 10 to 90 %,
but each row keeps one. One `Aligner` in closed form per draw (500 landmarks, no refinement). Cross-validation over the training
rows, half of their blocks missing, chooses its settings once per collection; test rows choose nothing. Every modality asks
in turn for the other modalities of the test items. Ways to score:

    raw        cosine with the mean of the unit vectors of what an item has, each modality alone in the space,
    centred    the same after taking the mean of each modality off,
    anchor     cosine with the leading singular vector of what it has,
    posterior  cosine with the posterior mean given all that it has,
    ratio      log p(q, g) - log p(q) - log p(g) under the latent model: an item known by less has a wider posterior,
    +csls      without hubs: the mean score with the ten nearest queries taken off,
    +cohort    the same with training rows in place of the queries, so that queries are answered one by one.

Differences are over seeds (holes) and items, by paired bootstrap; `ratio` is R@1 of the posterior over that of raw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from calmrl import Aligner
from calmrl.aligner.crossvalidation import fit_feature_maps, sample
from calmrl.aligner.space import Candidate, fit_all, head_maps
from calmrl.datasets import load_dataset
from calmrl.latent.rows import open_source
from calmrl.metrics import mixed_pool, paired_bootstrap, retrieval

RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
SEEDS = range(5)
LANDMARKS = 500
NEAREST = 10
PLACES = {
    "stamps": ("image", "text", "speech"),
    "emoji": ("image", "drawing", "text", "french"),
    "digits": ("top_left", "top_right", "bottom_left", "bottom_right"),
}
COMPARED = (
    ("centred", "raw"),
    ("anchor", "raw"),
    ("posterior", "raw"),
    ("ratio", "posterior"),
    ("raw+csls", "raw"),
    ("posterior+csls", "raw+csls"),
    ("posterior+csls", "raw"),
    ("posterior+cohort", "raw"),
)
Rows = dict[str, np.ndarray]
Hits = dict[str, np.ndarray]  # way to score -> (2, queries): found among the first, among the first ten


def run() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    for name in PLACES:
        yield from rows_of(name)


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """A row per share of missing blocks, and one over all of them."""
    everything: list[Hits] = []
    candidate = _chosen(name)
    for rate in RATES:
        hits = [_hits(name, candidate, rate, seed) for seed in SEEDS]
        everything += hits
        yield _row(f"{name}, {rate:.0%} missing", name, hits)
    yield _row(f"{name}, all", name, everything)


def _row(case: str, name: str, hits: list[Hits]) -> dict[str, Any]:
    first = {way: float(100 * np.mean([one[way][0] for one in hits])) for way in hits[0]}
    tenth = {way: float(100 * np.mean([one[way][1] for one in hits])) for way in hits[0]}
    items = hits[0]["raw"].shape[1] // len(PLACES[name])
    tests = []
    for ours, theirs in COMPARED:
        mine, other = (100 * np.stack([one[way][0] for one in hits]) for way in (ours, theirs))
        test = paired_bootstrap(mine, other, draws=2000, groups=np.tile(np.arange(items), len(PLACES[name])))
        tests.append(f"{ours} - {theirs} {test.difference:+.1f} ({test.low:+.1f} to {test.high:+.1f})")
    shown = ", ".join(f"{way} {first[way]:.1f} / {tenth[way]:.1f}" for way in first)
    return {
        "case": case,
        "ratio": first["posterior"] / first["raw"] if first["raw"] else None,
        "target": "> 1 outside the noise",
        "R@1": first,
        "R@10": tenth,
        "n": items,
        "draws": len(hits),
        "note": f"{items} items, {len(hits)} draws; R@1 / R@10: {shown}; R@1: {'; '.join(tests)}",
    }


def _open(name: str) -> tuple[Rows, np.ndarray]:
    """Complete rows, and which of them are test rows."""
    names = PLACES[name]
    data = load_dataset(name, **({} if name == "digits" else {"standardize": False}))
    use = np.asarray(data.present)[:, [data.names.index(m) for m in names]].all(axis=1)
    if name == "stamps":
        use &= ~np.asarray(data.column("glyph"), dtype=bool)
    return {m: np.asarray(data.z[m])[use].astype(np.float32) for m in names}, np.asarray(data.split)[use] == "test"


def _chosen(name: str) -> Candidate:
    """The settings that cross-validation over training rows chooses."""
    z, test = _open(name)
    present = _holes(int((~test).sum()), len(z), 0.5, np.random.default_rng(0))
    aligner = Aligner(refine="never", landmarks=LANDMARKS, random_state=0)
    choice = aligner.fit({m: values[~test] for m, values in z.items()}, present).choice_
    return Candidate(*(choice[field.name] for field in fields(Candidate)))


def _hits(name: str, candidate: Candidate, rate: float, seed: int) -> Hits:
    z, test = _open(name)
    names = PLACES[name]
    rng = np.random.default_rng([seed, int(10 * rate)])
    train, pool = ({m: values[rows] for m, values in z.items()} for rows in (~test, test))
    learned = _holes(int((~test).sum()), len(names), rate, rng)
    aligner = _fit(train, learned, candidate, seed)
    parts: dict[str, list[np.ndarray]] = {}
    for j, modality in enumerate(names):
        gallery = {m: pool[m] for m in names if m != modality}
        present = _holes(int(test.sum()), len(gallery), rate, rng)
        cohort = {modality: train[modality][learned[:, j]]}
        for way, measured in _ways(aligner, {modality: pool[modality]}, gallery, present, cohort).items():
            parts.setdefault(way, []).append(np.stack([measured["hits"]["R@1"], measured["hits"]["R@10"]]))
    return {way: np.concatenate(columns, axis=1) for way, columns in parts.items()}


def _holes(rows: int, modalities: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Every block is there with probability 1 - rate, and at least one per row."""
    present = rng.random((rows, modalities)) >= rate
    present[np.arange(rows), rng.integers(modalities, size=rows)] |= ~present.any(axis=1)
    return present


@torch.no_grad()
def _fit(z: Rows, present: np.ndarray, candidate: Candidate, seed: int) -> Aligner:
    """An aligner with these settings, without the cross-validation that says what to expect of it."""
    order = sorted(z)
    source = open_source({m: z[m] for m in order}, present[:, [list(z).index(m) for m in order]])
    rows = sample(source, None, len(present), seed, None)
    maps = fit_feature_maps(rows, candidate.features, candidate.unit_rows, seed, LANDMARKS)
    aligner = Aligner(random_state=seed)
    aligner.names_, aligner.modalities_, aligner.feature_maps_ = source.names, tuple(z), maps
    aligner.space_ = fit_all(source, maps, candidate, seed)
    aligner.head_maps_ = head_maps(maps, candidate.whitening, aligner.space_)
    aligner.base_, aligner.own_weight_, aligner.references_ = [], 1.0, {}
    return aligner


def _ways(aligner: Aligner, asked: Rows, gallery: Rows, present: np.ndarray, cohort: Rows) -> dict[str, Any]:
    """The measures of every way to score."""
    queries = aligner.embed(asked)
    alone = {m: aligner.embed({m: values}) for m, values in gallery.items()}
    holed = {m: np.where(present[:, [j]], values, np.nan) for j, (m, values) in enumerate(gallery.items())}
    common: dict[str, Any] = {"ks": (1, 10), "per_query": True}
    posterior = {"scoring": "posterior", "completed": aligner}
    items = aligner.embed(holed)
    near = np.sort(items @ aligner.embed(cohort).T, axis=1)[:, -NEAREST:].mean(axis=1)
    return {
        "raw": mixed_pool(queries, alone, present, **common),
        "centred": mixed_pool(queries, alone, present, scoring="centred", **common),
        "anchor": mixed_pool(queries, alone, present, scoring="anchor", **common),
        "posterior": mixed_pool(asked, holed, **posterior, **common),
        "ratio": retrieval(scores=_likelihood_ratio(aligner, asked, gallery, present), **common),
        "raw+csls": mixed_pool(queries, alone, present, hubs="csls", **common),
        "centred+csls": mixed_pool(queries, alone, present, scoring="centred", hubs="csls", **common),
        "posterior+csls": mixed_pool(asked, holed, hubs="csls", **posterior, **common),
        "posterior+cohort": retrieval(scores=2 * queries @ items.T - near, **common),
    }


def _likelihood_ratio(aligner: Aligner, asked: Rows, gallery: Rows, present: np.ndarray) -> np.ndarray:
    """log p(q, g) - log p(q) - log p(g), (Q, G); with precisions A and A' of the posteriors, h = A E and h' = A' E',

    B = A + A' - I,   1/2 ((h + h')^T B^-1 (h + h') - h^T E - h'^T E' + log |A| + log |A'| - log |B|).
    """
    everything = np.ones((len(present), 1), dtype=bool)
    ((_, A, E),) = _posteriors(aligner, asked, everything)
    eye = torch.eye(len(A), dtype=torch.float64)
    h = E @ A
    scores = torch.zeros(len(E), len(present), dtype=torch.float64)
    for rows, other, mean in _posteriors(aligner, gallery, present):
        theirs = mean @ other
        inverse = torch.linalg.inv(A + other - eye)
        both = 0.5 * ((h @ inverse * h).sum(1)[:, None] + (theirs @ inverse * theirs).sum(1)) + h @ inverse @ theirs.T
        alone = 0.5 * ((h * E).sum(1)[:, None] + (theirs * mean).sum(1))
        volume = torch.logdet(A) + torch.logdet(other) - torch.logdet(A + other - eye)
        scores[:, rows] = both - alone + 0.5 * volume
    return scores.numpy()


@torch.no_grad()
def _posteriors(aligner: Aligner, z: Rows, present: np.ndarray) -> Iterator[tuple[np.ndarray, Any, Any]]:
    """(rows, precision, means) of each pattern of modalities."""
    space, order = aligner.space_, list(aligner.names_)
    for pattern in np.unique(present, axis=0):
        rows = np.flatnonzero((present == pattern).all(axis=1))
        total = torch.eye(space.latent_dim, dtype=torch.float64)
        right = torch.zeros(len(rows), space.latent_dim, dtype=torch.float64)
        for m in (order.index(name) for name, has in zip(z, pattern, strict=True) if has):
            head = aligner.head(m, torch.from_numpy(z[order[m]][rows]))
            information = space.information[m].double()
            right += head + head @ information
            total = total + information
        yield rows, total, torch.linalg.solve(total, right.T).T
