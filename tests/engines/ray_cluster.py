"""A Ray cluster for tests: nodes that are processes of this machine, with little memory and no dashboard."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from calmrl._support.engine import RayEngine
from calmrl.errors import InputError
from tests.support.waiting import patience

SOURCE = Path(__file__).resolve().parents[2] / "src"
STORE_BYTES = 100 << 20
NICENESS = "RAY_worker_niceness"  # 15 unless it is set: all that runs beside the tests would go first
SOCKET = 71  # bytes of the path of Ray's longest socket below its temporary folder, of 107 that a system allows


def why_not() -> str | None:
    """Why Ray cannot be started here; None where it can."""
    temporary = os.environ["RAY_TMPDIR"]
    for what, path in (("the project", str(SOURCE)), ("temporary files", temporary), ("Python", sys.prefix)):
        if not path.isascii():
            return f"Ray does not start where the path of {what} has letters beyond ASCII"
    if len(temporary) + SOCKET > 107:
        return f"Ray does not start where the path of temporary files has more than {107 - SOCKET} bytes"
    return None


class Nodes:
    """A cluster whose head node has no cores, and nodes that have some; this process is connected to it."""

    def __init__(self):
        import ray
        from ray.cluster_utils import Cluster

        os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), str(SOURCE.parent)])
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ[NICENESS] = "0"
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = []  # (cores, node)
        ray.init(self.cluster.address, log_to_driver=False, logging_level="error")

    def have(self, *cores):
        """Nodes with these numbers of cores, and no others; every core has a worker that is ready."""
        wanted = list(cores)
        for own, node in list(self.nodes):
            if own in wanted:
                wanted.remove(own)
            else:
                self.remove(node, at_once=False)
        for number in wanted:
            self.nodes.append((number, self.cluster.add_node(num_cpus=number, object_store_memory=STORE_BYTES)))
        self.cluster.wait_for_nodes()
        self._wake(sum(cores))
        return self

    def _wake(self, workers, seconds=300):
        """Give blocks out until so many workers return some: on a busy machine they take long to start."""
        end = time.monotonic() + patience(seconds)
        while True:
            engine = Watched(pause=0.02)
            list(engine.map(int, range(4 * workers)))
            if len(engine.processes) >= workers:
                return
            assert time.monotonic() < end, f"{len(engine.processes)} of {workers} workers are ready after {seconds} s"

    def remove(self, node, at_once=True):
        """End a node, by default at once, as a machine does whose power fails; otherwise it tells the others."""
        self.nodes = [(own, other) for own, other in self.nodes if other is not node]
        self.cluster.remove_node(node, allow_graceful=not at_once)

    def is_gone(self, identity, seconds=120):
        """Whether Ray counts a node as dead; it may take a while to notice."""
        import ray

        end = time.monotonic() + patience(seconds)
        while {node["NodeID"]: node["Alive"] for node in ray.nodes()}[identity]:
            if time.monotonic() > end:
                return False
            time.sleep(0.5)
        return True

    def close(self):
        import ray

        ray.shutdown()
        self.cluster.shutdown()


class Watched(RayEngine):
    """Notes which process on which node did each block, and does something after so many of them."""

    def __init__(self, *, pause=0.0, after=None, do=None):
        super().__init__()
        self.pause, self.after, self.do = pause, after, do
        self.seen = []  # (process, node), in the order of the blocks

    def map(self, function, items, *shared, device="cpu"):
        for place, result in super().map(watched, items, self.pause, function, *shared, device=device):
            self.seen.append(place)
            if len(self.seen) == self.after:
                self.do(self)
            yield result

    @property
    def nodes(self):
        return {node for _, node in self.seen}

    @property
    def processes(self):
        return {process for process, _ in self.seen}

    @property
    def last(self):
        return self.seen[-1]

    @property
    def before(self):
        """The processes of the blocks up to the one after which something was done."""
        return {process for process, _ in self.seen[: self.after]}

    def later(self):
        """The processes of the blocks that were not under way any more when it was done."""
        return {process for process, _ in self.seen[self.after + 20 :]}


def watched(item, pause, function, *shared):
    """((process, node), result); slow enough that every worker gets something to do, with the encoders of tests."""
    import ray

    from calmrl.encoders import ENCODERS
    from tests.support import tiny_encoders

    ENCODERS.update(tiny_encoders.TINY)
    time.sleep(pause)
    return (os.getpid(), ray.get_runtime_context().get_node_id()), function(item, *shared)


def fail_at_three(block):
    if block == 3:
        raise InputError("block 3 is bad")
    return block
