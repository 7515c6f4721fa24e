"""A fitted aligner on disk: `aligner.json` says what it is, `aligner.safetensors` holds its numbers; no pickle."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calmrl._support.parsing import reason_of
from calmrl.aligner.base import Base
from calmrl.aligner.crossvalidation import RelevantRanks
from calmrl.aligner.expected import Evidence
from calmrl.aligner.features import FeatureMap, Relative
from calmrl.aligner.space import Space, head_maps
from calmrl.errors import InputError
from calmrl.hub import LIMITS, Card
from calmrl.imputers.holes import Within

if TYPE_CHECKING:
    from calmrl.aligner.estimator import Aligner


MAP_PARTS = ("centre", "landmarks", "shape", "offset", "projection", "variance")
RELATIVE_PARTS = ("offset", "projection", "anchors")
SPACE = ("weight", "bias", "information")
HELD = ":held:"  # the argument `base` of an aligner whose bases were objects: those that it holds
LARGE = 1 << 15  # numbers from which on a matrix of a compact aligner has 6 bits for each


def to_state(aligner: Aligner, compact: bool = False, beside: bool = False) -> dict[str, Any]:
    """{"meta": json-able, "tensors": name -> tensor}; a base that was read from a compact file stays compact.

    `compact` keeps what embedding needs: every modality leads into the latents directly, symmetric matrices are halved, and
    large ones have 6 bits per number and a scale for each row. What is expected of an aligner `beside` another one is left out.
    """
    evidence_of = {} if compact and beside else aligner.evidence_
    tensors: dict[str, Tensor] = {}
    for m, name in enumerate(aligner.names_):
        assert aligner.space_ is not None, "there is no own space"
        lift, parts = aligner.feature_maps_[m], {part: getattr(aligner.space_, part)[m] for part in SPACE}
        if compact:
            lift = replace(lift, projection=aligner.head_maps_[m], variance=torch.ones(aligner.space_.latent_dim))
            del parts["weight"]  # the identity
            parts["information"] = _half(parts["information"])
        tensors |= {f"lift.{name}.{part}": getattr(lift, part) for part in MAP_PARTS}
        tensors |= {f"space.{name}.{part}": tensor for part, tensor in parts.items()}
        if lift.relative is not None:
            tensors |= {f"relative.{name}.{part}": getattr(lift.relative, part) for part in RELATIVE_PARTS}
    if aligner.space_ is not None and aligner.space_.scale is not None:
        tensors["space.scale"] = aligner.space_.scale
    if compact:
        tensors = _smaller(tensors)
    for key, evidence in evidence_of.items():
        tensors |= evidence_tensors(key, evidence)
    tensors |= {f"reference.{name}": vectors for name, vectors in aligner.references_.items()}
    within, held = aligner.within_.state()
    tensors |= held
    for collection, directions in aligner.elsewhere_.items():
        for key, evidence in directions.items():
            tensors |= evidence_tensors(f"{collection}.{key}", evidence)
    bases = []
    for number, base in enumerate(aligner.base_):
        inner = to_state(base.aligner, compact or base.aligner.compact_, beside=True)
        tensors |= {f"base.{number}.{name}": tensor for name, tensor in inner["tensors"].items()}
        if base.bridge is not None:
            tensors[f"bridge.{number}"] = base.bridge
        tensors |= {f"centre.{number}.{name}": centre for name, centre in base.centres.items()}
        about = {"name": base.name, "names": base.names, "weight": base.weight, "aligner": inner["meta"]}
        if base.evened and base.axes is not None and base.moments is not None:
            tensors |= {f"axes.{number}": base.axes, f"moments.{number}": base.moments}
            about["evened"] = base.evened
        bases.append(about)
    given = {**aligner.get_params(deep=False), "blocks": aligner.plain_blocks()}
    named = aligner.base if isinstance(aligner.base, (list, tuple)) else [aligner.base]
    if aligner.base is not None:
        given["base"] = [str(base) for base in named] if all(isinstance(base, (str, Path)) for base in named) else HELD
    meta = {
        "arguments": given,
        "modalities": list(aligner.modalities_),
        "order": list(aligner.names_),
        "choice": aligner.choice_,
        "compact": compact,
        "directions": list(evidence_of),
        "gain": aligner.gain_,
        "dispersion": aligner.dispersion_,
        "encoders": aligner.encoders_,
        "own_weight": aligner.own_weight_,
        "references": list(aligner.references_),
        "elsewhere": {collection: list(directions) for collection, directions in aligner.elsewhere_.items()},
        "base": bases,
        **({"within": within} if within else {}),
    }
    return {"meta": meta, "tensors": tensors}


def evidence_tensors(key: str, evidence: Evidence) -> dict[str, Tensor]:
    """What `_evidence` reads."""
    tensors = {f"ranks.{key}": torch.from_numpy(evidence.ranks), f"gallery.{key}": torch.from_numpy(evidence.gallery)}
    if evidence.own is not None:
        tensors[f"above.{key}"] = torch.from_numpy(evidence.own.above)
        tensors[f"own.{key}"] = torch.from_numpy(evidence.own.relevant)
        tensors[f"group.{key}"] = torch.from_numpy(evidence.own.group)
    return tensors


def from_state(state: dict[str, Any], origin: str = "a saved aligner") -> Aligner:
    """The inverse of `to_state`; `origin` names it in errors."""
    from calmrl.aligner.estimator import Aligner

    meta, tensors = state["meta"], state["tensors"]
    try:
        order, choice = meta["order"], meta["choice"]
        whitening = choice.get("whitening", 0.0)
        if meta.get("compact"):
            whitening, tensors = 0.0, _larger(tensors, order)
        maps = [_feature_map(name, choice, tensors) for name in order]
        parts = [[tensors[f"space.{name}.{part}"] for name in order] for part in SPACE]
        _check_shapes(order, maps, parts)
        weight, bias, information = parts
        scale = tensors.get("space.scale")  # of two spaces side by side
        if scale is not None and scale.shape != bias[0].shape:
            raise ValueError(f"the scale of latents has shape {tuple(scale.shape)}, not {tuple(bias[0].shape)}")
        space = Space(weight, bias, information, scale) if order else None
        evidence = {key: _evidence(key, tensors) for key in meta["directions"]}
        learned: dict[str, Any] = {
            "names_": tuple(order),
            "modalities_": tuple(meta["modalities"]),
            "feature_maps_": maps,
            "head_maps_": [] if space is None else head_maps(maps, whitening, space),
            "space_": space,
            "choice_": choice,
            "evidence_": evidence,
            "gain_": meta["gain"],
            "dispersion_": meta["dispersion"],
            "encoders_": meta.get("encoders"),  # absent in files of earlier versions, as are those below
            "elsewhere_": {
                collection: {key: _evidence(f"{collection}.{key}", tensors) for key in keys}
                for collection, keys in meta.get("elsewhere", {}).items()
            },
            "references_": {name: tensors[f"reference.{name}"] for name in meta.get("references", [])},
            "compact_": bool(meta.get("compact")),
            "own_weight_": meta.get("own_weight", 1.0),
            "within_": Within.from_state(meta.get("within", {}), tensors),
            "base_": [_base(number, saved, tensors) for number, saved in enumerate(meta.get("base", []))],
        }
        aligner = Aligner(**meta["arguments"])
        if aligner.base == HELD:
            shared = {"+".join(group) for group in aligner.shared or ()}
            aligner.base = [base.aligner for base in learned["base_"] if base.name not in shared]
        aligner.__dict__.update(learned)
        return aligner
    except Exception as error:  # damaged numbers make constructors raise anything
        raise InputError(f"{origin} is incomplete ({reason_of(error)}); save it again") from error


def feature_map_of(name: str, unit: bool, tensors: dict[str, Tensor]) -> FeatureMap:
    """The features of a modality, of those that were saved as "lift.NAME.PART"."""
    centre, landmarks, shape, offset, projection, variance = (tensors[f"lift.{name}.{part}"] for part in MAP_PARTS)
    return FeatureMap(centre, unit, landmarks, shape, offset, projection, variance)


def _feature_map(name: str, choice: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureMap:
    lift = feature_map_of(name, choice["unit_rows"], tensors)
    if not choice.get("relative"):
        return lift
    relative = Relative(**{part: tensors[f"relative.{name}.{part}"] for part in RELATIVE_PARTS})
    rows, columns = len(relative.anchors), len(lift.landmarks) or len(lift.centre)
    if relative.projection.shape != (len(lift.centre), relative.anchors.shape[1]) or len(lift.offset) != rows + columns:
        raise ValueError(f"the relative representations of {name} do not fit its features")
    beside = int((lift.projection[columns:] != 0).any(0).sum())
    return replace(lift, relative=relative, beside=beside)


def _smaller(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Large matrices in 6 bits under their name, with "NAME:scale" per row and "NAME:width"; all else in single precision."""
    out = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.numel() > LARGE:
            scale = (tensor.abs().amax(1, keepdim=True) / 31).clamp(min=1e-30)
            out[name], out[f"{name}:scale"] = packed((tensor / scale).round()), scale.float()
            out[f"{name}:width"] = torch.tensor([tensor.shape[1]])
        else:
            out[name] = tensor.float()
    return out


