"""Features on disk in every format, other libraries' containers, loaders, media, encoders, configs and the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calmrl.interop as interop
from calmrl import Aligner, GaussianImputer, config
from calmrl.config.schema import train
from calmrl.config.schema.commands import CompareConfig, ExtractConfig
from calmrl.data import (
    Batches,
    Decoding,
    FeatureRows,
    FeatureSet,
    FeatureWriter,
    ImageTransform,
    Problems,
    Shards,
    beats_fbank,
    fbank,
    hide,
    open_features,
    pattern_table,
    read_annotations,
    read_audio,
    read_folder,
    read_frames,
    read_manifest,
    write_features,
    write_shards,
)
from calmrl.encoders import EncoderSet, load_encoder
from calmrl.hub import Card, Data
from tests.golden import golden_inputs as inputs
from tests.golden.cases_measures import refused
from tests.golden.golden_record import SINGLE, Place, case, checksum
from tests.support import colour_world


def known(features: FeatureSet) -> dict[str, Any]:
    """All that a feature set says."""
    return {
        "z": features.z,
        "present": features.present,
        "ids": features.ids,
        "split": features.split,
        "labels": features.labels,
        "text": features.text,
        "columns": features.meta.column_names,
        "imputed": features.imputed,
        "std": features.std,
    }


def same(one: FeatureSet, other: FeatureSet) -> dict[str, bool]:
    """What of a feature set came back to the bit."""
    ours, theirs = known(one), known(other)
    return {name: _equal(value, theirs[name]) for name, value in ours.items() if name != "columns"}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_equal(one[name], other[name]) for name in one)
    if one is None or other is None:
        return one is other
    equal_nan = one.dtype.kind == "f"
    return one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=equal_nan))


def _imputed(folder: Path) -> FeatureSet:
    features = inputs.features(folder)
    model = GaussianImputer(2, max_iter=8, prior=0.1, shrinkage=0.0, whitening=0.0).fit(features)
    return interop.impute_object(model, features)


# ---- features on disk


@case("data/feature directory")
def _(place: Place) -> Any:
    features = inputs.features(place.path / "f")
    chosen = features.select("test")
    return {
        "files": sorted(place.files()),
        "known": known(features),
        "test rows": known(chosen),
        "numbers": features.row_numbers("val"),
        "repr": repr(features),
        "length": len(features),
        "names": features.names,
        "year": features.column("year"),
        "one modality": known(open_features("f", ["text"])),
        "whole": features.verify(),
        "present": np.load("f/present.npy"),
        "image": np.load("f/image.npy"),
        "imputed": known(_imputed(place.path / "g")),
    }


@case("data/other formats")
def _(place: Place) -> Any:
    from safetensors.numpy import save_file

    z, present = inputs.rows(12, 3, {"image": 4, "text": 3})
    ids = np.array([f"r{i}" for i in range(12)])
    np.savez("a.npz", **z, present=present, ids=ids, split=np.array(["train", "test"] * 6))
    np.savez("plain.npz", **z)
    notes = {"modalities": json.dumps(["text", "image"]), "ids": json.dumps(ids.tolist())}
    save_file({name: np.ascontiguousarray(a) for name, a in z.items()}, "a.safetensors", notes)
    interop.to_parquet(inputs.features(place.path / "f"), "a.parquet")
    return {name: known(open_features(name)) for name in ("a.npz", "plain.npz", "a.safetensors", "a.parquet")}


@case("data/writer and shards")
def _(place: Place) -> Any:
    z, present = inputs.rows(12, 3, {"image": 4, "text": 3})
    writer = FeatureWriter("w", {"image": 4, "text": 3}, [f"r{i}" for i in range(12)], dtype="float64")
    todo = writer.todo("image")
    for part in (slice(0, 5), slice(5, 12)):
        writer.fill(part, {name: a[part] for name, a in z.items()}, present[part])
    written = writer.finish()
    paths = write_shards(written, "shards", rows=5)
    chunks = [
        [{name: array for name, array in z.items()}, mask] for z, mask in Shards(paths, {"image": 4, "text": 3}, 4)
    ]
    write_features("half", z, present, dtype="float16")
    return {
        "todo": todo,
        "written": known(written),
        "shards": [path.name for path in paths],
        "read": chunks,
        "half": known(open_features("half")),
        "files": sorted(name for name in place.files() if not name.startswith("shards")),
    }


@case("data/features refused")
def _(place: Place) -> Any:
    z, present = inputs.rows(12, 3, {"image": 4, "text": 3})
    inputs.features(place.path / "f")
    partly = {"image": z["image"].copy(), "text": np.nan_to_num(z["text"])}
    partly["image"][2, 1] = np.nan
    partly["image"][2, 0] = 1.0
    Path("empty").mkdir()
    Path("a.txt").write_text("x")
    Path("a.npz").write_text("x")
    Path("a.parquet").write_text("x")
    Path("a.safetensors").write_text("x")
    np.savez("flat.npz", a=np.zeros(3))
    np.savez("partly.npz", **partly)
    np.savez("rows.npz", a=np.zeros((3, 2)), b=np.zeros((4, 2)))
    (place.path / "cut").mkdir()
    for file in (place.path / "f").iterdir():
        if file.is_file():
            (place.path / "cut" / file.name).write_bytes(file.read_bytes()[:-40])
    files = (
        "nowhere",
        "empty",
        "a.txt",
        "a.npz",
        "a.parquet",
        "a.safetensors",
        "flat.npz",
        "partly.npz",
        "rows.npz",
        "cut",
    )
    said = refused(
        *(lambda name=name: known(open_features(name)) for name in files),
        lambda: open_features("f", ["imag"]),
        lambda: open_features("f").select("tst"),
        lambda: open_features("f").column("yea"),
        lambda: write_features("f", z, present),
        lambda: write_features("g", z, present, ids=["a"]),
        lambda: write_features("g", z, present, ids=["a"] * 12),
        lambda: write_features("g", z, present, split=["tran"] * 12),
        lambda: write_features("g", z, present[:3]),
        lambda: write_features("g", {"a/b": z["image"]}),
        lambda: write_features("g", partly),
        lambda: write_features("g", z, present, dtype="int8"),
    )
    own = [
        re.sub(r"(cannot be read as Parquet) \(.*\)", r"\1", line) for line in said
    ]  # the words of pyarrow differ by version
    return [place.text(line) for line in own]


# ---- other libraries

OBJECTS: dict[str, tuple[Callable[..., Any], Callable[..., FeatureSet], tuple[str, ...]]] = {
    "arrow": (interop.to_arrow, interop.from_arrow, ()),
    "pandas": (interop.to_pandas, interop.from_pandas, ("pandas",)),
    "polars": (interop.to_polars, interop.from_polars, ("polars",)),
    "datasets": (interop.to_dataset, interop.from_dataset, ("datasets",)),
    "anndata": (interop.to_anndata, interop.from_anndata, ("anndata",)),
    "mudata": (interop.to_mudata, interop.from_mudata, ("mudata",)),
}
FILES: dict[str, tuple[Callable[..., Any], Callable[..., FeatureSet], tuple[str, ...]]] = {
    "parquet": (interop.to_parquet, interop.from_parquet, ()),
    "lance": (interop.to_lance, interop.from_lance, ("lancedb",)),
    "webdataset": (interop.to_webdataset, interop.from_webdataset, ()),
}


def _columns(value: Any) -> Any:
    """The names in a container, where it has some."""
    for name in ("column_names", "columns", "obs", "mod"):
        if hasattr(value, name):
            found = getattr(value, name)
            return [str(column) for column in (found if not hasattr(found, "columns") else found.columns)]
    return None


def _container(name: str, needs: tuple[str, ...]) -> None:
    there, back, _ = OBJECTS[name]

    @case(f"data/container {name}", SINGLE, needs)
    def _(place: Place) -> Any:
        observed, imputed = inputs.features(place.path / "f"), _imputed(place.path / "g")
        given, filled = there(observed), there(imputed)
        model = GaussianImputer(2, max_iter=8, prior=0.1, shrinkage=0.0, whitening=0.0).fit(given)
        found = {
            "kind": type(given).__name__,
            "columns": [_columns(given), _columns(filled)],
            "back": same(observed, back(given)),
            "imputed": same(imputed, back(filled)),
            "is one": [interop.is_container(given), interop.is_container({})],
            "through an imputer": same(imputed, interop.from_object(model.transform(given))),
        }
        if name in ("arrow", "pandas", "polars"):
            wide = there(inputs.features(place.path / "h"), wide=True)
            found["wide"] = [_columns(wide), same(observed, back(wide))]
        return found


def _file(name: str, needs: tuple[str, ...]) -> None:
    there, back, _ = FILES[name]

    @case(f"data/file {name}", SINGLE, needs)
    def _(place: Place) -> Any:
        features = _imputed(place.path / "f")
        there(features, place.path / "out")
        said = refused(lambda: there(features, place.path / "out"), lambda: back(place.path / "nowhere"))
        back_again = same(features, back(place.path / "out"))
        return {"back": back_again, "refused": [place.text(line) for line in said]}


for _name, (_, _, _needs) in OBJECTS.items():
    _container(_name, _needs)
for _name, (_, _, _needs) in FILES.items():
    _file(_name, _needs)


@case("data/containers refused")
def _(place: Place) -> Any:
    import pyarrow as pa

    tables = (
        {"id": ["a"]},
        {"a.0": [1.0, None], "a.1": [1.0, 2.0]},
        {"a.0": ["x"], "a.1": ["y"]},
        {"a": [[1.0], [2.0]], "a.imputed": [None, [3.0]]},
        {"a": [[1.0], [1.0, 2.0]]},
    )
    return refused(
        *(lambda columns=columns: interop.from_arrow(pa.table(columns)) for columns in tables),
        lambda: interop.from_object(3),
        lambda: interop.to_object(inputs.features(place.path / "f"), 3),
    )


# ---- loaders


@case("data/batches", SINGLE)
def _(place: Place) -> Any:
    inputs.write_rows("f", 40)
    features = open_features("f")
    found: dict[str, Any] = {}
    for name, options in {
        "mixed": {},
        "pattern": {"composition": "pattern"},
        "hide one": {"hide_one": True, "seed": 3},
        "complete": {"complete_only": True},
        "incomplete": {"incomplete_only": True},
        "second of two": {"rank": 1, "world": 2},
    }.items():
        batches = Batches(features, 12, **options)
        read = [{key: batch[key] for key in ("z", "present")} for batch in batches]
        found[name] = {
            "length": len(batches),
            "read": read[0],
            "last": read[-1]["present"],
            "state": batches.state_dict(),
        }
    rows = FeatureRows.of(features, "train", name="some", weight=2.0)
    found["rows"] = [len(rows), rows.names, rows.widths, rows.weight]
    found["refused"] = refused(
        lambda: Batches(features, 1),
        lambda: Batches(features, 12, composition="mixd"),
        lambda: Batches(features, 12, rank=2),
        lambda: Batches(features, 12, complete_only=True, incomplete_only=True),
        lambda: FeatureRows.of(features, "tst"),
    )
    return found


@case("data/hide")
def _(place: Place) -> Any:
    present = np.ones((40, 3), dtype=bool)
    z = inputs.complete(40)
    kinds: dict[str, tuple[float | None, dict[str, Any]]] = {
        "mcar": (0.3, {}),
        "value": (0.3, {"values": z, "strength": 1.0}),
        "source": (0.5, {"groups": [(0, 2), (1, 2)]}),
        "one": (0.5, {"column": 1}),
        "alone": (0.5, {}),
        "all-but": (None, {"complete": 10}),
    }
    found: dict[str, Any] = {
        kind: hide(present, rate, np.random.default_rng(0), kind, **options) for kind, (rate, options) in kinds.items()
    }
    found["torch"] = hide(torch.from_numpy(present), 0.3, np.random.default_rng(0))
    found["table"] = pattern_table(found["mcar"], list(z))
    found["refused"] = refused(
        lambda: hide(present, 0.3, np.random.default_rng(0), "mcr"),
        lambda: hide(present, 1.3, np.random.default_rng(0)),
        lambda: hide(present, 0.3, 0),
        lambda: hide(present, 0.3, np.random.default_rng(0), strength=1.0),
        lambda: hide(present, 0.3, np.random.default_rng(0), "all-but"),
        lambda: hide(present.astype(int), 0.3, np.random.default_rng(0)),
    )
    return found


# ---- media and encoders

MEDIA = ("av", "PIL")


def _unreadable(read: Callable[..., Any], *given: Any) -> str:
    try:
        read(*given)
    except Exception as problem:  # of a class that is not public
        return f"{type(problem).__name__}: {problem}"
    return "no error"


@case("data/media", 1e-4, MEDIA)
def _(place: Place) -> Any:
    from PIL import Image

    colour_world.write_sound(place.path / "a.wav", np.array([200, 100, 50]))
    samples = read_audio("a.wav")
    picture = Image.fromarray(np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3))
    picture.save("a.png")
    return {
        "sound": samples,
        "sound at half the rate": read_audio("a.wav", 8000, channel="left", resampling="sinc"),
        "fbank": fbank(torch.from_numpy(samples)),
        "beats": beats_fbank(torch.from_numpy(samples)),
        "picture": ImageTransform(size=8, resize=8)(picture),
        "decoding": Decoding().model_dump() if hasattr(Decoding(), "model_dump") else Decoding(),
        "refused": refused(lambda: Decoding(resize="cop")),
        "unreadable": [_unreadable(read_audio, "nowhere.wav"), _unreadable(read_frames, "a.wav", 2)],
    }


@case("data/manifests", needs=MEDIA)
def _(place: Place) -> Any:
    colour_world.make_folder(root := place.path / "colours", 8)
    problems = Problems()
    folder = read_folder(root, problems)
    lines = [
        {"id": "a", "image": "colours/dark/c0.png", "text": ["one", "two"], "split": "train", "meta.year": 1900},
        {"id": "b", "image": "colours/no.png", "text": "three", "split": "test"},
        {"id": "a", "image": None, "text": "four", "split": "train"},
        {"id": "d", "image": None, "text": None, "split": "trian"},
    ]
    Path("items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    wrong = Problems()
    manifest = read_manifest("items.jsonl", {"image": "image", "text": "text"}, wrong)
    wrong.write(place.path / "problems.jsonl")
    Path("msrvtt.json").write_text(json.dumps([{"video_id": "v1", "caption": "a dog"}]))
    said = refused(
        lambda: read_manifest("nowhere.csv", {}, Problems()),
        lambda: read_manifest("items.jsonl", {"sound": "audio"}, Problems()),
        lambda: read_folder("nowhere", Problems()),
        lambda: read_annotations(place.path / "msrvtt.json", "msvtt", {}, ["text"]),
        lambda: read_annotations(place.path / "msrvtt.json", "msrvtt", {}, ["vision"]),
    )
    return {
        "folder": [[item.id, sorted(item.cells), item.columns] for item in folder.items],
        "kinds": folder.kinds,
        "problems of the folder": problems.lines(False),
        "manifest": [[item.id, sorted(item.cells), item.columns] for item in manifest.items],
        "problems": [place.text(line) for line in wrong.lines(False)],
        "problems, allowed": [place.text(line) for line in wrong.lines(True)],
        "written": place.text(Path("problems.jsonl").read_text()),
        "refused": [place.text(line) for line in said],
    }


@case("data/encoders", SINGLE, MEDIA)
def _(place: Place) -> Any:
    colour_world.register(place.patch)
    colour_world.write_item(place.path, 2, {"image", "text", "sound"})
    colour_world.write_item(place.path, 4, {"image", "text", "sound"})
    encoders = EncoderSet(colour_world.NAMES, dtype="float32")
    encoded = list(encoders.encode_files("image", ["dark/c2.png", "dark/c4.png"]))
    return {
        "described": encoders.describe(),
        "kinds": {name: [encoders.kind(name), encoders.width(name)] for name in colour_world.NAMES},
        "texts": encoders.encode_texts("text", [["the colour 1 2 3"], ["the colour 3 4 5", "the colour 200 0 9"]]),
        "files": [[first, vectors] for first, vectors in encoded],
        "refused": refused(
            lambda: load_encoder("efficientnet"),
            lambda: EncoderSet({"image": "se"}),
            lambda: EncoderSet({"image": "see"}, dtype="float8"),
            lambda: encoders.encoder("smell"),
        ),
    }


# ---- configs and the hub


DIGITS: dict[str, Any] = {"dataset": "digits"}
SECTIONS = (
    *(train.HideSection(rate=0.5), train.ResplitSection(), train.SourceSection(**DIGITS), train.MatchingSection()),
    *(train.StageSection(epochs=1), train.OptimiserSection(), train.ValidationSection(), train.CheckpointSection()),
    *(train.CalibrationSection(), train.ImputeConfig(kind="impute"), ExtractConfig(kind="extract", manifest="m")),
    train.TrainConfig.model_validate({"kind": "train", "method": "contrastive", "sources": {"a": DIGITS}}),
    CompareConfig.model_validate({"kind": "compare", "source": DIGITS}),
)


@case("data/configs")
def _(place: Place) -> Any:
    Path("bad.yaml").write_text(
        "kind: impute\nimputer:\n  method: gaussian\n  latent_dims: 3\n  noise: isotopic\nsed: 3\n"
    )
    Path("twice.yaml").write_text("kind: impute\nkind: train\n")
    Path("broken.yaml").write_text("kind: [impute\n")
    Path("list.yaml").write_text("- a\n")
    Path("kind.yaml").write_text("kind: imput\n")
    Path("train.yaml").write_text(
        "kind: train\nmethod: pmlr\nsources: {a: {features: x, dataset: stamps}}\nstages: []\n"
    )
    Path("compare.yaml").write_text(
        "kind: compare\nsource: {dataset: stamps}\nmethods: [calmlr]\nsettings: {a: {rate: 2}}\n"
    )

    def mistakes(name: str, *overrides: str, kind: str | None = None) -> Any:
        try:
            return config.dumps(config.load(name, overrides, kind=kind))
        except config.ConfigError as error:
            return {"said": place.text(str(error)), "problems": [problem.as_dict() for problem in error.problems]}

    config.dump(config.load("impute"), "mine.yaml")
    return {
        "shipped": config.shipped(),
        "resolved": config.load("align").model_dump(mode="json"),
        "defaults": {type(section).__name__: json.dumps(section.model_dump(mode="json")) for section in SECTIONS},
        "written out": {name: config.dumps(config.load(name)) for name in ("impute", "align", "emoji")},
        "others": {name: checksum(config.dumps(config.load(name))) for name in config.shipped()},
        "kinds": {name: config.load(name).model_dump()["kind"] for name in config.shipped()},
        "changed": mistakes("impute", "imputer.method=gaussian", "imputer.latent_dim=3", "seed=4"),
        "file": Path("mine.yaml").read_text(),
        "mistakes": {
            file: mistakes(file)
            for file in ("bad", "twice", "broken", "list", "kind", "train", "compare")
            for file in [f"{file}.yaml"]
        },
        "overrides": [
            mistakes("impute", "seed=x"),
            mistakes("impute", "sed=3"),
            mistakes("impute", "seed"),
            mistakes("impute", "imputer.method=gausian"),
        ],
        "refused": refused(
            lambda: config.load("imput"),
            lambda: config.load("nowhere.yaml"),
            lambda: config.load("impute", kind="train"),
            lambda: config.dump(config.load("impute"), "mine.yaml"),
            lambda: config.shipped_text("imput"),
        ),
    }


@case("data/hub", 1e-6, ("huggingface_hub",))
def _(place: Place) -> Any:
    from tests.support.local_hub import local_hub

    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        place.patch.delenv(name, raising=False)
    z, present = inputs.rows(90)
    aligner = Aligner(**(colour_world.FIXED | {"latent_dim": 4})).fit(z, present)
    imputer = GaussianImputer(3, max_iter=10, prior=0.1, shrinkage=0.0, whitening=0.0).fit(z, present)
    data = Data("ninety rows", 90, {name: int(present[:, j].sum()) for j, name in enumerate(z)}, "somewhere")
    with local_hub() as hub:
        more: dict[str, Any] = {"endpoint": hub.endpoint, "token": "t"}
        aligner.push_to_hub("someone/aligner", data=data, license="mit", **more)
        imputer.push_to_hub("someone/imputer", **more)
        back = Aligner.from_pretrained("someone/aligner", cache_dir=place.path, endpoint=hub.endpoint)
        files = {repo: sorted(content) for repo, content in hub.repos.items()}
        cards = {repo: place.text(content["README.md"].decode()) for repo, content in hub.repos.items()}
    card = Card("A thing", "import calmrl", {"a": 3}, {"x": 1}, [{"what": "R@1", "value": 2.5}], "a note", ["a limit"])
    return {
        "files": files,
        "cards": cards,
        "back": np.allclose(back.embed(z), aligner.embed(z), rtol=0, atol=1e-9),
        "card": card.text("someone/thing", None, None),
    }
