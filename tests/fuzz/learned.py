"""Saved imputers, aligners and models, checkpoints of training, official .pt files, and indexes."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calmrl
from calmrl.aligner.estimator import Aligner
from calmrl.data import write_features
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.heads import Heads
from calmrl.models.saved import Trained, load, save
from calmrl.paper.vast import checkpoints
from calmrl.paper.vast.towers import Beats
from calmrl.search import neighbours
from calmrl.search.update import removed_items
from calmrl.training import checkpoints as checkpoint
from calmrl.workflows.check import check_source
from tests.fuzz.family import Make, Sample
from tests.fuzz.features import arrays
from tests.support.tiny_models import BEATS_CFG, official_beats, scramble


def imputer_of(z: dict[str, np.ndarray], present: np.ndarray) -> GaussianImputer:
    return GaussianImputer(latent_dim=2, max_iter=3).fit(z, present)


def imputer(folder: Path) -> Sample:
    path = folder / "imputer"
    imputer_of(*arrays()).save(path)

    def read(damaged: Path) -> Any:
        parameters = GaussianImputer.load(path).parameters_
        return len(parameters.names), parameters.widths

    return Sample(sorted(path.iterdir()), read, path.name)


def fitted_aligner() -> Aligner:
    fixed: dict[str, Any] = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 2, "prior": 1.0}
    return Aligner(**fixed, refine="never", candidates=1).fit(*arrays())


def aligner(folder: Path) -> Sample:
    path = folder / "aligner"
    fitted_aligner().save(path)
    return Sample(sorted(path.iterdir()), lambda damaged: Aligner.load(path).space_.latent_dim, path.name)


def model(folder: Path) -> Sample:
    path = folder / "model"
    path.mkdir()
    torch.manual_seed(0)
    z, present = arrays()
    heads = Heads({"image": 5, "text": 3}, width=4)
    inputs = {name: torch.from_numpy(np.nan_to_num(array)) for name, array in z.items()}
    vectors = {name: rows.detach() for name, rows in heads(inputs, torch.from_numpy(present)).items()}
    align = calmrl.CalibratedAlignment(
        imputer=GaussianImputer(latent_dim=2, max_iter=3).fit(vectors, torch.from_numpy(present))
    )
    save(path, Trained(heads, align, info={"method": "calmrl-printed"}))
    return Sample(
        sorted(file for file in path.rglob("*") if file.is_file()), lambda damaged: load(path).width, path.name
    )


def training_checkpoint(folder: Path) -> Sample:
    training = {
        "position": {"step": 3, "stage": 0},
        "optimiser": {
            "state": {0: {"step": torch.ones(()), "exp_avg": torch.ones(4, 3)}},
            "param_groups": [{"lr": 0.1}],
        },
        "scaler": None,
        "random": [torch.get_rng_state()[:64]],
    }
    weights = {"a": torch.ones(4, 3), "b": torch.ones(4)}
    latent = imputer_of(*arrays()).get_state()
    content = checkpoint.Checkpoint(weights, training, latent, dict(weights))
    path = checkpoint.write(folder / "checkpoints", 3, content, best=True, keep=2)

    def read(damaged: Path) -> Any:
        again = checkpoint.read(path)
        return len(again.weights), len(again.ema), again.latent is not None

    return Sample(sorted(file for file in path.rglob("*") if file.is_file()), read, path.name)


def official(folder: Path) -> Sample:
    source = scramble(Beats.from_cfg(BEATS_CFG)).eval()
    state = official_beats(source.state_dict(), BEATS_CFG["encoder_layers"])
    path = folder / "beats.pt"
    torch.save({"cfg": BEATS_CFG, "model": state}, path)
    return Sample([path], lambda damaged: len(checkpoints.load_beats(path)[1].used), path.name)


def index(folder: Path) -> Sample:
    return checked_index(folder / "items.index", 23, neighbours.EXACT_ROWS)


def large_index(folder: Path) -> Sample:
    """One that is searched through a graph, as if it had more than EXACT_ROWS items."""
    return checked_index(folder / "large.index", 150, 40)


def checked_index(path: Path, items: int, exact: int) -> Sample:
    """An index after an addition, a change and a removal; reading it is `calmrl check` and then all that it can be asked."""
    rng = np.random.default_rng(0)
    present = np.array([[True, True], [True, False], [False, True]])[np.arange(items) % 3]
    z = {name: rng.normal(size=(items, width)).astype(np.float32) for name, width in {"image": 5, "text": 3}.items()}
    fixed: dict[str, Any] = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 2, "prior": 1.0}
    model = Aligner(**fixed, refine="never", candidates=1).fit(z, present)

    def features(name: str, rows: range, caption: str) -> Path:
        columns = {"thumbnail": [b"RIFF" + bytes([row]) * 40 for row in rows], "year": [1990 + row for row in rows]}
        told = {"ids": [f"item {row}" for row in rows], "text": [f"{caption} {row % 7}" for row in rows]}
        some = {modality: values[rows.start : rows.stop] for modality, values in z.items()}
        labels = [["even" if row % 2 == 0 else "odd", "all"] for row in rows]
        target = path.parent / name / "features"
        write_features(target, some, present[rows.start : rows.stop], **told, labels=labels, columns=columns)
        return target

    threshold, neighbours.EXACT_ROWS = neighbours.EXACT_ROWS, exact
    try:
        opened = calmrl.Index.build(features("first", range(items - 4), "a picture of"), path, model=model)
    finally:
        neighbours.EXACT_ROWS = threshold
    opened.add(features("second", range(items - 4, items), "another"))
    opened.remove(["item 2", "item 5"])
    asked = np.linspace(-1, 1, 5)

    def read(damaged: Path) -> Any:
        with silent() as written:
            problems = check_source(path)
        if written:
            raise RuntimeError(f"calmrl check let this through to stderr: {written[0][:300]!r}")
        try:
            with silent():  # a search may let a panic print itself, but must not end in one
                said = answers(calmrl.Index.open(path), asked)
        except InputError as error:
            if not problems:
                raise RuntimeError("calmrl check found nothing") from error
            raise
        if problems:
            raise InputError("; ".join(problems))
        return said

    return Sample(sorted(file for file in path.rglob("*") if file.is_file()), read, path.name)


def answers(index: calmrl.Index, asked: np.ndarray) -> Any:
    """What an index says: counts, full rows, thumbnails, and searches of every kind."""
    items = index.items(limit=1000)
    searches: list[dict[str, Any]] = [
        {"image": asked, "k": 50},
        {"text": asked[:3], "having": "image"},
        {"image": asked, "lacking": "text", "where": "label = 'even' and year > 1993"},
        {"like": "item 1", "hubs": True},
    ]
    return (
        len(index),
        sorted(items, key=lambda item: item.id),
        {item.id: index.thumbnail(item.id) for item in items[:40]},
        [index.search(**search) for search in searches],
        index.labels(),
        {key: value for key, value in index.about().items() if key != "version"},
        str(index.features_of("item 0")),
        removed_items(index.path),
    )


@contextlib.contextmanager
def silent() -> Iterator[list[bytes]]:
    """Catches what is written to stderr, by other languages too; the list has one entry if there was anything."""
    written: list[bytes] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            written += [content] if (content := file.read()) else []


FAMILIES: dict[str, Make] = {
    "imputer": imputer,
    "aligner": aligner,
    "model": model,
    "checkpoint": training_checkpoint,
    "official-pt": official,
    "index": index,
    "large-index": large_index,
}
