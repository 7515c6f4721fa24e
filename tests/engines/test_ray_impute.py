"""Imputing on a Ray cluster: every byte of one process, with one, two and four workers, on two nodes, with lost ones."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("ray", reason='Ray is not installed; pip install "calmrl[ray]" to run these tests')

from ray_cluster import Watched, fail_at_three, start_cluster

from calmrl._support.ray_engine import RayEngine
from calmrl.config import load
from calmrl.data import write_features
from calmrl.data.features import spread_rows
from calmrl.errors import InputError
from calmrl.workflows import imputation
from calmrl.workflows.impute import impute
from latent_data import from_model

ROWS, BLOCK = 2400, 1 << 13


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spread_rows, "BLOCK_BYTES", BLOCK)
        patch.setattr(imputation, "IMPUTE_BYTES", BLOCK)
        yield


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose head node has no cores, and a node with one; this process is connected to it."""
    import ray

    made, nodes = start_cluster(1)
    ray.init(made.address, log_to_driver=False, logging_level="error")
    yield made, nodes
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """(features, what one process makes of them)"""
    root = tmp_path_factory.mktemp("local")
    z, present = from_model(n=ROWS)
    features = write_features(root / "features", z, present, ids=range(ROWS))
    impute(features.path, root / "local", config())
    return features.path, content(root / "local")


def config():
    chosen = ("imputer.method=gaussian", "imputer.latent_dim=2", "imputer.max_iter=4", "imputer.tol=1e-12", "std=true")
    return load(None, list(chosen), kind="impute")


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def run(cluster, local, out, **watch):
    """Impute on the cluster; the engine knows who did what."""
    engine = Watched(cluster[0].address, **watch)
    impute(local[0], out, config(), engine=engine)
    assert content(out) == local[1]
    return engine


def test_one_worker(cluster, local, tmp_path):
    engine = run(cluster, local, tmp_path / "out")
    assert len(engine.nodes) == 1
    assert len(engine.processes) == 1


def test_two_nodes_with_a_worker_each(cluster, local, tmp_path):
    made, nodes = cluster
    nodes.append(made.add_node(num_cpus=1, object_store_memory=100 << 20))
    made.wait_for_nodes()
    engine = run(cluster, local, tmp_path / "out", pause=0.02)
    assert len(engine.nodes) == 2
    assert len(engine.processes) == 2


def test_four_workers_of_which_one_is_killed(cluster, local, tmp_path):
    made, nodes = cluster
    nodes.append(made.add_node(num_cpus=2, object_store_memory=100 << 20))
    made.wait_for_nodes()
    killed = []

    def kill(engine):
        killed.append(engine.last[0])
        os.kill(engine.last[0], signal.SIGKILL)

    engine = run(cluster, local, tmp_path / "out", pause=0.02, after=60, do=kill)
    assert len(engine.processes) >= 4
    assert killed[0] in engine.before
    assert killed[0] not in engine.later()


def test_a_node_is_removed_in_the_middle(cluster, local, tmp_path):
    import ray

    made, nodes = cluster
    removed = []

    def remove(engine):
        node = nodes.pop()
        removed.append(node.node_id)
        made.remove_node(node, allow_graceful=False)

    engine = run(cluster, local, tmp_path / "out", pause=0.05, after=60, do=remove)
    assert removed[0] in {node for _, node in engine.seen[:60]}
    assert len(engine.seen) > 100
    assert removed[0] not in {node for _, node in engine.seen[-20:]}
    assert len({node for _, node in engine.seen[-20:]}) == 2
    assert not {node["NodeID"]: node["Alive"] for node in ray.nodes()}[removed[0]]


def test_an_error_of_a_block_is_raised_here_as_it_is(cluster):
    with pytest.raises(InputError, match=r"^block 3 is bad$"):
        list(RayEngine(cluster[0].address).map(fail_at_three, range(20)))


def test_few_tasks_are_under_way_at_a_time(cluster):
    engine, taken = RayEngine(), []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    results = engine.map(int, items())
    assert next(results) == 0
    assert len(taken) <= 2 * engine.workers + 1
    assert list(results) == list(range(1, 100))


def test_an_engine_does_not_leave_the_cluster_of_its_process_nor_take_another(cluster):
    import ray

    RayEngine().close()
    assert ray.is_initialized()
    with pytest.raises(InputError, match=r"is connected to .* already, not to 10\.9\.9\.9:1"):
        RayEngine("10.9.9.9:1")