def packed(numbers: Tensor) -> Tensor:
    """Whole numbers (n, width) from -31 to 31 as bytes: three for every four, the last of a row filled up."""
    codes = torch.nn.functional.pad((numbers + 32).to(torch.uint8), (0, -numbers.shape[1] % 4))
    a, b, c, d = codes.unflatten(1, (-1, 4)).unbind(2)
    return torch.stack([a << 2 | b >> 4, (b & 15) << 4 | c >> 2, (c & 3) << 6 | d], dim=2).flatten(1)


def unpacked(code: Tensor, width: int) -> Tensor:
    """The inverse of `packed`, float64."""
    a, b, c = code.unflatten(1, (-1, 3)).unbind(2)
    codes = torch.stack([a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63], dim=2)
    return codes.flatten(1)[:, :width].double() - 32


def _half(symmetric: Tensor) -> Tensor:
    """The lower triangle of a matrix (L, L) as one that has half as many numbers."""
    size = len(symmetric)
    return symmetric[tuple(torch.tril_indices(size, size))].reshape(-1, size + 1 - size % 2)


def _whole(half: Tensor) -> Tensor:
    """The inverse of `_half`; a square matrix of more than one number is whole already."""
    if half.shape[0] == half.shape[1]:
        return half
    size = math.isqrt(2 * half.numel())
    lower = half.new_zeros((size, size))
    lower[tuple(torch.tril_indices(size, size))] = half.reshape(-1)
    return lower + lower.tril(-1).T


