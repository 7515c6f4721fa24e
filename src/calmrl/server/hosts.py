"""Which names the server answers to.

A web page of someone else can make its own name point to 127.0.0.1 and then read a local server as if it were its own
(DNS rebinding). Its requests still carry its name in the header Host, so other names are refused.
"""

import ipaddress
import socket
from collections.abc import Callable

LOCAL = ("localhost", "127.0.0.1", "::1")


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

    Bound to a loopback address, these are localhost and loopback addresses. Bound to another one, they are also the
    names of the machine, the name given, and any address: a rebinding page has a name.
    """
    names = {*LOCAL, bound.lower()}
    anywhere = not is_loopback(bound)
    if anywhere:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def allowed(header: str) -> bool:
        name = host_name(header)
        return name is not None and (name in names or (anywhere and _is_address(name)))

    return allowed


def host_name(header: str) -> str | None:
    """`[::1]:8000` -> `::1`; None if the header is no host with at most a port behind it."""
    text = header.strip().lower()
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        good = bool(closed) and _is_address(name) and (not rest or rest.startswith(":"))
    else:
        name, colon, port = text.partition(":")
        good = bool(name) and all(letter.isalnum() or letter in "-._" for letter in name)
        rest = colon
    if rest and not (port.isascii() and port.isdigit() and int(port) < 65536):
        return None
    return name if good and text.isascii() else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
