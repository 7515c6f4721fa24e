"""Interrupted and resumed training equals uninterrupted training, bit for bit, wherever it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from calmrl.training import checkpoints as checkpoint
from calmrl.training.plan import Interrupted
from calmrl.workflows.train import train
from tests.support import warm
from tests.support.train_data import (
    assert_same_run,
    config,
    config_file,
    environment,
    last_json,
    python,
    records,
    step_of,
)
from tests.support.waiting import patience

GAUSSIAN = {"imputer": {"method": "gaussian", "latent_dim": 4}}
CASES = {
    "calmrl": {"calibration": {**GAUSSIAN, "m_every": 3}},
    "calmrl as published": {"calibration": {**GAUSSIAN, "m_every": 1}},
    "gaussian, frozen": {"calibration": {**GAUSSIAN, "update": "frozen"}},
    "knn": {"calibration": {"imputer": {"method": "knn"}}},
    "mvae, frozen": {"calibration": {"imputer": {"method": "mvae", "hidden": 8, "epochs": 2}, "update": "frozen"}},
    "mvae, stepwise": {"calibration": {"imputer": {"method": "mvae", "hidden": 8, "epochs": 2}}},
    "gradient": {"calibration": {**GAUSSIAN, "update": "gradient"}},
    "pmrl": {"method": "pmrl", "matching": {"hidden": 8, "layers": 1, "heads": 2}},
    "fusemix": {"method": "fusemix"},
    "structure": {"method": "structure"},
    "confu": {"method": "confu"},
    "stages": {
        "model": {"kind": "heads", "width": 8, "hidden": 12},
        "stages": [
            {"name": "warm-up", "sources": ["a"], "epochs": 2.0, "hide_one": True, "complete_only": True},
            {"name": "missing", "epochs": 1.5, "batches": "pattern", "rate": 0.5},
        ],
        "optimiser": {"learning_rate": 1e-2, "ema": 0.9, "accumulate": 2},
        "checkpoint": {"every": 2, "keep": 1},
    },
    "early": {
        "optimiser": {"learning_rate": 1e-8},
        "validation": {"every": 2, "patience": 2},
        "stages": [{"name": "one", "epochs": 4.0}, {"name": "two", "epochs": 1.0}],
        "checkpoint": {"every": 3},
    },
}


class Killed(Exception):
    pass


def killed_at(step: int):
    """A progress callback that ends the run after so many updates."""
    done = 0

    def progress(at: int, total: int, text: str) -> None:
        nonlocal done
        done += 1
        if done == step:
            raise Killed

    return progress


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_uninterrupted(case, tmp_path):
    cfg = config(tmp_path, **CASES[case])
    train(cfg, tmp_path / "whole")
    steps = records(tmp_path / "whole", "end")[0]["step"]
    assert steps >= 7
    for stops in ([4, 3], [1], [steps]) if case in ("calmrl", "stages") else ([4, 3],):
        out = tmp_path / f"cut-{'-'.join(map(str, stops))}"
        for i, stop in enumerate(stops):
            with pytest.raises(Killed):
                train(cfg, out, resume=i > 0, progress=killed_at(stop))
        train(cfg, out, resume=True)
        assert_same_run(tmp_path / "whole", out)
    if case == "early":
        assert records(tmp_path / "whole", "end")[0]["stopped_early"]
    train(cfg, tmp_path / "whole", resume=True)  # a finished run only exports again
    assert_same_run(tmp_path / "whole", out)


KILL = """
import json, os, pathlib, shutil, signal, sys
import calmrl.training.checkpoints as checkpoint
import accelerate, sklearn.linear_model, torch._dynamo  # once for all children
from calmrl.config import load
from calmrl.workflows.train import train
config, out = sys.argv[1], pathlib.Path(sys.argv[2])
HOME = {"save": checkpoint.torch, "rename": os, "replace": os, "rmtree": shutil}

def run_and_die(where, nth):
    home, calls = HOME.get(where, checkpoint), 0
    real = getattr(home, where)
    def dies(*a, **k):
        nonlocal calls
        calls += 1
        if calls == nth:
            if where == "save_file":  # half a file
                pathlib.Path(a[1]).write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **k)
    setattr(home, where, dies)
    train(load(config, kind="train"), out, resume=out.exists())

