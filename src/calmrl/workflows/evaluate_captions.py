"""Retrieval with every caption of an item, before and after the matching encoder of a model of raw media."""

from typing import Any

import numpy as np
import torch

from calmrl.data.loaders.media_rows import MediaRows
from calmrl.metrics.measures import Measurement, row
from calmrl.metrics.model_rows import RANKED
from calmrl.metrics.retrieve import retrieval
from calmrl.models.vast.fused import summed
from calmrl.models.vast.matching import cat_conditions


@torch.no_grad()
def captions_rows(
    net: Any, media: MediaRows, z: dict[str, torch.Tensor], present: torch.Tensor, device: str = "cpu"
) -> list[Measurement]:
    """Every caption against every item by its other modalities, both ways, before and after the matching encoder.

    The model is on `device`; what it gives is kept in main memory.
    """
    from accelerate.utils import send_to_device

    text = net.names.index("text")
    has_other = (present[:, [j for j in range(len(net.names)) if j != text]].any(1)).numpy()
    conditions, tokens, owner, fused = [], [], [], []
    for wanted in np.array_split(np.arange(len(media)), -(-len(media) // media.chunk)):
        mask = torch.from_numpy(media.present[wanted]).to(device)
        _, inner = net.encode(send_to_device(media.fetch(wanted, media.present[wanted], 0), device), mask)
        conditions.append(send_to_device(net.matching.conditions(inner, mask), "cpu"))
        fused += [inner["fused"].cpu()] if "fused" in inner else []
    for part, at in media.captions():
        tokens.append(part)
        owner += at.tolist()
    kept = [i for i, item in enumerate(owner) if has_other[item]]
    if len(kept) < 2:
        return []
    captions = {key: torch.cat([part[key] for part in tokens])[kept] for key in tokens[0]}
    nothing = media.fetch(np.zeros(0, dtype=int), np.zeros((0, len(net.names)), dtype=bool), 0)
    only = torch.zeros(len(kept), len(net.names), dtype=torch.bool)
    only[:, text] = True
    queries = net(send_to_device(nothing | {"text": captions}, device), only.to(device))["text"].cpu()
    items = torch.cat(fused) if fused else summed(z)  # the first stage, which also gives the candidates of the second
    scores = queries @ items[has_other].T
    features, there = cat_conditions(conditions)
    chosen = torch.from_numpy(has_other)
    ids, gallery = [owner[i] for i in kept], np.flatnonzero(has_other).tolist()
    asked = sorted(set(ids))
    measured = []
    for suffix, again in (("", False), (" re-ranked", True)):
        for task, by_items in (("text->all", False), ("all->text", True)):
            final = scores
            if again:
                final = net.matching.rerank(captions, (features[chosen], there[chosen]), scores, by_items=by_items)
            if by_items:
                rows = [gallery.index(item) for item in asked]  # items that have a caption to be found
                result = retrieval(scores=final.T[rows], query_ids=asked, gallery_ids=ids)
            else:
                result = retrieval(scores=final, query_ids=ids, gallery_ids=gallery)
            measured += [row(f"{task}{suffix}", key, result[key], result["n"]) for key in RANKED]
    return measured
