"""Where work on many blocks is done: in this process or on a Ray cluster. One call, `map`, is all that differs."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

from calmrl._support.filesystem import readable_size
from calmrl._support.registry import Registry
from calmrl.errors import InputError, ProcessLost, need


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch and the linear algebra of NumPy work on one thread inside; afterwards as before."""
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


class Engine(Protocol):
    """Applies a function to items; results come in the order of the items, whatever order they were finished in."""

    name: str
    workers: int  # items that are worked on at the same time

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any, device: str = "cpu"
    ) -> Iterator[Any]:
        """function(item, *shared) for every item; `shared` is sent to a worker once, not with every item.

        `device` is what the function uses; one that is no "cpu" is reserved for it.
        """

    def describe(self) -> list[str]:
        """What it would use, a line for each machine."""

    def close(self) -> None:
        """Give back what was opened for it."""


class LocalEngine:
    """A plain loop."""

    name = "local"
    workers = 1

    def __init__(self, address: str | None = None) -> None:
        if address is not None:
            raise InputError(f"{address} is the address of a Ray cluster; add `engine='ray'`, or leave the address out")

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any, device: str = "cpu"
    ) -> Iterator[Any]:
        """function(item, *shared) for every item, each when its result is asked for."""
        return (function(item, *shared) for item in items)

    def describe(self) -> list[str]:
        """This process."""
        return ["this process"]

    def close(self) -> None:
        """Nothing was opened."""


ENGINES: Registry[Callable[[str | None], Engine]] = Registry(
    "engine", {"local": LocalEngine, "ray": "calmrl._support.engine:RayEngine"}
)


@contextmanager
def opened(engine: str | Engine, address: str | None = None) -> Iterator[Engine]:
    """An engine by name, closed at the end; one that is open already is left open."""
    if not isinstance(engine, str):
        if address is not None:
            raise InputError("an address goes with the name of an engine; an engine that is open has its own")
        yield engine
        return
    started = ENGINES[engine](address)
    try:
        yield started
    finally:
        started.close()


IN_FLIGHT = 2  # tasks per core that are running, waiting, or finished and not asked for
RETRIES = 8  # times that a task whose worker or node was lost runs again
TRIM_EVERY = 16  # tasks after which a worker gives freed memory back, which would otherwise grow in small gaps
CLIENT = "ray://"


class RayEngine:
    """Tasks on a Ray cluster.

    Parameters
    ----------
    address : str, optional
        Of the head node, such as "10.0.0.1:6379", or "auto" for a cluster that this machine is part of. By default
        RAY_ADDRESS or the cluster of this machine, and where there is none, one that is started on its cores.

    Examples
    --------
    >>> engine = RayEngine()  # doctest: +SKIP
    >>> list(engine.map(pow, [2, 3], 2))  # doctest: +SKIP
    [4, 9]
    """

    name = "ray"

    def __init__(self, address: str | None = None) -> None:
        self._ray = need("ray", "ray", "the engine ray")
        if address is not None and address.startswith(CLIENT):
            raise InputError(f"{address}: workers and this process share files, so start this command on a node of the "
                             "cluster and give the address of its head node, for instance 10.0.0.1:6379")  # fmt: skip
        self._mine = not self._ray.is_initialized()
        if self._mine:
            self._connect(address)
        elif address not in (None, "auto", self._ray.get_runtime_context().gcs_address):
            raise InputError(
                f"this process is connected to {self._ray.get_runtime_context().gcs_address} already, not to {address}; "
                "leave out the address, or call ray.shutdown() first"
            )
        self._function = self._ray.remote(_apply)

    def _connect(self, address: str | None) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=False)
        except ValueError:  # options of a new cluster do not go with one that is there
            self._ray.init(address=address, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise InputError(f"no Ray cluster answers at {address}; start one with: ray start --head") from error

    @property
    def workers(self) -> int:
        """Cores of the cluster, at this moment."""
        return self._amount("CPU")

    def _amount(self, resource: str) -> int:
        number = int(self._ray.cluster_resources().get(resource, 0))
        if not number:
            raise InputError(f"the Ray cluster has no {resource}; add a node that has one: ray start --address ADDRESS")
        return number

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any, device: str = "cpu"
    ) -> Iterator[Any]:
        """function(item, *shared) for every item, in order; function and `shared` go once to the object store.

        A task takes a core, and for a `device` other than "cpu" a GPU too.
        """
        job = self._ray.put((function, shared))
        under_way: deque[Any] = deque()
        resource = "CPU" if device == "cpu" else "GPU"
        task = self._function.options(num_cpus=1, num_gpus=int(resource == "GPU"), max_retries=RETRIES)
        limit = IN_FLIGHT * self._amount(resource)
        try:
            for item in items:
                if len(under_way) >= limit:
                    yield self._result(under_way.popleft())
                under_way.append(task.remote(job, item))
            while under_way:
                yield self._result(under_way.popleft())
        finally:
            for left in under_way:
                self._ray.cancel(left)

    def _result(self, task: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.RayTaskError as error:
            raise error.cause from error
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
        ) as error:
            reason = " ".join(str(error).split())
            raise ProcessLost(
                f"a block could not be done: its worker was lost {RETRIES + 1} times; see the logs of the cluster, then run "
                f"the same command again ({reason[:200]})"
            ) from error

    def describe(self) -> list[str]:
        """Nodes that are alive, with their cores, GPUs and memory for tasks."""
        lines = []
        for node in self._ray.nodes():
            has = node["Resources"]
            if node["Alive"]:
                gpus = f", {has['GPU']:.0f} GPUs" if has.get("GPU") else ""
                memory = readable_size(has.get("memory", 0))
                lines.append(f"node {node['NodeManagerAddress']}: {has.get('CPU', 0):.0f} cores{gpus}, {memory}")
        return [*lines, f"ray {self._ray.__version__}, {IN_FLIGHT} tasks per core under way at most"]

    def close(self) -> None:
        """Disconnect, unless this process was connected before; a cluster that was started for it ends."""
        if self._mine:
            self._ray.shutdown()


_tasks = count(1)  # of this worker


def _apply(job: tuple[Callable[..., Any], tuple[Any, ...]], item: Any) -> Any:
    function, shared = job
    try:
        return function(item, *shared)
    finally:
        if next(_tasks) % TRIM_EVERY == 0:
            _trim()


def _trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """A pool of this many processes; None for 0: the work is done in this one. They are started anew, as every system can.

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
