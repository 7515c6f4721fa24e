"""What commands pass on: their defaults without options, and options that are given; and what they print of the result."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from calmrl.errors import InputError

DIAGNOSIS = SimpleNamespace(as_text=lambda: "all is well", as_dict=lambda: {"n": 1})
START = SimpleNamespace(
    survey=SimpleNamespace(lines=lambda: ["two items"]), notes=["take care"], files=[Path("w/a.yaml"), Path("w/b.md")],
    commands=["calmrl train a"],
)  # fmt: skip
PAGE = [Path("o/report.html"), Path("o/report.md"), Path("o/figures/a.svg")]
ROWS = [{"task": "a->b", "metric": metric, "value": 5.0, "n": 1234} for metric in ("R@1", "nmse")]
MEASURED = SimpleNamespace(rows=ROWS, left_out="c is left out", remarks=["take care"], as_dict=lambda: {"n": 1})
RAY = "--engine ray --address y"
HERE, THERE = {"engine": "local", "address": None}, {"engine": "ray", "address": "y"}
EXTRACTED = {"frames": 8, "batch_size": 16, "workers": 2, "dtype": "float16", "device": "cpu", "allow_missing": False}
NOTHING = {"model": None, "base": "auto", "groups": None, "relevant": None, "ocr": False,
           "segments": 10.0}  # fmt: skip
CASES = {  # what is called, what it gives, and lines: words, its arguments, its options, stdout, the end of stderr
    "diagnose": ("calmrl.workflows.diagnose", DIAGNOSIS, [
        ("f", (Path("f"),), {"out": None, "seed": 0, "force": False}, "", "all is well\n"),
        ("f --json", (Path("f"),), {"out": None, "seed": 0, "force": False}, {"n": 1}, "all is well\n"),
        ("f --out o --seed 3 --force", (Path("f"),), {"out": Path("o"), "seed": 3, "force": True}, "o/diagnosis.json\n",
         "all is well\n\nopen o/report.html to see it; the numbers are in:\n"),
        ("f --out o --json", (Path("f"),), {"out": Path("o"), "seed": 0, "force": False}, {"n": 1}, "in:\n"),
    ]),
    "extract": ("calmrl.workflows.extract.extract", [1, 2, 3], [
        ("items.csv --out o", (Path("items.csv"), None, Path("o")),
         {**HERE, **EXTRACTED, "root": None, "captions": None, "layout": None, "media": {}, "ignore": []}, "", "o: 3 items\n"),
        ("items.csv --out o --encoder a=b --root r --captions c --layout msrvtt --media v=w --ignore x --allow-missing "
         f"--frames 1 --batch-size 1 --workers 0 --dtype float32 --device cuda {RAY}",
         (Path("items.csv"), {"a": "b"}, Path("o")),
         {**THERE, "root": Path("r"), "captions": Path("c"), "layout": "msrvtt", "media": {"v": "w"}, "ignore": ["x"],
          "allow_missing": True, "frames": 1, "batch_size": 1, "workers": 0, "dtype": "float32", "device": "cuda"}, "", ""),
    ]),
    "init": ("calmrl.workflows.init.init", START, [
        ("photos --out w", (Path("photos"), Path("w")), {"force": False}, "w\n",
         "two items\ntake care\nwrote a.yaml, b.md to:\nnext:\n  calmrl train a\n"),
        ("photos --out w --force", (Path("photos"), Path("w")), {"force": True}, "w\n", ""),
    ]),
    "evaluate": ("calmrl.workflows.evaluate.evaluate", MEASURED, [
        ("run", (Path("run"), None, Path("run/results.json")), {"force": False, "relevant_by": "id", **HERE},
         "run/results.json\n", "note: take care\n\nthe numbers are in:\n"),
        (f"run --data f --relevant-by labels --out r.json {RAY} --force --json", (Path("run"), Path("f"), Path("r.json")),
         {"force": True, "relevant_by": "labels", **THERE}, {"n": 1}, "the numbers are in:\nr.json\n"),
    ]),
    "report": ("calmrl.workflows.report", SimpleNamespace(files=PAGE, results=SimpleNamespace(rows=[1, 2])), [
        ("a b", ([Path("a"), Path("b")], None), {"force": False}, "o/report.html\n",
         "2 rows of 2 files; wrote o/report.html, report.md and\n1 file in o/figures\n"),
        ("a --out p.html --force", ([Path("a")], Path("p.html")), {"force": True}, "o/report.html\n", ""),
    ]),
    "index": ("calmrl.workflows.index.index", [1, 2], [
        ("photos --out ix", ("photos", "ix", None), {**NOTHING, **HERE}, "",
         'wrote ix: search it with: calmrl search ix "..." (2 items)\n'),
        (f"photos --out ix --encoder image=a --model m --groups g --relevant-by r {RAY} --base none --ocr --segments 0",
         ("photos", "ix", {"image": "a"}),
         {"model": Path("m"), "base": None, "groups": "g", "relevant": "r", "ocr": True, "segments": 0.0,
          **THERE}, "", ""),
    ]),
    "align": ("calmrl.workflows.train.align", None, [
        ("features --out 'my base'", ("features", Path("my base")),
         {"base": None, "groups": None, "relevant": None, "compact": False}, "",
         "wrote my base: index other items beside it with: calmrl index SOURCE --out INDEX --base 'my base'\n"),
        ("f --out b --base x --groups g --relevant-by r --compact", ("f", Path("b")),
         {"base": "x", "groups": "g", "relevant": "r", "compact": True}, "", ""),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("command", CASES)
def test_what_is_passed_on(command, calmrl, passed, tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    address, result, lines = CASES[command]
    calls = passed(address, result)
    for words, arguments, options, printed, said in lines:
        code, out, err = calmrl(command, *shlex.split(words))
        assert code == 0, err
        assert (out if isinstance(printed, str) else json.loads(out)) == printed
        assert err.endswith(said)
        assert calls.pop() == (arguments, options)
        assert "a->b" not in err or err.count("c is left out") == err.count("1,234") == 2  # below each table


@pytest.mark.parametrize(
    "words", ["extract items.csv --frames 0", "extract items.csv --batch-size 0", "extract items.csv --workers -1",
              "train stamps --timeout 0.5", "compare demo --seeds 0"]
)  # fmt: skip
def test_numbers_that_are_too_small(words, calmrl):
    assert calmrl(*words.split(), "--out", "o")[0] == 2


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


@pytest.mark.parametrize("rank", [0, 1])
def test_train(rank, calmrl, passed):
    outcome = SimpleNamespace(steps=40, seconds=8.0, best=12.34, best_step=30, latent_seconds=2.0)
    joined, left = passed("calmrl._support.distributed.join", (2, rank)), passed("calmrl._support.distributed.leave")
    calls = passed("calmrl.workflows.train.train", outcome)
    code, out, err = calmrl("train", "stamps", "--out", "o")
    assert (code, len(left)) == (0, 1)
    if rank:
        assert (out, err) == ("", "")
    else:
        assert out == "o/model\n"
        assert err.splitlines() == [
            "40 steps in 8.0 s",
            "best MRR: 12.3 at step 30",
            "the latent model took 25 % of the step time (updates and imputing, without the backward pass)",
            'calmrl.load("o") opens the model, which is in',
        ]
    calmrl("train", "stamps", "--out", "o", "batch_size=7", "--resume", "--timeout", "1")
    assert joined == [((600,), {}), ((1,), {})]
    assert [options for _, options in calls] == [{"resume": False, "timeout": 600}, {"resume": True, "timeout": 1}]
    assert calls[1][0][0].batch_size == 7
    outcome.steps, outcome.best, outcome.latent_seconds, outcome.seconds = 0, None, 0.0, 0.0
    err = calmrl("train", "stamps", "--out", "o")[2]
    if not rank:
        assert err.startswith("calibrated is in closed form: no steps; fitted in 0 s\ncalmrl.load")


def test_a_training_that_is_stopped(calmrl, passed, monkeypatch):
    from calmrl.training.plan import Interrupted

    passed("calmrl._support.distributed.join", (1, 0))

    def stopped(*arguments, **options):
        raise Interrupted("stopped at step 3; continue with `resume=True`")

    monkeypatch.setattr(import_module("calmrl.workflows.train"), "train", stopped)
    code, out, err = calmrl("train", "stamps", "--out", "o")
    assert (code, out, err) == (1, "", "calmrl: stopped at step 3; continue with --resume\n")
    monkeypatch.setattr(import_module("calmrl.paper.reproduce.run"), "reproduce", stopped)
    code, out, err = calmrl("reproduce", "table1", "--out", "o")
    assert (code, err) == (1, "calmrl: stopped at step 3; the same command continues from there\n")


def test_compare(calmrl, passed):
    calls = passed("calmrl.cli.compare.compare_and_show")
    assert calmrl("compare", "demo", "--out", "o")[0] == 0
    calmrl("compare", "demo", "steps=7", "--methods", "aligner,pmrl", "--seeds", "2", "--relevant-by", "labels",
           "--keep", "best", "--json", "--out", "o")  # fmt: skip
    (first, plain), (second, given) = calls
    assert (plain, given) == ({"keep": None, "json": False}, {"keep": "best", "json": True})
    assert first[1:] == (Path("o"), "calmrl compare demo --out o")
    config = second[0]
    assert (config.steps, list(config.methods), list(config.seeds), config.relevant_by) == (
        7,
        ["aligner", "pmrl"],
        [0, 1],
        "labels",
    )
    assert second[2] == (
        "calmrl compare demo steps=7 'methods=[aligner,pmrl]' 'seeds=[0, 1]' relevant_by=labels --keep best --out o"
    )


def test_features_are_compared_as_they_are(calmrl, passed, tmp_path):
    own = passed("calmrl.workflows.compare.plan.config_for", "config")
    shown = passed("calmrl.cli.compare.compare_and_show")
    (tmp_path / "f.npz").touch()
    calmrl("compare", tmp_path / "f.npz", "--out", "o")
    assert own == [((str(tmp_path / "f.npz"), []), {})]
    assert shown[0][0][0] == "config"
    for name in ("c.yaml", "c.yml"):
        (tmp_path / name).write_text("kind: compare\n")
        calmrl("compare", tmp_path / name, "--out", "o")
    assert len(own) == 1


def test_demo(calmrl, passed, tmp_path):
    from calmrl._support.output import WRITTEN_BY
    from calmrl.cli.compare import INDEXES

    hits = [SimpleNamespace(text="a dog.", id="x"), SimpleNamespace(text=None, id="y")]
    expected = {"text->image": {"R@1": 61.6, "R@10": 90.4, "n": 300}}
    emoji = SimpleNamespace(items=1234, expected=expected, searches=[SimpleNamespace(query="weather", hits=hits)])
    extra_jobs = {INDEXES: (emoji, SimpleNamespace(items=5, searches=[]))}
    calls = passed("calmrl.cli.compare.compare_and_show", SimpleNamespace(extra_jobs=extra_jobs))
    out = tmp_path / "o"
    out.mkdir()
    (out / "config.yaml").write_text(WRITTEN_BY)
    code, _, err = calmrl("demo", "--out", out, "steps=50")
    assert code == 0
    assert (out / "config.yaml").is_file()  # it goes on there
    assert "  weather: a dog, y\n" in err
    assert "1,234 items. Expected for a new item: its name finds its picture first in 62 %" in " ".join(err.split())
    assert "3. Search: 5 stamps by a sound" in err
    assert f'calmrl search {shlex.quote(f"{out}/emoji.index")} "weather"' in err
    (config, where, command), options = calls[0]
    assert (config.steps, where, command) == (50, out, f"calmrl demo --out {shlex.quote(str(out))} steps=50")
    given = {name: part.args for name, part in options["extra_jobs"].items()}
    assert given == {INDEXES: (out / "emoji.index", out / "stamps.index")}
    extra_jobs[INDEXES] = "install calmrl[search]"
    assert "\nskipped: " in calmrl("demo", "--out", out)[2]
    assert calmrl("demo", "--out", out, "--force")[0] == 0
    assert not out.exists()
    assert calmrl("demo", "--out", out, "--force")[0] == 0  # nothing to remove
    out.mkdir()
    (out / "letter").touch()
    assert calmrl("demo", "--out", out, "--force")[0] == 2
    assert (out / "letter").exists()


def test_reproduce(calmrl, passed):
    needs = [SimpleNamespace(there=True, __str__=lambda: "")]
    made = SimpleNamespace(
        table=SimpleNamespace(name="table1", title="T"), needs=needs, runs={"x": True, "y": False}, files=[Path("o/t.md")],
        as_dict=lambda: {"n": 1}, notes=[],
    )  # fmt: skip
    calls = passed("calmrl.paper.reproduce.run.reproduce", made)
    code, out, _ = calmrl("reproduce", "table1", "--check")
    assert (code, out) == (0, "finished  x\nto train  y\n")
    needs.append(SimpleNamespace(there=False))
    code, out, err = calmrl("reproduce", "table1", "--check")
    assert code == 2
    assert err.endswith("calmrl: table1 needs what is missing above\n")
    code, out, err = calmrl("reproduce", "table1", "--root", "r", "--out", "o", "--smoke", "--device", "cpu", "--json")
    assert (code, json.loads(out)) == (0, {"n": 1})
    assert err == "\nthe numbers are in:\no/t.md\n"
    assert calls[1:] == [
        (("table1", None, Path("reproduced")), {"smoke": False, "check_only": True, "device": "auto"}),
        (("table1", Path("r"), Path("o")), {"smoke": True, "check_only": False, "device": "cpu"}),
    ]
    assert calmrl("reproduce", "--json")[1] == calmrl("ls", "tables", "--json")[1]
