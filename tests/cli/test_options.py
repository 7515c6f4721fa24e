"""What each command passes on: its defaults without options, and every option that is given. Nothing is computed."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import calmrl.search
import calmrl.serve
from calmrl.errors import InputError

HIT = {"id": "a", "similarity": 0.5, "certainty": 0.25, "text": "two\n words", "paths": {"image": "a.png"}}


@pytest.fixture
def passed(monkeypatch):
    """Replace a function: (address, result) -> list of the (arguments, options) that it is called with."""

    def replace(address: str, result: object = None) -> list[tuple[tuple, dict]]:
        calls: list[tuple[tuple, dict]] = []

        def stand_in(*arguments, **options):
            calls.append((arguments, {n: v for n, v in options.items() if n not in ("progress", "tell", "command")}))
            return result

        place, _, name = address.rpartition(".")
        monkeypatch.setattr(import_module(place), name, stand_in)  # a package may hold a function of a module's name
        return calls

    return replace


class Index:
    """Keeps what it is asked."""

    def __init__(self, hits=(), since=None) -> None:
        self.hits, self.since, self.asked = list(hits), since, []

    def __len__(self):
        return 7

    def growth(self):
        return self.since

    def search(self, **given):
        self.asked.append({name: value for name, value in given.items() if value is not None})
        return self.hits

    def add(self, source, **options):
        self.asked.append((source, {name: value for name, value in options.items() if name != "progress"}))
        return calmrl.search.update.Change(added=["x"])

    def remove(self, ids):
        self.asked.append(ids)
        return len(ids)

    def file(self, id, modality):
        return Path("/root") / f"{id}.{modality}"


@pytest.fixture
def index(monkeypatch):
    def use(*hits, since=None):
        opened = Index(hits, since)
        monkeypatch.setattr(calmrl.search.Index, "open", lambda path: opened)
        return opened

    return use


def hit(**changes):
    return calmrl.search.Hit(**(HIT | changes))


# ---- the index


def test_add(calmrl, index):
    opened = index()
    code, out, err = calmrl("add", "ix", "photos")
    assert (code, out) == (0, "")
    assert "1 added, 0 changed, 0 unchanged" in err
    _, out, _ = calmrl("add", "ix", "photos", "--prune", "--removed", "--json")
    assert json.loads(out)["added"] == ["x"]
    assert opened.asked == [
        ("photos", {"prune": False, "removed": False}),
        ("photos", {"prune": True, "removed": True}),
    ]


def test_remove(calmrl, index):
    opened = index()
    assert calmrl("remove", "ix", "a", "b") == (0, "", "removed 2 items; 7 are left\n")
    assert opened.asked == [["a", "b"]]


def test_serve(calmrl, index, passed):
    index()
    calls = passed("calmrl.serve.run_server")
    assert calmrl("serve", "ix")[0] == 0
    assert calmrl("serve", "ix", "--host", "::", "--port", "0", "--allow-add")[0] == 0
    assert calmrl("serve", "ix", "--port", "65535")[0] == 0
    assert [options for _, options in calls] == [
        {"host": "127.0.0.1", "port": 8000, "allow_add": False},
        {"host": "::", "port": 0, "allow_add": True},
        {"host": "127.0.0.1", "port": 65535, "allow_add": False},
    ]
    for port in ("-1", "65536"):
        assert calmrl("serve", "ix", "--port", port)[0] == 2


def test_index(calmrl, passed):
    calls = passed("calmrl.workflows.index.index", [1, 2])
    code, _, err = calmrl("index", "photos", "--out", "ix")
    assert code == 0
    assert 'wrote ix: search it with: calmrl search ix "..." (2 items)' in err
    calmrl("index", "photos", "--out", "ix", "--encoder", "image=a", "--model", "m", "--groups", "g", "--relevant-by", "r",
           "--engine", "ray", "--address", "x")  # fmt: skip
    nothing = {"model": None, "groups": None, "relevant": None, "engine": "local", "address": None}
    given = {"model": Path("m"), "groups": "g", "relevant": "r", "engine": "ray", "address": "x"}
    assert calls == [(("photos", "ix", None), nothing), (("photos", "ix", {"image": "a"}), given)]


def test_search_by_default(calmrl, index):
    opened = index(hit())
    code, out, err = calmrl("search", "ix", "2:dog - fruit")
    assert (code, out) == (0, " 0.500  0.25  a  []  two words  a.png\n")
    assert err == "similarity, certainty, id, [what was observed], caption, file:\n"
    assert opened.asked == [{"text": [(2.0, "dog"), (-1.0, "fruit")], "k": 10, "hubs": False}]


def test_search_with_everything(calmrl, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool.jpg").touch()
    opened = index(hit())
    code, out, err = calmrl(
        "search", "ix", "dog - ./pool.jpg", "--image", "i.png", "--sound", "s.wav", "--with", "speech=v=w.wav", "--like", "b",
        "--having", "image, text", "--lacking", "sound", "--where", "w", "-k", "3", "--hubs", "--json",
    )  # fmt: skip
    assert code == 0
    assert err == ""
    assert opened.asked == [
        {
            "text": [(1.0, "dog")], "image": ["i.png", (-1.0, "pool.jpg")], "sound": ["s.wav"], "speech": ["v=w.wav"],
            "like": ["b"], "having": ["image", "text"], "lacking": ["sound"], "where": "w", "k": 3, "hubs": True,
        }
    ]  # fmt: skip
    assert json.loads(out) == {"hubs": "csls", "hits": [HIT | {"label": None, "modalities": []}]}
    _, out, _ = calmrl("search", "ix", "dog", "--json")
    assert json.loads(out)["hubs"] is None


def test_search_says_what_is_new_and_what_a_score_is(calmrl, index):
    index(hit(text=None, paths={}, certainty=None), since=SimpleNamespace(sentence=lambda path: f"more in {path}"))
    _, out, err = calmrl("search", "ix", "dog", "--hubs")
    assert out == " 0.500  0.00  a  []\n"
    assert err.splitlines()[:2] == ["more in ix", "similarity is corrected for hubs (CSLS): 2 cos - r(query) - r(item)"]
    index()
    nothing = "nothing was found: no item fulfils --having, --lacking and --where\n"
    assert calmrl("search", "ix", "dog") == (0, "", nothing)


def test_a_long_caption_is_cut(calmrl, index):
    index(hit(text="x" * 90, paths={}, modalities=("a", "b")))
    assert calmrl("search", "ix", "dog")[1] == f" 0.500  0.25  a  [a, b]  {'x' * 80}\n"


def test_paths_of_hits(calmrl, index):
    index(hit(paths={"image": "i", "text": "t"}), hit(id="b", paths={"image": "i"}), hit(id="c", paths={}))
    code, out, err = calmrl("search", "ix", "dog", "--paths", "--having", "text")
    assert (code, out) == (0, "/root/a.text\n/root/b.image\n")
    assert err == "1 of 3 hits have no file\n"
    index(hit())
    assert calmrl("search", "ix", "dog", "--paths") == (0, "/root/a.image\n", "")


@pytest.mark.parametrize("given", ["speech", "=a", "speech="])
def test_what_is_no_modality_with_a_value(calmrl, index, given):
    index()
    code, _, err = calmrl("search", "ix", "--with", given)
    assert code == 2
    assert f"--with {given} is not MODALITY=VALUE; for instance --with speech=voice.wav" in err


def test_a_file_of_no_modality(calmrl, index, tmp_path):
    index()
    for name in ("a.pdf", "a.txt"):
        (tmp_path / name).touch()
        code, _, err = calmrl("search", "ix", tmp_path / name)
        assert code == 2
        assert "is no picture, film or sound by its name; ask with --with MODALITY=" in err


# ---- features


IMPUTED = {
    "weights": {"a": {"mean": 0.995, "knn": 0.005, "mice": 0.0049}, "b": {"mean": 1.0}}, "error": 0.5, "held_out": 9,
    "error_by_modality": {"a": 0.25, "b": None}, "coverage_by_modality": {}, "held_out_by_modality": {},
}  # fmt: skip


def test_impute(calmrl, passed, monkeypatch):
    from dataclasses import make_dataclass

    names = ("choice", "damaged", "imputed", "blocks", "rows")
    made = make_dataclass("Made", names)(IMPUTED, {"a": 2, "b": 0}, 3, 8, 4)
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
        "imputed 3 of 8 value blocks in 4 rows; wrote o",
    ]
    made.choice, made.damaged = IMPUTED | {"error": None}, {"a": 0}
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
    assert err == "all is well\n\nopen o/report.html to see it; the numbers are in\n"
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
    from calmrl.cli.collection_options import collection_of, pairs

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
    assert err == "two items\ntake care\nwrote a.yaml, b.md to\nnext:\n  calmrl train a\n"
    calmrl("init", "photos", "--out", "w", "--force")
    assert calls == [((Path("photos"), Path("w")), {"force": force}) for force in (False, True)]


# ---- training and results


@pytest.mark.parametrize("rank", [0, 1])
def test_train(rank, calmrl, passed):
    outcome = SimpleNamespace(steps=40, seconds=8.0, best=12.34, best_step=30, latent_seconds=2.0)
    joined, left = passed("calmrl._support.launched.join", (2, rank)), passed("calmrl._support.launched.leave")
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
    from calmrl.training.stop import Interrupted

    passed("calmrl._support.launched.join", (1, 0))

    def stopped(*arguments, **options):
        raise Interrupted("stopped at step 3; go on with --resume")

    monkeypatch.setattr(import_module("calmrl.workflows.train"), "train", stopped)
    code, out, err = calmrl("train", "stamps", "--out", "o")
    assert (code, out, err) == (1, "", "calmrl: stopped at step 3; go on with --resume\n")
    monkeypatch.setattr(import_module("calmrl.workflows.reproduce.run"), "reproduce", stopped)
    code, out, err = calmrl("reproduce", "table1", "--out", "o")
    assert (code, err) == (1, "calmrl: stopped at step 3; the same command goes on from there\n")


def test_evaluate(calmrl, passed):
    rows = [{"task": "a->b", "metric": metric, "value": 5.0, "n": 1234} for metric in ("R@1", "nmse")]
    made = SimpleNamespace(rows=rows, left_out="c is left out", remarks=["take care"], as_dict=lambda: {"n": 1})
    calls = passed("calmrl.workflows.evaluate.evaluate", made)
    code, out, err = calmrl("evaluate", "run")
    assert (code, out) == (0, "run/results.json\n")
    assert err.count("c is left out") == 2
    assert "1,234" in err
    assert err.endswith("note: take care\n\nthe numbers are in\n")
    code, out, err = calmrl("evaluate", "run", "--data", "f", "--relevant-by", "labels", "--out", "r.json", "--engine", "ray",
                            "--address", "x", "--force", "--json")  # fmt: skip
    assert json.loads(out) == {"n": 1}
    assert err.endswith("the numbers are in\nr.json\n")
    assert calls == [
        ((Path("run"), None, Path("run/results.json")),
         {"force": False, "relevant_by": "id", "engine": "local", "address": None}),
        ((Path("run"), Path("f"), Path("r.json")), {"force": True, "relevant_by": "labels", "engine": "ray", "address": "x"}),
    ]  # fmt: skip


def test_compare(calmrl, passed):
    calls = passed("calmrl.cli.comparison_table.compare_and_show")
    assert calmrl("compare", "demo", "--out", "o")[0] == 0
    calmrl("compare", "demo", "steps=7", "--methods", "calmrl,pmrl", "--seeds", "2", "--relevant-by", "labels",
           "--keep", "best", "--json", "--out", "o")  # fmt: skip
    (first, plain), (second, given) = calls
    assert (plain, given) == ({"keep": None, "json": False}, {"keep": "best", "json": True})
    assert first[1:] == (Path("o"), "calmrl compare demo --out o")
    config = second[0]
    assert (config.steps, list(config.methods), list(config.seeds), config.relevant_by) == (
        7,
        ["calmrl", "pmrl"],
        [0, 1],
        "labels",
    )
    assert second[2] == (
        "calmrl compare demo steps=7 'methods=[calmrl,pmrl]' 'seeds=[0, 1]' relevant_by=labels --keep best --out o"
    )
    assert calmrl("compare", "demo", "--seeds", "0", "--out", "o")[0] == 2


def test_features_are_compared_as_they_are(calmrl, passed, tmp_path):
    own = passed("calmrl.workflows.compare.own_data.config_for", "config")
    shown = passed("calmrl.cli.comparison_table.compare_and_show")
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
    assert err == "2 rows of 2 file(s); wrote o/report.html, report.md and\n1 files in o/figures\n"
    calmrl("report", "a", "--out", "p.html", "--force")
    assert calls == [
        (([Path("a"), Path("b")], None), {"force": False}),
        (([Path("a")], Path("p.html")), {"force": True}),
    ]


def test_demo(calmrl, passed, tmp_path):
    from calmrl._support.output import WRITTEN_BY

    hits = [SimpleNamespace(text="a dog.", id="x"), SimpleNamespace(text=None, id="y")]
    expected = {"text->image": {"R@1": 61.6, "R@10": 90.4, "n": 300}}
    emoji = SimpleNamespace(items=1234, expected=expected, searches=[SimpleNamespace(query="weather", hits=hits)])
    beside = {"the index of emoji": emoji, "the index of stamps": SimpleNamespace(items=5, searches=[])}
    calls = passed("calmrl.cli.comparison_table.compare_and_show", SimpleNamespace(beside=beside))
    out = tmp_path / "o"
    out.mkdir()
    (out / "config.yaml").write_text(WRITTEN_BY)
    code, _, err = calmrl("demo", "--out", out, "steps=50")
    assert code == 0
    assert (out / "config.yaml").is_file()  # it goes on there
    assert "  weather: a dog, y\n" in err
    assert "1,234 items. Expected for a new item: its name finds its picture first in 62 %" in " ".join(err.split())
    assert "3. Search: 5 stamps by a sound" in err
    assert f'calmrl search {out}/emoji.index "weather"' in err
    (config, where, command), options = calls[0]
    assert (config.steps, where, command) == (50, out, f"calmrl demo --out {out} steps=50")
    assert {name: part.args for name, part in options["beside"].items()} == {
        "the index of emoji": (out / "emoji.index",), "the index of stamps": (out / "stamps.index",),
    }  # fmt: skip
    for one in beside:
        kept, beside[one] = beside[one], "install calmrl[search]"
        assert "\nleft out: " in calmrl("demo", "--out", out)[2]
        beside[one] = kept
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
        exhibit=SimpleNamespace(name="table1", title="T"), needs=needs, runs={"x": True, "y": False}, files=[Path("o/t.md")],
        as_dict=lambda: {"n": 1}, notes=[],
    )  # fmt: skip
    calls = passed("calmrl.workflows.reproduce.run.reproduce", made)
    code, out, _ = calmrl("reproduce", "table1", "--check")
    assert (code, out) == (0, "finished  x\nto train  y\n")
    needs.append(SimpleNamespace(there=False))
    code, out, err = calmrl("reproduce", "table1", "--check")
    assert code == 2
    assert err.endswith("calmrl: table1 needs what is missing above\n")
    code, out, err = calmrl("reproduce", "table1", "--root", "r", "--out", "o", "--smoke", "--device", "cpu", "--json")
    assert (code, json.loads(out)) == (0, {"n": 1})
    assert err == "\nthe numbers are in\no/t.md\n"
    assert calls[1:] == [
        (("table1", None, Path("reproduced")), {"smoke": False, "check_only": True, "device": "auto"}),
        (("table1", Path("r"), Path("o")), {"smoke": True, "check_only": False, "device": "cpu"}),
    ]
    assert calmrl("reproduce", "--json")[1] == calmrl("ls", "tables", "--json")[1]


# ---- looking


def test_check_of_sources(calmrl, passed, tmp_path):
    (tmp_path / "items.csv").write_text("id\n")
    calls = passed("calmrl.workflows.check_source.check_source", [])
    for path in (tmp_path, tmp_path / "items.csv"):
        assert calmrl("check", path) == (0, "", f"{path}: nothing is wrong\n")
    assert [arguments for arguments, _ in calls] == [(tmp_path,), (tmp_path / "items.csv",)]
    assert json.loads(calmrl("check", tmp_path, "--json")[1]) == {"ok": True, "problems": [], "config": None}
    passed("calmrl.workflows.check_source.check_source", ["a is bad", "b is bad"])
    code, out, err = calmrl("check", tmp_path)
    assert (code, out, err) == (2, "", f"a is bad\nb is bad\ncalmrl: {tmp_path}: 2 kinds of problems\n")
    code, out, _ = calmrl("check", tmp_path, "--json")
    assert (code, json.loads(out)) == (2, {"ok": False, "problems": ["a is bad", "b is bad"], "config": None})
    code, _, err = calmrl("check", tmp_path, "seed=3")
    assert code == 2
    assert "is no config, so seed=3 changes nothing; leave it out" in err
    (tmp_path / "c.yml").write_text("kind: impute\n")
    assert "is a valid impute config" in calmrl("check", tmp_path / "c.yml")[2]
