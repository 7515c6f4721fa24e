"""The aligner, heads, the data sets that come with calmrl, and the table of methods."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from calmrl import Aligner, GaussianImputer
from calmrl.datasets import DATASETS, load_dataset
from calmrl.models import MODELS, Heads
from calmrl.paper import imagebind_features
from calmrl.training import METHODS, Method, find_method
from calmrl.training.methods import continual
from tests.golden import golden_inputs as inputs
from tests.golden.cases_measures import refused
from tests.golden.golden_record import CHOSEN, SINGLE, Place, case, checksum
from tests.support import colour_world

FAST = colour_world.FIXED | {"latent_dim": 4}


def _aligned(aligner: Aligner, z: Any, present: Any) -> dict[str, Any]:
    """What an aligner has learned and says; latents are defined up to a rotation, similarities are not."""
    vectors = aligner.embed(z, present)
    part = {"image": np.nan_to_num(z["image"][:12], nan=0.5)}
    whole = {name: np.nan_to_num(array[:12], nan=0.5) for name, array in z.items()}
    return {
        "choice": aligner.choice_,
        "expected": aligner.expected_,
        "expected of more": aligner.expected(500),
        "modalities": aligner.modalities_,
        "embedded": vectors @ vectors.T,
        "width": list(vectors.shape),
        "similarity": aligner.similarity(part, whole),
        "hubs": aligner.similarity(part, whole, hubs="csls", k=3),
    }


FORMS: dict[str, dict[str, Any]] = {
    "linear": FAST,
    "kernel": FAST | {"features": "kernel", "unit_rows": True, "landmarks": 40},
    "refined": FAST | {"refine": "always"},
    "chosen": {"candidates": 3, "refine": "never"},
}


def _form(name: str, options: dict[str, Any]) -> None:
    @case(f"models/aligner {name}", 1e-4 if name == "refined" else CHOSEN)
    def _(place: Place) -> Any:
        z, present = inputs.rows(90)
        found: dict[str, Any] = {}
        said = refused(lambda: found.update(_aligned(Aligner(**options, random_state=0).fit(z, present), z, present)))
        return found or said


for _name, _options in FORMS.items():
    _form(_name, _options)


@case("models/aligner groups and relevant", CHOSEN)
def _(place: Place) -> Any:
    z, present = inputs.rows(90)
    inputs.write_rows("f")
    from calmrl.data import open_features

    groups = Aligner(**FAST).fit(z, present, groups=[i // 2 for i in range(90)])
    relevant = Aligner(**FAST).fit(open_features("f"), relevant="labels")
    tensors = {name: torch.from_numpy(array) for name, array in z.items()}
    return {
        "groups": groups.expected_,
        "relevant": relevant.expected_,
        "torch": Aligner(**FAST).fit(tensors).similarity(tensors, tensors),
        "repr": repr(Aligner(**FAST)),
        "one array": Aligner(**FAST, blocks=inputs.WIDTHS).fit(np.concatenate(list(z.values()), axis=1)).expected_,
    }


@case("models/aligner saved and refused", CHOSEN)
def _(place: Place) -> Any:
    z, present = inputs.rows(90)
    aligner = Aligner(**FAST).fit(z, present)
    aligner.save("model")
    loaded = Aligner.load("model")
    return {
        "files": sorted(place.files()),
        "same": np.allclose(loaded.embed(z), aligner.embed(z), rtol=0, atol=1e-9),
        "loaded": [loaded.choice_, loaded.expected_ == aligner.expected_],
        "refused": refused(
            lambda: aligner.save("model"),
            lambda: Aligner.load("nowhere"),
            lambda: Aligner().embed(z),
            lambda: Aligner("liner").fit(z),
            lambda: Aligner(**(FAST | {"whitening": 2.0})).fit(z),
            lambda: Aligner(**(FAST | {"latent_dim": 0})).fit(z),
            lambda: Aligner(**(FAST | {"refine": "sometimes"})).fit(z),
            lambda: Aligner(**FAST).fit({"image": z["image"][:15]}),
            lambda: Aligner(**FAST).fit({name: array[:2] for name, array in z.items()}),
            lambda: Aligner(**FAST).fit(z, groups=[1]),
            lambda: Aligner(**FAST).fit(z, relevant="label"),
            lambda: aligner.embed({"imag": z["image"][:15]}),
            lambda: aligner.embed({"image": z["image"][:15, :3]}),
            lambda: aligner.similarity(z, z, hubs="cls"),
            lambda: aligner.embed_files([{"image": "a.png"}]),
        ),
    }


@case("models/heads", SINGLE)
def _(place: Place) -> Any:
    torch.manual_seed(0)
    z, present = inputs.tensors(inputs.rows()[0], torch.float32), torch.from_numpy(inputs.rows()[1])
    found: dict[str, Any] = {}
    for name, options in {"plain": {}, "hidden": {"hidden": 9}, "skip": {"hidden": 9, "skip": True}}.items():
        heads = Heads(inputs.WIDTHS, 5, **options)
        found[name] = [str(heads), heads(z, present)]
    found["from an imputer"] = refused(
        lambda: Heads(inputs.WIDTHS, 3).start_from(GaussianImputer(3, max_iter=5).fit(*inputs.rows()).as_heads())
    )
    found["imagebind"] = refused(lambda: imagebind_features(inputs.rows()[0]))
    found["models"] = {name: MODELS.about(name) for name in MODELS}
    return found


ENDINGS = ("pmrl+latent", "gram+latent", "gram+mlp", "gram+kernel", "gram+staged", "gram+csls", "calibrated:gaussian",
           "calibrated:mvae", "aligner:linear", "aligner:kernel:refined", "aligner:unrefined")  # fmt: skip


@case("models/methods")
def _(place: Place) -> Any:
    methods = {name: asdict(METHODS[name]) for name in METHODS}
    trials = {name: method.pop("trials") for name, method in methods.items()}

    def recipe(method: Method) -> list[Any]:
        fields = asdict(method)
        return [checksum(json.dumps(fields.pop("trials"))), fields.pop("about"), json.dumps(fields)]

    return {
        "methods": {name: [method.pop("about"), json.dumps(method)] for name, method in methods.items()},
        "trials": {name: [len(given), checksum(json.dumps(given)), given[0]] for name, given in trials.items()},
        "configs": {name: checksum(json.dumps(METHODS[name].configs(3))) for name in METHODS},
        "stages": {name: METHODS[name].stages("steps", 40) for name in ("aligner", "calmrl-printed", "pmrl")},
        "uneven stages": {name: json.dumps(METHODS[name].stages("epochs", 7)) for name in METHODS},
        "kinds": {name: METHODS[name].model for name in METHODS},
        "with endings": [
            [find_method(name).about, find_method(name).latent] for name in ("pmrl+latent", "gram+latent")
        ],
        "recipes with endings": {name: recipe(find_method(name)) for name in ENDINGS},
        "continual": {
            name: json.dumps(continual(find_method(name), 9)[1]) for name in ("gram", "calmrl", "gram+staged")
        },
        "continual recipe": recipe(continual(METHODS["gram"], 9)[0]),
        "refused": refused(lambda: find_method("calmlr"), lambda: find_method("pmrl+latnt"), lambda: MODELS["head"]),
    }


def _dataset(name: str) -> None:
    @case(f"models/data {name}")
    def _(place: Place) -> Any:
        options: dict[str, Any] = {"n": 50} if name == "world" else {}
        data = load_dataset(name, **options)
        found = {
            "z": data.z,
            "present": data.present,
            "ids": data.ids,
            "split": data.split,
            "labels": data.labels,
            "text": data.text,
            "source": data.source,
            "name": data.name,
            "about": DATASETS.about(name),
            "columns": data.meta.column_names,
        }
        truth = getattr(data, "truth", None)
        if truth is not None:
            found["truth"] = {"shared": truth.shared, "sigma": truth.sigma, "mu": truth.mu}
        return found


for _name in DATASETS:
    if _name != "mfeat":  # its files do not come with calmrl
        _dataset(_name)


@case("models/a generated world with a known truth", 1e-9)
def _(place: Place) -> Any:
    found = {}
    for kind, options in {
        "mcar": {},
        "value": {"kind": "value"},
        "source": {"kind": "source", "groups": [(0, 1), (1, 2)], "rate": 0.5},
    }.items():
        world = load_dataset("world", n=40, widths={"a": 5, "b": 4, "c": 3}, nonlinear=0.0, seed=2, **options)
        best = world.truth.impute(world.z, world.present)
        found[kind] = {"z": world.z, "present": world.present, "best": best, "error": world.truth.error(world.present)}
    found["refused"] = refused(
        lambda: load_dataset("stamp"),
        lambda: load_dataset("world", rows=3),
        lambda: load_dataset("world", kind="mar"),
        lambda: load_dataset("world", rate=2.0),
        lambda: load_dataset("world", noise=[1.0]),
    )
    return found
