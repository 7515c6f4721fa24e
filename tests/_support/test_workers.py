"""Workers of a pool."""

import os
import subprocess
import sys

import pytest

from calmrl._support.workers import worker_pool


@pytest.mark.parametrize("once", [(), ("json",)], ids=["spawned", "forked"])
def test_workers_have_the_environment_of_the_moment(once, monkeypatch):
    for value in ("a", "b"):
        monkeypatch.setenv("CALMRL_TEST_MARK", value)
        with worker_pool(1, once) as pool:
            assert pool.submit(os.getenv, "CALMRL_TEST_MARK").result() == value
    monkeypatch.delenv("CALMRL_TEST_MARK")
    with worker_pool(1, once) as pool:
        assert pool.submit(os.getenv, "CALMRL_TEST_MARK").result() is None
        assert pool.submit(os.getpid).result() != os.getpid()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere workers are not forks")
def test_imports_can_begin_before_there_is_a_pool() -> None:
    program = """
from multiprocessing import forkserver
from calmrl._support.workers import import_early, worker_pool
import_early(("colorsys",))
server = forkserver._forkserver._forkserver_pid
assert server is not None
with worker_pool(1, ("colorsys",)) as pool:
    imported = pool.submit(eval, "'colorsys' in __import__('sys').modules").result()
    print(imported, pool.submit(eval, "__import__('os').getppid()").result() == server)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_what_workers_of_a_comparison_import_starts_no_threads() -> None:
    program = """
import importlib, sys, threading
from calmrl.workflows.compare.warm import ONCE
assert not {"torch", "sklearn", "numpy"} & set(sys.modules), "to warm up must not wait for what it starts"
for name in ONCE:
    importlib.import_module(name)
print(threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
