"""The model of the paper from a config, and how it reads raw media."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl.config.schema.train import SourceSection
from calmrl.data.loaders.media_rows import MediaRows, load_tokenizer
from calmrl.data.media.decoding import Resize
from calmrl.data.media.manifest import Manifest
from calmrl.errors import InputError
from calmrl.metrics.measures import Measurement, row
from calmrl.metrics.model_rows import RANKED
from calmrl.metrics.retrieve import retrieval
from calmrl.paper.vast.checkpoints import Report, fill_beats, load_beats, load_bert, load_eva, load_vast
from calmrl.paper.vast.matching import cat_conditions
from calmrl.paper.vast.model import KINDS, NAMES, VastModel, summed
from calmrl.paper.vast.section import VastSection
from calmrl.paper.vast.towers import Beats, Interpolation


def build_vast(section: VastSection, data: Any, names: Sequence[str], seed: int, root: str | None = None) -> VastModel:
    """The model with random weights, or those of the files that the section names; `data.notes` says what was not used."""
    torch.manual_seed(seed)
    model = VastModel.from_sizes(
        names=names,
        width=section.width,
        frames=section.frames,
        slices=section.slices,
        image_size=section.image_size,
        matching=section.matching,
        first_stage=section.first_stage,
        negatives=section.negatives,
        **section.sizes,  # type: ignore[arg-type]  # their names are checked, their types are numbers
    )
    files: dict[str, Any] = {name: Path(root or ".") / path for name, path in section.weights.files().items()}
    how: dict[str, Any] = {"tolerant": section.weights.tolerant}
    how |= {"interpolation": section.weights.interpolation} if section.weights.interpolation else {}
    if "checkpoint" in files:
        reports = [load_vast(model, files["checkpoint"], **how)]
    else:
        reports = load_towers(model, **files, **how, keep=list(section.sizes))
    data.notes += [line for report in reports for line in report.lines()]
    if not reports:
        data.notes.append("no weights are named: the encoders start from random ones")
    model.set_checkpointing(section.gradient_checkpointing)
    return model


def load_towers(
    model: VastModel,
    *,
    vision: str | Path | None = None,
    audio: str | Path | None = None,
    text: str | Path | None = None,
    tolerant: bool = False,
    interpolation: Interpolation = "bicubic",
    keep: Sequence[str] = (),
) -> list[Report]:
    """Load EVA-CLIP's vision part, BEATs and BERT, those that are named; heads and the matching head stay random.

    What shapes do not show of the audio tower (heads, groups, distances) must agree with the file's cfg. Its layer drop
    and gradient decay become those of the cfg, unless `keep` names them (audio_layer_drop, audio_gradient_decay).
    """
    files, towers = (vision, audio, text), (model.vision, model.audio, model.bert)
    for what, file, tower in zip(("vision", "audio", "text"), files, towers, strict=True):
        if file is not None and tower is None:
            raise InputError(f"the model has no {what}; leave its file out")
    reports = []
    if vision is not None and model.vision is not None:
        reports.append(load_eva(model.vision, vision, tolerant=tolerant, interpolation=interpolation))
    if audio is not None and model.audio is not None:
        there, _ = load_beats(audio)
        own = _hidden_sizes(model.audio)
        for what, value in _hidden_sizes(there).items():
            if own[what] != value:
                built = f"the model was built with {own[what]}; build it with {value}"
                raise InputError(f"{audio} has {what} {value} but {built}")
        reports.append(fill_beats(model.audio, there.state_dict(), audio))
        for key in ("layer_drop", "gradient_decay"):  # rules of training, which the model takes over
            value = getattr(there, key)
            if f"audio_{key}" not in keep and getattr(model.audio, key) != value:
                setattr(model.audio, key, value)
                model.arguments[f"audio_{key}"] = value
                reports[-1].changed.append(f"{key.replace('_', ' ')} {value}, as its cfg says")
    if text is not None:
        reports.append(load_bert(model.bert, text, tolerant=tolerant))
    return reports


def _hidden_sizes(tower: Beats) -> dict[str, int]:
    return {
        "patch_size": tower.patch_size,
        "heads": tower.encoder.bias_of_distances().embedding_dim,
        "groups": tower.encoder.position_groups(),
        "max_distance": tower.max_distance,
        "deep_norm": tower.deep_norm,
    }


@dataclass(frozen=True)
class CollectionRules:
    """What the public configs set for one collection: how to resize, slices of audio per item, tokens of a caption."""

    resize: Resize
    slices: int = 1
    text_tokens: int = 40


COLLECTION_RULES = {
    "vast150k": CollectionRules("crop-flip"),
    "msrvtt": CollectionRules("crop-flip"),
    "vatex": CollectionRules("squash"),
    "audiocaps": CollectionRules("squash"),
    "didemo": CollectionRules("squash", slices=2, text_tokens=70),
    "activitynet": CollectionRules("squash", slices=2, text_tokens=70),
    "clotho": CollectionRules("squash", slices=3),
}


class VastInputs:
    """The `MediaInputs` of the model: which modalities it reads, and how rows of a manifest become its tensors.

    Without `modalities` it reads all that the model has; paths start from `root`; `seed` is of what is drawn in training.
    """

    kinds = KINDS

    def __init__(
        self, section: VastSection, modalities: Sequence[str] | None = None, root: str | None = None, seed: int = 0
    ) -> None:
        wanted = modalities or NAMES
        unknown = [name for name in wanted if name not in NAMES]
        if unknown:
            raise InputError(f'the model of raw media has no modality "{unknown[0]}"; it has {", ".join(NAMES)}')
        self.names = tuple(name for name in NAMES if name in wanted)
        self.section, self.home, self.seed, self.workers = section, Path(root or "."), seed, section.workers
        self._tokenizer: Any = None

    def missing(self) -> list[str]:
        """A sentence for every file of the section that is not there."""
        files = {what: self.home / path for what, path in self.section.weights.files().items()}
        sentences = [f"model.weights.{what}: no file {path}" for what, path in files.items() if not path.exists()]
        tokenizer = self.home / self.section.tokenizer
        return sentences if tokenizer.exists() else [*sentences, f"model.tokenizer: no folder {tokenizer}"]

    def rows(
        self,
        manifest: Manifest,
        source: SourceSection,
        *,
        name: str,
        rows: np.ndarray,
        present: np.ndarray | None = None,
        training: bool = True,
    ) -> MediaRows:
        """Some rows of the manifest of a source, for training or for tests."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(str(self.home / self.section.tokenizer))
        options = self.options(source)
        if not training:
            options["frames"] = source.test_frames or options["frames"]
        return MediaRows(
            manifest,
            name=name,
            rows=rows,
            present=present,
            training=training,
            weight=source.weight if training else 1.0,
            tokenizer=self._tokenizer,
            size=self.section.image_size,
            seed=self.seed,
            workers=self.workers,
            **options,
        )

    def options(self, source: SourceSection) -> dict[str, Any]:
        """What a source says of its own, else what the public configs say of its collection, else what the model says."""
        rules = COLLECTION_RULES.get(source.layout or "" if source.collection is None else source.collection.name)
        model = self.section
        resize = source.resize or (rules.resize if rules else model.decoding.resize)
        tokens = dict(model.tokens)
        text_tokens = source.text_tokens or (rules.text_tokens if rules else None)
        if text_tokens is not None:
            tokens = {"text": text_tokens} | ({} if source.text_tokens else tokens)
        return {
            "frames": source.frames or model.frames,
            "slices": source.slices or (rules.slices if rules else model.slices),
            "tokens": tokens,
            "decoding": model.decoding.model_copy(update={"resize": resize}),
        }

    def shape(self, rows: MediaRows) -> str:
        """The numbers of frames, slices and tokens of an item."""
        return f"frames {rows.frames}, slices {rows.slices}, tokens {rows.tokens}"

    def measure(
        self, model: Any, rows: MediaRows, z: dict[str, torch.Tensor], present: torch.Tensor, device: str
    ) -> list[Measurement]:
        """Retrieval by captions, before and after the matching encoder; nothing for a model without one."""
        return [] if model.matching is None else captions_rows(model, rows, z, present, device)


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
