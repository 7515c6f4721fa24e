"""Start the server and keep it until it is stopped."""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from calmrl.errors import InputError, need
from calmrl.server.hosts import is_loopback
from calmrl.server.limits import Limits

BACKLOG = 128
WARNING = (
    "warning: {host} is reachable from other machines. Everyone who reaches it can read the whole collection{change}; "
    "there is no password and no encryption. Use --host 127.0.0.1 to keep it on this machine."
)


def run_server(
    index: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_add: bool = False,
    limits: Limits | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Serve a collection until the process is interrupted.

    Parameters
    ----------
    index : Index
        The collection.
    host, port : str, int
        Where to listen; port 0 takes a free one.
    allow_add : bool
        Whether clients may add and remove items.
    limits : Limits, optional
        What one client may ask for.
    tell : callable
        Gets the lines for people.

    Examples
    --------
    >>> from calmrl import Index
    >>> run_server(Index.open("photos.index"), port=8000)  # doctest: +SKIP
    """
    limits = limits or Limits()
    for package in ("uvicorn", "starlette", "python_multipart"):
        need(package, "serve", "Serving a collection")
    import uvicorn

    if not is_loopback(host):
        tell(WARNING.format(host=host, change=", and change it" if allow_add else ""))
    listening = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    tell(f"{len(index):,} items at http://{shown}:{listening.getsockname()[1]}/ (Ctrl-C stops)")
    with listening, suppress(KeyboardInterrupt):  # Ctrl-C is how it is stopped
        uvicorn.Server(server_config(index, host, allow_add, limits)).run(sockets=[listening])


def server_config(index: Any, host: str, allow_add: bool, limits: Limits) -> Any:
    """How uvicorn serves a collection: no web sockets, no proxy headers, bounded connections."""
    import uvicorn

    from calmrl.server.app import build_app
    from calmrl.server.connection import connection_class

    return uvicorn.Config(
        build_app(index, host=host, allow_add=allow_add, limits=limits),
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
        raise InputError(f"--host {host} is no address of this machine ({error.strerror}); use 127.0.0.1") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)  # clients that come before the server is ready wait
    except OSError as error:
        listening.close()
        advice = "choose another --port" if error.errno == errno.EADDRINUSE else "choose another --host or --port"
        raise InputError(f"cannot listen on {host}:{port} ({error.strerror}); {advice}") from None
    return listening