def _larger(tensors: dict[str, Tensor], order: list[str]) -> dict[str, Tensor]:
    """The inverse of `_smaller`, in double precision, with the weights that a compact state leaves out."""
    out = dict(tensors)
    for name, tensor in tensors.items():
        if name.startswith(("lift.", "space.", "relative.")) and not name.endswith((":scale", ":width")):
            scale, width = tensors.get(f"{name}:scale"), tensors.get(f"{name}:width")
            plain = tensor.double() if width is None else unpacked(tensor, int(width))  # earlier files have bytes
            out[name] = plain if scale is None else plain * scale.double()
    for name in order:
        out[f"space.{name}.information"] = _whole(out[f"space.{name}.information"])
        out[f"space.{name}.weight"] = torch.eye(len(out[f"space.{name}.bias"]), dtype=torch.float64)
    return out


def _base(number: int, saved: dict[str, Any], tensors: dict[str, Tensor]) -> Base:
    prefix = f"base.{number}."
    inner = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    aligner = from_state({"meta": saved["aligner"], "tensors": inner}, "a saved base")
    centres = {
        name: tensors[f"centre.{number}.{name}"] for name in saved["names"] if f"centre.{number}.{name}" in tensors
    }
    bridge = tensors.get(f"bridge.{number}")
    base = Base(saved["name"], aligner, saved["names"], saved["weight"], bridge, centres)
    if "evened" not in saved:  # as in files of earlier versions
        return base
    return replace(base, axes=tensors[f"axes.{number}"], moments=tensors[f"moments.{number}"], evened=saved["evened"])


