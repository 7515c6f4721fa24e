"""Start the server, keep it until it is stopped, and close connections that are too slow."""

import asyncio
import errno
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from calmrl._support.places import is_remote
from calmrl._support.text import plural
from calmrl.errors import InputError, need
from calmrl.search.running import announced
from calmrl.server.limits import Limits, is_loopback

PORT = 8000
BACKLOG = 128
WARNING = (
    "warning: {host} is reachable from other machines. Everyone who reaches it can read the whole collection{change}; "
    "there is no password and no encryption. Use --host 127.0.0.1 to keep it on this machine."
)


def run_server(
    index: Any,
    *,
    host: str = "127.0.0.1",
    port: int | None = PORT,
    allow_add: bool = False,
    limits: Limits | None = None,
    report: Callable[[str], None] = print,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a collection until the process is interrupted.

    Parameters
    ----------
    index : Index
        The collection.
    host, port : str, int
        Where to listen; port 0 takes a free one, None 8000 or a free one.
    allow_add : bool
        Whether clients may add and remove items.
    limits : Limits, optional
        What one client may ask for.
    report : callable
        Gets the lines for people.
    started : callable, optional
        Gets the address, once it can be asked.

    Examples
    --------
    >>> from calmrl import Index
    >>> run_server(Index.open("photos.index"), port=8000)  # doctest: +SKIP
    """
    limits = limits or Limits()
    check_installed()
    import uvicorn

    if not is_loopback(host):
        report(WARNING.format(host=host, change=", and change it" if allow_add else ""))
    listening = _listen_somewhere(host) if port is None else listen(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
    report(f"{plural(len(index), 'item')} at {address} (Ctrl-C stops)")
    if started is not None:
        started(address)
    secret = secrets.token_hex(32)
    with listening, _for_the_shell(index, listening, secret, report), suppress(KeyboardInterrupt):  # Ctrl-C stops it
        uvicorn.Server(server_config(index, host, allow_add, limits, secret)).run(sockets=[listening])


def _for_the_shell(
    index: Any, listening: socket.socket, secret: str, report: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Let searches from the shell of this user find the server, if it is on this machine alone."""
    host, port = listening.getsockname()[:2]
    if is_remote(index.path) or not is_loopback(host):
        return nullcontext()
    return announced(index.path, host, port, secret, report)


def check_installed() -> None:
    """Refuse to serve without the packages for it."""
    for package in ("uvicorn", "fastapi", "python_multipart"):
        need(package, "serve", "Serving a collection")


def show(address: str) -> None:
    """Open a page in the browser of this machine, if it has a screen. One in the terminal would take it over."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _listen_somewhere(host: str) -> socket.socket:
    try:
        return listen(host, PORT)
    except InputError:
        return listen(host, 0)


def server_config(index: Any, host: str, allow_add: bool, limits: Limits, secret: str | None = None) -> Any:
    """How uvicorn serves a collection: no web sockets, no proxy headers, bounded connections."""
    import uvicorn

    from calmrl.server.app import build_app

    return uvicorn.Config(
        build_app(index, host=host, allow_add=allow_add, limits=limits, secret=secret),
        http=connection_class(limits.header_seconds, limits.stall_seconds),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a sentence that says why not."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except socket.gaierror as error:
        raise InputError(f"--host {host} is not an address of this machine ({error.strerror}); use 127.0.0.1") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)  # clients that come before the server is ready wait
    except OSError as error:
        listening.close()
        advice = "choose another --port" if error.errno == errno.EADDRINUSE else "choose another --host or --port"
        raise InputError(f"cannot listen on {host}:{port} ({error.strerror}); {advice}") from None
    return listening


def connection_class(header_seconds: float, stall_seconds: float) -> type[Any]:
    """Uvicorn's connection with a deadline for headers and one for each stop of the client's reading.

    Uvicorn closes connections that are silent between two requests, but neither those that send a header letter by letter
    nor those that leave an answer unread.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        headers_due: asyncio.TimerHandle | None = None
        reading_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # writing is paused as long as anything is left unread
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._expect_headers()
            elif self.headers_due is not None:
                self.headers_due.cancel()
                self.headers_due = None

        def pause_writing(self) -> None:
            super().pause_writing()
            if self.reading_due is None:
                self.reading_due = self.loop.call_later(stall_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.reading_due is not None:
                self.reading_due.cancel()
                self.reading_due = None

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self.headers_due, self.reading_due):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            if self.headers_due is None:
                self.headers_due = self.loop.call_later(header_seconds, self.transport.abort)

    return Connection
