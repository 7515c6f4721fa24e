"""What commands that train, measure and report pass on: their defaults without options, and options that are given."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest


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
    assert calmrl("train", "stamps", "--out", "o", "--timeout", "0.5")[0] == 2
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


def test_evaluate(calmrl, passed):
    rows = [{"task": "a->b", "metric": metric, "value": 5.0, "n": 1234} for metric in ("R@1", "nmse")]
    made = SimpleNamespace(rows=rows, left_out="c is left out", remarks=["take care"], as_dict=lambda: {"n": 1})
    calls = passed("calmrl.workflows.evaluate.evaluate", made)
    code, out, err = calmrl("evaluate", "run")
    assert (code, out) == (0, "run/results.json\n")
    assert err.count("c is left out") == 2
    assert "1,234" in err
    assert err.endswith("note: take care\n\nthe numbers are in:\n")
    code, out, err = calmrl("evaluate", "run", "--data", "f", "--relevant-by", "labels", "--out", "r.json", "--engine", "ray",
                            "--address", "x", "--force", "--json")  # fmt: skip
    assert json.loads(out) == {"n": 1}
    assert err.endswith("the numbers are in:\nr.json\n")
    assert calls == [
        ((Path("run"), None, Path("run/results.json")),
         {"force": False, "relevant_by": "id", "engine": "local", "address": None}),
        ((Path("run"), Path("f"), Path("r.json")), {"force": True, "relevant_by": "labels", "engine": "ray", "address": "x"}),
    ]  # fmt: skip


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
    assert calmrl("compare", "demo", "--seeds", "0", "--out", "o")[0] == 2


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


def test_report(calmrl, passed):
    files = [Path("o/report.html"), Path("o/report.md"), Path("o/figures/a.svg")]
    calls = passed("calmrl.workflows.report", SimpleNamespace(files=files, results=SimpleNamespace(rows=[1, 2])))
    code, out, err = calmrl("report", "a", "b")
    assert (code, out) == (0, "o/report.html\n")
    assert err == "2 rows of 2 files; wrote o/report.html, report.md and\n1 file in o/figures\n"
    calmrl("report", "a", "--out", "p.html", "--force")
    assert calls == [
        (([Path("a"), Path("b")], None), {"force": False}),
        (([Path("a")], Path("p.html")), {"force": True}),
    ]


def test_demo(calmrl, passed, tmp_path):
    from calmrl._support.output import WRITTEN_BY
    from calmrl.cli.demo import INDEXES

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
