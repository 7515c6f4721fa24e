"""Anchors, objectives with their gradients, calibrated alignment, metrics and statistics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from calmrl import CalibratedAlignment, GaussianImputer, anchors, metrics
from calmrl.errors import InputError, MissingExtraError
from calmrl.imputers import GaussianLatent
from calmrl.losses import LOSSES, InstanceMatching
from tests.golden import golden_inputs as inputs
from tests.golden.golden_record import SINGLE, Place, case


def refused(*calls: Callable[[], Any]) -> list[str]:
    """The class and the words of the error of every call."""
    said = []
    for call in calls:
        try:
            call()
        except (InputError, MissingExtraError, TypeError, ValueError, KeyError, FileExistsError) as problem:
            words = re.sub(r"calmrl(?:\.[a-z_]+)+\.(\w+)", r"{home}.\1", str(problem))  # whatever file it lives in
            words = re.sub(
                r"(unexpected keyword argument '\w+')\. Did you mean '\w+'\?", r"\1", words
            )  # Python 3.13 asks
            said.append(f"{type(problem).__name__}: {words}")
        else:
            said.append("no error")
    return said


# ---- anchors


@case("measures/anchors")
def _(place: Place) -> Any:
    z, present = inputs.complete(), inputs.holes()
    completed = {name: array + 0.1 for name, array in z.items()}
    return {
        "anchor": anchors.anchor(z, present),
        "anchor of complete rows": anchors.anchor(z),
        "anchor of tensors": anchors.anchor(inputs.tensors(z), torch.from_numpy(present)),
        "anchor in single precision": anchors.anchor({n: a.astype("float32") for n, a in z.items()}, present),
        "shift": anchors.anchor_shift(z, present),
        "bounds": anchors.shift_bounds(z, present),
        "printed bounds": anchors.printed_shift_bounds(z, present),
        "completion bounds": anchors.completion_bounds(z, completed, present),
        "completion shift": anchors.completion_shift(z, completed, present),
        "helps": anchors.calibration_helps(z, present, 0.1),
        "threshold": anchors.calibration_threshold(z, present),
        "printed threshold": anchors.printed_calibration_threshold(z, present),
    }


@case("measures/convention refuses")
def _(place: Place) -> Any:
    z, present = inputs.complete(), inputs.holes()
    partly = {name: array.copy() for name, array in z.items()}
    partly["text"][3, 2] = np.nan
    infinite = {name: array.copy() for name, array in z.items()}
    infinite["image"][5] = np.inf
    nothing = present.copy()
    nothing[7] = False
    anchor = anchors.anchor
    return refused(
        lambda: anchor(partly),
        lambda: anchor(infinite),
        lambda: anchor(z, nothing),
        lambda: anchor(z, present[:, :2]),
        lambda: anchor(z, present[:10]),
        lambda: anchor(z, present.astype(float)),
        lambda: anchor({}, present),
        lambda: anchor({"image": z["image"][:, 0]}),
        lambda: anchor(z | {"text": z["text"][:, :3]}),
        lambda: anchor(z | {"text": z["text"][:5]}),
        lambda: anchor(z | {"text": z["text"].astype(str)}),
        lambda: anchor(z | {"text": torch.zeros(40, 6)}),
        lambda: anchors.anchor_shift(partly, present),
        lambda: anchors.calibration_helps(z, present, -1.0),
    )


# ---- objectives


def _value_and_gradient(loss: torch.nn.Module, z: Any, present: Any) -> dict[str, Any]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in z.items()}
    value = loss(leaves, present)
    value.backward()
    learned = {name: parameter.grad for name, parameter in loss.named_parameters() if parameter.grad is not None}
    return {"value": value, "gradient": {name: leaf.grad for name, leaf in leaves.items()}, "of parameters": learned}


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "contrastive": [{}, {"anchor": None}, {"temperature": 0.2, "learn_temperature": False, "label_smoothing": 0.0}],
    "gram": [{}, {"sign_guard": False}, {"anchor": "image"}],
    "pmrl": [{}, {"log": False}, {"temperature": 0.2, "anchor_temperature": 0.5, "sign_guard": False}],
    "triangle": [{}, {"root": False}],
    "vast": [{}, {"label_smoothing": 0.0}],
}


def _loss(name: str) -> None:
    @case(f"measures/loss {name}")
    def _(place: Place) -> Any:
        z, present = inputs.tensors(inputs.complete(12)), torch.from_numpy(inputs.holes(12))
        z = {key: torch.nn.functional.normalize(tensor, dim=1) for key, tensor in z.items()}
        found: dict[str, Any] = {}
        for options in SETTINGS.get(name, [{}]):
            loss = LOSSES[name](**options).double()
            found[f"{options}, holes"] = _value_and_gradient(loss, z, present)
            loss.zero_grad()
            found[f"{options}, complete"] = loss(z)
        found["in chunks"] = LOSSES[name](chunk_size=5).double()(z, present)
        return found


for _name in LOSSES:
    _loss(_name)


@case("measures/losses refuse")
def _(place: Place) -> Any:
    z = inputs.tensors(inputs.complete(12))
    return refused(
        lambda: LOSSES["pmlr"],
        lambda: LOSSES["nothing like it"],
        *(lambda name=name: LOSSES[name](temperature=0.0) for name in LOSSES),
        *(lambda name=name: LOSSES[name]()({"image": z["image"]}) for name in LOSSES),
        *(lambda name=name: LOSSES[name]()({"image": z["image"], "sound": z["sound"]}) for name in LOSSES),
        lambda: LOSSES["pmrl"]()(inputs.complete(12)),
    )


@case("measures/matching", SINGLE)
def _(place: Place) -> Any:
    torch.manual_seed(0)
    match = InstanceMatching(list(inputs.WIDTHS), 6, hidden=8, layers=1, heads=2)
    z, present = inputs.tensors(inputs.complete(12), torch.float32), torch.from_numpy(inputs.holes(12))
    present[:, 1] = True
    others = {name: z[name] for name in ("image", "sound")}
    scores = z["text"] @ z["image"].T
    return {
        "value": match(z, present, generator=torch.Generator().manual_seed(0)),
        "reranked": match.rerank(z["text"], others, present[:, [0, 2]], scores, top=4),
    }


@case("measures/calibrated alignment", 1e-9)
def _(place: Place) -> Any:
    z, present = inputs.complete(40), inputs.holes(40)
    batch, mask = inputs.tensors(z), torch.from_numpy(present)
    found: dict[str, Any] = {}
    for name, options in {
        "as it is": {},
        "gram, no gradient": {"objective": "gram", "impute_grad": False},
        "not renormalised": {"renormalize": False},
        "with certainty": {"certainty": True},
        "half": {"weight": 0.5, "m_every": 1},
        "vast, frozen": {"objective": "vast", "update": "frozen"},
        "a latent model that is a module": {"update": "gradient"},
    }.items():
        imputer = GaussianImputer(3, max_iter=10, prior=0.1, shrinkage=0.0, whitening=0.0).fit(z, present)

        if options.get("update") == "gradient":
            imputer = GaussianLatent(imputer.parameters_)

        def run(imputer: Any = imputer, options: dict[str, Any] = options) -> Any:
            align = CalibratedAlignment(**({"objective": "pmrl", "imputer": imputer} | options)).double()
            first = _value_and_gradient(align, batch, mask)
            first["gradient"] = first["gradient"]["image"]
            again = [align(batch, mask) for _ in range(3)]
            align.eval()
            found = {"first": first, "again": again, "eval": align(batch, mask)}
            return found | {"complete": align.complete(batch, mask)["text"]}

        said = refused(lambda run=run, name=name: found.setdefault(name, run()))
        if said != ["no error"]:
            found[name] = said
    found["refused"] = refused(
        lambda: CalibratedAlignment("pmlr", imputer=imputer),
        lambda: CalibratedAlignment(imputer=GaussianImputer(3), update="never"),
        lambda: CalibratedAlignment(imputer=imputer, impute_from="here"),
        lambda: CalibratedAlignment(imputer="gaussian"),
    )
    return found


# ---- metrics


@case("measures/retrieval")
def _(place: Place) -> Any:
    z = inputs.complete(40)
    queries, gallery = z["text"], z["image"]
    ids = [i % 10 for i in range(40)]
    return {
        "plain": metrics.retrieval(queries, gallery),
        "per query": metrics.retrieval(queries, gallery, per_query=True, ks=(1, 2)),
        "ids": metrics.retrieval(queries, gallery, ids, ids),
        "one side": metrics.retrieval(queries[:10], gallery, list(range(10)), ids),
        "hubs": metrics.retrieval(queries, gallery, hubs="csls", neighbours=5),
        "scores": metrics.retrieval(scores=queries @ gallery.T),
        "torch": metrics.retrieval(torch.from_numpy(queries), torch.from_numpy(gallery), similarity="dot"),
        "refused": refused(
            lambda: metrics.retrieval(queries, gallery[:, :3]),
            lambda: metrics.retrieval(queries, gallery[:5]),
            lambda: metrics.retrieval(queries, gallery, similarity="cosin"),
            lambda: metrics.retrieval(queries, gallery, hubs="cls"),
            lambda: metrics.retrieval(queries, gallery, ks=(0,)),
            lambda: metrics.retrieval(queries, gallery, ["x"] * 40, ids),
            lambda: metrics.retrieval(np.full((3, 6), np.nan), gallery[:3]),
            lambda: metrics.retrieval(),
        ),
    }


@case("measures/pool and scores")
def _(place: Place) -> Any:
    z, present = inputs.complete(40), inputs.holes(40)
    queries, items = z["text"], {"image": z["image"], "sound": z["sound"]}
    has = present[:, [0, 2]]
    has[~has.any(axis=1), 0] = True
    imputer = GaussianImputer(3, max_iter=10, prior=0.1, shrinkage=0.0, whitening=0.0).fit(items, has)
    found: dict[str, Any] = {
        f"pool, {scoring}": metrics.mixed_pool(queries, items, has, scoring=scoring)
        for scoring in ("raw", "centred", "anchor")
    }
    found["pool, imputed"] = metrics.mixed_pool(queries, items, has, scoring="imputed", completed=imputer)
    found["pool, hubs"] = metrics.mixed_pool(queries, items, has, hubs="csls")
    for score in metrics.SCORES:
        found[f"scored, {score}"] = metrics.scored_retrieval(queries, items, score=score)
    found["scored, with holes"] = metrics.scored_retrieval(queries, items, has, score="anchor")
    found["fused"] = {
        "mean": metrics.fuse(items, has),
        "anchor": metrics.fuse(items, has, "anchor"),
        "imputed": metrics.fuse(items, has, "imputed", completed=imputer),
    }
    found["refused"] = refused(
        lambda: metrics.mixed_pool(queries, items, has, scoring="row"),
        lambda: metrics.mixed_pool(queries, items, has, scoring="imputed"),
        lambda: metrics.scored_retrieval(queries, items, has, score="volum"),
        lambda: metrics.scored_retrieval(queries, items, has, score="volume"),
        lambda: metrics.fuse(items, has, "means"),
        lambda: metrics.fuse(items, has, "mean", completed=imputer),
    )
    return found


@case("measures/metrics", 1e-9)
def _(place: Place) -> Any:
    z, present = inputs.rows(60)
    full = inputs.complete(60)
    mask = inputs.holes(60)
    holes = {name: np.where(mask[:, [j]], array, np.nan) for j, (name, array) in enumerate(full.items())}
    imputer = GaussianImputer(3, max_iter=10, prior=0.1, shrinkage=0.0, whitening=0.0).fit(z, present)
    same = GaussianImputer(3, max_iter=10, prior=0.1, shrinkage=0.0, whitening=0.0).fit(holes)
    hidden = present & ~inputs.holes(60, 5)
    described = list(metrics.METRICS.items())
    return {
        "alignment": metrics.alignment(holes),
        "uniformity": metrics.uniformity(holes),
        "gap": metrics.modality_gap(holes),
        "errors": metrics.imputation_error(imputer, z, present),
        "one error": metrics.imputation_error(imputer, z, present, [(["image", "text"], "sound")]),
        "coverage": metrics.coverage(imputer, z, present, hidden),
        "shift": metrics.anchor_shift_rows(full, mask, same),
        "chance": [metrics.chance(40), metrics.chance(6, [0, 0, 1, 1, 2, 3], (1, 2))],
        "robustness": metrics.robustness(
            lambda rate, seed: [metrics.row("a", "b", rate + seed, 3)], (0.0, 0.5), (0, 1)
        ),
        "row": metrics.row("a->b", "R@1", 0.5, 3),
        "described": {name: [metric.axis, metric.better, metric.group, metric.about] for name, metric in described},
        "refused": refused(
            lambda: metrics.METRICS["R@2"],
            lambda: metrics.imputation_error(imputer, z, present, [(["image"], "image")]),
            lambda: metrics.imputation_error(imputer, z, present, [(["image"], "smell")]),
        ),
    }


@case("measures/classification", 1e-4)
def _(place: Place) -> Any:
    full, mask, split = inputs.complete(60), inputs.holes(60), inputs.about(60)["split"]
    holes = {name: np.where(mask[:, [j]], array, np.nan) for j, (name, array) in enumerate(full.items())}
    same = GaussianImputer(3, max_iter=10, prior=0.1, shrinkage=0.0, whitening=0.0).fit(holes)
    labels = np.array(["dog", "cat", "bird"])[np.argmax(full["image"][:, :3], axis=1)]
    return {
        "separability": metrics.modality_gap(full, separability=True),
        "classes": metrics.classification(holes, None, labels, split),
        "imputed": metrics.classification(holes, mask, labels, split, fusion="imputed", imputer=same, ways=("knn",)),
        "refused": refused(
            lambda: metrics.classification(full, None, labels, split, ways=("liner",)),
            lambda: metrics.classification(full, None, labels[:5], split),
            lambda: metrics.classification(full, None, labels, ["train"] * 60),
        ),
    }


@case("measures/fine tuning", 1e-3)
def _(place: Place) -> Any:
    from calmrl.models import Heads

    z = {name: array.astype(np.float32) for name, array in inputs.complete(60).items()}
    labels = np.array(["dog", "cat", "bird"])[np.argmax(z["image"][:, :3], axis=1)]
    torch.manual_seed(0)
    model = Heads(dict.fromkeys(z, 6), 5)
    return metrics.fine_tuned_classification(
        model, z, None, labels, inputs.about(60)["split"], 5, steps=20, batch_size=16
    )


@case("measures/statistics")
def _(place: Place) -> Any:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.3, 1, 30), rng.normal(0, 1, 30)
    values = {"a": {0: 1.0, 1: 2.0, 2: 3.5}, "b": {0: 0.5, 1: 1.0, 2: 2.0}, "c": {0: 0.7, 1: 0.6, 2: 2.2}}
    return {
        "interval": [metrics.mean_interval(ours), metrics.mean_interval(ours[:3], 0.9), metrics.mean_interval([1.0])],
        "t": [metrics.paired_t(ours, theirs), metrics.paired_t([1.0], [0.5])],
        "bootstrap": metrics.paired_bootstrap(ours, theirs, 500, 1),
        "bootstrap of groups": metrics.paired_bootstrap(ours, theirs, 500, groups=[i // 3 for i in range(30)]),
        "holm": metrics.holm({"a": 0.01, "b": 0.04, "c": None, "d": 0.03}),
        "best": metrics.against_best(values, ["b", "c"]),
        "best, lower": metrics.against_best(values, ["b", "c"], higher=False),
        "refused": refused(lambda: metrics.paired_t([1.0, 2.0], [1.0]), lambda: metrics.mean_interval([])),
    }
