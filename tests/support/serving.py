"""A real server on loopback for tests, with limits small enough to be reached."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from calmrl.server.limits import Limits
from calmrl.server.run import listen, server_config


@contextmanager
def served(index, limits: Limits | None = None, *, allow_add: bool = False):
    """Yield the port of a server that runs in a thread of this process."""
    limits = limits or Limits()
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(server_config(index, "127.0.0.1", allow_add, limits))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


def digest(folder: Path) -> str:
    """Changes when any file below a folder changes, appears or goes."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        whole.update(str(path.relative_to(folder)).encode())
        if path.is_file():
            whole.update(path.read_bytes())
    return whole.hexdigest()


def exchange(port: int, data: bytes | list[bytes], *, pause: float = 0.0, wait: float = 300.0) -> bytes:
    """Send bytes, perhaps slowly and in parts, and return all that comes back until the connection is closed."""
    parts = [data] if isinstance(data, bytes) else data
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                if pause:
                    time.sleep(pause)
            while piece := connection.recv(65536):
                answer += piece
        except (ConnectionResetError, BrokenPipeError):
            answer += _rest(connection)
    return answer


def _rest(connection: socket.socket) -> bytes:
    """What the server sent before it closed the connection on a client that was still sending."""
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def status(answer: bytes) -> int | None:
    """The status of an answer; None where the connection was closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None
