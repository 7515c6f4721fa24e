"""Processes that work for this one, and end with it."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import BaseContext


@contextmanager
def worker_pool(workers: int, once: Sequence[str] = ()) -> Iterator[Executor | None]:
    """So many processes; None for 0, which is to work in this one.

    On Linux, packages that take long to import are imported `once`: the workers are forks of a process that has done it. They
    must not start threads.

    A block that is left by an error or by Ctrl-C does not wait for what is running: its processes are ended.
    """
    if workers == 0:
        yield None
        return
    pool = ProcessPoolExecutor(workers, _context(once), _start, (dict(os.environ),))
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):  # only those of this pool
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def import_early(once: Sequence[str]) -> None:
    """Begin with the imports of a `worker_pool` that will be asked for with the same `once`; does not wait for them."""
    if sys.platform.startswith("linux"):
        from multiprocessing.forkserver import ensure_running

        _context(once)
        ensure_running()


def _context(once: Sequence[str]) -> BaseContext:
    if not once or not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*once])
    return context


def _start(environment: dict[str, str]) -> None:
    """In a new worker, whose environment may be that of an earlier pool."""
    os.environ.clear()
    os.environ.update(environment)
    _end_with_parent()


def _end_with_parent() -> None:
    """A worker whose parent was killed would otherwise work on, and then wait for ever.

    Ctrl-C reaches workers too; the parent decides what becomes of them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(process: multiprocessing.process.BaseProcess) -> None:
    process.join()
    os._exit(1)
