"""How good a trained model is on test rows: retrieval, classification, imputation, anchor shift.

`nearest_examples` is what a few queries find, as a report shows it: captions, ranks, small pictures and beginnings of sounds.
"""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from calmrl._support.engine import Engine, opened
from calmrl._support.output import new_file
from calmrl._support.text import plural
from calmrl.arrays import blocks_of_rows
from calmrl.config import TrainConfig, load
from calmrl.config.schema.train import SourceSection
from calmrl.data.features.feature_set import ROW, FeatureSet, files_of, open_features, relevance_of
from calmrl.data.media.manifest import AUDIO, IMAGE, VIDEO
from calmrl.data.media.problems import Unreadable, counts_of_test
from calmrl.data.media.streams import clip
from calmrl.datasets.registry import indexing_of
from calmrl.errors import InputError
from calmrl.metrics.measures import Measurement, TidyRow, remarks
from calmrl.metrics.model_rows import LabelledRows, Vectors, measure_rows, neighbours, reranked_rows
from calmrl.metrics.registry import measures
from calmrl.models.registry import MODELS
from calmrl.models.saved import ROWS, Trained
from calmrl.models.saved import load as load_model
from calmrl.report.results import DatasetInfo, skipped_sentence
from calmrl.training.validate import encode_all
from calmrl.workflows.compare.plan import repeats
from calmrl.workflows.from_config import media_inputs, open_features_of, open_test_media, parts_of


def nearest_examples(
    features: FeatureSet, home: np.ndarray, z: Vectors, present: torch.Tensor, relevant_by: str = ROW
) -> list[dict[str, Any]]:
    """What texts (or the first modality) find in the next modality, among the rows that have both.

    Parameters
    ----------
    features : FeatureSet
        The data; without texts there is nothing to show.
    home : ndarray (n,)
        Which rows of `features` the test rows are.
    z, present
        Representations of the test rows, and which of them are there.
    relevant_by : str
        What counts as found: the query's own row ("id"), or all items with its "text", "labels" or another column.
    """
    if features.text is None or len(z) < 2:
        return []
    names = list(z)
    asks = "text" if "text" in names else names[0]
    gives = next(name for name in names if name != asks)
    both = (present[:, names.index(asks)] & present[:, names.index(gives)]).nonzero()[:, 0]
    rows = [int(home[i]) for i in both.tolist()]
    if not rows:
        return []
    ids = [str(features.ids[row]) for row in rows]
    captions = [caption_of(features.text[row], name) for row, name in zip(rows, ids, strict=True)]
    every = relevance_of(features, relevant_by)
    relevant = None if every is None else every[rows].tolist()
    queries = neighbours({name: z[name][both] for name in (asks, gives)}, captions, ids, asks, gives, relevant)
    row_of = dict(zip(ids, rows, strict=True))
    for query in queries:
        query["relevant_by"] = relevant_by
        asked = files_of(features, row_of[query["id"]])
        query |= _media({asks: asked[asks]} if asks in asked else {})
        for item in query["found"]:
            row = row_of[item["id"]]
            item |= _media(files_of(features, row)) | {"picture": picture_of(features, row)}
    return queries


def caption_of(text: Any, name: str) -> str:
    """The first caption of an item, or its id."""
    if isinstance(text, (list, tuple)):
        text = text[0] if len(text) else None
    return str(text) if text else name


def picture_of(features: FeatureSet, row: int) -> str | None:
    """A small picture of an item as a data URI; None if none is known."""
    has = [name for name, here in zip(features.names, np.asarray(features.present[row]), strict=True) if here]
    webp = indexing_of(features.name).thumbnail(str(features.ids[row]), has)
    return _media(files_of(features, row))["picture"] if webp is None else _picture(webp)


def _media(files: dict[str, Path]) -> dict[str, str | None]:
    """The first picture and the first sound among files, as data URIs; None where there is none that can be read."""
    small = next((small for small in map(_small, files.values()) if small is not None), None)
    sound = next((mp3 for mp3 in map(_beginning, files.values()) if mp3 is not None), None)
    return {
        "picture": None if small is None else _picture(small),
        "sound": None if sound is None else "data:audio/mpeg;base64," + base64.b64encode(sound).decode(),
    }


