"""Public checkpoints into these models: every key is accounted for, and nothing but tensors is unpickled.

| file | function |
|---|---|
| `EVA01_CLIP_g_14_psz14_s11B.pt` | `load_eva` |
| `BEATs_iter3_plus_AS2M.pt` | `load_beats` |
| bert-base-uncased (`model.safetensors` or `pytorch_model.bin`) | `load_bert` |
| `model_step_*.pt` of VAST, GRAM, PMRL | `load_vast` |

A key that the model needs and the file lacks, a key of the file that nobody knows, and another shape are errors that name
the key. Known parts that this model has no use for are listed in the report that each function returns. With
`tolerant=True`, as in the public code, what is missing stays random and what is unknown is left out: the report names both.
A tower of which the file holds nothing is an error all the same. `module.` in front of keys is ignored.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calmrl._support.parsing import naming, parsing
from calmrl._support.tensor_files import read_checkpoint
from calmrl._support.text import beginning
from calmrl.errors import InputError
from calmrl.paper.vast.matching import frame_embedding
from calmrl.paper.vast.model import VastModel
from calmrl.paper.vast.towers import Beats, EvaVit, Interpolation, resize_positions

VAST_KEYS = (  # theirs -> ours, by prefix; "" is known but has no use here
    ("vision_encoder.visual.head.", ""),
    ("vision_encoder.visual.", "vision."),
    ("vision_encoder.text.", ""),
    ("vision_encoder.logit_scale", ""),
    ("audio_encoder.", "audio."),
    ("multimodal_encoder.bert.pooler.", ""),
    ("multimodal_encoder.bert.", "bert."),
    ("multimodal_encoder.cls.", ""),  # masked language model
    ("contra_head_v.linear.", "heads.vision."),
    ("contra_head_a.linear.", "heads.audio."),
    ("contra_head_t.linear.", "heads.text."),
    ("contra_head_s.linear.", "heads.subtitle."),
    ("contra_head_d.", ""),  # depth
    ("contra_head_va.", "fused.va."),
    ("contra_head_vs.", "fused.vs."),
    ("contra_head_vas.", "fused.vas."),
    ("contra_temp", "matching.temperature"),
    ("itm_head.", "matching.head."),
    ("hidden_trans_vision_multimodal.", "matching.project.vision."),
    ("hidden_trans_audio_multimodal.", "matching.project.audio."),
    ("hidden_trans_subtitle_multimodal.", "matching.project.subtitle."),
    ("vision_frame_embedding", "matching.frame.vision"),
    ("audio_frame_embedding", "matching.frame.audio"),
    ("vision_type_embeddings", "matching.kind.vision"),
    ("audio_type_embeddings", "matching.kind.audio"),
    ("subtitle_type_embeddings", "matching.kind.subtitle"),
)
OLD_NAMES = (("video", "vision"), ("evaclip_model.", "vision_encoder."), ("clip_model.", "vision_encoder."))


def name_today(name: str) -> str:
    """A key of a VAST file as it is called now."""
    today = name.removeprefix("module.")
    for before, after in OLD_NAMES:
        today = today.replace(before, after)
    return today


State = dict[str, Tensor]
SHOWN, QUOTED = 5, '"{}"'


@dataclass
class Report:
    """What became of a checkpoint: keys of the file that were used and that were not, and what stayed as it was."""

    file: str
    used: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    unfilled: list[str] = field(default_factory=list)  # parameters of the model that keep their random values
    unknown: list[str] = field(default_factory=list)  # keys of the file that no part of the model is called
    renamed: dict[str, str] = field(default_factory=dict)  # keys of the file under old names -> as they are called now
    changed: list[str] = field(default_factory=list)  # in words: what was interpolated

    def lines(self) -> list[str]:
        sentences = [f"{self.file}: {len(self.used)} tensors used", *self.changed]
        if self.renamed:
            old, new = next(iter(self.renamed.items()))
            sentences.append(f"{len(self.renamed)} keys have old names, such as {old} for {new}")
        if self.unknown:
            sentences.append(f"{len(self.unknown)} keys are unknown and left out: {_grouped(self.unknown)}")
        if self.unused:
            sentences.append(f"{len(self.unused)} not used: {_grouped(self.unused)}")
        if self.unfilled:
            sentences.append(f"{len(self.unfilled)} parameters not in the file stay random: {_grouped(self.unfilled)}")
        return sentences


def load_eva(
    model: EvaVit, path: str | Path, *, tolerant: bool = False, interpolation: Interpolation = "bicubic"
) -> Report:
    """The vision part of an EVA01-CLIP checkpoint, or a file with the vision part alone."""
    state = _without_module(_tensors(_unwrapped(read_checkpoint(path)), path))
    prefix = "visual." if any(name.startswith("visual.") for name in state) else ""
    keys = {name: name.removeprefix(prefix) for name in state if name.startswith(prefix)}
    unused = [name for name in state if name not in keys]  # the text tower
    if model.head is None:
        unused += [name for name in keys if keys[name].startswith("head.")]
    kept = {name: own for name, own in keys.items() if name not in unused}
    return _fill(model, state, kept, Report(str(path), unused=unused), tolerant, interpolation)


def load_beats(path: str | Path) -> tuple[Beats, Report]:
    """The model that the file's cfg describes, with its weights."""
    content = read_checkpoint(path)
    if not isinstance(content.get("cfg"), Mapping) or not isinstance(content.get("model"), Mapping):
        raise InputError(f"{path} has no dicts cfg and model; it is not a checkpoint of BEATs")
    with naming(path), parsing(path, "a checkpoint of BEATs", "its cfg does not describe a model"):
        model = Beats.from_cfg(content["cfg"])
    return model, fill_beats(model, content["model"], path)


