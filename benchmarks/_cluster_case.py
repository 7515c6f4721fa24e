"""One case of the benchmark `cluster`, in a process of its own: python -m benchmarks._cluster_case WORK ENGINE FOLDER

ENGINE is "local", "ray 1" (one node with one core) or "ray 2" (two nodes with one core each; the head node has none). All
processes have done the same work on few rows before, so that neither their start nor imports are timed.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import LocalEngine

WIDTHS = {"image": 64, "text": 64, "sound": 64}
LATENTS, ITERATIONS = 32, 8
ENCODER = {"image": "mobilenet_v2"}
COUNTED = ("sent", "received", "blocks", "worker_mb", "network")


def make_features(path: Path, n: int) -> None:
    """Rows from a latent model, a third of the blocks missing, written in pieces."""
    from calmrl.data import FeatureWriter, hide

    rng = np.random.default_rng(0)
    maps = {name: rng.normal(size=(8, width)) for name, width in WIDTHS.items()}
    with FeatureWriter(path, WIDTHS, range(n), dtype="float32") as writer:
        for start in range(0, n, 100_000):
            rows = min(100_000, n - start)
            shared = rng.normal(size=(rows, 8))
            z = {name: (shared @ m + rng.normal(size=(rows, m.shape[1]))).astype("float32") for name, m in maps.items()}
            writer.fill(slice(start, start + rows), z, hide(np.ones((rows, len(z)), dtype=bool), 0.3, rng))
        writer.finish()


def make_pictures(path: Path, n: int) -> None:
    """Pictures of 224 x 224 in a few colours."""
    from PIL import Image

    rng = np.random.default_rng(0)
    path.mkdir()
    for i in range(n):
        colours = rng.integers(0, 256, size=(7, 7, 3), dtype=np.uint8)
        Image.fromarray(colours.repeat(32, axis=0).repeat(32, axis=1)).save(path / f"{i}.png")


def impute_work(features: Path, out: Path, engine: Any) -> None:
    """EM for a fixed number of iterations, then all rows imputed and written."""
    from calmrl.config import load
    from calmrl.workflows.impute import impute

    chosen = [f"imputer.latent_dim={LATENTS}", f"imputer.max_iter={ITERATIONS}", "imputer.tol=1e-12"]
    impute(features, out, load(None, ["imputer.method=gaussian", *chosen], kind="impute"), engine=engine)


def embed_work(pictures: Path, out: Path, engine: Any) -> None:
    """Every picture decoded and encoded."""
    from calmrl.workflows.extract import extract

    extract(pictures, ENCODER, out, engine=engine)


Work = Callable[[Path, Path, Any], None]
WORKS: dict[str, tuple[Work, Callable[[Path, int], None]]] = {
    "impute": (impute_work, make_features),
    "embed": (embed_work, make_pictures),
}


def case(work: str, name: str, folder: Path) -> dict[str, Any]:
    """Seconds, processor seconds, memory, bytes of a block of EM, and a digest of what was written."""
    warnings.simplefilter("ignore")
    engine: Any = "local" if name == "local" else _counting_engine(int(name.split()[1]))
    if name != "local":
        list(engine.map(_warm, range(8 * engine.workers), work))
        engine.processor = 0.0
    _warm(0, work)
    out = folder.parent / f"{work} {name}"
    start, used = time.perf_counter(), time.process_time()
    WORKS[work][0](folder, out, engine)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    memory = _most_memory()
    digest = hashlib.sha256("".join(_digest(file) for file in sorted(out.glob("*.npy"))).encode()).hexdigest()[:12]
    shutil.rmtree(out)
    counted = {} if name == "local" else {key: getattr(engine, key) for key in COUNTED}
    used += 0.0 if name == "local" else engine.processor
    return {"seconds": seconds, "processor": used, "driver_mb": memory, "digest": digest, **counted}


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _warm(_: int, work: str) -> None:
    """The work on few rows, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        WORKS[work][1](Path(folder) / "in", 500 if work == "impute" else 4)
        WORKS[work][0](Path(folder) / "in", Path(folder) / "out", LocalEngine())
    time.sleep(0.2)


def _counting_engine(workers: int) -> Any:
    import ray
    from ray.cluster_utils import Cluster

    from calmrl._support.engine import RayEngine

    class Counting(RayEngine):
        """Notes the bytes of EM, processor time and memory.

        `sent` is what every block of an iteration shares, `received` what one of them gives back, both pickled;
        `network` is what the loopback interface carried in an iteration, for all nodes are on this machine.
        """

        sent = received = blocks = steps = 0
        network = 0.0
        processor = worker_mb = 0.0

        def map(self, function: Any, items: Any, *shared: Any, device: str = "cpu") -> Any:
            items = list(items)
            is_step = any(getattr(one, "__name__", "") == "_block_statistics" for one in shared)
            before = _carried()
            results = super().map(_measured, items, function, *shared, device=device)
            for number, (used, memory, result) in enumerate(results):
                self.processor += used
                self.worker_mb = max(self.worker_mb, memory)
                if is_step and not number and not self.sent:
                    self.sent, self.received = len(pickle.dumps(shared)), len(pickle.dumps(result))
                    self.blocks = len(items)
                yield result
            if is_step:
                self.network = (self.network * self.steps + _carried() - before) / (self.steps + 1)
                self.steps += 1

    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    os.environ["OMP_NUM_THREADS"] = "1"
    store = {"object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    for _ in range(workers):
        cluster.add_node(num_cpus=1, **store)
    cluster.wait_for_nodes()
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    return Counting()


def _measured(item: Any, function: Any, *shared: Any) -> tuple[float, float, Any]:
    """(processor seconds, most memory of this worker so far in MB, result)"""
    start = time.process_time()
    result = function(item, *shared)
    return time.process_time() - start, _most_memory(), result


def _carried() -> int:
    """Bytes that the loopback interface has received so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()[0])


def _most_memory() -> float:
    """The most memory that this process has had so far, in MB; what its parent had does not count."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(case(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
