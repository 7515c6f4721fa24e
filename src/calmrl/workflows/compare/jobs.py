"""All cells of a comparison: over several processes, each result in a file of its own, so that a run can go on."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from calmrl._support.output import new_file
from calmrl.config import CompareConfig
from calmrl.training.recipes import is_ideal
from calmrl.workflows.compare.job import Job, run_job

Done = Callable[[int, int, str], None]


def jobs_of(config: CompareConfig) -> list[Job]:
    """Every (setting, method, seed), in the order of the config; swept values are methods of their own."""
    return [
        (setting, method, seed) for seed in config.seeds for setting in config.settings for method in methods_of(config)
    ]


def methods_of(config: CompareConfig) -> list[str]:
    """The methods, each also with every swept value: "calmrl objective.temperature=0.1"."""
    found = list(config.methods)
    for key, values in config.sweep.items():
        found += [f"{method} {key}={value}" for method in config.methods for value in values]
    return found


def run_all(config: CompareConfig, folder: Path, done: Done = lambda finished, total, text: None) -> dict[Job, Any]:
    """The results of all jobs; those that `folder` already has are not run again. `done` hears of every job.

    The order of the results, and the results themselves, do not depend on the number of workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(config)
    open_jobs = [job for job in jobs if not _path(folder, config, job).is_file()]
    finished = len(jobs) - len(open_jobs)
    done(finished, len(jobs), "found in an earlier run" if finished else "")
    for job in _each(config, open_jobs, folder):
        finished += 1
        done(finished, len(jobs), f"{job[1]}, {job[0]}, seed {job[2]}")
    return {job: json.loads(_path(folder, config, job).read_text(encoding="utf-8")) for job in jobs}


def _each(config: CompareConfig, jobs: list[Job], folder: Path) -> Iterator[Job]:
    """Run the jobs; yields each as it is finished."""
    workers = min(config.workers or os.cpu_count() or 1, len(jobs))
    if workers <= 1:
        for job in jobs:
            yield _work(config.model_dump_json(), job, str(folder))
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_leave_with_parent)
    try:
        running: set[Future[Job]] = {pool.submit(_work, config.model_dump_json(), job, str(folder)) for job in jobs}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_with_parent() -> None:
    """A worker whose parent was killed would otherwise work on, and then wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _work(text: str, job: Job, folder: str) -> Job:
    """Run one job on one thread and write its result."""
    import torch

    config = CompareConfig.model_validate_json(text)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            result = run_job(config, job)
    finally:
        torch.set_num_threads(threads)
    with new_file(_path(Path(folder), config, job), force=True) as draft:
        draft.write_text(json.dumps(result), encoding="utf-8")
    return job


def _path(folder: Path, config: CompareConfig, job: Job) -> Path:
    """A file per job, named after all that its result depends on."""
    setting, method, seed = job
    hidden = None if is_ideal(method) else config.settings[setting].model_dump(mode="json")
    shared = config.model_dump(mode="json", exclude={"settings", "methods", "seeds", "workers", "sweep"})
    first = (setting, seed) == (next(iter(config.settings)), config.seeds[0])  # has examples
    key = json.dumps([shared, hidden, setting, method, seed, first], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
