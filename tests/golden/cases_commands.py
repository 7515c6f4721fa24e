"""Every command but those of an index: what it says, its exit code, what it writes, and the numbers in its files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from calmrl import load
from calmrl.data import open_features
from calmrl.training import read_records
from tests.golden import golden_inputs as inputs
from tests.golden.cases_data import MEDIA, known
from tests.golden.golden_record import CHOSEN, TRAINED, Place, case, checksum
from tests.support import colour_world

COMMANDS = (
    *(
        "demo",
        "open",
        "init",
        "diagnose",
        "extract",
        "impute",
        "align",
        "index",
        "add",
        "remove",
        "search",
        "serve",
        "mcp",
    ),
    *("train", "evaluate", "compare", "report", "reproduce", "ls", "cp", "check", "doctor"),
)
SHELVES = (
    "methods",
    "losses",
    "models",
    "imputers",
    "datasets",
    "collections",
    "encoders",
    "bases",
    "towers",
    "tables",
    "configs",
)
TIMES = ("rows_per_s", "latent_share", "waited_s", "seconds", "latent_seconds")


def listed(rows: Any) -> dict[str, Any]:
    """Rows of results: everything but metric and value -> metric -> value."""
    found: dict[str, Any] = {}
    for row in rows:
        if row["metric"] != "seconds":
            key = ", ".join(str(value) for name, value in row.items() if name not in ("metric", "value", "rate"))
            assert row["metric"] not in found.setdefault(key, {}), row
            found[key][row["metric"]] = row["value"]
    return found


def results(path: str) -> dict[str, Any]:
    """The rows of a results.json, and the names of what else it says."""
    content = json.loads(Path(path).read_text("utf-8"))
    return {"columns": list(content["rows"][0]), "rows": listed(content["rows"]), "meta": sorted(content["meta"])}


# ---- help and lists


def _help(name: str) -> None:
    @case(f"help/{name}")
    def _(place: Place) -> Any:
        return place.calmrl(name, "--help")["out"]


for _name in COMMANDS:
    _help(_name)


@case("help/all of it")
def _(place: Place) -> Any:
    return {
        "help": place.calmrl("--help"),
        "short": place.calmrl("-h")["out"] == place.calmrl("--help")["out"],
        "nothing": place.calmrl()["code"],
        "version": place.calmrl("--version"),
        "another": place.calmrl("chek"),
        "option": place.calmrl("ls", "--nope"),
        "argument": place.calmrl("cp"),
        "number": place.calmrl("serve", "x", "--port", "99999"),
        "debug": place.calmrl("check", "nowhere.yaml", "--debug")["code"],
    }


@case("commands/ls")
def _(place: Place) -> Any:
    whole = place.calmrl("ls")
    return {
        "shelves": [line for line in whole["out"].splitlines() if line and not line.startswith(" ")],
        "names": {name: list(json.loads(place.calmrl("ls", name, "--json")["out"])[name]) for name in SHELVES},
        "losses": place.calmrl("ls", "losses"),
        "imputers": place.calmrl("ls", "imputers"),
        "wrong": place.calmrl("ls", "config"),
    }


@case("commands/doctor")
def _(place: Place) -> Any:
    report = place.calmrl("doctor", "--json")
    told = json.loads(report.pop("out"))
    return {
        "json": report,
        "keys": list(told),
        "system": list(told["system"]),
        "engine": told["engine"]["name"],
        "heads": [line for line in place.calmrl("doctor")["out"].splitlines() if re.match(r"\w+( local)?$", line)],
        "wrong": place.calmrl("doctor", "--engine", "raay"),
    }


# ---- configs


@case("commands/cp and check")
def _(place: Place) -> Any:
    Path("bad.yaml").write_text(
        "kind: impute\nimputer:\n  method: gaussian\n  latent_dims: 3\n  noise: isotopic\nsed: 3\n"
    )
    inputs.write_rows("f", 30)
    found = {
        "cp": place.calmrl("cp", "impute", "my.yaml"),
        "again": place.calmrl("cp", "impute", "my.yaml"),
        "force": place.calmrl("cp", "impute", "my.yaml", "--force"),
        "unknown": place.calmrl("cp", "imput", "x.yaml"),
        "no folder": place.calmrl("cp", "impute", "no/such/x.yaml"),
        "check": place.calmrl("check", "my.yaml"),
        "changed": place.calmrl("check", "impute", "imputer.method=knn"),
        "bad": place.calmrl("check", "bad.yaml"),
        "bad as json": place.calmrl("check", "bad.yaml", "--json"),
        "good as json": place.calmrl("check", "my.yaml", "--json"),
        "override": place.calmrl("check", "impute", "seed=x"),
        "nowhere": place.calmrl("check", "nowhere.yaml"),
        "features": place.calmrl("check", "f"),
        "features as json": place.calmrl("check", "f", "--json"),
        "no config": place.calmrl("check", "f", "seed=3"),
    }
    damaged = bytearray(Path("f/image.npy").read_bytes())
    damaged[-5] ^= 1
    Path("f/image.npy").write_bytes(damaged)
    return found | {"damaged": place.calmrl("check", "f")}


@case("commands/init")
def _(place: Place) -> Any:
    inputs.write_rows("f")
    found = {
        "features": place.calmrl("init", "f", "--out", "w"),
        "again": place.calmrl("init", "f", "--out", "w"),
        "force": place.calmrl("init", "f", "--out", "w", "--force"),
        "nowhere": place.calmrl("init", "nowhere", "--out", "v"),
    }
    for name in ("train.yaml", "compare.yaml"):
        found[name] = place.text(Path("w", name).read_text("utf-8"))
        found[f"check {name}"] = place.calmrl("check", f"w/{name}")["code"]
    return found


@case("commands/init of a folder", needs=MEDIA)
def _(place: Place) -> Any:
    colour_world.make_folder(place.path / "colours", 12)
    Path("colours/notes.pdf").write_text("x")
    (place.path / "empty").mkdir()
    with patch(
        "calmrl.encoders.registry.find_spec", lambda name: name if name in ("PIL", "av") else None
    ):  # no encoder
        found = {
            "folder": place.calmrl("init", "colours", "--out", "w"),
            "empty": place.calmrl("init", "empty", "--out", "v"),
        }
    return found | {"extract.yaml": place.text(Path("w/extract.yaml").read_text("utf-8"))}


# ---- features


@case("commands/impute", CHOSEN)
def _(place: Place) -> Any:
    inputs.write_rows("f", dtype="float64")
    np.savez("f.npz", **inputs.rows(30)[0])
    gaussian = ("imputer.method=gaussian", "imputer.latent_dim=3", "imputer.max_iter=20")
    found: dict[str, Any] = {
        "mean": place.calmrl("impute", "f", "--out", "mean", "imputer.method=mean"),
        "gaussian": place.calmrl("impute", "f", "--out", "gaussian", *gaussian, "--std", "--json"),
        "auto": place.calmrl("impute", "f", "--out", "auto", "imputer.candidates=[mean, knn, ridge, gaussian]"),
        "npz": place.calmrl("impute", "f.npz", "--out", "npz", "imputer.method=knn", "seed=3"),
        "again": place.calmrl("impute", "f", "--out", "mean", "imputer.method=mean"),
        "force": place.calmrl("impute", "f", "--out", "mean", "imputer.method=ridge", "--force"),
        "check": place.calmrl("check", "gaussian"),
    }
    for name in ("mean", "gaussian", "auto", "npz"):
        found[f"{name} is"] = known(open_features(name))
    return found


@case("commands/impute refuses")
def _(place: Place) -> Any:
    z, _ = inputs.rows(30)
    np.savez("f.npz", **z)
    partly = {name: array.copy() for name, array in z.items()}
    partly["image"][2, 1] = np.nan
    partly["image"][2, 0] = 1.0
    np.savez("partly.npz", **partly)
    infinite = {name: array.copy() for name, array in z.items()}
    infinite["image"][0] = np.inf
    np.savez("infinite.npz", **infinite)
    np.savez("one.npz", image=np.nan_to_num(z["image"]))
    Path("mine").mkdir()
    Path("mine/a.txt").write_text("x")
    mean = "imputer.method=mean"
    return {
        "nowhere": place.calmrl("impute", "nowhere", "--out", "o"),
        "partly, completed": place.calmrl("impute", "partly.npz", "--out", "completed", mean),
        "infinite": place.calmrl("impute", "infinite.npz", "--out", "o", mean),
        "infinite, allowed": place.calmrl("impute", "infinite.npz", "--out", "o", mean, "--allow-missing"),
        "one modality": place.calmrl("impute", "one.npz", "--out", "p", mean),
        "method": place.calmrl("impute", "f.npz", "--out", "o", "imputer.method=gausian"),
        "key": place.calmrl("impute", "f.npz", "--out", "o", "imputer.neighbours=3", "imputer.method=knn"),
        "value": place.calmrl("impute", "f.npz", "--out", "o", "imputer.latent_dim=0", "imputer.method=gaussian"),
        "mine": place.calmrl("impute", "f.npz", "--out", "mine", mean, "--force"),
        "no out": place.calmrl("impute", "f.npz"),
        "engine": place.calmrl("impute", "f.npz", "--out", "q", "--engine", "raay", mean),
        "address": place.calmrl("impute", "f.npz", "--out", "q", "--address", "x", mean),
        "config": place.calmrl("impute", "f.npz", "--out", "q", "--config", "stamps"),
    }


@case("commands/diagnose", TRAINED)
def _(place: Place) -> Any:
    inputs.write_rows("f", 120, dtype="float64")
    np.savez("one.npz", image=inputs.complete(30)["image"])
    found = {
        "shown": place.calmrl("diagnose", "f", "--out", "d"),
        "again": place.calmrl("diagnose", "f", "--out", "d"),
        "one modality": place.calmrl("diagnose", "one.npz"),
        "nowhere": place.calmrl("diagnose", "nowhere"),
    }
    content = json.loads(Path("d/diagnosis.json").read_text("utf-8"))
    return found | {"numbers": _without(content, ("meta", "command", "seconds", "version", "versions", "date"))}


@case("commands/diagnose what cannot be imputed", TRAINED)
def _(place: Place) -> Any:
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(50, 4)) for name in ("image", "text")}
    z["text"][:15] = np.nan
    np.savez("unrelated.npz", **z)
    result = place.calmrl("diagnose", "unrelated.npz", "--json", "--seed", "1")
    told = json.loads(result.pop("out"))
    return result | {"verdict": told["verdict"], "gain": told["expected_gain"], "directions": told["directions"]}


def _without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _without(part, names) for key, part in value.items() if key not in names}
    return [_without(part, names) for part in value] if isinstance(value, list) else value


@case("commands/extract", needs=MEDIA)
def _(place: Place) -> Any:
    colour_world.register(place.patch)
    place.patch.setattr(
        "calmrl.encoders.registry.find_spec", lambda package: package
    )  # default encoders, installed or not
    colour_world.make_folder(place.path / "colours", 10)
    Path("items.csv").write_text(
        "id,image,text,split,labels\na,colours/dark/c0.png,the colour 1 2 3,train,x\nb,,the colour 9 9 9,test,y\n"
    )
    Path("bad.csv").write_text("id,image,text\na,no.png,the colour 1 2 3\na,,\n")
    encoders = [part for name, encoder in colour_world.NAMES.items() for part in ("--encoder", f"{name}={encoder}")]
    two = ("--encoder", "image=see", "--encoder", "text=read", "--workers", "0")
    found = {
        "folder": place.calmrl("extract", "colours", "--out", "f", *encoders, "--workers", "0"),
        "again": place.calmrl("extract", "colours", "--out", "f", *encoders, "--workers", "0"),
        "table": place.calmrl("extract", "items.csv", "--out", "g", *two, "--dtype", "float32"),
        "bad": place.calmrl("extract", "bad.csv", "--out", "h", *two),
        "bad, allowed": place.calmrl("extract", "bad.csv", "--out", "h", *two, "--allow-missing"),
        "check": place.calmrl("check", "bad.csv"),
        "encoder": place.calmrl("extract", "items.csv", "--out", "i", "--encoder", "image=se", "--workers", "0"),
        "modality": place.calmrl("extract", "items.csv", "--out", "i", "--encoder", "imag=see", "--workers", "0"),
        "pair": place.calmrl("extract", "items.csv", "--out", "i", "--encoder", "image"),
        "twice": place.calmrl(
            "extract", "items.csv", "--out", "i", "--encoder", "image=see", "--encoder", "image=read"
        ),
        "nowhere": place.calmrl("extract", "nowhere.csv", "--out", "i", *two),
        "annotations": place.calmrl("extract", "items.csv", "--out", "i", "--annotations", "x"),
        "collection": place.calmrl("extract", "colours", "--out", "i", "--collection", "msrvt"),
        "frames": place.calmrl("extract", "items.csv", "--out", "i", "--frames", "0"),
        "dtype": place.calmrl("extract", "items.csv", "--out", "i", *two, "--dtype", "float8"),
    }
    return found | {"f is": known(open_features("f")), "g is": known(open_features("g"))}


# ---- training


def train_config(name: str = "config.yaml", **changes: Any) -> str:
    """A small training config of two sources."""
    for source, seed in (("a", 0), ("b", 1)):
        if not Path(source).exists():
            inputs.write_rows(source, seed=seed)
    values: dict[str, Any] = {
        "kind": "train",
        "method": "pmrl",
        "sources": {"a": {"features": "a"}, "b": {"features": "b"}},
        "modalities": list(inputs.WIDTHS),
        "model": {"kind": "heads", "width": 5},
        "stages": [{"steps": 6}],
        "batch_size": 24,
        "optimiser": {"learning_rate": 1e-2},
        "checkpoint": {"every": 5},
        "log_every": 2,
    }
    values |= changes
    Path(name).write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return name


def trained(place: Place, out: str) -> dict[str, Any]:
    """What a training has left behind."""
    records = [
        {k: v for k, v in record.items() if k not in TIMES}
        for record in read_records(place.path / out / "metrics.jsonl")
    ]
    z, present = inputs.rows(20, 5, dtype="float32")
    model = load(out)
    vectors = model.embed(z, present)
    return {
        "records": records,
        "embedded": vectors @ vectors.T,
        "encoded": {name: vectors @ vectors.T for name, vectors in model.encode(z, present).items()},
        "config": place.text(Path(out, "config.yaml").read_text("utf-8")),
    }


def _method(name: str, **changes: Any) -> None:
    @case(f"training/{name}", TRAINED)
    def _(place: Place) -> Any:
        config = train_config(method=name, **changes)
        found = {"train": place.calmrl("train", config, "--out", "run"), "run": trained(place, "run")}
        found["evaluate"] = place.calmrl("evaluate", "run")
        if name != "calmrl-printed":  # one table is enough, and two configs
            found["evaluate"]["err"] = found["evaluate"]["err"].rpartition("─\n")[2]
        if name not in ("calmrl-printed", "closed-form"):
            found["run"].pop("config")
        return found | ({"results": results("run/results.json")} if name != "calibrated" else {})


LATENT = {"calibration": {"imputer": {"method": "gaussian", "latent_dim": 3}}}
_method("pmrl")
_method("calmrl-printed", **LATENT)
_method("closed-form", model=None, stages=None, optimiser=None, checkpoint=None)
_method("calibrated")


@case("training/other methods", TRAINED)
def _(place: Place) -> Any:
    found: dict[str, Any] = {}
    names = ("contrastive", "vast", "gram", "triangle", "fusemix", "contrastive+latent", "calmrl-start")
    for name in (*names, "aligner", "ideal"):
        config = train_config(method=name, stages=[{"steps": 3}])
        result = place.calmrl("train", config, "--out", name)
        found[name] = {key: result[key] for key in ("code", "out", "err")}
        if result["code"] == 0:
            z, present = inputs.rows(20, 5, dtype="float32")
            vectors = load(name).embed(z, present)
            found[name]["embedded"] = vectors @ vectors.T
    return found


@case("training/resumed", TRAINED)
def _(place: Place) -> Any:
    config = train_config()
    found = {
        "first": place.calmrl("train", config, "--out", "run", "stages=[{steps: 4}]"),
        "again": place.calmrl("train", config, "--out", "run"),
        "other": place.calmrl("train", config, "--out", "run", "--resume", "seed=3"),
        "resumed": place.calmrl("train", config, "--out", "run", "--resume", "stages=[{steps: 4}]"),
        "nothing there": place.calmrl("train", config, "--out", "new", "--resume"),
    }
    return found


@case("training/evaluated otherwise", TRAINED)
def _(place: Place) -> Any:
    place.calmrl("train", train_config(), "--out", "run")
    inputs.write_rows("c", 60, 4)
    np.savez("other.npz", image=np.zeros((3, 4)), smell=np.zeros((3, 2)))
    Path("empty").mkdir()
    told = place.calmrl("evaluate", "run", "--data", "c", "--out", "r.json", "--relevant-by", "labels", "--json")
    content = json.loads(told.pop("out"))
    found = {
        "json": told,
        "meta": sorted(content["meta"]),
        "rows": listed(content["rows"]),
        "again": place.calmrl("evaluate", "run", "--data", "c", "--out", "r.json"),
        "column": place.calmrl("evaluate", "run", "--data", "c", "--out", "s.json", "--relevant-by", "label"),
        "nowhere": place.calmrl("evaluate", "nowhere"),
        "empty": place.calmrl("evaluate", "empty"),
        "other widths": place.calmrl("evaluate", "run", "--data", "other.npz", "--out", "s.json"),
    }
    found["report"] = place.calmrl("report", "run")
    place.calmrl("evaluate", "run")
    found["report of results"] = place.calmrl("report", "run")
    found["report again"] = place.calmrl("report", "run")
    return found


@case("training/refused")
def _(place: Place) -> Any:
    train_config()
    files = {
        "method": train_config("1.yaml", method="pmlr"),
        "key": train_config("2.yaml", bach_size=3),
        "source": train_config("3.yaml", sources={"a": {"features": "nowhere"}}),
        "data set": train_config("4.yaml", sources={"a": {"dataset": "stamp"}}),
        "modality": train_config("5.yaml", modalities=["image", "smell"]),
        "model": train_config("6.yaml", model={"kind": "head"}),
        "batch": train_config("7.yaml", batch_size=1),
        "no source": train_config("8.yaml", sources={}),
        "no modality": train_config("9.yaml", modalities=["image"]),
    }
    found = {name: place.calmrl("train", file, "--out", "run") for name, file in files.items()}
    Path("mine").mkdir()
    Path("mine/a.txt").write_text("x")
    return found | {
        "kind": place.calmrl("train", "impute", "--out", "run"),
        "nowhere": place.calmrl("train", "nowhere.yaml", "--out", "run"),
        "mine": place.calmrl("train", "config.yaml", "--out", "mine"),
        "override": place.calmrl("train", "config.yaml", "optimiser.learning_rat=1", "--out", "run"),
        "timeout": place.calmrl("train", "config.yaml", "--out", "run", "--timeout", "0.5"),
    }


# ---- comparisons and reports

TINY: dict[str, Any] = {
    "kind": "compare",
    "source": {
        "dataset": "world",
        "options": {"n": 160, "widths": {"m0": 6, "m1": 5, "m2": 4}, "rate": 0.0, "seed": 1},
        "resplit": {},
    },
    "settings": {"random": {"kind": "mcar", "rate": 0.3}},
    "methods": ["pmrl", "closed-form", "calibrated"],
    "seeds": [0],
    "steps": 4,
    "batch_size": 32,
    "width": 4,
    "trials": 1,
    "workers": 1,
}


@case("training/compared", TRAINED)
def _(place: Place) -> Any:
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    found = {
        "compare": place.calmrl("compare", "tiny.yaml", "--out", "c"),
        "results": results("c/results.json"),
        "page": place.text(Path("c/report.md").read_text("utf-8")).splitlines()[:12],
        "again": place.calmrl("compare", "tiny.yaml", "--out", "c"),
        "method": place.calmrl("compare", "tiny.yaml", "--methods", "pmlr", "--out", "d"),
        "seeds": place.calmrl("compare", "tiny.yaml", "--seeds", "0", "--out", "d"),
        "keep": place.calmrl("compare", "tiny.yaml", "--keep", "worst", "--out", "d"),
        "kind": place.calmrl("compare", "impute", "--out", "d"),
        "nowhere": place.calmrl("compare", "nowhere", "--out", "d"),
        "report": place.calmrl("report", "c", "--out", "both.html"),
        "report of nothing": place.calmrl("report", "nowhere"),
    }
    return found


@case("training/own features compared", TRAINED)
def _(place: Place) -> Any:
    inputs.write_rows("f", 150)
    line = ("--methods", "closed-form,pmrl", "--seeds", "1", "steps=3", "trials=1", "workers=1", "width=4")
    return place.calmrl("compare", "f", *line, "--keep", "best", "--out", "c")


@case("training/tables of a paper")
def _(place: Place) -> Any:
    from calmrl.report import as_markdown, build_page, results_of
    from calmrl.report.table_files import to_csv, to_latex, to_markdown, write_tables
    from calmrl.report.tables import all_tables

    rows = [
        {"dataset": "d", "setting": "s", "method": method, "seed": seed, "task": task, "metric": "R@1", "n": 50}
        | {"value": 10.0 + 3 * place_of + seed + len(task)}
        for place_of, method in enumerate(("pmrl", "aligner"))
        for seed in (0, 1)
        for task in ("a->b", "b->a", "average")
    ]
    content = {"rows": rows, "meta": {"datasets": {"d": {"rows": 500, "modalities": {"a": 3, "b": 4}}}}}
    tables = all_tables(content)
    title, table = next(iter(tables.items()))
    return {
        "page": checksum(as_markdown(build_page(results_of({Path("run/results.json"): content})))),
        "titles": list(tables),
        "markdown": to_markdown(table),
        "latex": to_latex(table, f"tab:{title}"),
        "csv": to_csv(table),
        "written": [Path(file).name for file in write_tables(content, place.path / "tables")],
    }


@case("commands/reproduce", needs=(*MEDIA, "transformers"))
def _(place: Place) -> Any:
    return {
        "list": place.calmrl("reproduce"),
        "unknown": place.calmrl("reproduce", "table99"),
        "nothing there": place.calmrl("reproduce", "table1", "--root", "nowhere", "--check", "--out", "s"),
    }


@case("commands/reproduce on tiny data", TRAINED, (*MEDIA, "transformers"))
def _(place: Place) -> Any:
    made = place.calmrl("reproduce", "figure7", "--smoke", "--out", "r")
    made["wrote"] = [name for name in made["wrote"] if name.count("/") == 1]
    return {"made": made, "check": place.calmrl("reproduce", "figure7", "--smoke", "--check", "--out", "r")}


@case("commands/demo without the extra search", TRAINED)
def _(place: Place) -> Any:
    place.patch.setitem(sys.modules, "lancedb", None)
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY | {"methods": ["pmrl"], "measures": []}))
    return place.calmrl("demo", "--config", "tiny.yaml", "--out", "d", "steps=3")


@case("commands/demo refuses")
def _(place: Place) -> Any:
    Path("mine").mkdir()
    Path("mine/a.txt").write_text("x")
    return {
        "key": place.calmrl("demo", "--out", "d", "step=3"),
        "method": place.calmrl("demo", "--out", "d", "methods=[pmlr]"),
        "mine": place.calmrl("demo", "--out", "mine", "--force"),
        "config": place.calmrl("demo", "--out", "d", "--config", "impute"),
    }
