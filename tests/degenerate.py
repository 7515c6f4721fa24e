"""Draw degenerate numeric cases and count how all imputers, losses, measures and estimators take them.

python -m tests.degenerate --cases 100000 --seed 0        # exit code 1 if anything is neither right nor a clear error

A case has few rows, narrow modalities, and something wrong with it: constant columns, rows that repeat, huge or tiny
values, an outlier, a modality that nobody has; every fourth imputer also meets rows of another scale than it was fitted
on. A result is right if it is finite, has the shape and dtype it should have, and leaves observed values as they are, bit
for bit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calmrl.aligner.estimator import Aligner
from calmrl.anchors import anchor
from calmrl.arrays import to_tensor
from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import InputError
from calmrl.imputers.registry import IMPUTERS, make_imputer
from calmrl.losses import LOSSES, InstanceMatching
from calmrl.metrics.measures import alignment, modality_gap, uniformity
from calmrl.metrics.model_rows import retrieval_rows
from calmrl.workflows.diagnose.examine import examine

DTYPES = ("float16", "bfloat16", "float32", "float64")
ROWS = (1, 2, 3, 4, 6, 9, 16, 40)
SCALES = (1.0, 1.0, 1.0, 1e-3, 1e4, 1e-8, 1e8, 1e-20, 1e14, 1e-38, 1e19, 1e-45, 1e30, 1e37, 1e-300, 1e300)
SMALL: dict[str, dict[str, Any]] = {  # little work per case
    "auto": {"candidates": ["gaussian", "ridge", "mean"]},
    "gaussian": {"latent_dim": 2, "max_iter": 5},
    "mvae": {"hidden": 4, "latent_dim": 2, "epochs": 2},
    "mopoe": {"hidden": 4, "latent_dim": 2, "epochs": 2},
    "smil": {"epochs": 2},
    "gfa": {"latent_dim": 2, "max_iter": 5},
}
SOLVERS: dict[str, dict[str, Any]] = {
    "gaussian auto": {"latent_dim": "auto", "noise": "auto", "max_iter": 5},
    "gaussian gradient": {"latent_dim": 2, "solver": "gradient", "max_iter": 3},
    "gaussian stepwise": {"latent_dim": 2, "solver": "stepwise", "max_iter": 2},
    "gaussian mixture": {"latent_dim": 2, "n_components": 2, "max_iter": 3},
    "gaussian whitened": {"latent_dim": 2, "whitening": 0.5, "max_iter": 5},
}
COSTLY = ("auto", "gaussian auto", "aligner", "diagnose", "mvae", "mopoe", "smil")  # drawn less often


class Wrong(AssertionError):
    """A result that is not right."""


@dataclass(frozen=True)
class Case:
    """What is passed to a subject: `z` in one dtype, NumPy or torch, and `present`."""

    z: dict[str, Any]
    present: Any
    about: dict[str, Any]


def draw(rng: np.random.Generator, same_width: bool, with_torch: bool) -> Case:
    """A case; losses and measures need modalities of the same width."""
    n, k = int(rng.choice(ROWS)), int(rng.integers(2, 4))
    widths = [int(rng.integers(1, 5))] * k if same_width else rng.integers(1, 5, k).tolist()
    dtype = str(rng.choice(DTYPES if with_torch else [d for d in DTYPES if d != "bfloat16"]))
    scales = [float(rng.choice(SCALES)) for _ in range(k)] if rng.random() < 0.5 else [float(rng.choice(SCALES))] * k
    oddity = str(rng.choice(["nothing", "constant", "repeated", "outlier", "zeros", "offset", "collinear"]))
    shared = rng.normal(size=(n, 2))
    present = rng.random((n, k)) > rng.choice([0.0, 0.2, 0.5])
    nobody = bool(rng.random() < 0.1)
    if nobody:
        present[:, 0] = False
    present[np.arange(n), rng.integers(1, k, n)] = True
    z: dict[str, Any] = {}
    for j, (width, scale) in enumerate(zip(widths, scales, strict=True)):
        values = _odd(shared @ rng.normal(size=(2, width)) + 0.3 * rng.normal(size=(n, width)), oddity)
        with np.errstate(over="ignore", under="ignore"):
            tensor = torch.from_numpy(values * scale).to(getattr(torch, dtype))
        tensor = tensor.nan_to_num(0.0, posinf=torch.finfo(tensor.dtype).max, neginf=torch.finfo(tensor.dtype).min)
        z["abc"[j]] = tensor if with_torch else tensor.numpy()
    about = {"rows": n, "widths": widths, "dtype": dtype, "torch": with_torch, "scales": scales, "oddity": oddity,
             "nobody": nobody, "seen": float(present.mean())}  # fmt: skip
    return Case(z, torch.from_numpy(present) if with_torch else present, about)


def _odd(values: np.ndarray, oddity: str) -> np.ndarray:
    if oddity == "constant":
        values[:, 0] = 1.0
    elif oddity == "repeated":
        values[:] = values[0]
    elif oddity == "outlier":
        values[0] *= 1e6
    elif oddity == "zeros":
        values[:] = 0.0
    elif oddity == "offset":
        values += 1e5
    elif oddity == "collinear":
        values[:] = values[:, :1]
    return values


# ---- subjects


def impute(method: str, options: dict[str, Any]) -> Callable[[Case, int], None]:
    def run(case: Case, seed: int) -> None:
        imputer = make_imputer(method, seed, **options).fit(case.z, case.present)
        _check_imputed(case, *imputer.impute(case.z, case.present, return_std=True))
        if seed % 4 == 0:
            other = elsewhere(case, seed)
            _check_imputed(other, *imputer.impute(other.z, other.present, return_std=True))

    return run


def elsewhere(case: Case, seed: int) -> Case:
    """The rows of a case times another scale: far from what was fitted, or all close to 0."""
    scale = float(np.random.default_rng(seed).choice(SCALES))
    z: dict[str, Any] = {}
    for name, given in case.z.items():
        tensor = to_tensor(given)
        limits = torch.finfo(tensor.dtype)
        tensor = (tensor.double() * scale).clamp(limits.min, limits.max).to(tensor.dtype)
        z[name] = tensor if isinstance(given, torch.Tensor) else tensor.numpy()
    return Case(z, case.present, case.about)


def _check_imputed(case: Case, values: dict[str, Any], std: dict[str, Any]) -> None:
    for j, (name, given) in enumerate(case.z.items()):
        for what, answer in (("value", values[name]), ("deviation", std[name])):
            if answer.shape != given.shape or answer.dtype != given.dtype or type(answer) is not type(given):
                raise Wrong(f"{what} of {name}: {type(answer)} {answer.dtype} {tuple(answer.shape)}")
            if not bool(torch.isfinite(to_tensor(answer)).all()):
                raise Wrong(f"{what} of {name} is not finite")
        seen = case.present[:, j]
        if _bits(values[name][seen]) != _bits(given[seen]):
            raise Wrong(f"observed values of {name} changed")


def _bits(array: Any) -> bytes:
    tensor = to_tensor(array).contiguous()
    return tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def loss(name: str) -> Callable[[Case, int], None]:
    def run(case: Case, seed: int) -> None:
        module = LOSSES[name](**({"anchor": "b"} if "anchor" in LOSSES.signature(name).parameters else {}))
        _value_and_gradient(lambda z: module(z, case.present), case)

    return run


def matching(case: Case, seed: int) -> None:
    torch.manual_seed(seed)
    width = next(iter(case.z.values())).shape[1]
    module = InstanceMatching(list(case.z), width, anchor="b", hidden=4, layers=1, heads=1)
    draws = torch.Generator().manual_seed(seed)
    _value_and_gradient(lambda z: module(z, case.present, generator=draws), case)


def _value_and_gradient(function: Callable[[dict[str, torch.Tensor]], torch.Tensor], case: Case) -> None:
    """A gradient too large for float16 is infinite, which is how a gradient scaler learns of it; then float32 counts."""
    z = {name: tensor.clone().requires_grad_() for name, tensor in case.z.items()}
    try:
        _check_loss(function(z), z)
    except Wrong:
        if case.about["dtype"] != "float16":
            raise
        z = {name: tensor.float().requires_grad_() for name, tensor in case.z.items()}
        _check_loss(function(z), z)


def _check_loss(value: torch.Tensor, z: dict[str, torch.Tensor]) -> None:
    if value.shape != () or not bool(torch.isfinite(value)):
        raise Wrong(f"loss {value}")
    value.backward()
    for name, tensor in z.items():
        if tensor.grad is not None and not bool(torch.isfinite(tensor.grad).all()):
            raise Wrong(f"gradient of {name} is not finite")


def measure(function: Callable[..., Any]) -> Callable[[Case, int], None]:
    def run(case: Case, seed: int) -> None:
        for row in function(case.z, case.present):
            if not np.isfinite(row["value"]):
                raise Wrong(f"{row['task']} {row['metric']} is {row['value']}")

    return run


def anchors(case: Case, seed: int) -> None:
    vectors = to_tensor(anchor(case.z, case.present))
    if not bool(torch.isfinite(vectors).all()) or len(vectors) != len(case.present):
        raise Wrong("anchors are not finite")


def aligner(case: Case, seed: int) -> None:
    fitted = Aligner("linear", True, 0.5, 2, 10.0, "never", random_state=seed).fit(case.z, case.present)
    vectors = to_tensor(fitted.embed(case.z, case.present))
    if not bool(torch.isfinite(vectors).all()) or len(vectors) != len(case.present):
        raise Wrong("vectors are not finite")


def diagnosis(case: Case, seed: int) -> None:
    result = examine(FeatureSet(dict(case.z), case.present), seed, lambda text, done, total: None)
    json.dumps(result.as_dict(), allow_nan=False)


@dataclass(frozen=True)
class Subject:
    run: Callable[[Case, int], None]
    same_width: bool = False
    torch_only: bool = False
    numpy_only: bool = False


def subjects() -> dict[str, Subject]:
    """All of them by name; what is registered is found by itself."""
    every = {name: Subject(impute(name, SMALL.get(name, {}))) for name in IMPUTERS}
    every |= {name: Subject(impute("gaussian", options)) for name, options in SOLVERS.items()}
    every |= {f"loss {name}": Subject(loss(name), same_width=True, torch_only=True) for name in LOSSES}
    every["matching"] = Subject(matching, same_width=True, torch_only=True)
    for function in (retrieval_rows, modality_gap, alignment, uniformity):
        every[function.__name__] = Subject(measure(function), same_width=True, torch_only=True)
    every["anchors"] = Subject(anchors, same_width=True)
    every["aligner"] = Subject(aligner, numpy_only=True)
    every["diagnose"] = Subject(diagnosis, numpy_only=True)
    return every


# ---- counting


def run_one(name: str, subject: Subject, seed: int) -> tuple[str, str]:
    """("right", ""), ("refused", the sentence) or ("wrong", what happened)"""
    rng = np.random.default_rng(seed)
    with_torch = subject.torch_only or (not subject.numpy_only and bool(rng.random() < 0.5))
    case = draw(rng, subject.same_width, with_torch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject.run(case, seed % 2**31)
    except InputError as refused:
        return "refused", str(refused)
    except Exception as problem:
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
        return "wrong", f"{name}, seed {seed}: {text} {json.dumps(case.about)}"
    return "right", ""


def run(cases: int, seed: int, only: str | None = None) -> dict[str, Counter[str]]:
    """Counts per subject; what is wrong is printed, the first three times per subject."""
    every = {name: subject for name, subject in subjects().items() if only in (None, name)}
    rng = np.random.default_rng(seed)
    names = list(every)
    share = np.array([0.05 if name in COSTLY else 1.0 for name in names])
    picks = [*range(len(names)), *rng.choice(len(names), max(0, cases - len(names)), p=share / share.sum())]
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    for number, pick in enumerate(picks[:cases]):
        name = names[pick]
        outcome, text = run_one(name, every[name], 1_000_003 * seed + number)
        counts[name][outcome] += 1
        if outcome == "wrong" and counts[name]["wrong"] <= 3:
            print(text, flush=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="the name of one subject")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    counts = run(options.cases, options.seed, options.only)
    for name, count in counts.items():
        print(f"{name:20} right {count['right']:6} refused {count['refused']:6} wrong {count['wrong']:6}")
    total = sum(counts.values(), Counter())
    print(f"{sum(total.values())} cases in {time.monotonic() - start:.0f} s: {dict(total)}")
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
