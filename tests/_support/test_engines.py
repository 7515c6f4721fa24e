"""Engines and workers, with stand-ins for Ray and for processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest

from calmrl._support import engine as ray_engine
from calmrl._support import engine as workers
from calmrl._support.engine import LocalEngine, opened, worker_pool
from calmrl.errors import InputError, ProcessLost

# ---- engines


def test_engines_by_name_and_open_ones():
    with opened("local") as engine:
        assert list(engine.map(pow, [2, 3], 2)) == [4, 9]
        assert (engine.name, engine.workers, engine.describe()) == ("local", 1, ["this process"])
        with opened(engine) as same:
            assert same is engine
        with pytest.raises(InputError, match="an address goes with the name of an engine"), opened(engine, "x"):
            pass
    with pytest.raises(InputError, match="x is the address of a Ray cluster; add `engine='ray'`"):
        LocalEngine("x")
    with pytest.raises(InputError, match="unknown engine"), opened("spark"):
        pass


class Errors:
    RayTaskError = type("RayTaskError", (Exception,), {"cause": InputError("of the task")})
    WorkerCrashedError = type("WorkerCrashedError", (Exception,), {})
    NodeDiedError, ObjectLostError, OutOfMemoryError = KeyError, IndexError, MemoryError


class Ray:
    """What the engine uses of ray, in this process."""

    __version__, exceptions = "2.0", Errors

    def __init__(self, running=False, resources=None) -> None:
        self.running, self.resources = running, {"CPU": 2.0} if resources is None else resources
        self.inits, self.options_given, self.got, self.cancelled, self.down = [], [], [], [], 0
        self.fail = []

    def is_initialized(self):
        return self.running

    def init(self, **options):
        self.inits.append(options)
        if self.fail:
            raise self.fail.pop(0)

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="here:1")

    def remote(self, function):
        def options(**given):
            self.options_given.append(given)
            return SimpleNamespace(remote=lambda job, item: (function, job, item))

        return SimpleNamespace(options=options)

    def put(self, job):
        return job

    def get(self, task):
        self.got.append(task[2])
        function, job, item = task
        return function(job, item)

    def cancel(self, task):
        self.cancelled.append(task[2])

    def cluster_resources(self):
        return self.resources

    def nodes(self):
        return [
            {"Alive": True, "NodeManagerAddress": "a", "Resources": {"CPU": 4.0, "GPU": 2.0, "memory": 2.5e9}},
            {"Alive": False, "NodeManagerAddress": "b", "Resources": {}},
            {"Alive": True, "NodeManagerAddress": "c", "Resources": {"GPU": 0.0}},
        ]

    def shutdown(self):
        self.down += 1


@pytest.fixture
def ray(monkeypatch):
    def use(**given):
        made = Ray(**given)
        monkeypatch.setattr(ray_engine, "need", lambda *names: made)
        return made

    return use


def test_ray_starts_or_joins_a_cluster(ray):
    fake = ray()
    engine = ray_engine.RayEngine()
    quiet = {"log_to_driver": False, "logging_level": "error"}
    assert fake.inits == [{"address": None, "include_dashboard": False, **quiet}]
    engine.close()
    assert fake.down == 1
    fake = ray()
    fake.fail = [ValueError("options")]
    ray_engine.RayEngine("x:1")
    assert fake.inits == [{"address": "x:1", "include_dashboard": False, **quiet}, {"address": "x:1", **quiet}]
    fake = ray()
    fake.fail = [ConnectionError()]
    with pytest.raises(InputError, match="no Ray cluster answers at x:1; start one with: ray start --head"):
        ray_engine.RayEngine("x:1")
    with pytest.raises(InputError, match="ray://x: workers and this process share files"):
        ray_engine.RayEngine("ray://x")
    fake = ray(running=True)
    for address in (None, "auto", "here:1"):
        ray_engine.RayEngine(address).close()
    assert (fake.inits, fake.down) == ([], 0)  # it was not ours to end
    with pytest.raises(InputError, match="this process is connected to here:1 already, not to there:2"):
        ray_engine.RayEngine("there:2")


def test_so_many_tasks_are_under_way(ray):
    fake = ray()
    engine = ray_engine.RayEngine()
    assert engine.workers == 2
    taken = []

    def items():
        for number in range(6):
            taken.append(number)
            yield number

    results = engine.map(lambda item, add: item + add, items(), 10)
    assert next(results) == 10
    assert taken == [0, 1, 2, 3, 4]  # two per core under way, and one more was asked for
    assert fake.got == [0]
    results.close()
    assert fake.cancelled == [1, 2, 3]
    assert list(engine.map(pow, [2, 3], 2)) == [4, 9]
    assert fake.options_given == [{"num_cpus": 1, "num_gpus": 0, "max_retries": 8}] * 2
    with pytest.raises(InputError, match="the Ray cluster has no GPU; add a node that has one"):
        list(engine.map(pow, [2], 2, device="cuda"))
    fake.resources["GPU"] = 1.0
    assert list(engine.map(pow, [2], 2, device="cuda")) == [4]
    assert fake.options_given[-1] == {"num_cpus": 1, "num_gpus": 1, "max_retries": 8}


def test_tasks_that_fail_and_workers_that_are_lost(ray):
    ray()
    engine = ray_engine.RayEngine()

    def failing(item):
        raise item

    with pytest.raises(InputError, match="of the task"):
        list(engine.map(failing, [Errors.RayTaskError()]))
    for lost in (Errors.WorkerCrashedError("gone " * 99), KeyError("x"), IndexError("x"), MemoryError("x")):
        with pytest.raises(ProcessLost, match="its worker was lost 9 times; see the logs") as caught:
            list(engine.map(failing, [lost]))
        assert len(str(caught.value)) < 400
    with pytest.raises(ProcessLost, match=rf"\({'gone ' * 40}\)$"):
        list(engine.map(failing, [Errors.WorkerCrashedError("gone " * 99)]))


def test_what_ray_would_use(ray):
    ray()
    assert ray_engine.RayEngine().describe() == [
        "node a: 4 cores, 2 GPUs, 2.5 GB",
        "node c: 0 cores, 0 bytes",
        "ray 2.0, 2 tasks per core under way at most",
    ]


def test_memory_is_given_back_now_and_then(monkeypatch):
    from itertools import count

    trimmed = []
    monkeypatch.setattr(ray_engine, "_trim", lambda: trimmed.append(1))
    monkeypatch.setattr(ray_engine, "_tasks", count(1))
    for _ in range(15):
        ray_engine._apply((pow, (2,)), 3)
    assert trimmed == []
    with pytest.raises(ZeroDivisionError):
        ray_engine._apply((divmod, (0,)), 3)
    assert trimmed == [1]  # also after a task that failed
    calls = []
    monkeypatch.undo()
    monkeypatch.setattr(ray_engine.ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=calls.append))
    ray_engine._trim()
    assert calls == [0]
    monkeypatch.setattr(ray_engine.ctypes, "CDLL", lambda name: object())
    ray_engine._trim()


# ---- workers


class Pool:
    def __init__(self, count, context, initializer):
        self.given = (count, context.get_start_method(), initializer)
        self.ended, self.closed = [], []
        self._processes = {1: SimpleNamespace(terminate=lambda: self.ended.append(1))}

    def shutdown(self, **how):
        self.closed.append(how)


def test_processes_are_ended_only_after_an_error(monkeypatch):
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    with workers.worker_pool(0) as pool:
        assert pool is None
    with workers.worker_pool(3) as pool:
        assert pool.given == (3, "spawn", workers._end_with_parent)
    assert (pool.ended, pool.closed) == ([], [{"wait": True, "cancel_futures": True}])
    with pytest.raises(KeyboardInterrupt), workers.worker_pool(1) as pool:
        raise KeyboardInterrupt
    assert (pool.ended, pool.closed) == ([1], [{"wait": True, "cancel_futures": True}])


def test_a_worker_ends_with_its_parent_and_leaves_ctrl_c_to_it(monkeypatch):
    handled, started, exits = [], [], []
    monkeypatch.setattr(signal, "signal", lambda *given: handled.append(given))
    monkeypatch.setattr(
        workers.threading, "Thread", lambda **given: SimpleNamespace(start=lambda: started.append(given))
    )
    parent = SimpleNamespace(join=lambda: exits.append("joined"))
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    workers._end_with_parent()
    assert (handled, started) == ([(signal.SIGINT, signal.SIG_IGN)], [])
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    workers._end_with_parent()
    assert started == [{"target": workers._exit_after, "args": (parent,), "daemon": True}]
    monkeypatch.setattr(os, "_exit", exits.append)
    workers._exit_after(parent)
    assert exits == ["joined", 1]


def test_workers_have_the_environment_of_the_moment(monkeypatch):
    for value in ("a", "b"):
        monkeypatch.setenv("CALMRL_TEST_MARK", value)
        with worker_pool(1) as pool:
            assert pool.submit(os.getenv, "CALMRL_TEST_MARK").result() == value
    monkeypatch.delenv("CALMRL_TEST_MARK")
    with worker_pool(1) as pool:
        assert pool.submit(os.getenv, "CALMRL_TEST_MARK").result() is None
        assert pool.submit(os.getpid).result() != os.getpid()
