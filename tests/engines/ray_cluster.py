"""A Ray cluster for tests: nodes that are processes of this machine, with little memory and no dashboard."""

from __future__ import annotations

import os
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
HERE = Path(__file__).resolve().parent
STORE_BYTES = 100 << 20


def start_cluster(*cores):
    """A cluster with a head node without cores and one node for each number of cores: (cluster, nodes)."""
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ["OMP_NUM_THREADS"] = "1"
    options = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **options})
    nodes = [cluster.add_node(num_cpus=number, object_store_memory=STORE_BYTES) for number in cores]
    return cluster, nodes


def where(block, pause=0.0):
    """Which process on which node a task runs in."""
    import ray

    time.sleep(pause)
    return os.getpid(), ray.get_runtime_context().get_node_id()
