"""All jobs of a comparison: over several processes, each result in a file of its own, so that a run can go on.

The longest jobs start first, so that all processes are at work until the end. Other work may be done beside them.
"""

import hashlib
import json
import os
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from calmrl._support.filesystem import remove_leftovers
from calmrl._support.output import new_file
from calmrl._support.parsing import parsing
from calmrl._support.workers import worker_pool
from calmrl.config import CompareConfig
from calmrl.errors import InputError, JobError
from calmrl.models.registry import MODELS
from calmrl.workflows.compare.job import JobResult, run_job
from calmrl.workflows.compare.plan import Job, jobs_of
from calmrl.workflows.compare.rows import method_of

Progress = Callable[[int, int, str], None]
Beside = Mapping[str, Callable[[], Any]]  # what is done -> a function that workers can import
T = TypeVar("T")


def run_all(
    config: CompareConfig,
    folder: Path,
    progress: Progress = lambda *said: None,
    jobs: Sequence[Job] | None = None,
) -> dict[Job, JobResult]:
    """The results of all jobs; those that `folder` already has are not run again. `progress` is called after each.

    The order of the results, and the results themselves, do not depend on the number of workers.
    """
    return run_beside(config, folder, progress, jobs)[0]


def run_beside(
    config: CompareConfig,
    folder: Path,
    progress: Progress = lambda *said: None,
    jobs: Sequence[Job] | None = None,
    beside: Beside | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[dict[Job, JobResult], dict[str, Any]]:
    """(the results of `run_all`, what each function of `beside` returned): these are called in the same processes.

    `meanwhile` is called in this process once the others have been given their work, which it would otherwise only wait for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    jobs, beside = jobs_of(config) if jobs is None else jobs, beside or {}
    paths = {job: _path(folder, config, job) for job in jobs}
    results = {job: _stored(path) for job, path in paths.items() if path.is_file()}
    others: dict[str, Any] = {}
    total = len(jobs) + len(beside)
    progress(len(results), total, "from an earlier run" if results else "")
    left = [job for job in jobs if job not in results]
    with closing(_each(config, left, beside, meanwhile)) as finished:  # ends workers on Ctrl-C
        for what, result in finished:
            if isinstance(what, Job):
                with new_file(paths[what], force=True) as draft:
                    draft.write_text(json.dumps(asdict(result)), encoding="utf-8")
                results[what] = result
                said = f"{what.dataset}, {what.setting}, {what.method}, seed {what.seed}"
            else:
                others[what], said = result, what
            progress(len(results) + len(others), total, said)
    return {job: results[job] for job in jobs}, {name: others[name] for name in beside}


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs: an aligner, which searches by cross-validation, takes longest, then what fits a latent model at
    every step. What starts last is short, and no process waits long for another."""

    def takes(job: Job) -> int:
        method = method_of(job.method)
        return 2 if not MODELS[method.model].steps else int(method.calibrated)

    return sorted(jobs, key=takes, reverse=True)


def _each(
    config: CompareConfig, jobs: list[Job], beside: Beside, meanwhile: Callable[[], None]
) -> Generator[tuple[Job | str, Any], None, None]:
    """Run the jobs and what is done beside them; yields each as it is finished."""
    workers = min(config.workers or os.cpu_count() or 1, len(jobs) + len(beside))
    text = config.model_dump_json()
    work: list[tuple[Job | str, Callable[[], Any]]] = list(beside.items())
    work += [(job, partial(_work, text, job)) for job in longest_first(jobs)]
    with worker_pool(workers if workers > 1 else 0) as pool:
        if pool is None:
            yield from ((what, _on_one_thread(str(what), function)) for what, function in work)
            return
        running = {pool.submit(_on_one_thread, str(what), function): what for what, function in work}
        meanwhile()
        for finished in as_completed(running):
            try:
                yield running[finished], finished.result()
            except BrokenProcessPool as error:
                raise JobError(
                    f"{running[finished]}, or another one of {workers} at work: a worker process was ended from outside, "
                    "perhaps for lack of memory. What is finished is kept: run the same command again, with fewer "
                    "workers (workers=1)"
                ) from error


def _on_one_thread(what: str, function: Callable[[], T]) -> T:
    """Call the function on one thread; an error says what was done."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return function()
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
    except Exception as error:
        raise JobError(f"{what}: {error}\n{traceback.format_exc()}") from None
    finally:
        torch.set_num_threads(threads)


def _work(text: str, job: Job) -> JobResult:
    return run_job(CompareConfig.model_validate_json(text), job)


def _stored(path: Path) -> JobResult:
    """The result of a job that an earlier run wrote."""
    with parsing(path, "a result of compare", "delete it, and the job runs again"):
        return JobResult(**json.loads(path.read_text("utf-8")))


def _path(folder: Path, config: CompareConfig, job: Job) -> Path:
    """A file per job, named after all that its result depends on."""
    part = config.only(job.dataset)
    hidden = None if method_of(job.method).ideal else part.settings[job.setting].model_dump(mode="json")
    left_out = {"settings", "methods", "seeds", "workers", "sweep", "datasets", "table"}
    shared = part.model_dump(mode="json", exclude=left_out)
    first = (job.setting, job.seed) == (next(iter(part.settings)), part.seeds[0])  # has examples
    key = json.dumps([shared, hidden, *job, first], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