def _picture(webp: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(webp).decode()


def _small(path: Path) -> bytes | None:
    from calmrl.search.collection import thumbnail

    return thumbnail(path) if str(path).lower().endswith((*IMAGE, *VIDEO)) else None


def _beginning(path: Path) -> bytes | None:
    if not str(path).lower().endswith(AUDIO):
        return None
    try:
        return clip(path)
    except Unreadable:
        return None


ENCODE_ROWS = 4 * ROWS  # rows of a task: a whole number of the blocks that a model works in itself


def encode_distributed(
    model: Trained, z: Mapping[str, np.ndarray], present: np.ndarray, engine: Engine
) -> dict[str, np.ndarray]:
    """`model.encode`, a block of rows per task."""
    blocks = (
        ({name: array[start:stop] for name, array in z.items()}, present[start:stop])
        for start, stop in blocks_of_rows(len(present), 1, ENCODE_ROWS)
    )
    parts = list(engine.map(_encode_block, blocks, model))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _encode_block(block: tuple[dict[str, np.ndarray], np.ndarray], model: Trained) -> dict[str, np.ndarray]:
    return model.encode(*block)


@dataclass(frozen=True)
class Evaluation:
    """Tidy rows of a model on each data set, as results.json has them, and the config it was trained with."""

    config: TrainConfig
    command: str
    rows: list[TidyRow] = field(default_factory=list)
    datasets: dict[str, DatasetInfo] = field(default_factory=dict)
    neighbours: list[dict[str, Any]] = field(default_factory=list)
    not_measured: dict[str, list[str]] = field(
        default_factory=dict
    )  # by data set: what the rows lack for which measure
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        data: DatasetInfo,
        measured: list[Measurement],
        examples: Sequence[dict[str, Any]] = (),
        not_measured: Sequence[str] = (),
    ) -> None:
        """Add the measurements on a data set, what a few queries find in it, and which measures it does not allow."""
        self.neighbours.extend({"method": self.config.method, **query} for query in examples)
        origin = {"dataset": name, "method": self.config.method, "seed": self.config.seed}
        self.rows.extend(cast(TidyRow, origin | dict(one)) for one in measured)
        self.datasets[name] = data
        self.not_measured[name] = list(not_measured)

    @property
    def left_out(self) -> str:
        """What the numbers do without; empty if nothing is left out."""
        return skipped_sentence({name: data.left_out for name, data in self.datasets.items()})

    @property
    def remarks(self) -> list[str]:
        """What must be known before these numbers are used."""
        found = list(self.notes)
        for name in self.datasets:
            warnings = remarks([row for row in self.rows if row["dataset"] == name])
            texts = [*(f"not measured: {text}" for text in self.not_measured[name]), *warnings]
            found += [f"{name}: {text}" for text in texts] if len(self.datasets) > 1 else texts
        return found

    def as_dict(self) -> dict[str, Any]:
        """The content of results.json."""
        stages = len(self.config.stages)
        about = f"trained in {plural(stages, 'stage')}" if stages else "fitted in closed form"
        method = {"about": about, "ours": self.config.method == "aligner"}
        meta = {
            "command": self.command,
            "config": self.config.model_dump(mode="json"),
            "datasets": {name: data.model_dump() for name, data in self.datasets.items()},
            "methods": {self.config.method: method},
            "neighbours": self.neighbours,
            "remarks": self.remarks,
        }
        return {"rows": self.rows, "meta": meta}


