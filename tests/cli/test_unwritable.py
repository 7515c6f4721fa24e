"""Every command that writes refuses a place that cannot be written to: a sentence, exit code 2, before the work."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import tempfile
from importlib import import_module

import numpy as np
import pytest

import calmrl.data.features.directory as feature_files
import calmrl.data.features.writer as feature_writer
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from tests.support.train_data import config_file, last_json, python

VERBS = {  # what comes before the place to write to; a directory or a file is written
    "impute": (["impute", "features", "--out"], "directory"),
    "diagnose": (["diagnose", "features", "--out"], "directory"),
    "train": (["train", "train.yaml", "--out"], "directory"),
    "resume": (["train", "train.yaml", "--resume", "--out"], "directory"),
    "compare": (["compare", "features", "--out"], "directory"),
    "demo": (["demo", "--out"], "directory"),
    "extract": (["extract", "items.csv", "--out"], "directory"),
    "index": (["index", "features", "--out"], "directory"),
    "init": (["init", "features", "--out"], "directory"),
    "evaluate": (["evaluate", "run", "--out"], "file"),
    "report": (["report", "run", "--out"], "file"),
    "cp": (["cp", "impute"], "file"),
}
PLACES = {
    "below a file": ("file/out.html", "is a file, so"),
    "a dangling link": ("dangling", "is a link that leads nowhere"),
    "a link loop": ("loop", "is a link that leads nowhere"),
    "below a dangling link": ("dangling/out.html", "is a link that leads nowhere, so"),
    "a name of 300 characters": ("x" * 300, "too long for an output"),
    "a name that leaves no room for drafts": ("x" * 250, "too long for an output"),
    "a long path": ("/".join(["x" * 200] * 21), "is a path of"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with features, configs, and places that cannot be written to."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(30, 3)).astype(np.float32) for name in ("image", "text")}
    present = rng.random((30, 2)) > 0.3
    present[:, 0] |= ~present.any(1)
    write_features("features", z, present)
    (tmp_path / "items.csv").write_text("id,text\na,hello\n")
    config_file(tmp_path).rename("train.yaml")
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.fixture
def no_work(monkeypatch) -> None:
    """Anything that computes or reads much is an error."""

    def work(*arguments, **options):
        raise AssertionError("work was begun")

    for name in (
        "impute.make_imputer", "diagnose.run.examine", "compare.run.plan", "evaluate._evaluate", "extract.EncoderSet",
        "init.survey", "report.read_results", "train.open_data",
    ):  # fmt: skip
        module, _, function = f"calmrl.workflows.{name}".rpartition(".")
        monkeypatch.setattr(import_module(module), function, work)  # a package may hold a function of a module's name
    monkeypatch.setattr("calmrl.search.build.open_source", work)


@pytest.mark.parametrize("verb", VERBS)
def test_places_that_cannot_be_written_to(verb, place, calmrl, no_work):
    before = sorted(entry.name for entry in place.iterdir())
    for what, (target, sentence) in PLACES.items():
        code, out, err = calmrl(*VERBS[verb][0], target)
        assert (code, out) == (2, ""), (what, err)
        assert sentence in err, (what, err)
        assert "Error" not in err, what
        assert sorted(entry.name for entry in place.iterdir()) == before, what


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("verb", VERBS)
def test_disks_that_cannot_be_written_to(verb, number, place, calmrl, no_work, monkeypatch):
    def refuses(*arguments, **options):
        raise OSError(number, os.strerror(number), options.get("dir"))

    monkeypatch.setattr(tempfile, "mkdtemp", refuses)
    code, out, err = calmrl(*VERBS[verb][0], "new.html" if VERBS[verb][1] == "file" else "new")
    assert (code, out) == (2, ""), err
    assert os.strerror(number).lower() in err.lower()
    assert not (place / "new").exists()


@pytest.mark.parametrize("verb", [name for name, (_, kind) in VERBS.items() if kind == "directory" and name != "init"])
def test_a_directory_is_not_named_like_a_file(verb, place, calmrl, no_work):
    code, _, err = calmrl(*VERBS[verb][0], "done.parquet")
    assert code == 2
    assert "done.parquet ends in .parquet, as a file does, but a directory is written" in err
    assert not (place / "done.parquet").exists()


@pytest.mark.parametrize("verb", ["train", "compare", "extract", "index"])
def test_nobody_advises_an_option_that_is_not_there(verb, place, calmrl):
    (place / "taken").mkdir()
    (place / "taken" / "mine.txt").write_text("mine")
    code, _, err = calmrl(*VERBS[verb][0], "taken")
    assert code == 2
    assert "--force" not in err
    assert (place / "taken" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("where", ["write_all", "checksum"])
def test_a_disk_that_fills_up_while_imputing(where, place, calmrl, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(entry.name for entry in place.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(feature_files if where == "write_all" else feature_writer, where, full)
        code, _, err = calmrl("impute", "features", "--out", "imputed", "imputer.method=mean")
    assert code == 2
    assert "imputed could not be written: no space left on device; make room, then run the same command again" in err
    assert sorted(entry.name for entry in place.iterdir()) == sorted([*before, "imputed.part"])
    assert calmrl("impute", "features", "--out", "imputed", "imputer.method=mean")[0] == 0
    assert sorted(entry.name for entry in place.iterdir()) == sorted([*before, "imputed"])


def test_writing_features_below_a_file_is_an_error_that_says_so(place):
    with pytest.raises(InputError, match="is a file, so"):
        write_features(place / "file" / "out", {"a": np.ones((2, 2))})


FULL = """
import contextlib, io, json, os, resource, shutil, sys
from pathlib import Path
import numpy as np
os.chdir(sys.argv[1])
from calmrl import Aligner, Index
from calmrl.cli import main
from calmrl.data.features.writer import write_features
from calmrl.encoders import ENCODERS
from calmrl.errors import InputError
from tests.support.colour_world import COLOUR_ENCODERS, make_folder, settings, write_item