def _evidence(key: str, tensors: dict[str, Tensor]) -> Evidence:
    own = None
    if f"own.{key}" in tensors:
        relevant = tensors[f"own.{key}"].numpy()
        group = tensors.get(f"group.{key}", torch.arange(len(relevant)))  # absent in files of earlier versions
        own = RelevantRanks(tensors[f"above.{key}"].numpy(), relevant, group.numpy())
    return Evidence(tensors[f"ranks.{key}"].numpy(), tensors[f"gallery.{key}"].numpy(), own)


def _check_shapes(order: list[str], maps: list[FeatureMap], parts: list[list[Tensor]]) -> None:
    """Tensors that belong together fit each other."""
    for name, feature_map, weight, bias, information in zip(order, maps, *parts, strict=True):
        width, latents = feature_map.projection.shape[1], information.shape[0]
        rows = len(feature_map.landmarks) or len(feature_map.centre)
        rows += 0 if feature_map.relative is None else len(feature_map.relative.anchors)
        wanted = {
            "landmarks": (feature_map.landmarks, (len(feature_map.landmarks), len(feature_map.centre))),
            "shape": (feature_map.shape, (2,)),
            "offset": (feature_map.offset, (rows,)),
            "projection": (feature_map.projection, (rows, width)),
            "variance": (feature_map.variance, (width,)),
            "weight": (weight, (width, latents)),
            "bias": (bias, (latents,)),
            "information": (information, (latents, parts[2][0].shape[0])),
        }
        for part, (tensor, shape) in wanted.items():
            if tensor.shape != shape or not tensor.is_floating_point():
                raise ValueError(f"{part} of {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, not {shape}")


CODE = """from calmrl import Aligner

aligner = Aligner.from_pretrained("{repo}")
vectors = aligner.embed({{"MODALITY": features}})  # any of the modalities below, any subset per row"""


def aligner_card(aligner: Aligner) -> Card:
    """What a fitted aligner says about itself."""
    encoders: dict[str, Any] = (aligner.encoders_ or {}).get("encoders", {})
    known = {name: str(encoders[name].get("name", "unknown")) for name in aligner.modalities_ if name in encoders}
    width = aligner.widths_
    choice = {key: value for key, value in aligner.choice_.items() if key != "candidates"}
    quality = [
        {"direction": direction, **{key: round(value, 1) for key, value in row.items()}}
        for direction, row in aligner.expected_.items()
    ]
    absent = sorted(_all_directions(aligner) - set(aligner.expected_))
    limits = [*LIMITS]
    if absent:
        limits.append(f"No training row shows {', '.join(absent)}; these directions rest on a third modality.")
    return Card(
        title=f"Aligner: {', '.join(aligner.modalities_)} in one space of {aligner.width_} dimensions",
        code=CODE.replace("MODALITY", aligner.modalities_[0]),
        widths={name: width[name] for name in aligner.modalities_},
        encoders=known,
        choice=choice,
        quality=quality,
        quality_note="By cross-validation over the training rows: R@1 and R@10 in percent in a gallery of n, and the interval "
        "that holds the R@1 of n new queries in about nine of ten cases.",
        limits=limits,
        tags=("calmrl-aligner", "feature-extraction"),
    )


def _all_directions(aligner: Aligner) -> set[str]:
    names = aligner.modalities_
    return {f"{a}->{b}" for a in names for b in names if a != b}