def fill_beats(model: Beats, weights: Mapping[str, Any], path: str | Path) -> Report:
    """Weights under the official names into a model that is there."""
    state = _tensors(weights, path)
    return _fill(model, state, {name: name for name in state}, Report(str(path)))


def load_bert(bert: Any, path: str | Path, *, tolerant: bool = False) -> Report:
    """The weights of bert-base-uncased or its like: a file, or the folder with it. Cross-attention stays random."""
    path = Path(path)
    if path.is_dir():
        names = ("model.safetensors", "pytorch_model.bin")
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is None:
            raise InputError(f"{path} has neither {names[0]} nor {names[1]}")
        path = file
    state = _without_module(_tensors(read_checkpoint(path), path))
    old = {".gamma": ".weight", ".beta": ".bias"}  # LayerNorm in the oldest files
    keys = {}
    for name in state:
        own = name.removeprefix("bert.")
        for before, after in old.items():
            own = own.removesuffix(before) + after if own.endswith(before) else own
        keys[name] = own
    unused = [name for name, own in keys.items() if own.startswith(("cls.", "pooler.")) or _is_buffer(own)]
    unfilled = [name for name in bert.state_dict() if ".crossattention." in name and name not in keys.values()]
    report = Report(str(path), unused=unused, unfilled=unfilled)
    return _fill(bert, state, {k: own for k, own in keys.items() if k not in unused}, report, tolerant)


def load_vast(
    model: VastModel, path: str | Path, *, tolerant: bool = False, interpolation: Interpolation = "bilinear"
) -> Report:
    """A published `model_step_*.pt` of VAST, GRAM or PMRL; parts for modalities this model lacks are not used.

    `tolerant`: missing and unknown keys are reported instead of refused. `interpolation` of the positions of patches at
    another resolution: the public code takes bilinear for these files. The report says what was used, renamed,
    interpolated, left out, and what stays random.
    """
    state = _tensors(_unwrapped(read_checkpoint(path)), path)
    own_names = list(model.state_dict())
    crossed = any(".crossattention." in name for name in own_names)
    report, keys = Report(str(path)), {}
    for name in state:
        today = name_today(name)
        if today != name.removeprefix("module."):
            report.renamed[name] = today
        theirs, part = next(((a, b) for a, b in VAST_KEYS if today.startswith(a)), (None, ""))
        if theirs is None:
            if not tolerant:
                raise InputError(f'{path} has the key "{name}", which is not one of VAST, GRAM or PMRL')
            report.unknown.append(name)
            continue
        own = part + today.removeprefix(theirs)
        here = bool(part) and any(wanted.startswith(part) for wanted in own_names)
        if not here or _is_buffer(own) or (".crossattention." in own and not crossed):
            report.unused.append(name)
        else:
            keys[name] = own
    return _fill(model, state, keys, report, tolerant, interpolation, towers=list(model.towers()))


def _without_module(state: State) -> State:
    """Keys without the prefix that a distributed wrapper put in front of them."""
    return {name.removeprefix("module."): value for name, value in state.items()}


def _is_buffer(name: str) -> bool:
    """Numbers 0, 1, 2, ... that older versions of transformers saved."""
    return name.endswith(("embeddings.position_ids", "embeddings.token_type_ids"))