def evaluate(
    folder: str | Path,
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    force: bool = False,
    relevant_by: str = ROW,
    sources: Mapping[str, SourceSection] | None = None,
    device: str = "cpu",
    engine: str | Engine = "local",
    address: str | None = None,
) -> Evaluation:
    """Measure a trained model on test rows.

    Every modality is asked for by every other; incomplete rows take part in the directions that they can.

    Parameters
    ----------
    folder : str or Path
        The directory of a finished training run.
    data : str or Path, optional
        Features to evaluate on, all of them if they have no split; by default the test rows of the training data.
    out : str or Path, optional
        A results.json to write.
    force : bool
        Replace `out` if it exists.
    relevant_by : str
        What counts as found: the query's own row ("id"), or all items with its "text", "labels" or another column.
    sources : mapping of str to SourceSection, optional
        For a model of raw media: manifests or public collections whose test rows take the place of those of the
        training sources; paths start from the `root` of the training.
    device : str
        Where a model of raw media encodes, such as "cuda".
    engine : {"local", "ray"} or Engine
        Where rows are encoded and queries are ranked: in this process, or on a Ray cluster. The numbers are the same.
    address : str, optional
        Of the Ray cluster; by default the one of this machine, or one that is started on its cores.

    Examples
    --------
    >>> evaluate("runs/first")  # doctest: +SKIP
    """
    features = None if data is None else Path(data)
    file = nullcontext() if out is None else new_file(out, force=force)
    with file as draft, opened(engine, address) as started:
        spread = None if engine == "local" else started
        evaluation = _evaluate(Path(folder), features, relevant_by, sources, device, spread)
        if draft is not None:
            draft.write_text(json.dumps(evaluation.as_dict(), indent=1), encoding="utf-8")
    return evaluation


def _evaluate(
    folder: Path,
    data: Path | None,
    relevant_by: str,
    sources: Mapping[str, SourceSection] | None,
    device: str,
    engine: Engine | None,
) -> Evaluation:
    model = load_model(folder)
    written = folder / "config.yaml"
    config = load(written if written.is_file() else folder / "model" / "config.yaml", kind="train")
    assert isinstance(config, TrainConfig)
    options = [] if data is None else ["--data", str(data)]
    options += [] if relevant_by == ROW else ["--relevant-by", relevant_by]
    evaluation = Evaluation(config, shlex.join(["calmrl", "evaluate", str(folder), *options]))
    if MODELS[config.model.kind].reads == "media":
        if data is not None:
            raise InputError("a model of raw media is evaluated on the test rows of its sources; leave out `data`")
        if relevant_by != ROW:
            raise InputError("for a model of raw media a query finds its own row; leave out `relevant_by`")
        if engine is not None:
            raise InputError("a model of raw media is evaluated in one process; leave out `engine`")
        tested = config if sources is None else config.model_copy(update={"sources": dict(sources)})
        _evaluate_media(model, evaluation, tested, device)
        return evaluation
    if sources is not None:
        raise InputError("sources are for a model of raw media; name features with data")
    sets = {data.name: (open_features(data), None)} if data is not None else _sources(config, model)
    for name, (features, split) in sets.items():
        widths = {key: array.shape[1] for key, array in features.z.items() if key in model.names}
        redrawn = name in config.sources and config.sources[name].resplit is not None
        lost = counts_of_test(features.info.get("left_out", {}), whole=redrawn)
        info = DatasetInfo(rows=len(features), modalities=widths, source=features.source, left_out=lost)
        not_measured: list[str] = []
        rows, examples = evaluate_on(model, features, split, relevant_by, not_measured, engine)
        evaluation.add(name, info, rows, examples, not_measured)
        evaluation.notes.extend(repeats(features, _split(features, split) == "test") if relevant_by == ROW else [])
    return evaluation


