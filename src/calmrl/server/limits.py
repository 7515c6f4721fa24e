"""What one client may ask of the server, and under which names."""

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How large, how long and how many at once.

    Parameters
    ----------
    body_bytes : int
        The largest request body, all uploaded files together.
    pixels : int
        The largest uploaded image; its header is read before anything is decoded.
    audio_seconds : float
        The longest uploaded audio.
    header_seconds : float
        Until the headers of a request are complete; then the connection is closed.
    body_seconds : float
        Until the body of a request is complete; then the answer is 408.
    answer_seconds : float
        Until the collection has answered; then the answer is 504.
    stall_seconds : float
        How long a client may leave a part of the answer unread; then the connection is closed.
    at_once : int
        Searches that the collection works on at the same time, and as many other requests; beside them, one search by files.
    waiting : int
        Requests that may wait for their turn; those beyond get 503 with Retry-After.
    uploads : int
        Requests with files at the same time, from their first byte to their answer; those beyond get 503.
    connections : int
        Open connections; those beyond get 503.
    hits : int
        The largest number of items in one answer.
    characters : int
        The longest text of a query, id, label or condition.
    terms : int
        The most terms with weights in the text of a query; each is encoded by itself.
    """

    body_bytes: int = 32 * 2**20
    pixels: int = 40_000_000
    audio_seconds: float = 600.0
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    answer_seconds: float = 60.0
    stall_seconds: float = 30.0
    at_once: int = 4
    waiting: int = 64
    uploads: int = 8
    connections: int = 256
    hits: int = 200
    characters: int = 2000
    terms: int = 16


LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_check(bound: str) -> Callable[[str], bool]:
    """A function that says whether a header Host is one of this server's names.

    A web page of someone else can make its own name point to 127.0.0.1 and then read a local server as if it were its
    own (DNS rebinding). Its requests still carry its name in the header Host, so other names are refused.

    Bound to a loopback address, the names are localhost and loopback addresses. Bound to another one, they are also the
    names of the machine, the name given, and any address: a rebinding page has a name.
    """
    names = {*LOCAL_NAMES, bound.lower()}
    anywhere = not is_loopback(bound)
    if anywhere:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def allowed(header: str) -> bool:
        name = host_name(header)
        return name is not None and (name in names or (anywhere and _is_address(name)))

    return allowed


def host_name(header: str) -> str | None:
    """`[::1]:8000` -> `::1`; None if the header is not a host with at most a port behind it."""
    text = header.strip().lower()
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        good = bool(closed) and _is_address(name) and (not rest or rest.startswith(":"))
    else:
        name, rest, port = text.partition(":")
        good = bool(name) and all(letter.isalnum() or letter in "-._" for letter in name)
    if rest and not (port.isascii() and port.isdigit() and int(port) < 65536):
        return None
    return name if good and text.isascii() else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