ENCODERS.update(COLOUR_ENCODERS)
z = {name: np.random.default_rng(0).normal(size=(900, 3)).astype(np.float32) for name in ("image", "text")}
present = np.ones((900, 2), bool)
present[::3, 0] = False
write_features("many", z, present)
aligner = settings().fit(z, present)
aligner.save("aligner")
encoders = ["--encoder", "image=see", "--encoder", "text=read", "--encoder", "sound=hear"]
words = {
    "impute": ["impute", "many", "--out", "new", "imputer.method=mean"],
    "impute in blocks": ["impute", "many", "--out", "new", "--allow-missing", "imputer.method=mean"],
    "train": ["train", "train.yaml", "--out", "new"],
    "report": ["report", "results.json", "--out", "new.html"],
}
if sys.argv[2] == "media":
    make_folder(Path("colours"), 12)
    Index.build("many", "index", model=aligner)
    write_features("more", {name: array[:200] for name, array in z.items()}, ids=[f"more {i}" for i in range(200)])
    words["extract"] = ["extract", "colours", "--out", "new", "--workers", "0", *encoders]
    words["index"] = ["index", "many", "--out", "new", "--model", "aligner"]
    words["add"] = ["add", "index", "more"]
Path("results.json").write_text(json.dumps({"rows": [{"dataset": "d", "method": "pmrl", "seed": 0, "task": "text->image",
    "metric": "R@1", "value": 50.0, "n": 100}], "meta": {}}))

def limited(size, call):
    own, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        call()
    except SystemExit as stop:
        return stop.code
    except InputError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (own, most))

said = {}
for verb, line in words.items():
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = limited({"extract": 60, "train": 1000}.get(verb, 4000), lambda: main(line))
    said[verb] = [code, err.getvalue(), sorted(path.name for path in Path().iterdir() if path.name.startswith((".new", "new")))]
    for path in Path().glob("new*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
said["save"] = [2, limited(100, lambda: aligner.save("new")), []]
said["write_features"] = [2, limited(4000, lambda: write_features("new", z, present)), []]
left = sorted(path.name for path in Path().iterdir() if path.name.startswith((".new", "new", ".index", "index.")))
rows = len(Index.open("index")) if sys.argv[2] == "media" else 900
print(json.dumps([said, left, rows]))
"""


def test_a_disk_that_is_really_full_is_a_sentence_everywhere(place):
    """Files may not grow beyond a size: writes are short, as on a full disk, then refused."""
    pytest.importorskip("resource")
    media = all(importlib.util.find_spec(name) for name in ("lancedb", "PIL", "av"))
    done = python(FULL, place, "media" if media else "none")
    assert done.returncode == 0, done.stderr
    said, left, rows = last_json(done)
    assert len(said) == (9 if media else 6)
    for verb, (code, err, names) in said.items():
        assert code == 2, (verb, err)
        assert re.search("could not be written|cannot be written", err), (verb, err)
        assert re.search("make room", err, re.IGNORECASE), (verb, err)
        assert "Error" not in err, (verb, err)
        assert {"new", "new.html"}.isdisjoint(names) or verb == "train", (verb, names)
    assert left == []
    assert rows == 900  # nothing of what was to be added
