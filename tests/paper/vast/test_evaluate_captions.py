"""Captions find items by the first stage of the model, and its best are ranked again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl.paper.vast import build as media
from calmrl.paper.vast.build import captions_rows
from tests.support.tiny_models import tiny_inputs, tiny_vast


class Rows:
    """Five items in memory in place of files; the last has nothing but text."""

    chunk = 2

    def __init__(self) -> None:
        self.present = np.ones((5, 4), dtype=bool)
        self.present[1, 1] = self.present[2, 3] = False
        self.present[4, [0, 1, 3]] = False
        self.inputs = tiny_inputs(torch.from_numpy(self.present), seed=1)

    def __len__(self) -> int:
        return 5

    def fetch(self, wanted, present, epoch):
        inputs = {}
        for column, name in enumerate(("vision", "audio", "text", "subtitle")):
            at = np.cumsum(self.present[:, column])[wanted[present[:, column]]] - 1
            value = self.inputs[name]
            inputs[name] = {key: v[at] for key, v in value.items()} if isinstance(value, dict) else value[at]
        return inputs

    def captions(self):
        yield self.inputs["text"], np.arange(5)


@pytest.mark.parametrize("first_stage", ["fused", "sum"])
@torch.no_grad()
def test_scores_and_candidates_are_those_of_the_first_stage(monkeypatch, first_stage: str) -> None:
    model, rows = tiny_vast(first_stage=first_stage), Rows()
    present = torch.from_numpy(rows.present)
    z, tokens = model.encode(rows.inputs, present)
    others = torch.stack([z[name] for name in ("vision", "audio", "subtitle")]).sum(0)
    items = tokens["fused"] if first_stage == "fused" else others / others.norm(dim=1, keepdim=True)
    expected = (z["text"] @ items.T)[:4, :4]
    ranked, candidates = [], []
    plain, again = media.retrieval, model.matching.rerank

    def watch(**given):
        ranked.append(given["scores"])
        return plain(**given)

    def watch_again(text, conditions, scores, **options):
        candidates.append(scores)
        return again(text, conditions, scores, **options)

    monkeypatch.setattr(media, "retrieval", watch)
    model.matching.rerank = watch_again
    measured = captions_rows(model, rows, z, present)
    torch.testing.assert_close(ranked[0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ranked[1], expected.T, atol=1e-5, rtol=1e-5)
    assert len(candidates) == 2
    assert all(torch.equal(scores, ranked[0]) for scores in candidates)
    assert {row["task"] for row in measured} == {
        *("text->all", "all->text", "text->all re-ranked", "all->text re-ranked")
    }
