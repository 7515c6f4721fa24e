"""What commands on features and files pass on: their defaults without options, and options that are given."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from calmrl.errors import InputError

IMPUTED = {
    "weights": {"a": {"mean": 0.995, "knn": 0.005, "mice": 0.0049}, "b": {"mean": 1.0}}, "error": 0.5, "held_out": 9,
    "error_by_modality": {"a": 0.25, "b": None}, "coverage_by_modality": {}, "held_out_by_modality": {},
}  # fmt: skip


def test_impute(calmrl, passed, monkeypatch):
    from dataclasses import make_dataclass

    names = ("choice", "damaged", "holes", "imputed", "blocks", "rows")
    made = make_dataclass("Made", names)(IMPUTED, {"a": 2, "b": 0}, {"b": 5}, 3, 8, 4)
    calls = passed("calmrl.workflows.impute.impute", made)
    monkeypatch.setattr(import_module("calmrl.workflows.impute"), "imputation_warnings", lambda choice: ["take care"])
    code, out, err = calmrl("impute", "f", "--out", "o")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        "chosen on 9 held-out blocks, error 0.500 (1 = the column means):",
        "  a: error 0.250; 100 % mean, 0 % knn",
        "  b: 100 % mean",
        "warning: take care",
        "warning: value blocks that are not finite, counted as missing: a 2",
        "single values that were missing inside observed value blocks, imputed: b 5",
        "imputed 3 of 8 value blocks in 4 rows; wrote o",
    ]
    made.choice, made.damaged, made.holes = IMPUTED | {"error": None}, {"a": 0}, {}
    _, out, err = calmrl("impute", "f", "--out", "o", "imputer.method=mean", "--std", "--allow-missing", "--force", "--json",
                         "--engine", "ray", "--address", "x")  # fmt: skip
    assert json.loads(out)["imputed"] == 3
    assert "not finite" not in err
    assert err.startswith("too few blocks to compare imputers:\n")
    configs = [arguments[2] for arguments, _ in calls]
    assert [(config.std, config.imputer.method) for config in configs] == [(False, "auto"), (True, "mean")]
    assert [options for _, options in calls] == [
        {"engine": "local", "address": None, "allow_missing": False, "force": False},
        {"engine": "ray", "address": "x", "allow_missing": True, "force": True},
    ]
    made.choice = None
    assert calmrl("impute", "f", "--out", "o")[2] == "imputed 3 of 8 value blocks in 4 rows; wrote o\n"


def test_diagnose(calmrl, passed, monkeypatch):
    made = SimpleNamespace(as_text=lambda: "all is well", as_dict=lambda: {"n": 1})
    calls = passed("calmrl.workflows.diagnose", made)
    assert calmrl("diagnose", "f") == (0, "", "all is well\n")
    assert json.loads(calmrl("diagnose", "f", "--json")[1]) == {"n": 1}
    code, out, err = calmrl("diagnose", "f", "--out", "o", "--seed", "3", "--force")
    assert (code, out) == (0, "o/diagnosis.json\n")
    assert err == "all is well\n\nopen o/report.html to see it; the numbers are in:\n"
    assert json.loads(calmrl("diagnose", "f", "--out", "o", "--json")[1]) == {"n": 1}
    assert [options for _, options in calls][:3] == [
        {"out": None, "seed": 0, "force": False},
        {"out": None, "seed": 0, "force": False},
        {"out": Path("o"), "seed": 3, "force": True},
    ]


def test_extract(calmrl, passed):
    calls = passed("calmrl.workflows.extract.extract", [1, 2, 3])
    assert calmrl("extract", "items.csv", "--out", "o") == (0, "", "o: 3 items\n")
    calmrl("extract", "items.csv", "--out", "o", "--encoder", "a=b", "--root", "r", "--captions", "c", "--layout", "msrvtt",
           "--media", "v=w", "--ignore", "x", "--allow-missing", "--frames", "1", "--batch-size", "1", "--workers", "0",
           "--dtype", "float32", "--device", "cuda", "--engine", "ray", "--address", "y")  # fmt: skip
    (first, plain), (second, given) = calls
    assert first == (Path("items.csv"), None, Path("o"))
    assert second == (Path("items.csv"), {"a": "b"}, Path("o"))
    assert (plain["frames"], plain["batch_size"], plain["workers"], plain["dtype"], plain["device"]) == (
        8,
        16,
        2,
        "float16",
        "cpu",
    )
    assert (plain["allow_missing"], plain["engine"], plain["address"], plain["media"]) == (False, "local", None, {})
    assert given == {
        "root": Path("r"), "captions": Path("c"), "layout": "msrvtt", "media": {"v": "w"}, "ignore": ["x"],
        "allow_missing": True, "frames": 1, "batch_size": 1, "workers": 0, "dtype": "float32", "device": "cuda",
        "engine": "ray", "address": "y",
    }  # fmt: skip
    for option in ("--frames", "--batch-size"):
        assert calmrl("extract", "items.csv", "--out", "o", option, "0")[0] == 2
    assert calmrl("extract", "items.csv", "--out", "o", "--workers", "-1")[0] == 2


def test_extract_of_a_config_takes_no_collection(calmrl, tmp_path):
    for name in ("a.yaml", "a.yml"):
        code, _, err = calmrl("extract", tmp_path / name, "--out", "o", "--collection", "msrvtt")
        assert code == 2
        assert "is a config; name the collection in it" in err


def test_options_of_collections(calmrl):
    from calmrl.cli.shared_options import collection_of, pairs

    assert collection_of("r", None, None, None) is None
    for given in ((Path("a"), None), (None, ["vision=v"])):
        with pytest.raises(InputError, match="--annotations and --media go with --collection; name one"):
            collection_of("r", None, *given)
    named = collection_of("r", "msrvtt:1k-a", Path("a"), ["vision=v"])
    assert (named.name, str(named.root), named.split) == ("msrvtt", "r", "1k-a")
    assert pairs(["a=b=c", "d=e"], "--x", "k=v") == {"a": "b=c", "d": "e"}
    for wrong in ("a", "=b", "a="):
        with pytest.raises(InputError, match=f"--x {wrong} is not MODALITY=VALUE; for instance --x k=v"):
            pairs([wrong], "--x", "k=v")
    with pytest.raises(InputError, match="--x names a twice; give it once"):
        pairs(["a=1", "a=2"], "--x", "k=v")


def test_init(calmrl, passed):
    made = SimpleNamespace(
        survey=SimpleNamespace(lines=lambda: ["two items"]), notes=["take care"], files=[Path("w/a.yaml"), Path("w/b.md")],
        commands=["calmrl train a"],
    )  # fmt: skip
    calls = passed("calmrl.workflows.init.init", made)
    code, out, err = calmrl("init", "photos", "--out", "w")
    assert (code, out) == (0, "w\n")
    assert err == "two items\ntake care\nwrote a.yaml, b.md to:\nnext:\n  calmrl train a\n"
    calmrl("init", "photos", "--out", "w", "--force")
    assert calls == [((Path("photos"), Path("w")), {"force": force}) for force in (False, True)]


def test_check_of_sources(calmrl, passed, tmp_path):
    (tmp_path / "items.csv").write_text("id\n")
    calls = passed("calmrl.workflows.check.check_source", [])
    for path in (tmp_path, tmp_path / "items.csv"):
        assert calmrl("check", path) == (0, "", f"{path}: nothing is wrong\n")
    assert [arguments for arguments, _ in calls] == [(tmp_path,), (tmp_path / "items.csv",)]
    assert json.loads(calmrl("check", tmp_path, "--json")[1]) == {"ok": True, "problems": [], "config": None}
    passed("calmrl.workflows.check.check_source", ["a is bad", "b is bad"])
    code, out, err = calmrl("check", tmp_path)
    assert (code, out, err) == (2, "", f"a is bad\nb is bad\ncalmrl: {tmp_path}: 2 kinds of problems\n")
    code, out, _ = calmrl("check", tmp_path, "--json")
    assert (code, json.loads(out)) == (2, {"ok": False, "problems": ["a is bad", "b is bad"], "config": None})
    code, _, err = calmrl("check", tmp_path, "seed=3")
    assert code == 2
    assert "is not a config, so seed=3 changes nothing; leave it out" in err
    (tmp_path / "c.yml").write_text("kind: impute\n")
    assert "is a valid impute config" in calmrl("check", tmp_path / "c.yml")[2]
