"""On a Ray cluster: every byte of one process, with one, two and four workers, on two nodes, with lost ones.

The tests stand in an order in which few nodes must be started: a worker takes seconds to import what it needs.
"""

from __future__ import annotations

import importlib
import os
import signal
from itertools import count

import numpy as np
import pytest

pytest.importorskip("ray", reason='Ray is not installed; pip install "calmrl[ray]" to run these tests')

import ray

from calmrl import Aligner
from calmrl._support import engine as ray_engine
from calmrl._support.engine import RayEngine
from calmrl.config import load
from calmrl.data import open_features, write_features
from calmrl.data.features import distributed_rows
from calmrl.data.features.distributed_rows import DistributedArrays
from calmrl.errors import InputError
from calmrl.imputers import GaussianImputer
from calmrl.metrics import retrieval
from calmrl.metrics import retrieve as products
from calmrl.workflows.extract import extract
from calmrl.workflows.impute import impute
from tests.engines.pickling_engine import save_parquet
from tests.engines.ray_cluster import NICENESS, Nodes, Watched, fail_at_three, why_not
from tests.support.latent_data import from_model
from tests.support.tiny_encoders import tiny  # noqa: F401

imputation = importlib.import_module("calmrl.workflows.impute")  # the package exports a function of this name

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
ROWS, BLOCK = 2400, 1 << 13
AFTER = 60  # blocks, of more than a hundred


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed_rows, "BLOCK_BYTES", BLOCK)
        patch.setattr(imputation, "IMPUTE_BYTES", BLOCK)
        yield


@pytest.fixture(scope="module")
def nodes():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH", "OMP_NUM_THREADS", NICENESS):  # the cluster changes them
            patch.setenv(name, os.environ.get(name, ""))
        made = Nodes()
        yield made
        made.close()


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


def run(local, out, **watch):
    """Impute on the cluster; the engine knows who did what."""
    engine = Watched(**watch)
    impute(local[0], out, config(), engine=engine)
    assert content(out) == local[1]
    return engine


@pytest.mark.parametrize("cores", [(2,), (1, 1, 2), (1, 1), (1,)])
def test_workers_of_nodes(nodes, local, tmp_path, cores):
    nodes.have(*cores)
    engine = run(local, tmp_path / "out", pause=0.05)
    assert (len(engine.nodes), len(engine.processes)) == (len(cores), sum(cores))


def test_four_workers_of_which_one_is_killed(nodes, local, tmp_path):
    nodes.have(1, 1, 2)
    killed = []

    def kill(engine):
        killed.append(engine.seen[-1][0])
        os.kill(killed[0], signal.SIGKILL)

    engine = run(local, tmp_path / "out", pause=0.02, after=AFTER, do=kill)
    assert len(engine.processes) >= 4
    assert killed[0] in {process for process, _ in engine.seen[:AFTER]}
    assert killed[0] not in {process for process, _ in engine.seen[AFTER + 20 :]}


def test_a_node_is_removed_in_the_middle(nodes, local, tmp_path):
    nodes.have(1, 1, 2)
    removed = []

    def remove(engine):
        node = next(node for cores, node in nodes.nodes if cores == 2)
        removed.append(node.node_id)
        nodes.remove(node)

    engine = run(local, tmp_path / "out", pause=0.05, after=AFTER, do=remove)
    assert removed[0] in {node for _, node in engine.seen[:AFTER]}
    assert len(engine.seen) > AFTER + 40
    assert removed[0] not in {node for _, node in engine.seen[AFTER + 20 :]}
    assert len({node for _, node in engine.seen[AFTER + 20 :]}) == 2
    assert nodes.is_gone(removed[0])


def test_a_parquet_file_on_two_nodes(nodes, local, tmp_path):
    nodes.have(1, 1)
    save_parquet(open_features(local[0]), tmp_path / "features.parquet")
    engine = Watched(pause=0.01)
    impute(tmp_path / "features.parquet", tmp_path / "out", config(), engine=engine)
    written = content(tmp_path / "out")
    assert {name: written[name] == data for name, data in local[1].items() if name.endswith(".npy")} == {
        name: True for name in local[1] if name.endswith(".npy")
    }
    assert len(engine.nodes) == 2