def evaluate_on(
    model: Trained,
    data: FeatureSet,
    split: np.ndarray | None = None,
    relevant_by: str = ROW,
    not_measured: list[str] | None = None,
    engine: Engine | None = None,
) -> tuple[list[Measurement], list[dict[str, Any]]]:
    """(measurements on the test rows of a feature set, what a few queries find).

    Classification is measured where there are labels and training rows. `not_measured` receives a sentence for each measure
    that the model or the rows do not allow.
    """
    not_measured = [] if not_measured is None else not_measured
    names = [name for name in model.names if name in data.z]
    if len(names) < 2:
        raise InputError(
            f"the model has {', '.join(model.names)}, the data have {', '.join(data.z)}; they must share two modalities"
        )
    split = _split(data, split)
    present = data.present[:, [data.names.index(name) for name in names]]
    used = (split != "") & present.any(axis=1)
    z = {name: np.asarray(data.z[name][used]) for name in names}
    vectors = model.encode(z, present[used]) if engine is None else encode_distributed(model, z, present[used], engine)
    encoded = {name: torch.nan_to_num(torch.as_tensor(rows)) for name, rows in vectors.items()}
    mask = torch.zeros(int(used.sum()), len(model.names), dtype=torch.bool)
    for j, name in enumerate(names):
        mask[:, model.names.index(name)] = torch.from_numpy(np.ascontiguousarray(present[used][:, j]))
    test = torch.from_numpy(split[used] == "test")
    if not test.any():
        raise InputError('no row has split "test"; there is nothing to evaluate on')
    asked, there = {name: rows[test] for name, rows in encoded.items()}, mask[test]
    not_measured += _not_measured(model, there)
    labelled = None
    if data.labels is None:
        not_measured.append("classification: the data have no labels")
    elif absent := [part for part in ("train", "val") if part not in set(split)]:
        not_measured.append(f"classification: no row has split {' or '.join(absent)}, from which a classifier learns")
    else:
        labelled = LabelledRows(encoded, mask, [str(label) for label in data.labels[used]], split[used])
    relevant = relevance_of(data, relevant_by)
    given: dict[str, Any] = {
        "relevant": None if relevant is None else relevant[used][test.numpy()].tolist(),
        "z": asked,
        "present": there,
        "align": model.align,
        "labelled": lambda: labelled,
        "seed": 0,
        "engine": engine,
    }
    rows = measure_rows(["retrieval"], not_measured, **given)
    if model.matching is not None:
        rows += reranked_rows(model.matching, asked, there)
    left_out = ("pool", "fused", "examples")
    rows += measure_rows([group for group in measures() if group not in left_out], not_measured, **given)
    return rows, nearest_examples(data, np.flatnonzero(used)[test.numpy()], asked, there, relevant_by)


def _not_measured(model: Trained, present: torch.Tensor) -> list[str]:
    """Directions without two rows to ask with, and measures that this model has nothing for."""
    sentences = []
    pairs = [(a, b) for a, b in combinations(range(len(model.names)), 2) if (present[:, a] & present[:, b]).sum() < 2]
    if pairs:
        listed = ", ".join(f"{model.names[a]} and {model.names[b]}" for a, b in pairs)
        sentences.append(f"retrieval between {listed}: fewer than two test rows have both")
    if model.align is None:
        sentences.append("imputation, coverage and anchor shift: this model imputes nothing")
    elif len(model.names) < 3:
        sentences.append("anchor shift: it needs three modalities")
    return sentences


def _split(data: FeatureSet, split: np.ndarray | None) -> np.ndarray:
    """Which part each row belongs to; without a split all rows are test rows."""
    if split is not None:
        return split
    return np.full(len(data), "test", dtype=object) if data.split is None else data.split


def _sources(config: TrainConfig, model: Trained) -> dict[str, tuple[FeatureSet, np.ndarray | None]]:
    with_test_rows: dict[str, tuple[FeatureSet, np.ndarray | None]] = {}
    for name, section in config.sources.items():
        features = open_features_of(section, config.root)
        split, _ = parts_of(features, section, list(model.names), config.seed)
        if (split == "test").any():
            with_test_rows[name] = (features, split)
    if not with_test_rows:
        raise InputError('no source has rows of split "test"; name test data with `data`')
    return with_test_rows


def _evaluate_media(model: Trained, evaluation: Evaluation, config: TrainConfig, device: str) -> None:
    """Add measurements of a model of raw media on the test rows of the sources of a config."""
    model.model.to(device)
    inputs = media_inputs(config)
    for name, media in open_test_media(config, inputs).items():
        z, present = encode_all(model.model, [media], device)
        not_measured = _not_measured(model, present)
        given: dict[str, Any] = {"z": z, "present": present, "align": model.align, "labelled": lambda: None, "seed": 0}
        measured = measure_rows(["retrieval", "imputation", "shift", "geometry"], not_measured, **given)
        measured += inputs.measure(model.model, media, z, present, device)
        widths = dict.fromkeys(model.names, model.width)
        info = DatasetInfo(rows=len(media), modalities=widths, left_out=counts_of_test(media.left_out))
        evaluation.add(name, info, measured, not_measured=not_measured)
    if not evaluation.rows:
        raise InputError('no source has rows of split "test"; give some that split, or add a source with part: test')
