"""Deadlines of a connection: for its headers, and for an answer that is not read."""

from __future__ import annotations

from types import SimpleNamespace

import h11
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from calmrl.server.connection import connection_class


class Timer:
    def __init__(self, seconds, function):
        self.seconds, self.function, self.cancelled = seconds, function, False

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def connection(monkeypatch):
    """A connection whose loop and transport only write down; `calls` is what uvicorn was told."""
    calls, timers, limits = [], [], []
    for name in ("connection_made", "data_received", "pause_writing", "resume_writing", "connection_lost"):
        monkeypatch.setattr(H11Protocol, name, lambda self, *given, name=name: calls.append((name, *given)))
    made = object.__new__(connection_class(10.0, 30.0))
    made.transport = SimpleNamespace(abort="abort", set_write_buffer_limits=lambda **given: limits.append(given))
    made.loop = SimpleNamespace(call_later=lambda *given: timers.append(Timer(*given)) or timers[-1])
    made.conn = SimpleNamespace(their_state=h11.IDLE)
    made.seen = SimpleNamespace(calls=calls, timers=timers, limits=limits)
    return made


def test_headers_must_come_in_time(connection):
    connection.connection_made(connection.transport)
    (timer,) = connection.seen.timers
    assert (timer.seconds, timer.function) == (10.0, "abort")
    assert connection.seen.limits == [{"high": 0}]
    connection.data_received(b"GET")
    assert len(connection.seen.timers) == 1  # the same deadline, however often something comes
    connection.conn.their_state = h11.SEND_BODY
    connection.data_received(b" / HTTP/1.1")
    assert timer.cancelled
    connection.data_received(b"more")
    connection.conn.their_state = h11.IDLE
    connection.data_received(b"")  # the next request
    assert len(connection.seen.timers) == 2
    assert connection.seen.calls[0] == ("connection_made", connection.transport)
    assert [call[1] for call in connection.seen.calls[1:]] == [b"GET", b" / HTTP/1.1", b"more", b""]


def test_an_answer_must_be_read_in_time(connection):
    connection.pause_writing()
    connection.pause_writing()
    (timer,) = connection.seen.timers
    assert (timer.seconds, timer.function) == (30.0, "abort")
    connection.resume_writing()
    assert timer.cancelled
    connection.resume_writing()
    connection.pause_writing()
    assert len(connection.seen.timers) == 2  # every stop has a deadline of its own
    names = [call[0] for call in connection.seen.calls]
    assert names == ["pause_writing", "pause_writing", "resume_writing", "resume_writing", "pause_writing"]


def test_nothing_is_aborted_after_the_end(connection):
    connection.connection_lost(None)
    connection.connection_made(connection.transport)
    connection.pause_writing()
    connection.connection_lost(None)
    assert [timer.cancelled for timer in connection.seen.timers] == [True, True]
    assert connection.seen.calls[-1] == ("connection_lost", None)
