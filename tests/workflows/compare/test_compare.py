"""Comparisons: the same for any number of workers, they go on after a kill, and every method has the same budget."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest
import torch
import yaml

from calmrl.baselines import BASELINES
from calmrl.config import CompareConfig, load
from calmrl.errors import InputError, JobError
from calmrl.imputers import IMPUTERS
from calmrl.training.methods import METHODS, TRIALS, find_method
from calmrl.workflows import compare
from calmrl.workflows.compare import jobs as jobs_module
from calmrl.workflows.compare import plan as rows_module
from calmrl.workflows.compare.collect import collect
from calmrl.workflows.compare.jobs import longest_first, run_job, run_jobs
from calmrl.workflows.compare.plan import Job, Sweep, features_of, jobs_of, open_rows, training_config, trials_of
from calmrl.workflows.from_config import open_features_of
from tests.support import warm
from tests.support.tiny_comparison import PAIRS, SMALL, world_source
from tests.support.waiting import patience

TINY = SMALL | {
    "source": world_source(240),
    "settings": {"pairs": PAIRS, "random": {"kind": "mcar", "rate": 0.3}},
    "methods": ["pmrl", "closed-form", "calibrated", "aligner", "ideal"],
    "seeds": [0, 1],
    "steps": 6,
    "trials": 1,
}
ENDINGS = ("+latent+staged", "+mlp", "+latent+mlp", "+kernel")
OBJECTIVES = [name for name, method in METHODS.items() if method.steps and not method.ours]


def tiny(**changes) -> CompareConfig:
    return CompareConfig.model_validate(TINY | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(config, results) of one run with one worker."""
    config = tiny()
    return config, run_jobs(config, tmp_path_factory.mktemp("jobs"))[0]


def numbers(results):
    """Everything but the time it took and the map, in which t-SNE makes much of the last digit."""
    drawn = {
        job: {key: value for key, value in (one.examples or {}).items() if key != "map"} for job, one in results.items()
    }
    return {job: replace(result, seconds=0.0, examples=drawn[job]) for job, result in results.items()}


def half(whole):
    """(config, results) of the first seed."""
    config, results = whole
    return config.model_copy(update={"seeds": [0]}), {job: result for job, result in results.items() if job.seed == 0}


@pytest.mark.parametrize("workers", [1, 2])
def test_other_work_is_done_beside_the_jobs_and_counts_as_progress(workers, tmp_path):
    config = tiny(methods=["closed-form"], seeds=[0], workers=workers)
    said = []
    extra_jobs = {"threads": torch.get_num_threads, "the words": partial(str.split, "a b")}
    threads = torch.get_num_threads()
    called = []
    results, others = run_jobs(
        config, tmp_path, lambda *what: said.append(what), None, extra_jobs, lambda: called.append(len(said))
    )
    assert called == ([] if workers == 1 else [1])  # once, before the first is finished
    assert others == {"threads": 1, "the words": ["a", "b"]}
    assert torch.get_num_threads() == threads
    assert list(results) == jobs_of(config)
    assert [(done, total) for done, total, _ in said] == [(n, 4) for n in range(5)]
    assert {"threads", "the words"} < {text for *_, text in said}


def test_an_error_beside_the_jobs_says_what_was_done(tmp_path):
    config = tiny(methods=["closed-form"], seeds=[0])
    with pytest.raises(JobError, match=r"^the number: invalid literal"):
        run_jobs(config, tmp_path, extra_jobs={"the number": partial(int, "x")})


@pytest.mark.parametrize("name", ["stamps", "emoji"])
def test_in_a_chain_no_row_has_both_ends(name):
    part = load("fused", kind="compare").only(name)
    linked = [set(group) for group in part.settings["chain"].groups]
    (rows,) = open_rows(part, "chain", 0).data.train.values()
    seen = {frozenset(np.array(rows.names)[has]) for has in rows.present}
    assert {frozenset(pair) for pair in linked} == seen
    ends = {end for end in rows.names if sum(end in pair for pair in linked) == 1}
    assert len(ends) == 2
    assert not any(ends <= pair for pair in seen)


