"""How good the representations are on validation rows, while training."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.distributed import gather_rows, world
from calmrl.alignment import CalibratedAlignment
from calmrl.anchors import completion_shift
from calmrl.errors import InputError
from calmrl.metrics.retrieve import BLOCK_BYTES, TIE, Ranks, ranks_of_scores, relevant_items

ROWS = 1024  # encoded at a time


@torch.no_grad()
def encode_all(
    model: Any, sources: Sequence[Any], device: torch.device | str = "cpu", most: int | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """(z, present) of all rows of the sources (or every second, third, ... if they are more than `most`), on the CPU."""
    from accelerate.utils import send_to_device

    size, rank = world()
    was = model.training
    model.eval()
    encoded, masks = [], []
    pace = 1 if most is None else max(1, -(-sum(map(len, sources)) // most))
    for source in sources:
        rows = np.arange(0, len(source), pace)
        step = getattr(source, "chunk", ROWS)
        for start in range(0, len(rows), step):
            chosen = rows[start : start + step]
            mine = np.array_split(chosen, size)[rank]
            present = torch.from_numpy(source.present[mine])
            inputs = send_to_device(source.fetch(mine, source.present[mine], 0), device)
            z = torch.stack(list(model(inputs, present.to(device)).values()), dim=1)
            counts = [len(part) for part in np.array_split(chosen, size)]
            encoded.append(gather_rows(z, counts).cpu())
            masks.append(torch.from_numpy(source.present[chosen]))
    model.train(was)
    stacked, present = torch.cat(encoded), torch.cat(masks)  # (N, k, d)
    return {name: stacked[:, j] for j, name in enumerate(model.names)}, present


def check_pairs(sources: Sequence[Any]) -> None:
    """An error if there are validation rows but nothing in them to retrieve: no two modalities meet in two rows."""
    if not sources:
        return
    masks = [torch.from_numpy(np.asarray(source.present)).double() for source in sources]
    together = torch.stack([mask.T @ mask for mask in masks]).sum(0)  # (k, k) rows that have both
    if not (together.fill_diagonal_(0) > 1).any():
        raise InputError(
            f"no two modalities meet in two of the {sum(map(len, sources))} validation rows, so there is nothing to "
            'retrieve; give more rows the split "val", or raise validation.fraction'
        )


def retrieval_scores(z: dict[str, Tensor], present: Tensor, relevant: Sequence[Any] | None = None) -> dict[str, float]:
    """R@1, R@5, R@10 in percent, averaged over the directions between modalities that some rows have in common.

    "MRR" is 100 times the mean of 1 / rank and "recall" the mean of the three R@k, both smoother scores to choose by;
    "pairs" counts queries over all directions. `relevant` has one value per row: every row with the value of the query
    counts as found; by default its own row alone.
    """
    directions: list[Ranks] = []
    for (a, first), (b, second) in combinations(enumerate(z), 2):
        both = present[:, a] & present[:, b]
        if both.sum() > 1:
            values = None if relevant is None else [relevant[row] for row in both.nonzero()[:, 0].tolist()]
            directions += _both_ways(z[first][both], z[second][both], values)
    sizes = [len(one.above) for one in directions]
    together = Ranks(*(torch.cat([getattr(one, part) for one in directions]) for part in ("above", "tied", "own")))

    def mean(values: Tensor) -> float:
        return 100 * float(np.mean([float(one.mean()) for one in values.split(sizes)]))

    scores = {f"R@{k}": mean(together.hits(k)) for k in (1, 5, 10)}
    return {
        **scores,
        "recall": float(np.mean(list(scores.values()))),
        "MRR": mean(1 / together.expected()),
        "pairs": float(sum(sizes)),
    }


def _both_ways(first: Tensor, second: Tensor, relevant: Sequence[Any] | None) -> list[Ranks]:
    """Ranks as `retrieval` finds them, row i belonging to the rows with its value, in float64 throughout."""
    own = relevant_items(relevant, relevant, len(first), len(second))
    sides = [normalize(vectors.double(), dim=1) for vectors in (first, second)]
    step = max(1, BLOCK_BYTES // (8 * len(first)))

    def ranks(queries: Tensor, gallery: Tensor) -> Ranks:
        return ranks_of_scores(lambda start, stop: queries[start:stop] @ gallery.T, len(queries), own, step, band=TIE)

    return [ranks(*sides), ranks(*sides[::-1])]


@torch.no_grad()
def calibration_scores(align: CalibratedAlignment, z: dict[str, Tensor], present: Tensor) -> dict[str, float]:
    """What the latent model does on held-out blocks: every row with several modalities has one of them hidden in turn.

    "imputation_nmse": squared error over that of the mean; "shift_observed" and "shift_calibrated": how far the anchor
    of a complete row moves when one modality is missing, and when it is imputed; "latent_log_likelihood": per row.
    """
    scores: dict[str, float] = {}
    was = align.training
    align.eval()
    if hasattr(align.imputer, "score"):
        scores["latent_log_likelihood"] = float(align.imputer.score(z, present))
    error = spread = 0.0
    before, after = [], []
    for j, name in enumerate(z):
        rows = present[:, j] & (present.sum(1) > 1)
        if rows.sum() < 2:
            continue
        truth = {key: value[rows] for key, value in z.items()}
        left = present[rows].clone()
        left[:, j] = False
        filled = align.complete(truth, left)
        error += float(((filled[name] - truth[name]) ** 2).sum())
        spread += float(((truth[name] - truth[name].mean(0)) ** 2).sum())
        complete = present[rows].all(1)
        if complete.any() and len(z) > 2:
            whole = {key: value[complete] for key, value in truth.items()}
            guess = {key: value[complete] for key, value in filled.items()}
            shifts = completion_shift(whole, guess, left[complete])
            before.append(shifts[0])
            after.append(shifts[1])
    align.train(was)
    if spread > 0:
        scores["imputation_nmse"] = error / spread
    if before:
        scores["shift_observed"] = float(torch.cat(before).mean())
        scores["shift_calibrated"] = float(torch.cat(after).mean())
    return scores
