"""Workers of a pool."""

import os

from calmrl._support.engine import worker_pool


def test_workers_have_the_environment_of_the_moment(monkeypatch):
    for value in ("a", "b"):
        monkeypatch.setenv("CALMRL_TEST_MARK", value)
        with worker_pool(1) as pool:
            assert pool.submit(os.getenv, "CALMRL_TEST_MARK").result() == value
    monkeypatch.delenv("CALMRL_TEST_MARK")
    with worker_pool(1) as pool:
        assert pool.submit(os.getenv, "CALMRL_TEST_MARK").result() is None
        assert pool.submit(os.getpid).result() != os.getpid()
