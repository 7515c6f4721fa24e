"""Trains and measures what tables ask for. What is finished is kept in the output folder and used again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl._support.output import new_file
from calmrl._support.parsing import read_json_object
from calmrl.config import TrainConfig, dump
from calmrl.config.schema.train import SourceSection
from calmrl.data.features.feature_set import open_features
from calmrl.data.media.public_collections import COLLECTIONS, PublicCollection
from calmrl.metrics.measures import Measurement, row
from calmrl.metrics.model_rows import picture, retrieval_rows
from calmrl.models.saved import load as load_model
from calmrl.paper.reproduce.by_name import by_name_rows
from calmrl.paper.reproduce.needs import CLASSIFIED, features_of_others
from calmrl.paper.reproduce.tables import CLASSIFICATION, COUNTS, IMAGEBIND, RUNS, Run, Value, config_of, media_source
from calmrl.protocols import Progress, no_progress
from calmrl.training.records import read_records
from calmrl.training.validate import encode_all
from calmrl.workflows.evaluate import evaluate
from calmrl.workflows.media_sources import open_test_media
from calmrl.workflows.train import same_config, train


@dataclass
class ReproductionRun:
    """Where data are and results go.

    Attributes
    ----------
    root : Path
        The data.
    out : Path
        Gets `configs/`, and `runs/` with a folder per run.
    device : str
        Where models encode and train: "cpu", or another device of torch.
    changes : callable
        Run -> key=value changes to its config.
    progress, report : callable
        Get what is being done, and sentences.
    """

    root: Path
    out: Path
    device: str = "cpu"
    changes: Callable[[Run], Sequence[str]] = lambda run: ()
    progress: Progress = no_progress
    report: Callable[[str], None] = lambda text: None
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)  # by collection: test media that are not there
    _rows: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def folder(self, run: str) -> Path:
        """The directory of a run."""
        return self.out / "runs" / run

    def config(self, run: str) -> TrainConfig:
        """The config of a run."""
        return config_of(RUNS[run], self.root, self.changes(RUNS[run]))

    def write_config(self, run: str) -> Path:
        """The config of a run as a file for `calmrl train`."""
        path = self.out / "configs" / f"{run}.yaml"
        dump(self.config(run), path, force=True)
        return path

    def finished(self, run: str) -> bool:
        """Whether the run is trained."""
        return (self.folder(run) / "model" / "model.json").is_file()

    def trained(self, run: str) -> Path:
        """The folder of a run, trained now unless it was before; one that was stopped goes on."""
        folder, config = self.folder(run), self.config(run)
        if self.finished(run):
            same_config(config, folder / "config.yaml")
            return folder

        def show(done: int, total: int, text: str) -> None:
            self.progress(done, total, f"{run}: {text}")

        resume = (folder / "config.yaml").is_file()
        train(config, folder, resume=resume, cpu=self.device == "cpu", progress=show, report=self._named(run))
        return folder

    def value(self, wanted: Value) -> Measurement | None:
        """A measurement; None if it was not possible."""
        rows = self._rows_of(wanted.producer, wanted.collection)
        same = [one for one in rows if (one["task"], one["metric"]) == (wanted.task, wanted.metric)]
        return same[0] if same else None

    def _rows_of(self, producer: str, collection: str) -> list[Any]:
        key = (producer, collection)
        if key not in self._rows:
            self._rows[key] = self._measured(producer, collection)
        return self._rows[key]

    def _measured(self, producer: str, collection: str) -> list[Any]:
        if producer == COUNTS:
            return count_rows(collection, self.root)
        if producer not in RUNS:
            return self._of_others(producer, collection)
        if not collection:
            return loss_rows(self.trained(producer))
        if RUNS[producer].config == CLASSIFICATION:
            by_name = partial(by_name_rows, self.root / IMAGEBIND / collection)
            return self._kept(producer, collection, lambda folder: {"rows": by_name(load_model(folder))})["rows"]
        content = self._kept(producer, collection, partial(self._evaluated, collection))
        described = content["meta"]["datasets"][collection]
        self.left_out[collection] = described.get("left_out", {})
        return list(content["rows"])

    def _evaluated(self, collection: str, folder: Path) -> dict[str, Any]:
        sources = {collection: SourceSection.model_validate(media_source(collection))}
        return evaluate(folder, sources=sources, device=self.device).as_dict()

    def _kept(self, run: str, name: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Results of a run by name, from their file if it is there."""
        folder = self.trained(run)
        path = folder / "results" / f"{name}.json"
        if not path.is_file():
            self.progress(0, 0, f"{run}: measuring on {name}")
            content = make(folder)
            with new_file(path) as draft:
                draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return read_json_object(path, "delete it, and it is measured again")

    def _of_others(self, model: str, collection: str) -> list[Any]:
        """Retrieval and classes with features of a model of others as they are; nothing if they are not there."""
        path = features_of_others(self.root, model, collection)
        if not path.is_dir():
            return []
        if collection in CLASSIFIED:
            return list(by_name_rows(path))
        data = open_features(path)
        test = np.ones(len(data), dtype=bool) if data.split is None else data.split == "test"
        present = torch.from_numpy(np.ascontiguousarray(data.present[test]))
        z = {name: torch.nan_to_num(torch.as_tensor(np.asarray(data.z[name][test]))) for name in data.names}
        return list(retrieval_rows(z, present))

    def map_of(self, run: str, collection: str) -> dict[str, Any]:
        """t-SNE of the test vectors of a collection that lack nothing of what its items have."""
        return self._kept(run, f"{collection}-map", partial(self._map, collection))

    def _map(self, collection: str, folder: Path) -> dict[str, Any]:
        model = load_model(folder)
        sources = {collection: SourceSection.model_validate(media_source(collection))}
        config = self.config(folder.name).model_copy(update={"sources": sources})
        z, present = encode_all(model.model.to(self.device), [open_test_media(config)[collection]], self.device)
        there = present.any(0)
        complete = present[:, there].all(1)
        return picture({name: z[name][complete] for j, name in enumerate(z) if there[j]})

    def _named(self, run: str) -> Callable[[str], None]:
        return lambda text: self.report(f"{run}: {text}")


def count_rows(collection: str, root: Path) -> list[Measurement]:
    """Items, and their texts, of each part of a collection of which a media file is there."""
    media = COLLECTIONS[collection]().media
    counts: dict[str, list[int]] = {}
    for _, columns in PublicCollection(collection, root / collection).read().rows:
        if any(Path(str(columns[name])).is_file() for name in media if columns.get(name)):
            counts.setdefault(str(columns.get("split")), []).append(len(columns["text"]))
    rows = []
    for part, texts in counts.items():
        rows += [row(part, "items", len(texts), len(texts)), row(part, "texts", sum(texts), len(texts))]
    return rows


def loss_rows(folder: Path) -> list[Measurement]:
    """The first and last loss of the last stage of a run."""
    curve = loss_curve(folder)
    ends = (("first", curve[0]), ("last", curve[-1])) if curve else ()
    return [row("loss", name, loss, step) for name, (step, loss) in ends]


def loss_curve(folder: Path) -> list[tuple[int, float]]:
    """(step, loss) of the records of the last stage."""
    records = read_records(folder / "metrics.jsonl", "train")
    last = records[-1]["stage"] if records else ""
    return [(one["step"], one["loss"]) for one in records if one["stage"] == last and one["loss"] is not None]
