"""All cells of a comparison: over several processes, each result in a file of its own, so that a run can go on."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from dataclasses import asdict
from pathlib import Path

from threadpoolctl import threadpool_limits

from calmrl._support.output import new_file
from calmrl._support.workers import worker_pool
from calmrl.config import CompareConfig
from calmrl.workflows.compare.job import Job, JobResult, run_job
from calmrl.workflows.compare.rows import method_of

Progress = Callable[[int, int, str], None]


def jobs_of(config: CompareConfig) -> list[Job]:
    """Every (setting, method, seed), in the order of the config; swept values are methods of their own."""
    return [
        (setting, method, seed) for seed in config.seeds for setting in config.settings for method in methods_of(config)
    ]


def methods_of(config: CompareConfig) -> list[str]:
    """The methods, each also with every swept value: "calmrl objective.temperature=0.1"."""
    swept = [f"{m} {key}={value}" for key, values in config.sweep.items() for m in config.methods for value in values]
    return [*config.methods, *swept]


def run_all(config: CompareConfig, folder: Path, progress: Progress = lambda *said: None) -> dict[Job, JobResult]:
    """The results of all jobs; those that `folder` already has are not run again. `progress` is called after each.

    The order of the results, and the results themselves, do not depend on the number of workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(config)
    paths = {job: _path(folder, config, job) for job in jobs}
    results = {job: JobResult(**json.loads(path.read_text("utf-8"))) for job, path in paths.items() if path.is_file()}
    progress(len(results), len(jobs), "from an earlier run" if results else "")
    for job, result in _each(config, [job for job in jobs if job not in results]):
        with new_file(paths[job], force=True) as draft:
            draft.write_text(json.dumps(asdict(result)), encoding="utf-8")
        results[job] = result
        progress(len(results), len(jobs), f"{job[1]}, {job[0]}, seed {job[2]}")
    return {job: results[job] for job in jobs}


def _each(config: CompareConfig, jobs: list[Job]) -> Iterator[tuple[Job, JobResult]]:
    """Run the jobs; yields each as it is finished."""
    workers = min(config.workers or os.cpu_count() or 1, len(jobs))
    text = config.model_dump_json()
    with worker_pool(workers if workers > 1 else 0) as pool:
        if pool is None:
            yield from (_work(text, job) for job in jobs)
        else:
            for finished in as_completed([pool.submit(_work, text, job) for job in jobs]):
                yield finished.result()


def _work(text: str, job: Job) -> tuple[Job, JobResult]:
    """Run one job on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return job, run_job(CompareConfig.model_validate_json(text), job)
    finally:
        torch.set_num_threads(threads)


def _path(folder: Path, config: CompareConfig, job: Job) -> Path:
    """A file per job, named after all that its result depends on."""
    setting, method, seed = job
    hidden = None if method_of(method).ideal else config.settings[setting].model_dump(mode="json")
    shared = config.model_dump(mode="json", exclude={"settings", "methods", "seeds", "workers", "sweep"})
    first = (setting, seed) == (next(iter(config.settings)), config.seeds[0])  # has examples
    key = json.dumps([shared, hidden, setting, method, seed, first], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