@pytest.mark.usefixtures("tiny")
def test_files_are_encoded_on_two_nodes(nodes, tmp_path):
    nodes.have(1, 1)
    (tmp_path / "items").mkdir()
    for i in range(40):
        (tmp_path / "items" / f"{i}.txt").write_text(f"text number {i}")
    engine = Watched(pause=0.05)
    for name, where in (("one", "local"), ("distributed", engine)):
        extract(tmp_path / "items", {"text": "tiny_text"}, tmp_path / name, batch_size=2, engine=where)
    assert len(engine.nodes) == 2
    assert content(tmp_path / "distributed") == content(tmp_path / "one")


def test_ranks_and_the_aligner_on_two_nodes(nodes, monkeypatch):
    nodes.have(1, 1)
    monkeypatch.setattr(products, "BLOCK_BYTES", 4 * 300 * 4)
    vectors = np.random.default_rng(0).normal(size=(2, 300, 8))
    engine = Watched(pause=0.05)
    assert retrieval(*vectors, engine=engine) == retrieval(*vectors)
    settings = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 2, "prior": 10.0}
    z, present = from_model(n=600)
    one = Aligner(**settings, refine="never").fit(z, present)
    distributed = Aligner(**settings, refine="never").fit(DistributedArrays(z, present, engine))
    np.testing.assert_allclose(distributed.embed(z, present), one.embed(z, present), rtol=0, atol=1e-8)
    assert len(engine.nodes) == 2


def test_what_is_chosen_on_two_nodes(nodes, monkeypatch):
    nodes.have(1, 1)
    monkeypatch.setattr(distributed_rows, "BLOCK_BYTES", 1 << 26)  # as the workers have it
    z, present = from_model(n=300)
    engine = Watched(pause=0.05)
    settings = {"latent_dim": "auto", "n_components": "auto", "max_iter": 6}
    sizes = GaussianImputer(**settings).fit(z, present)
    assert GaussianImputer(**settings).fit_with(z, present, engine).search_ == sizes.search_
    some = {"candidates": 6, "landmarks": 50, "refine": "never"}
    one, distributed = Aligner(**some).fit(z, present), Aligner(**some).fit(DistributedArrays(z, present, engine))
    assert distributed.choice_ == one.choice_
    assert distributed.expected_ == one.expected_
    assert len(engine.nodes) == 2


def test_an_error_of_a_block_is_raised_here_as_it_is(nodes):
    nodes.have(1, 1)
    with pytest.raises(InputError, match=r"^block 3 is bad$"):
        list(RayEngine().map(fail_at_three, range(20)))


def test_few_tasks_are_under_way_at_a_time(nodes):
    nodes.have(1, 1)
    engine, taken = RayEngine(), []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    results = engine.map(int, items())
    assert next(results) == 0
    assert len(taken) <= 2 * engine.workers + 1
    assert list(results) == list(range(1, 100))


def test_a_worker_gives_memory_back_now_and_then(monkeypatch):
    trimmed = []
    monkeypatch.setattr(ray_engine, "_trim", lambda: trimmed.append(True))
    monkeypatch.setattr(ray_engine, "_tasks", count(1))
    for number in range(2 * ray_engine.TRIM_EVERY - 1):
        assert ray_engine._apply((pow, (2,)), number) == number**2
    assert len(trimmed) == 1
    with pytest.raises(InputError):
        ray_engine._apply((fail_at_three, ()), 3)
    assert len(trimmed) == 2


def test_an_engine_does_not_leave_the_cluster_of_its_process_nor_take_another(nodes):
    nodes.have(1, 1)
    RayEngine().close()
    assert ray.is_initialized()
    with pytest.raises(InputError, match=r"is connected to .* already, not to 10\.9\.9\.9:1"):
        RayEngine("10.9.9.9:1")
    with pytest.raises(InputError, match="has no GPU"):
        list(RayEngine().map(int, range(3), device="cuda"))