found = []
for where, nth in json.loads(sys.argv[3]):
    child = os.fork()  # nothing has computed yet, so there are no threads to lose
    if not child:
        run_and_die(where, nth)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    newest = checkpoint.newest(out / "checkpoints")
    if newest is not None:
        checkpoint.read(newest)  # an error if it is not whole
    found.append([where, os.WIFSIGNALED(status), 0 if newest is None else int(newest.name.removeprefix("step-"))])
print(json.dumps(found))
"""
POINTS = [("save_file", 2), ("save", 2), ("save_state", 1), ("flush", 1), ("rename", 1), ("replace", 2), ("mark_best", 1),
          ("tidy", 1), ("tidy", 2), ("rmtree", 1)]  # fmt: skip


def test_killed_inside_a_checkpoint_write(tmp_path):
    changes = {"validation": {"every": 2}, "checkpoint": {"every": 2, "keep": 1}}
    cfg, out = config(tmp_path, **changes), tmp_path / "killed"
    train(cfg, tmp_path / "whole")
    done = python(KILL, config_file(tmp_path, **changes), out, json.dumps(POINTS))
    assert done.returncode == 0, done.stderr
    found = last_json(done)
    assert [killed for _, killed, _ in found] == [True] * len(POINTS)
    steps = [step for _, _, step in found]
    assert steps == sorted(steps)  # no checkpoint was lost
    assert steps[-1] > 4
    train(cfg, out, resume=True)
    assert_same_run(tmp_path / "whole", out)
    assert not list((out / "checkpoints").glob(".*"))


LONG = {"stages": [{"steps": 60}], "checkpoint": {"every": 0}, "validation": {"every": 25}}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_exactly(number, tmp_path):
    cfg, out, calls = config(tmp_path, **LONG), tmp_path / "cut", 0
    handler = signal.getsignal(number)

    def progress(done, total, text):
        nonlocal calls
        calls += 1
        if done == 33 and total == 60:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="stopped after step 33; continue with `resume=True`"):
        train(cfg, out, progress=progress)
    assert signal.getsignal(number) == handler
    assert step_of(checkpoint.newest(out / "checkpoints")) == 33
    train(cfg, out, resume=True)
    train(cfg, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", out)


def test_ctrl_c_on_the_command_line_is_exit_code_1(tmp_path):
    path, out = config_file(tmp_path, **LONG | {"stages": [{"steps": 5000}]}), tmp_path / "cut"
    process = warm.start(["-m", "calmrl", "train", path, "--out", out], environment())
    metrics = out / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) < 20):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=patience(120))
    assert process.returncode == 1, said
    saved = step_of(checkpoint.newest(out / "checkpoints"))
    assert f"stopped after step {saved}; continue with --resume" in said
    assert records(out)[-1]["step"] == saved


def test_the_mark_of_the_best_is_made_up_for(tmp_path: Path):
    cfg = config(tmp_path, stages=[{"steps": 4}], validation={"every": 4})
    train(cfg, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    (folder / "best").unlink()  # as if killed between the two
    train(cfg, tmp_path / "run", resume=True)
    assert checkpoint.best(folder) == checkpoint.newest(folder)


def test_what_a_kill_after_the_last_checkpoint_left_is_removed(tmp_path: Path):
    """Nothing is written any more by the run that goes on, so nothing else would remove it."""
    cfg = config(tmp_path, stages=[{"steps": 4}], validation={"every": 4}, checkpoint={"every": 4, "keep": 1})
    train(cfg, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    expected = sorted(path.name for path in folder.iterdir())
    assert expected == ["best", "step-00000004"]
    shutil.copytree(folder / "step-00000004", folder / "step-00000003")  # not yet removed
    shutil.copytree(folder / "step-00000004", folder / ".step-00000002.calmrl-abcdefgh" / "removed")  # half removed
    train(cfg, tmp_path / "run", resume=True)
    assert sorted(path.name for path in folder.iterdir()) == expected
