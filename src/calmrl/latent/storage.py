"""A fitted latent model as plain data: {"meta": json-able, "tensors": name -> tensor}, and back.

The keys are the format of files: tensors of a rotation are stored under "turn.".
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from calmrl.errors import InputError
from calmrl.latent.em import Settings
from calmrl.latent.model import PER_MODALITY, Parameters
from calmrl.latent.online import PARTS, Recent, Running
from calmrl.latent.statistics import Statistics
from calmrl.latent.whitening import Rotation

ROTATION = tuple(part.name for part in fields(Rotation))


def parameters_to_tensors(params: Parameters) -> dict[str, Tensor]:
    tensors = params.tensors()
    for name, rotation in zip(params.names, params.rotations or [], strict=params.rotations is not None):
        tensors.update({f"turn.{part}.{name}": getattr(rotation, part) for part in ROTATION})
    return tensors


def parameters_from_tensors(names: list[str], tensors: dict[str, Tensor]) -> Parameters:
    stored = {key.partition(".")[2] for key in tensors if key.startswith("W.")}
    if not isinstance(names, list) or len(set(names)) != len(names) or set(names) != stored:
        raise InputError(f"the saved imputer has tensors of {', '.join(sorted(stored))} but names {names!r:.80}")
    needed = ["log_weight", *(f"{part}.{name}" for part in PER_MODALITY for name in names)]
    turned = any(key.startswith("turn.") for key in tensors)
    needed += [f"turn.{part}.{name}" for name in names for part in ROTATION if turned]
    absent = [key for key in needed if key not in tensors]
    if absent:
        raise InputError(f"the saved imputer lacks {', '.join(absent)}; it is damaged, or from another program")
    K, _, L = tensors[f"W.{names[0]}"].shape
    for name in names:
        w, m, n = (tensors[f"{part}.{name}"] for part in PER_MODALITY)
        if w.ndim != 3 or w.shape[0] != K or w.shape[2] != L or m.shape != w.shape[:2] or n.shape != w.shape[:2]:
            raise InputError(f"the saved imputer's tensors for {name!r} do not fit together; it is damaged")
    rotations = [Rotation(*(tensors[f"turn.{part}.{name}"] for part in ROTATION)) for name in names] if turned else None
    return Parameters.from_tensors(names, tensors, rotations=rotations)


def running_to_tensors(running: Running) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for field in fields(Statistics):
        value = getattr(running.average, field.name)
        parts = {f".{m}": t for m, t in enumerate(value)} if isinstance(value, list) else {"": value}
        tensors |= {f"running.{field.name}{number}": t for number, t in parts.items()}
    if running.recent is not None:
        tensors.update({f"recent.{part}": getattr(running.recent, part) for part in PARTS})
    return tensors


def running_from_tensors(
    params: Parameters, rows: float, squares: float, kept: float | None, tensors: dict[str, Tensor]
) -> Running:
    """`kept` is that of what was recent; None if all was settled."""
    average = Statistics.zeros(params)
    if "running.own.0" in tensors:  # rows with holes were among them
        average.with_own()
    for field in fields(Statistics):
        value = getattr(average, field.name)
        if isinstance(value, list):
            setattr(average, field.name, [tensors[f"running.{field.name}.{m}"].clone() for m in range(len(value))])
        else:
            setattr(average, field.name, tensors[f"running.{field.name}"].clone())
    recent = None
    if kept is not None:
        recent = Recent(params, **{part: tensors[f"recent.{part}"].clone() for part in PARTS}, kept=kept)
    return Running(average, rows, squares, recent)


def learned_to_state(learned: dict[str, Any]) -> dict[str, Any]:
    """From the learned attributes of an imputer."""
    params: Parameters = learned["parameters_"]
    running: Running | None = learned["_running"]
    meta = {
        "names": list(params.names),
        "settings": asdict(learned["settings_"]),
        "search": learned["search_"],
        "std_scale": learned["std_scale_"],
        "hole_scale": learned["hole_scale_"],
        "log_likelihood": learned["log_likelihood_"],
        "n_iter": learned["n_iter_"],
        "numpy": learned["_numpy"],
        "running_rows": None if running is None else running.rows,
        "running_squares": None if running is None else running.squares,
        "recent_kept": None if running is None or running.recent is None else running.recent.kept,
    }
    tensors = parameters_to_tensors(params)
    if running is not None:
        tensors.update(running_to_tensors(running))
    return {"meta": meta, "tensors": {name: t.detach().clone() for name, t in tensors.items()}}


def state_to_learned(state: dict[str, Any]) -> dict[str, Any]:
    """The learned attributes of an imputer, from `learned_to_state`."""
    meta, tensors = state["meta"], state["tensors"]
    try:
        params = parameters_from_tensors(meta["names"], {k: t.to(torch.float64) for k, t in tensors.items()})
        rows = meta["running_rows"]
        squares, kept = meta.get("running_squares"), meta.get("recent_kept")  # absent in files of earlier versions
        for key, value in (("running_rows", rows), ("running_squares", squares), ("recent_kept", kept)):
            if not isinstance(value, (int, float, type(None))):
                raise TypeError(f"{key} is {value!r:.40}")
        if squares is None:  # in earlier versions every row counted alike
            squares = 1 / rows if rows else 0.0
        return {
            "parameters_": params,
            "settings_": Settings(**meta["settings"]),
            "search_": meta["search"],
            "std_scale_": meta["std_scale"],
            "hole_scale_": meta.get("hole_scale", [1.0] * len(params.names)),  # absent in files of earlier versions
            "log_likelihood_": meta["log_likelihood"],
            "n_iter_": meta["n_iter"],
            "_numpy": meta["numpy"],
            "_running": None if rows is None else running_from_tensors(params, rows, squares, kept, tensors),
        }
    except (KeyError, TypeError) as error:
        raise InputError(f"the saved imputer is incomplete ({error}); save it again") from error
