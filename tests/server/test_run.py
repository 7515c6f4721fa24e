"""How the server is started: where it listens, what it says, what uvicorn is told, and deadlines of a connection."""

from __future__ import annotations

import errno
import socket
from types import SimpleNamespace

import pytest
import uvicorn

from calmrl.errors import InputError
from calmrl.server import Limits, run
from calmrl.server.run import listen, run_server, server_config


@pytest.fixture
def started(monkeypatch):
    """What was listened to and served, without doing either."""
    seen = SimpleNamespace(places=[], configs=[], sockets=[])

    class Server:
        def __init__(self, config):
            seen.configs.append(config)

        def run(self, sockets):
            seen.sockets += sockets
            raise KeyboardInterrupt

    def listen_to(host, port):
        seen.places.append((host, port))
        return listen("127.0.0.1", 0)

    monkeypatch.setattr(uvicorn, "Server", Server)
    monkeypatch.setattr(run, "listen", listen_to)
    return seen


def test_by_default_this_machine_and_port_8000(shapes, started):
    lines = []
    run_server(shapes, report=lines.append)
    assert started.places == [("127.0.0.1", 8000)]
    assert len(lines) == 1
    assert lines[0].startswith("48 items at http://127.0.0.1:")
    assert lines[0].endswith("/ (Ctrl-C stops)")
    (used,) = started.sockets
    assert used.fileno() == -1  # closed again
    assert started.configs[0].app.limits == Limits()


@pytest.mark.parametrize(
    ("allow_add", "change"), [(False, "collection; there"), (True, "collection, and change it; there")]
)
def test_other_machines_are_warned_of(shapes, started, allow_add, change):
    lines = []
    run_server(shapes, host="::", port=1, allow_add=allow_add, report=lines.append)
    assert started.places == [("::", 1)]
    assert lines[0].startswith("warning: :: is reachable from other machines.")
    assert change in lines[0]
    assert lines[1].startswith("48 items at http://[::]:")


def test_what_uvicorn_is_told(shapes):
    config = server_config(shapes, "127.0.0.1", False, Limits(connections=7))
    told = {
        name: getattr(config, name)
        for name in ("ws", "log_level", "access_log", "server_header", "proxy_headers", "limit_concurrency",
                     "timeout_keep_alive", "timeout_graceful_shutdown")
    }  # fmt: skip
    assert told == {
        "ws": "none", "log_level": "warning", "access_log": False, "server_header": False, "proxy_headers": False,
        "limit_concurrency": 7, "timeout_keep_alive": 5, "timeout_graceful_shutdown": 5,
    }  # fmt: skip


def test_listening():
    with listen("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        with socket.create_connection(listening.getsockname()):
            pass  # it waits until the server is ready
    with pytest.raises(InputError, match=r"--host no\.invalid is not an address of this machine .*; use 127\.0\.0\.1"):
        listen("no.invalid", 0)


def test_a_port_that_is_taken_is_an_error_with_advice():
    with listen("127.0.0.1", 0) as taken, pytest.raises(InputError, match="choose another --port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_an_address_of_another_machine(monkeypatch):
    closed = []

    class Refused(socket.socket):
        def bind(self, address):
            raise OSError(errno.EADDRNOTAVAIL, "not here")

        def close(self):
            closed.append(True)
            super().close()

    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(
        InputError, match=r"cannot listen on 127\.0\.0\.1:9 \(not here\); choose another --host or --port"
    ):
        listen("127.0.0.1", 9)
    assert closed


def test_the_address_is_told_once_it_can_be_asked(shapes, started):
    told = []
    run_server(shapes, port=0, report=lambda line: None, started=told.append)
    assert started.places == [("127.0.0.1", 0)]
    assert told == [f"http://127.0.0.1:{told[0].split(':')[-1]}"]


def test_a_port_that_is_taken(shapes, started, monkeypatch):
    def listen_to(host, port):
        started.places.append((host, port))
        if port:
            raise InputError("taken")
        return listen("127.0.0.1", 0)

    monkeypatch.setattr(run, "listen", listen_to)
    run_server(shapes, port=None, report=lambda line: None)
    assert started.places == [("127.0.0.1", 8000), ("127.0.0.1", 0)]


def test_the_browser_is_opened_where_there_is_a_screen(monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    monkeypatch.setattr("threading.Thread.start", lambda thread: thread._target(*thread._args))
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    run.show("http://127.0.0.1:1/")
    assert shown == []
    monkeypatch.setenv("DISPLAY", ":0")
    run.show("http://127.0.0.1:1/")
    assert shown == ["http://127.0.0.1:1/"]