def _unwrapped(content: dict[str, Any]) -> dict[str, Any]:
    """The state dict inside a training checkpoint, or the dict itself."""
    for key in ("state_dict", "model", "module"):
        if isinstance(content.get(key), Mapping):
            return dict(content[key])
    return content


def _tensors(content: Mapping[str, Any], path: str | Path) -> State:
    odd = next((name for name in content if not isinstance(name, str)), None)
    if odd is not None:
        raise InputError(f"{path}: a key is {odd!r:.60} where texts are needed; this is not a state dict")
    other = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if other:
        raise InputError(f'{path}: "{other[0]}" is not a tensor; this is not a state dict')
    return dict(content)


def _fill(
    model: nn.Module,
    state: State,
    keys: Mapping[str, str],
    report: Report,
    tolerant: bool = False,
    interpolation: Interpolation = "bicubic",
    towers: Iterable[str] = (),
) -> Report:
    """Copy state[theirs] to the parameter keys[theirs] for all of them; raise unless that fills the model exactly.

    If `tolerant`, raise only if one of the `towers` of the model gets nothing.
    """
    path = report.file
    given = {own: state[theirs] for theirs, own in keys.items()}
    theirs_of = {own: theirs for theirs, own in keys.items()}
    wanted = model.state_dict()
    for own in [own for own in given if own in wanted]:
        given[own] = _fitted(own, given[own], wanted[own], report, interpolation)
        if given[own].shape != wanted[own].shape:
            raise InputError(
                f'"{theirs_of[own]}" of {path} has shape {tuple(given[own].shape)} but the model needs '
                f"{tuple(wanted[own].shape)}; build the model with the sizes of the checkpoint"
            )
    repeated = ".self_attn.relative_attention_bias.weight"  # what all layers share
    extra = [theirs_of[own] for own in given if own not in wanted and not own.endswith(repeated)]
    missing = [own for own in wanted if own not in given and own not in report.unfilled]
    if (extra or missing) and not tolerant:
        reasons = [f"lacks {beginning(missing, SHOWN, QUOTED)}"] if missing else []
        reasons += [f"has {beginning(extra, SHOWN, QUOTED)}, which the model does not know"] if extra else []
        raise InputError(f"{path} does not fit the model: it {' and '.join(reasons)}")
    _check_towers(given, towers or [""], path)
    report.unfilled += missing
    report.unknown += extra
    report.used += [theirs for theirs in keys if theirs not in extra]
    kept = {own: wanted[own] for own in report.unfilled}
    used = {own: value.to(torch.float32) for own, value in given.items() if theirs_of[own] not in extra}
    try:
        model.load_state_dict(used | kept)
    except RuntimeError as error:  # a repeated bias that is not a copy
        raise InputError(f"{path} does not fit the model: {str(error).splitlines()[-1].strip()}") from error
    return report


def _check_towers(given: Mapping[str, Tensor], towers: Iterable[str], path: str) -> None:
    """An error if a tower, or "" for a whole model, gets no tensor at all."""
    for tower in towers:
        prefix = {"": "", "text": "bert."}.get(tower, f"{tower}.")
        if not any(own.startswith(prefix) for own in given):
            raise InputError(f"{path} holds nothing for {tower or 'the model'}; it is a file of something else")


def _fitted(own: str, value: Tensor, wanted: Tensor, report: Report, interpolation: Interpolation) -> Tensor:
    """Positions of patches and embeddings of frames are interpolated to the sizes of the model, which is reported."""
    if value.shape == wanted.shape or value.ndim != 3 or value.shape[-1] != wanted.shape[-1]:
        return value
    if own.endswith("pos_embed"):
        side = round((wanted.shape[1] - 1) ** 0.5)
        counts = f"{value.shape[1] - 1} positions interpolated to {wanted.shape[1] - 1}"
        report.changed.append(f"{own}: {counts}, {interpolation}")
        return resize_positions(value, (side, side), interpolation)
    if own.startswith("matching.frame."):
        report.changed.append(f"{own}: {value.shape[1]} frames, nearest ones taken for {wanted.shape[1]}")
        return frame_embedding(value, wanted.shape[1])
    return value


def _grouped(names: list[str]) -> str:
    """vision_encoder.text.* (148), contra_temp"""
    counts: Counter[str] = Counter()
    for name in names:
        group = ".".join(name.split(".")[:2]) if name.count(".") > 1 else name.split(".")[0]
        counts[group] += 1
    return ", ".join(f"{group}.* ({count})" if count > 1 else group for group, count in counts.items())
