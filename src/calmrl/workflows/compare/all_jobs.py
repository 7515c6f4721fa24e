"""All jobs of a comparison: over several processes, each result in a file of its own, so that a run can go on."""

import hashlib
import json
import os
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from threadpoolctl import threadpool_limits

from calmrl._support.output import new_file
from calmrl._support.parsing import parsing
from calmrl._support.scratch import remove_leftovers
from calmrl._support.workers import worker_pool
from calmrl.config import CompareConfig
from calmrl.errors import InputError, JobError
from calmrl.workflows.compare.job import JobResult, run_job
from calmrl.workflows.compare.plan import Job, jobs_of
from calmrl.workflows.compare.rows import method_of

Progress = Callable[[int, int, str], None]


def run_all(
    config: CompareConfig,
    folder: Path,
    progress: Progress = lambda *said: None,
    jobs: Sequence[Job] | None = None,
) -> dict[Job, JobResult]:
    """The results of all jobs; those that `folder` already has are not run again. `progress` is called after each.

    The order of the results, and the results themselves, do not depend on the number of workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    jobs = jobs_of(config) if jobs is None else jobs
    paths = {job: _path(folder, config, job) for job in jobs}
    results = {job: _stored(path) for job, path in paths.items() if path.is_file()}
    progress(len(results), len(jobs), "from an earlier run" if results else "")
    with closing(_each(config, [job for job in jobs if job not in results])) as finished:  # ends workers on Ctrl-C
        for job, result in finished:
            with new_file(paths[job], force=True) as draft:
                draft.write_text(json.dumps(asdict(result)), encoding="utf-8")
            results[job] = result
            progress(len(results), len(jobs), f"{job.dataset}, {job.setting}, {job.method}, seed {job.seed}")
    return {job: results[job] for job in jobs}


def _each(config: CompareConfig, jobs: list[Job]) -> Generator[tuple[Job, JobResult], None, None]:
    """Run the jobs; yields each as it is finished."""
    workers = min(config.workers or os.cpu_count() or 1, len(jobs))
    text = config.model_dump_json()
    with worker_pool(workers if workers > 1 else 0) as pool:
        if pool is None:
            yield from (_work(text, job) for job in jobs)
            return
        running = {pool.submit(_work, text, job): job for job in jobs}
        for finished in as_completed(running):
            try:
                yield finished.result()
            except BrokenProcessPool as error:
                raise JobError(
                    f"{running[finished]}, or another one of {workers} at work: a worker process was ended from outside, "
                    "perhaps for lack of memory. What is finished is kept: run the same command again, with fewer "
                    "workers (workers=1)"
                ) from error


def _work(text: str, job: Job) -> tuple[Job, JobResult]:
    """Run one job on one thread; an error says which job it was."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return job, run_job(CompareConfig.model_validate_json(text), job)
    except InputError as error:
        raise InputError(f"{job}: {error}") from error
    except Exception as error:
        raise JobError(f"{job}: {error}\n{traceback.format_exc()}") from None
    finally:
        torch.set_num_threads(threads)


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
