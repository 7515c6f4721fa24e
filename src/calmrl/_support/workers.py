"""Processes that work for this one, and end with it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """So many processes; None for 0, which is to work in this one. They are started anew, as every system can.

    A block that is left by an error or by Ctrl-C does not wait for what is running: its processes are ended.
    """
    if workers == 0:
        yield None
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):  # only those of this pool
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
