"""From files to a trained model: videos, some without sound, some without picture, tiny towers, matching, resuming."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calmrl.data.loaders.batches import Batches
from calmrl.data.loaders.media_rows import MediaRows
from calmrl.data.media.manifest import read_manifest
from calmrl.data.media.problems import Problems
from calmrl.losses import PMRLLoss
from calmrl.paper.vast.matching import cat_conditions
from calmrl.paper.vast.model import VastModel
from calmrl.training.loop import Trainer
from calmrl.training.plan import Stage, TrainerOptions
from calmrl.training.step import Step
from tests.support.make_media import make_films
from tests.support.tiny_encoders import save_tokenizer
from tests.support.tiny_models import VAST

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
KINDS = {"vision": "image", "audio": "audio", "text": "text"}
ITEMS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    save_tokenizer(folder / "tokenizer")
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, make_films(folder, ITEMS, 0.03))))
    return folder


def media(folder, **options) -> MediaRows:
    problems = Problems()
    manifest = read_manifest(folder / "items.jsonl", KINDS, problems)
    assert not problems
    return MediaRows(manifest, tokenizer=str(folder / "tokenizer"), frames=2, size=28, tokens={"text": 12}, **options)


def model() -> VastModel:
    torch.manual_seed(0)
    return VastModel.from_sizes(**{**VAST, "names": tuple(KINDS), "vocabulary": 64, "dropout": 0.0})


def trainer(folder, out) -> Trainer:
    out.mkdir(exist_ok=True)
    net = model()
    step = Step(net, PMRLLoss(temperature=0.5), net.matching, 0.1)
    stages = [Stage("joint", [media(folder)], epochs=2)]
    validation = [media(folder, training=False)]
    return Trainer(step, stages, TrainerOptions(batch_size=4), out=out, validation=validation)


def test_training_from_files_goes_on_where_it_stopped(folder, tmp_path, monkeypatch) -> None:
    whole = trainer(folder, tmp_path / "whole")
    before = {name: value.clone() for name, value in whole.step.tensors().items()}
    outcome = whole.run()
    assert outcome.steps == 6
    moved = [name for name, value in whole.step.tensors().items() if not torch.equal(value, before[name])]
    parts = ("model.vision.", "model.audio.", "model.bert.", "model.heads.", "model.matching.")
    assert all(any(name.startswith(part) for name in moved) for part in parts)

    stopped = trainer(folder, tmp_path / "parts")
    fetch, calls = MediaRows.fetch, []

    def stop(self, wanted, present, epoch):
        if self.training:
            calls.append(len(wanted))
            if len(calls) == 5:
                raise RuntimeError("the disk is gone")
        return fetch(self, wanted, present, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(MediaRows, "fetch", stop)
        with pytest.raises(RuntimeError, match="the disk is gone"):
            stopped.run()
    later = trainer(folder, tmp_path / "parts")
    later.run(resume=True)
    for name, value in whole.step.tensors().items():
        torch.testing.assert_close(later.step.tensors()[name], value, msg=name)


def test_every_caption_finds_its_item_among_all_and_is_ranked_again(folder) -> None:
    net, rows = model().eval(), media(folder, training=False)
    z, tokens, conditions, masks = [], [], [], []
    with torch.no_grad():
        for wanted in np.array_split(np.arange(len(rows)), 3):
            present = torch.from_numpy(rows.present[wanted])
            found, inner = net.encode(rows.fetch(wanted, rows.present[wanted], 0), present)
            z.append(found)
            conditions.append(net.matching.conditions(inner, present))
            masks.append(present)
        owner = []
        for part, at in rows.captions():
            tokens.append(part)
            owner += at.tolist()
        text = {key: torch.cat([part[key] for part in tokens]) for key in tokens[0]}
        only = torch.zeros(len(owner), 3, dtype=torch.bool)
        only[:, 2] = True
        nothing = rows.fetch(np.zeros(0, dtype=int), np.zeros((0, 3), dtype=bool), 0)
        queries = net(nothing | {"text": text}, only)["text"]
    gallery = torch.cat([part["vision"] for part in z])
    scores = queries @ gallery.T
    final = net.matching.rerank(text, cat_conditions(conditions), scores, top=5)
    assert final.shape == (2 * ITEMS, ITEMS)
    assert torch.equal(final.topk(5).indices.sort().values, scores.topk(5).indices.sort().values)
    assert torch.cat(masks).shape == (ITEMS, 3)


def test_two_sources_in_one_batch(folder) -> None:
    first, second = (
        media(folder, name="a", rows=np.arange(6)),
        media(folder, name="b", rows=np.arange(6, 12), weight=2.0),
    )
    net = model()
    seen = 0
    for batch in Batches([first, second], 6, seed=1):
        z = net(batch["z"], batch["present"])
        assert z["text"].shape == (len(batch["index"]), 8)
        there = batch["present"][:, 0]
        assert torch.equal(z["vision"].norm(dim=1) > 0, there)
        seen += len(there)
    assert seen == 18
