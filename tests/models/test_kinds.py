"""A kind of model costs its files and its entry of MODELS: training and evaluation from raw media ask nothing else of it."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from calmrl._support.section import Section
from calmrl.config import TrainConfig
from calmrl.metrics.measures import row
from calmrl.models.registry import MODELS, ModelKind
from calmrl.workflows import evaluate, train

TEXTS = ("title", "caption")


class LettersSection(Section):
    """Counts of letters."""

    kind: Literal["letters"]
    width: int = 4


class Letters(nn.Module):
    """A linear layer per text on the counts of its letters."""

    kind = "letters"
    matching = None

    def __init__(self, names: list[str], width: int) -> None:
        super().__init__()
        self.names, self.width, self.arguments = tuple(names), width, {"names": list(names), "width": width}
        self.heads = nn.ModuleDict({name: nn.Linear(26, width) for name in names})

    def forward(self, inputs, present):
        return self.encode(inputs, present)[0]

    def encode(self, inputs, present):
        z = {}
        for column, name in enumerate(self.names):
            vectors = normalize(self.heads[name](inputs[name]), dim=1)
            z[name] = vectors.new_zeros(len(present), self.width).index_put(
                (present[:, column].nonzero()[:, 0],), vectors
            )
        return z, None


def build(section, data, names, seed, root):
    torch.manual_seed(seed)
    return Letters(list(names), section.width)


class LetterRows:
    """Rows of a manifest as counts of letters."""

    chunk = 8

    def __init__(self, manifest, name, rows, present, weight) -> None:
        self.name, self.weight, self.names = name, weight, tuple(manifest.kinds)
        self.items = [manifest.items[row] for row in rows]
        listed = np.array([[text in item.cells for text in self.names] for item in self.items], dtype=bool)
        self.present = listed if present is None else listed & present[rows]
        self.left_out = manifest.left_out
        self.ids = [item.id for item in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def settings(self) -> str:
        return "counts of letters"

    @staticmethod
    def join(parts, present):
        ((_, values),) = parts  # one source
        return values

    def fetch(self, wanted, present, epoch):
        def counts(item, name):
            text = item.cells[name][0].lower()
            return [float(text.count(letter)) for letter in map(chr, range(97, 123))]

        return {
            name: torch.tensor([counts(self.items[i], name) for i, has in zip(wanted, present[:, j], strict=True) if has])
            .reshape(-1, 26)
            for j, name in enumerate(self.names)
        }  # fmt: skip


class LetterInputs:
    """The `MediaInputs` of the model."""

    kinds = dict.fromkeys(TEXTS, "text")

    def __init__(self, section, modalities, root, seed) -> None:
        self.names, self.workers = tuple(modalities or TEXTS), 1

    def missing(self) -> list[str]:
        return []

    def rows(self, manifest, source, *, name, rows, present=None, training=True):
        return LetterRows(manifest, name, rows, present, source.weight)

    def shape(self, rows) -> str:
        return "26 letters"

    def measure(self, model, rows, z, present, device):
        return [row("letters", "counted", float(len(rows)), len(rows))]


@pytest.fixture
def letters(monkeypatch):
    parts = (f"{__name__}:{name}" for name in ("LettersSection", "build", "Letters", "LetterInputs"))
    monkeypatch.setitem(MODELS, "letters", ModelKind("counts of letters", *parts))


def test_a_new_kind_trains_from_files_and_adds_its_own_measurements(letters, tmp_path) -> None:
    words = ["boat", "hill", "jump", "quiz", "wave", "fern", "oxen", "myth", "glad", "pick", "sand", "rust"]
    parts = ["train"] * 6 + ["val"] * 3 + ["test"] * 3
    rows = [
        {"id": word, "title": word, "caption": f"a {word}", "split": part}
        for word, part in zip(words, parts, strict=True)
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = TrainConfig.model_validate(
        {
            "kind": "train",
            "method": "contrastive",
            "root": str(tmp_path),
            "sources": {"own": {"manifest": "items.jsonl"}},
            "model": {"kind": "letters"},
            "stages": [{"steps": 2}],
            "batch_size": 4,
        }
    )
    assert train(config, tmp_path / "run", cpu=True).steps == 2
    measured = {(one["task"], one["metric"]): one["n"] for one in evaluate(tmp_path / "run").rows}
    assert measured["title->caption", "R@1"] == 3
    assert measured["letters", "counted"] == 3