def test_the_longest_jobs_start_first():
    jobs = [Job("d", "s", name, 0) for name in ("pmrl", "calmrl-printed", "closed-form", "aligner:kernel", "ideal")]
    order = [job.method for job in longest_first(jobs)]
    assert order == ["aligner:kernel", "ideal", "calmrl-printed", "pmrl", "closed-form"]


def test_results_that_are_there_are_not_made_again(whole, tmp_path, monkeypatch):
    config, one = whole
    run_jobs(half(whole)[0], tmp_path)
    made = []
    monkeypatch.setattr(jobs_module, "run_job", lambda config, job: made.append(job) or run_job(config, job))
    assert numbers(run_jobs(config, tmp_path)[0]) == numbers(one)
    assert {job.seed for job in made} == {1}


def test_killed_half_way_workers_leave_and_started_again_gives_the_table_of_one_worker(whole, tmp_path):
    config, one = half(whole)
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(config.model_copy(update={"workers": 2}).model_dump(mode="json")))
    command = ["-m", "calmrl", "compare", file, "--out", out]
    first = warm.start(command)
    deadline = time.monotonic() + patience(120)
    while len(list(out.glob("jobs/*.json"))) < 3 and time.monotonic() < deadline and first.poll() is None:
        time.sleep(0.05)
    workers = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    assert len(workers) >= 2
    assert not psutil.wait_procs(workers, timeout=patience(30))[1]
    assert not (out / "results.json").exists()
    done = warm.run(command)
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "results.json").read_text())
    expected = collect(config, one)
    assert found["rows"] == expected["rows"]
    assert found["meta"]["tests"] == json.loads(json.dumps(expected["meta"]["tests"]))
    assert (out / "report.html").is_file()
    assert list((out / "tables").glob("*.tex"))


def test_a_finished_comparison_can_be_run_again(tmp_path):
    config = tiny(methods=["closed-form"], seeds=[0])
    left = tmp_path / "out" / ".config.yaml.calmrl-abcd1234"  # of a run that was killed while it wrote its config
    (left / "new").mkdir(parents=True)
    first, second = (compare(config, tmp_path / "out") for _ in range(2))
    assert first.rows
    assert second.rows == first.rows
    assert not left.exists()


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        compare(tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "name",
    [*METHODS, *(o + end for o in OBJECTIVES for end in ENDINGS), *(f"calibrated:{i}" for i in IMPUTERS)],
)
def test_every_method_gets_the_same_budget(name):
    trials = trials_of(name, 100, TRIALS)
    count = 1 if find_method(name).model == "aligner" else TRIALS  # it chooses by cross-validation, inside
    assert len(trials) == count
    for _, changes in trials:
        steps = [stage["steps"] for stage in changes["stages"]]
        assert sum(steps) == (100 if find_method(name).steps else 0)
        assert training_config(tiny(), "pairs", 0, changes)
    assert len({json.dumps(trial, sort_keys=True) for trial in trials}) == count


