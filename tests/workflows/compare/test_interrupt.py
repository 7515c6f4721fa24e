"""Ctrl-C during a comparison: nobody waits for what is running, and what is finished stays."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import yaml

from tests.support.tiny_comparison import SMALL, world_source
from tests.support.waiting import patience

TINY = SMALL | {
    "source": world_source(120, widths={"m0": 6, "m1": 5}),
    "settings": {"random": {"kind": "mcar", "rate": 0.3}},
    "methods": ["closed-form"],
    "seeds": [0, 1, 2, 3],
    "trials": 1,
    "workers": 2,
}
# Workers import this file too, so that they run the slow job: seed 0 as ever, the others for ten minutes.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from calmrl.workflows.compare import jobs as all_jobs

at_work, real = Path(sys.argv[1]), all_jobs.run_job

def slow(config, job):
    if job.seed:
        draft = at_work.parent / f"{job.seed}.draft"
        draft.write_text(str(os.getpid()))
        draft.rename(at_work / f"{job.seed}")
        time.sleep(600)
    return real(config, job)

all_jobs.run_job = slow
if __name__ == "__main__":
    from calmrl.cli import main
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may have had it ignored
    main(["compare", *sys.argv[2:]])
"""


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_interrupt_ends_workers_that_are_at_work_and_keeps_what_is_finished(tmp_path):
    script, config, out, at_work = (tmp_path / name for name in ("slow.py", "tiny.yaml", "out", "at_work"))
    at_work.mkdir()
    script.write_text(SCRIPT)
    config.write_text(yaml.safe_dump(TINY))
    command = [sys.executable, str(script), str(at_work), str(config), "--out", str(out)]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        deadline = time.monotonic() + patience(300)
        while not (list(out.glob("jobs/*.json")) and len(list(at_work.iterdir())) == 2):
            assert parent.poll() is None, parent.communicate()[1]
            assert time.monotonic() < deadline, "two jobs never ran"
            time.sleep(0.05)
        workers = [int(file.read_text()) for file in at_work.iterdir()]
        assert all(_alive(pid) for pid in workers)
        os.kill(parent.pid, signal.SIGINT)
        _, told = parent.communicate(timeout=120)  # the jobs sleep five times as long
    finally:
        parent.kill()
    assert parent.returncode == 1
    assert "stopped" in told
    assert not any(_alive(pid) for pid in workers)
    (kept,) = out.glob("jobs/*.json")
    assert json.loads(kept.read_text())["rows"]
