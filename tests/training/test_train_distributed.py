"""Several processes under `torchrun` and `accelerate launch` train as one process does with the joined batches."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from calmrl._support.distributed import join
from calmrl.errors import InputError
from calmrl.training import checkpoints as checkpoint
from tests.support import warm
from tests.support.train_data import ROOT, calmrl, config_file, environment, records, step_of
from tests.support.waiting import patience

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2")
PROGRAMS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.launch"}
IN_DOUBLE = ROOT / "tests" / "support" / "train_in_double.py"
CHANGES = {
    "model": {"kind": "heads", "width": 8, "init": "latent", "latent_prior": 20.0},
    "calibration": {"imputer": {"method": "gaussian", "latent_dim": 4}, "m_every": 2},
    "stages": [{"name": "warm-up", "sources": ["a"], "steps": 4, "hide_one": True}, {"name": "joint", "steps": 8}],
    "batch_size": 23,  # an odd number of rows: the processes have unequal shares
    "optimiser": {"learning_rate": 3e-3, "ema": 0.8, "accumulate": 2},
    "checkpoint": {"every": 3, "keep": 9},
}


def documented(program: str) -> tuple[str, ...]:
    """The module and the options of a launcher as docs/how-to/scale.md has them."""
    page = (ROOT / "docs" / "how-to" / "scale.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"{program} ")]
    words = line[: line.index(" -m calmrl train")].split()
    return (PROGRAMS[program], *(word for word in words[1:] if word != "launch"))


CASES = {
    "stages": CHANGES | {"model": {"kind": "heads", "width": 8}},
    "latent start": CHANGES | {"stages": [{"steps": 4}]},
    "structure": {"method": "structure", "stages": [{"steps": 5}], "batch_size": 23},
    "confu": {"method": "confu", "stages": [{"steps": 5}], "batch_size": 23},
    "gradient": {
        "calibration": {"imputer": {"method": "gaussian", "latent_dim": 4}, "update": "gradient"},
        "stages": [{"steps": 5}],
        "batch_size": 23,
    },
}


@pytest.fixture(scope="module")
def in_double(tmp_path_factory):
    """Train in double precision, in so many processes that know of each other: (cases, processes) -> folder of each."""
    root = tmp_path_factory.mktemp("double")
    paths = {}
    for case, changes in CASES.items():
        (root / case).mkdir()
        paths[case] = config_file(root / case, **changes)

    def train(processes, cases):
        outs = {case: root / case / str(processes) for case in cases}
        words = [IN_DOUBLE, *(path for case in cases for path in (paths[case], outs[case]))]
        if processes > 1:
            warm.run_all(words, processes, environment())
        else:
            done = warm.run(words, environment())
            assert done.returncode == 0, done.stderr
        backend = "gloo" if processes > 1 else None
        for out in outs.values():
            states = [json.loads(file.read_text()) for file in sorted(out.parent.glob(f"{out.name}.rank*.json"))]
            assert states == [{"size": processes, "rank": rank, "backend": backend} for rank in range(processes)]
            assert {record.pop("processes") for record in records(out, "start")} == {processes}
        return outs

    return {1: train(1, CASES), 2: train(2, CASES), 4: train(4, ["stages"])}


def compare(one, two, tolerance: float = 1e-6) -> None:
    """Every number of every step, and the final model, which are not all zero."""
    before, after = ([{k: v for k, v in r.items() if k != "processes"} for r in records(out)] for out in (one, two))
    assert [(r["kind"], r["step"]) for r in before] == [(r["kind"], r["step"]) for r in after]
    for a, b in zip(before, after, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, float):
                assert b[key] == pytest.approx(value, rel=tolerance, abs=tolerance), (a["step"], key)
            else:
                assert b[key] == value, (a["step"], key)
    a, b = (load_file(out / "model" / "weights.safetensors") for out in (one, two))
    assert a.keys() == b.keys()
    for name, weights in a.items():
        np.testing.assert_allclose(weights, b[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_documented_commands_start_two_processes(program, tmp_path):
    path = config_file(tmp_path, stages=[{"steps": 2}])
    calmrl("train", path, "--out", tmp_path / "two", launch=documented(program))
    assert [record["processes"] for record in records(tmp_path / "two", "start")] == [2]


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_equal_one(processes, in_double):
    compare(in_double[1]["stages"], in_double[processes]["stages"])


def test_a_start_at_the_latent_model_is_the_same_in_two_processes(in_double):
    one, two = (in_double[processes]["latent start"] for processes in (1, 2))
    compare(one, two, tolerance=1e-3)  # the start is fitted in single precision, each on its rows


def test_a_latent_model_fitted_by_gradient_in_two_processes(in_double):
    compare(
        in_double[1]["gradient"], in_double[2]["gradient"], tolerance=1e-4
    )  # it starts from a fit in single precision


@pytest.mark.parametrize("method", ["structure", "confu"])
def test_features_and_weights_of_an_objective_in_two_processes(method, in_double):
    compare(in_double[1][method], in_double[2][method])


def test_two_processes_resume_exactly(tmp_path):
    path, two = config_file(tmp_path, **CHANGES), tmp_path / "two"
    words = ["-m", "calmrl", "train", path, "--out"]
    warm.run_all([*words, two], 2, environment())
    assert {record["processes"] for record in records(two, "start")} == {2}
    cut = tmp_path / "cut"
    shutil.copytree(two, cut)
    shutil.rmtree(cut / "model")
    for old in (cut / "checkpoints").glob("step-*"):
        if step_of(old) > 6:
            shutil.rmtree(old)
    warm.run_all([*words, cut, "--resume"], 2, environment())
    assert records(cut) == records(two)
    before, again = (checkpoint.read(checkpoint.newest(out / "checkpoints")) for out in (two, cut))
    for name, weights in before.weights.items():
        assert torch.equal(weights, again.weights[name]), name
    for file in (two / "model").glob("*.safetensors"):
        assert file.read_bytes() == (cut / "model" / file.name).read_bytes()


def worker(launcher: int, rank: int) -> psutil.Process:
    """The process of this rank below a launcher."""
    (process,) = [p for p in psutil.Process(launcher).children(recursive=True) if p.environ().get("RANK") == str(rank)]
    return process


def wait_for_a_checkpoint(out, process, said):
    while process.poll() is None and checkpoint.newest(out / "checkpoints") is None:
        time.sleep(0.05)
    assert process.poll() is None, said.read_text()


def assert_lost(said, out, sentence):
    assert f"calmrl: another of the 2 processes {sentence}" in said.read_text()
    assert "--resume" in said.read_text()
    checkpoint.read(checkpoint.newest(out / "checkpoints"))


ENDLESS = {"stages": [{"steps": 100_000}], "checkpoint": {"every": 20}}


def test_a_killed_process_ends_the_others(tmp_path):
    path, out, said = config_file(tmp_path, **ENDLESS), tmp_path / "run", tmp_path / "said.txt"
    run = [sys.executable, "-m", *TORCHRUN, "-m", "calmrl", "train", path, "--out", out, "--timeout", int(patience(5))]
    with said.open("w") as file:
        launcher = subprocess.Popen([str(word) for word in run], env=environment(), stderr=file)
        wait_for_a_checkpoint(out, launcher, said)
        os.kill(worker(launcher.pid, 1).pid, signal.SIGKILL)
        launcher.wait(timeout=patience(300))
    assert_lost(said, out, "has ended")
    assert launcher.returncode == 1


def test_a_process_that_stands_still_ends_the_others(tmp_path):
    path, out, said = config_file(tmp_path, **ENDLESS), tmp_path / "run", tmp_path / "said.txt"
    with said.open("w") as file:
        words = ["-m", "calmrl", "train", path, "--out", out, "--timeout", int(patience(5))]
        first, second = warm.launch(words, 2, environment(), file)
        wait_for_a_checkpoint(out, first, said)
        still = psutil.Process(second.pid)
        while first.poll() is None:
            still.suspend()  # again and again, should anything wake it up
            time.sleep(0.05)
        assert first.returncode == 1
        assert still.status() == psutil.STATUS_STOPPED
        second.kill()
        assert second.wait(timeout=patience(60)) == -signal.SIGKILL
    assert_lost(said, out, "did not answer")


def test_a_launcher_that_starts_fewer_processes_is_refused(tmp_path):
    path = config_file(tmp_path, stages=[{"steps": 2}])
    launch = ("accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip
    done = calmrl("train", path, "--out", tmp_path / "two", launch=launch, code=1)  # the launcher's own code
    assert "asked for several processes but started only one" in done.stderr
    assert not (tmp_path / "two").exists()


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(InputError, match="2 processes were started, but there are 1 GPUs"):
        join()
