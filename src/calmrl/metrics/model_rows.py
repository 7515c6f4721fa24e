"""Everything that is measured on the test rows of one trained model."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from itertools import permutations
from typing import Any

import numpy as np
import torch
from sklearn.manifold import TSNE
from torch.nn.functional import normalize

from calmrl._support.engine import Engine
from calmrl.alignment import CalibratedAlignment
from calmrl.errors import InputError
from calmrl.metrics.classify import classification
from calmrl.metrics.measures import Measurement, anchor_shift_rows, coverage, imputation_error, row
from calmrl.metrics.registry import functions_of
from calmrl.metrics.retrieve import chance, chance_level, retrieval
from calmrl.metrics.scores import mixed_pool, scored_retrieval
from calmrl.protocols import Embedder

RANKED = ("R@1", "R@5", "R@10", "MedR")  # what `retrieval` gives
Vectors = dict[str, torch.Tensor]


class NotMeasurable(InputError):
    """These rows do not allow a measure; the message says what they lack."""


@dataclass(frozen=True)
class LabelledRows:
    """Rows of all splits in the shared space, for classifiers."""

    z: Vectors
    present: torch.Tensor
    labels: Sequence[str]
    split: Sequence[str]


def measure_rows(groups: Sequence[str], left_out: list[str] | None = None, **given: Any) -> list[Measurement]:
    """The rows of all measures of these groups of METRICS; each function gets those of `given` that it names.

    A measure that the rows do not allow is left out; `left_out` receives a sentence for each.
    """
    rows: list[Measurement] = []
    for function in functions_of(groups):
        wanted = signature(function).parameters
        absent = [name for name, p in wanted.items() if p.default is Parameter.empty and name not in given]
        if absent:
            raise InputError(
                f"the measure {function.__name__} asks for {absent[0]}, which is not there; a measure may ask for "
                f"{', '.join(given)}"
            )
        try:
            rows += function(**{name: given[name] for name in wanted if name in given})
        except InputError as reason:
            if left_out is None and not isinstance(reason, NotMeasurable):
                raise
            if left_out is not None:
                left_out.append(f"{function.__name__.removesuffix('_rows').replace('_', ' ')}: {reason}")
    return rows


def retrieval_rows(
    z: Vectors,
    present: torch.Tensor,
    hits: dict[str, list[float]] | None = None,
    asked: dict[str, list[int]] | None = None,
    relevant: Sequence[Hashable] | None = None,
    hubs: str | None = None,
    engine: Engine | None = None,
) -> list[Measurement]:
    """R@k, MRR and median rank for every direction and on average, and what a random order reaches.

    `relevant` has one value per row: a query's own items are those with its value, by default its own row alone. Per
    direction, `hits` receives each query's hit at 1 and `asked` the rows that ask. `hubs="csls"` corrects
    scores for hubs; whoever asks for it names it in what is reported. An engine shares the queries out.
    """
    rows: list[Measurement] = []
    for (a, first), (b, second) in permutations(enumerate(z), 2):
        both = present[:, a] & present[:, b]
        if both.sum() < 2:
            continue
        task = f"{first}->{second}"
        asking = both.nonzero()[:, 0].tolist()
        ids = None if relevant is None else [relevant[i] for i in asking]
        ranks = retrieval(z[first][both], z[second][both], ids, ids, per_query=True, hubs=hubs, engine=engine)
        rows += _ranked_rows(task, ranks, chance(ranks["n"], ids))
        if hits is not None:
            hits[task] = [float(hit) for hit in ranks["hits"]["R@1"]]
        if asked is not None:
            asked[task] = asking
    if not rows:
        raise NotMeasurable(f"no two modalities meet in two of the {len(present)} test rows")
    return rows + _averages("average", rows)


def _ranked_rows(task: str, ranks: dict[str, Any], levels: dict[str, float]) -> list[Measurement]:
    """The rows of one retrieval, with the level of chance; `ranks` is what `retrieval(..., per_query=True)` gives."""
    measured = {metric: ranks[metric] for metric in RANKED} | {"MRR": 100 * float((1 / ranks["ranks"]).mean())}
    named = {f"chance {metric}": level for metric, level in levels.items()}
    return [row(task, metric, value, ranks["n"]) for metric, value in (measured | named).items()]


def _averages(task: str, rows: Sequence[Measurement]) -> list[Measurement]:
    """The mean of every metric over the rows that have it."""
    values = {metric: [one for one in rows if one["metric"] == metric] for metric in (one["metric"] for one in rows)}
    return [
        row(task, metric, float(np.mean([one["value"] for one in same])), sum(one["n"] for one in same))
        for metric, same in values.items()
    ]


def reranked_rows(matching: Any, z: Vectors, present: torch.Tensor, top: int = 50) -> list[Measurement]:
    """Retrieval of items by their anchor modality, before and after the matching head sorted the `top` best again."""
    complete = present.all(1)
    asks = matching.anchor
    if complete.sum() < 2:
        return []
    queries = z[asks][complete]
    items = {name: rows[complete] for name, rows in z.items() if name != asks}
    rows = []
    for task, head in ((f"{asks}->all", None), (f"{asks}->all re-ranked", matching)):
        scores = scored_retrieval(queries, items, matching=head, top=top)
        rows += [row(task, metric, scores[metric], scores["n"]) for metric in RANKED]
    return rows


def imputation_rows(z: Vectors, present: torch.Tensor, align: CalibratedAlignment | None) -> list[Measurement]:
    """Error of the imputed vectors on complete test rows."""
    return [] if align is None else imputation_error(align.imputer, _complete(z, present))


def coverage_rows(z: Vectors, present: torch.Tensor, align: CalibratedAlignment | None) -> list[Measurement]:
    """How often the intervals of imputed vectors hold the truth, on complete test rows that lose a modality each."""
    if align is None:
        return []
    whole = _complete(z, present)
    return coverage(align.imputer, whole, None, _one_each(whole))


def shift_rows(z: Vectors, present: torch.Tensor, align: CalibratedAlignment | None) -> list[Measurement]:
    """Anchor shift before and, where a model imputes, after it, on complete test rows that lose a modality each."""
    if len(z) < 3:
        return []
    whole = _complete(z, present)
    if len(whole) < 3:
        raise NotMeasurable(f"the test rows have {', '.join(whole)} only; three modalities are needed")
    left = ~_one_each(whole)
    completed = None if align is None else align.complete(whole, left)
    return anchor_shift_rows(whole, left, completed, renormalize=False)


def pool_rows(z: Vectors, present: torch.Tensor, align: CalibratedAlignment | None, seed: int) -> list[Measurement]:
    """One pool of test items that each lack some modality; every modality in turn asks for its items by the others."""
    if len(z) < 3:
        return []
    whole = _complete(z, present)
    names, k = list(whole), len(whole)
    if k < 3:
        raise NotMeasurable(f"the test rows have {', '.join(whole)} only; three modalities are needed")
    generator = np.random.default_rng(seed)
    rows: dict[str, list[Measurement]] = {}

    def ask(scoring: str, queries: Any, mask: torch.Tensor, completed: Any = None) -> None:
        ranks = mixed_pool(queries, whole, mask, scoring=scoring, completed=completed, per_query=True)
        rows.setdefault(scoring, []).extend(_ranked_rows("", ranks, chance(ranks["n"])))

    for j, asks in enumerate(names):
        left = np.ones((len(whole[asks]), k), dtype=bool)
        left[:, j] = False
        others = [i for i in range(k) if i != j]
        left[np.arange(len(left)), generator.choice(others, len(left))] = False  # one of the others is missing as well
        mask = torch.from_numpy(left)
        for scoring in ("raw", "centred", "anchor"):
            ask(scoring, whole[asks], mask)
        if align is not None:
            ask("imputed", whole[asks], mask, align.complete(whole, mask))
            if isinstance(align.imputer, Embedder):
                ask("posterior", {asks: whole[asks]}, mask, align.imputer)
    return [one for scoring, each in rows.items() for one in _averages(f"mixed-pool {scoring}", each)]


WAYS = ("late fusion", "posterior", "concatenation")
RIDGES = (0.1, 1.0, 10.0, 100.0)
FOLD = 5  # every fifth training row says which ridge
WIDEST = 4096  # columns of a concatenation
HALVES = 4  # ways to halve the modalities


def fused_rows(
    z: Vectors,
    present: torch.Tensor,
    seed: int,
    relevant: Sequence[Hashable] | None = None,
    embed: Callable[[np.ndarray, np.ndarray], torch.Tensor] | None = None,
    training: Callable[[], tuple[Vectors, torch.Tensor]] | None = None,
) -> list[Measurement]:
    """Queries of one to k - 1 modalities of a test row ask for another one, in up to three ways:

        late fusion    the sum of the cosines with each of them,
        posterior      one vector from all of them, where `embed` gives it,
        concatenation  their vectors one after the other, 0 where the query lacks one, mapped onto those of the target by
                       ridge regression over the training rows, where `training` gives these and there are at most 4,096
                       columns.

    Which modalities ask is drawn per row, one more at a time; the gallery is every row that has the target, and
    "fused 2, late fusion" is the mean over the targets. For "fused halves", the modalities are halved at random four times:
    rows ask with whatever they have of one half, and are found by whatever they have of the other. `embed` takes numbers of
    test rows and which modalities (n, k) each may use.
    """
    if len(z) < 3:
        return []
    has, names = present.numpy(), list(z)
    unit = torch.stack([normalize(x.double(), dim=1) for x in z.values()], dim=1)  # (N, k, d)
    draws = np.random.default_rng(seed).random(has.shape)
    ids = (
        np.arange(len(has))
        if relevant is None
        else np.unique([str(value) for value in relevant], return_inverse=True)[1]
    )
    learnt = None if training is None or unit[0].numel() > WIDEST else training()
    rows: list[Measurement] = []

    def sides(of: np.ndarray, may: np.ndarray, onto: torch.Tensor | None = None) -> Vectors:
        used = torch.where(torch.from_numpy(may)[:, :, None], unit[of], 0.0)
        made = {"late fusion": normalize(used.sum(1), dim=1)}
        made |= {} if embed is None else {"posterior": embed(of, may).double()}
        return made | ({} if onto is None else {"concatenation": used.flatten(1) @ onto})

    def ask(
        task: str, queries: Vectors, asking: np.ndarray, items: Vectors | torch.Tensor, gallery: np.ndarray
    ) -> list[Measurement]:
        own = (ids[asking][:, None] == ids[gallery]).sum(1)
        levels = {f"R@{k}": chance_level(k, len(gallery), own) for k in (1, 5, 10)}
        made = []
        for way, vectors in queries.items():
            there = items[way] if isinstance(items, dict) else items
            found = retrieval(vectors, there, ids[asking], ids[gallery], similarity="dot", per_query=True)
            made += _ranked_rows(f"{task}, {way}", found, levels)
        return made

    for j, target in enumerate(names):
        others, gallery = has & (np.arange(len(names)) != j), np.flatnonzero(has[:, j])
        onto = None if learnt is None else _onto(*learnt, j, seed)
        for count in range(1, len(names)):
            asking = np.flatnonzero(has[:, j] & (others.sum(1) >= count))
            if len(asking) > 1:
                queries = sides(asking, _first(draws, others, count)[asking], onto)
                rows += ask(f"fused {count} to {target}", queries, asking, unit[gallery, j], gallery)
    halves = list[Measurement]()
    for order in np.random.default_rng(seed).permuted(np.tile(np.arange(len(names)), (HALVES, 1)), axis=1):
        half = np.isin(np.arange(len(names)), order[: len(names) // 2])
        for asks, gives in ((has & half, has & ~half), (has & ~half, has & half)):
            asking, gallery = np.flatnonzero(asks.any(1) & gives.any(1)), np.flatnonzero(gives.any(1))
            if len(asking) > 1:
                halves += ask(
                    "fused halves", sides(asking, asks[asking]), asking, sides(gallery, gives[gallery]), gallery
                )
    for way in WAYS:
        rows += _averages(f"fused halves, {way}", [one for one in halves if one["task"].endswith(way)])
    for count in range(1, len(names)):
        for way in WAYS:
            wanted = {f"fused {count} to {name}, {way}" for name in names}
            rows += _averages(f"fused {count}, {way}", [one for one in rows if one["task"] in wanted])
    return rows


def _first(draws: np.ndarray, allowed: np.ndarray, count: int | np.ndarray) -> np.ndarray:
    """The first `count` modalities of each row among those that it may use, in the order of its draws."""
    place = np.where(allowed, draws, np.inf).argsort(axis=1).argsort(axis=1)
    return np.asarray(allowed & (place < count))


def _onto(z: Vectors, present: torch.Tensor, target: int, seed: int) -> torch.Tensor | None:
    """(k d, d): from some modalities of a row, one after the other, to the unit vector of the target; None without rows.

    Every training row that has the target shows some of its other modalities, as many as a draw says.
    """
    has = present.numpy()
    others = has & (np.arange(has.shape[1]) != target)
    rows = np.flatnonzero(has[:, target] & others.any(1))
    if len(rows) < 2 * FOLD:
        return None
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, others[rows].sum(1) + 1)
    shown = _first(generator.random((len(rows), has.shape[1])), others[rows], counts[:, None])
    unit = torch.stack([normalize(x[rows].double(), dim=1) for x in z.values()], dim=1)
    x, y = torch.where(torch.from_numpy(shown)[:, :, None], unit, 0.0).flatten(1), unit[:, target]
    held = torch.arange(len(x)) % FOLD == 0

    def solve(part: torch.Tensor, ridge: float) -> torch.Tensor:
        gram = x[part].T @ x[part]
        gram.diagonal().add_(ridge)
        return torch.linalg.solve(gram, x[part].T @ y[part])

    def score(ridge: float) -> float:
        return float((normalize(x[held] @ solve(~held, ridge), dim=1) * y[held]).sum())

    return solve(torch.ones_like(held), max(RIDGES, key=score))


def classification_rows(labelled: Callable[[], LabelledRows | None]) -> list[Measurement]:
    """Linear probe and nearest neighbours on the mean of what a row has, if there are labels."""
    rows = labelled()
    if rows is None:
        return []
    learnt = {label for label, part in zip(rows.labels, rows.split, strict=True) if part == "train"}
    if len(learnt) < 2:
        raise NotMeasurable(f"the training rows have {len(learnt)} class of labels; a classifier needs two")
    return classification(rows.z, rows.present, rows.labels, rows.split)


def _complete(z: Vectors, present: torch.Tensor) -> Vectors:
    """The rows that lack nothing of what any row has; fewer than two cannot be measured."""
    there = present.any(0)
    complete = present[:, there].all(1)
    if complete.sum() < 2:
        raise NotMeasurable(
            f"{int(complete.sum())} of {len(present)} test rows have every modality; at least two are needed"
        )
    return {name: rows[complete] for (name, rows), some in zip(z.items(), there.tolist(), strict=True) if some}


def _one_each(z: Vectors) -> torch.Tensor:
    """(n, k) bool: row i has True at column i mod k."""
    n, k = len(next(iter(z.values()))), len(z)
    return torch.arange(k)[None, :] == (torch.arange(n) % k)[:, None]


def picture(z: Vectors, most: int = 120, seed: int = 0) -> dict[str, list[Any]]:
    """t-SNE of the test vectors of all modalities together; `item` says which belong together."""
    names = list(z)
    n = min(most, len(z[names[0]]))
    stacked = torch.cat([z[name][:n] for name in names]).numpy()
    perplexity = min(30, max(2, len(stacked) // 4))
    tsne = TSNE(init="pca", perplexity=perplexity, max_iter=500, random_state=seed)  # enough for a few hundred points
    places = tsne.fit_transform(stacked)
    return {
        "x": [round(float(x), 2) for x in places[:, 0]],
        "y": [round(float(y), 2) for y in places[:, 1]],
        "modality": [name for name in names for _ in range(n)],
        "item": [i for _ in names for i in range(n)],
    }


def neighbours(
    z: Vectors,
    captions: Sequence[str],
    ids: Sequence[str],
    asks: str,
    gives: str,
    relevant: Sequence[Hashable] | None = None,
    count: int = 5,
) -> list[Any]:
    """The nearest items of a few queries, evenly spaced over the test rows.

    `relevant` has one value per row: items with the query's value count, by default its own row alone. "rank" is that of
    the first item that counts.
    """
    scores = z[asks] @ z[gives].T
    values = list(ids) if relevant is None else list(relevant)
    shown = []
    for q in np.linspace(0, len(scores) - 1, min(count, len(scores))).round().astype(int):
        order = scores[q].argsort(descending=True).tolist()
        counts = [values[i] == values[q] for i in order]
        nearest = [
            {"caption": captions[i], "id": ids[i], "own": i == int(q), "relevant": hit}
            for i, hit in zip(order[:3], counts, strict=False)
        ]
        query = {"task": f"{asks}->{gives}", "query": captions[q], "id": ids[q], "rank": counts.index(True) + 1}
        shown.append({**query, "found": nearest})
    return shown
