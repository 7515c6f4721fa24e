"""What stands before every route: names of the server, sizes, deadlines, and headers that keep a browser strict."""

from collections.abc import Callable, Mapping
from urllib.parse import quote, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calmrl.server.limits import Limits
from calmrl.server.schemas import plain

TARGET_BYTES = 16_384
HEADER_BYTES = 32_768
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
STRICT = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error that a person can read."""
    return JSONResponse({"error": plain(sentence)}, status, headers)


class Guard:
    """An application around another one; what it lets through is addressed to this server and within the limits."""

    def __init__(self, app: ASGIApp, limits: Limits, allowed: Callable[[str], bool]) -> None:
        self.app = app
        self.limits = limits
        self.allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with a bounded `receive` and `send`."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = Exchange(scope, receive, send, self.limits)
            refusal = self._refusal(scope)
            if refusal is not None:
                await problem(*refusal)(scope, exchange.receive, exchange.send)
                return
            # Routes see the path as it was sent, so that an id with an encoded slash is one part of it.
            scope["path"] = _sent_path(scope).decode("ascii", "replace")
            await self.app(scope, exchange.receive, exchange.send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.allowed(hosts[0]):
            return 421, f"this server does not answer to the name {', '.join(hosts) or '(none)'}; use its own address"
        if _foreign(headers, hosts[0]):
            return 403, "a page of another site sent this request; only pages of this server may"
        if len(_sent_path(scope)) + len(scope["query_string"]) > TARGET_BYTES:
            return 414, f"the address is longer than {TARGET_BYTES} bytes; shorten it or use POST"
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return 431, f"the headers are longer than {HEADER_BYTES} bytes; send fewer"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return 400, f"Content-Length is {length}, which is not a number"
        if int(length) > self.limits.body_bytes:
            return 413, _too_large(self.limits)
        return None


def _sent_path(scope: Scope) -> bytes:
    """The path as it was sent, not decoded; servers need not keep it."""
    return scope.get("raw_path") or quote(scope["path"]).encode()


def _foreign(headers: Headers, host: str) -> bool:
    """Whether a browser says that the request comes from a page of another site."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.strip().lower():
        return True
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"


def _too_large(limits: Limits) -> str:
    return f"the request is larger than {limits.body_bytes // 2**20} MiB; send smaller files"


class Exchange:
    """One request and its answer, bounded in bytes and in time."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        headers = Headers(scope=scope)
        self.scope = scope
        self._receive = receive
        self._send = send
        self.limits = limits
        self.complete = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        self.size = 0
        self.deadline = anyio.current_time() + limits.body_seconds

    async def receive(self) -> Message:
        """The next part of the body; 413 beyond its size, 408 beyond its time."""
        if self.complete:
            return await self._receive()
        with anyio.CancelScope(deadline=self.deadline) as window:
            message = await self._receive()
        if window.cancelled_caught:
            raise HTTPException(408, f"the request took longer than {self.limits.body_seconds:g} s; send it faster")
        self.size += len(message.get("body", b""))
        if self.size > self.limits.body_bytes:
            raise HTTPException(413, _too_large(self.limits))
        self.complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Pass the answer on with strict headers."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in STRICT.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            if not self.complete:  # the rest of the body is not read, so the connection cannot serve another request
                headers["connection"] = "close"
        await self._send(message)
