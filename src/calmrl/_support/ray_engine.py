"""Work on a Ray cluster: stateless tasks, so that one whose worker or node is lost runs again elsewhere.

Only this file knows Ray. Tasks take a core each. At most `IN_FLIGHT` of them per core are under way, so that results
that nobody has asked for yet do not pile up.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from calmrl._support.filesystem import readable_size
from calmrl.errors import InputError, ProcessLost, need

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