def test_rows_of_a_setting():
    rows = open_rows(tiny(), "pairs", 0)
    train = rows.data.train["data"]
    has = {tuple(row) for row in train.present.tolist()}
    assert has == {(True, True, True), (True, True, False), (False, True, True)}
    assert open_rows(tiny(), "", 0).data.train["data"].present.all()
    parts = [set(train.ids), set(rows.data.validation[0].ids), set(rows.test.ids)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 240
    values = train.fetch(np.arange(len(train)), train.present, 0)
    for j, name in enumerate(train.names):
        seen = values[name].numpy()[train.present[:, j]]
        assert np.abs(seen.mean(axis=0)).max() < 1e-5
        assert (seen**2).mean() == pytest.approx(1, abs=1e-4)


def test_tidy_rows_tests_and_words(whole):
    config, results = whole
    content = collect(config, results)
    rows, meta = content["rows"], content["meta"]
    keys = {"dataset", "setting", "method", "seed", "task", "metric", "value", "n"}
    assert all(keys <= set(row) for row in rows)
    assert {row["rate"] for row in rows if row["setting"] == "random"} == {0.3}
    tasks = {row["task"] for row in rows if row["metric"] == "R@1"}
    assert {"m0->m1", "m2->m0", "average", "mixed-pool raw", "mixed-pool imputed"} <= tasks
    ways = {task for task in tasks if task.startswith("fused 2, ")}
    assert ways == {"fused 2, late fusion", "fused 2, posterior", "fused 2, concatenation"}
    joint = {row["method"] for row in rows if row["task"] == "fused 2, posterior"}
    assert joint == {"aligner", "ideal"}  # the others have no one vector of several modalities
    assert {"observed", "calibrated"} <= {row["task"] for row in rows if row["metric"] == "anchor_shift"}
    assert {"50", "95"} <= {row["task"] for row in rows if row["metric"] == "coverage"}
    assert meta["tests"]["pairs"]["against"] == "pmrl"
    assert set(meta["tests"]["pairs"]["methods"]) == {"closed-form", "calibrated", "aligner"}
    choice, _ = (note for note in meta["notes"] if "aligner chose" in note)  # two settings
    assert "features, whitening" in choice
    assert "candidates (seed 0)." in choice
    assert meta["methods"]["ideal"]["ideal"]
    assert not meta["methods"]["pmrl"]["ours"]
    assert any("pairs: " in sentence and "has the best mean" in sentence for sentence in meta["words"])
    assert any("anchors" in sentence and "those of complete items" in sentence for sentence in meta["words"])
    json.dumps(meta)


def test_sweeps_are_rows_of_their_own():
    config = tiny(
        sweep={"objective.temperature": [0.1, 0.5]},
        methods=["pmrl"],
        seeds=[0],
        settings={"pairs": PAIRS},
    )
    rows = [job.row for job in jobs_of(config)]
    assert rows == ["pmrl", "pmrl objective.temperature=0.1", "pmrl objective.temperature=0.5"]
    found = run_job(config, Job("world", "pairs", "pmrl", 0, Sweep("objective.temperature", 0.1)))
    assert found.trials[0]["changes"]["objective.temperature"] == 0.1


def test_the_demo_and_the_study_are_comparisons():
    demo, study = (load(name, kind="compare") for name in ("demo", "study"))
    assert isinstance(demo, CompareConfig)
    assert {"contrastive", "gram", "pmrl", "calmrl-printed", "contrastive+latent", "aligner", "ideal"} == set(
        demo.methods
    )
    assert set(demo.methods) < set(study.methods)
    assert {*OBJECTIVES, *BASELINES} <= set(study.methods)
    assert [f"{name}+latent" for name in ("contrastive", "vast", "gram", "triangle", "pmrl")] == [
        name for name in study.methods if name.endswith("+latent")
    ]
    assert (len(demo.seeds), len(study.seeds)) == (1, 10)
    assert (demo.trials, study.trials) == (6, 16)
    assert demo.steps == study.steps
    assert (demo.names, study.names) == (["stamps", "emoji"], ["stamps", "emoji", "digits"])
    for name in demo.names:
        assert demo.datasets[name].source == study.datasets[name].source
        assert demo.only(name).settings.items() <= study.only(name).settings.items()


def test_from_python(tmp_path, monkeypatch, capfd):
    """Nothing is printed, features are opened once, and results.json holds what is returned."""
    opened = []
    features_of.cache_clear()
    monkeypatch.setattr(
        rows_module,
        "open_features_of",
        lambda *args: opened.append(args) or open_features_of(*args),
    )
    config = tiny(methods=["pmrl", "closed-form"], seeds=[0, 1])
    steps = []
    comparison = compare(config, tmp_path / "out", command="mine", progress=lambda *step: steps.append(step))
    assert len(opened) == 1
    assert [step[:2] for step in steps] == [(done, 8) for done in range(9)]
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["rows"] == comparison.rows
    assert content["meta"]["words"] == comparison.words
    assert content["meta"]["command"] == "mine"
    assert len(comparison.results.rows) == len(comparison.rows)
    assert capfd.readouterr() == ("", "")
