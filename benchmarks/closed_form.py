"""Alignment in closed form on stamps: posterior means against contrastive heads trained on the same rows.

Image, text and French speech; 30 % of the training rows are complete, the others image-text or text-speech pairs. Rows
are split by concept into train, validation and test, anew for each seed. Both methods choose on validation data: the
closed form its number of latents (64, 128), the heads their learning rate (3 values) and their epoch (of 100). Scores
are R@1 on test, averaged over the six directions.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from calmrl import GaussianImputer
from calmrl.datasets import load_dataset
from calmrl.losses import ContrastiveLoss

NAMES = ("image", "text", "speech")
SEEDS = 5
EPOCHS, BATCH, WIDTH = 100, 128, 128
Rows = dict[str, torch.Tensor]


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    data = load_dataset("stamps", standardize=False)
    columns = [list(data.z).index(name) for name in NAMES]
    usable = data.present[:, columns].all(axis=1) & ~np.asarray(data.column("glyph"), dtype=bool)
    group = np.asarray(data.column("group"))
    ours, theirs = [], []
    for seed in range(SEEDS):
        train, present, val, test = split(data.z, usable, group, seed)
        ours.append(closed_form(train, present, val, test))
        theirs.append(contrastive(train, present, val, test, seed))
    scores = [[score for score, _, _ in results] for results in (ours, theirs)]
    whole = [sum(total for _, total, _ in results) for results in (ours, theirs)]
    once = [sum(single for _, _, single in results) for results in (ours, theirs)]
    said = [f"{statistics.mean(s):.1f} +- {statistics.stdev(s):.1f}" for s in scores]
    better = sum(a > b for a, b in zip(*scores, strict=True))
    note = f"R@1 {said[0]} closed form, {said[1]} contrastive; ahead in {better} of {SEEDS} seeds"
    return [
        {
            "case": "stamps: time, contrastive / closed form",
            "ours_s": whole[0],
            "theirs_s": whole[1],
            "ratio": whole[1] / whole[0],
            "target": ">= 10 at no lower R@1",
            "note": f"{note}; choosing included ({once[1] / once[0]:.1f} x for the chosen run alone)",
        }
    ]


def split(
    z: dict[str, np.ndarray], usable: np.ndarray, group: np.ndarray, seed: int
) -> tuple[Rows, torch.Tensor, Rows, Rows]:
    """(train, its mask, val, test): 60 / 10 / 30 % of the concepts; features centred and scaled on train."""
    rng = np.random.default_rng(seed)
    concepts = rng.permutation(np.unique(group[usable]))
    cuts = [int(0.3 * len(concepts)), int(0.4 * len(concepts))]
    test, val, train = (usable & np.isin(group, part) for part in np.split(concepts, cuts))
    present = np.ones((train.sum(), len(NAMES)), dtype=bool)
    incomplete, no_speech = rng.random(len(present)) > 0.3, rng.random(len(present)) < 0.5
    present[incomplete & no_speech, 2] = False
    present[incomplete & ~no_speech, 0] = False
    parts: list[Rows] = [{}, {}, {}]
    for j, name in enumerate(NAMES):
        values = z[name].astype(np.float32)
        seen = values[train][present[:, j]]
        centre, scale = seen.mean(axis=0), seen.std(axis=0).mean()
        for part, rows in zip(parts, (train, val, test), strict=True):
            part[name] = torch.as_tensor((values[rows] - centre) / scale)
    return parts[0], torch.as_tensor(present), parts[1], parts[2]


def recall(embedded: Rows) -> float:
    """R@1 in %, averaged over all ordered pairs of modalities."""
    unit = {name: normalize(e, dim=1) for name, e in embedded.items()}
    own = torch.arange(len(unit[NAMES[0]]))
    hits = [((unit[a] @ unit[b].T).argmax(1) == own).double().mean() for a in NAMES for b in NAMES if a != b]
    return 100 * float(torch.stack(hits).mean())


def closed_form(train: Rows, present: torch.Tensor, val: Rows, test: Rows) -> tuple[float, float, float]:
    """(R@1 on test, time with choosing, time of the chosen fit)."""
    tried = []
    for latents in (64, 128):
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ten iterations are few on purpose
            model = GaussianImputer(latents, prior=100.0, max_iter=10).fit(train, present)
        took = time.process_time() - start
        val_score, test_score = (recall({n: model.embed({n: rows[n]}) for n in NAMES}) for rows in (val, test))
        tried.append((val_score, test_score, took))
    best = max(tried)
    return best[1], sum(took for _, _, took in tried), best[2]


def contrastive(train: Rows, present: torch.Tensor, val: Rows, test: Rows, seed: int) -> tuple[float, float, float]:
    """(R@1 on test, time with choosing, time of the chosen run) of linear heads with all-pairs InfoNCE."""
    tried = []
    for rate in (3e-4, 1e-3, 3e-3):
        torch.manual_seed(seed)
        heads = torch.nn.ModuleDict({n: torch.nn.Linear(train[n].shape[1], WIDTH) for n in NAMES})
        loss = ContrastiveLoss(anchor=None, label_smoothing=0.0)
        optimiser = torch.optim.AdamW([*heads.parameters(), *loss.parameters()], lr=rate)
        took, best = 0.0, (-1.0, 0.0)
        for epoch in range(EPOCHS):
            start = time.process_time()
            for rows in torch.randperm(len(present)).split(BATCH):
                z = {n: normalize(heads[n](train[n][rows]), dim=1) for n in NAMES}
                optimiser.zero_grad()
                loss(z, present[rows]).backward()
                optimiser.step()
            took += time.process_time() - start
            if epoch % 5 == 4:
                with torch.no_grad():
                    found = tuple(recall({n: heads[n](rows[n]) for n in NAMES}) for rows in (val, test))
                best = max(best, found)
        tried.append((*best, took))
    chosen = max(tried)
    return chosen[1], sum(took for _, _, took in tried), chosen[2]
