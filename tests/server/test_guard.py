"""What stands before every route, at its limits: one byte less is let through, one more is refused."""

from __future__ import annotations

import anyio
import pytest
from starlette.exceptions import HTTPException

from calmrl.server import Limits
from calmrl.server.guard import HEADER_BYTES, TARGET_BYTES, Exchange, Guard, _sent_path

LIMITS = Limits(body_bytes=100, body_seconds=0.05)


def scope(headers=(), raw_path=b"/a%2Fb", query=b"", host=b"here"):
    return {
        "type": "http",
        "path": "/a/b",
        "raw_path": raw_path,
        "query_string": query,
        "headers": [*([(b"host", host)] if host else []), *headers],
    }


async def _asked(what, parts):
    """(status, path that the route saw, headers) of one request with these parts of a body"""
    seen, sent, left = [], [], list(parts)

    async def route(scope, receive, send):
        seen.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def receive():
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    await Guard(route, LIMITS, lambda name: name == "here")(what, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], seen, headers


def asked(what, parts=(b"",)):
    return anyio.run(_asked, what, parts)


def test_a_request_within_the_limits_is_passed_on_as_it_was_sent():
    status, seen, headers = asked(scope())
    assert (status, seen) == (200, ["/a%2Fb"])
    assert headers["cache-control"] == "no-store"
    assert headers["x-frame-options"] == "DENY"
    assert "connection" not in headers


def test_a_server_that_keeps_no_raw_path():
    assert _sent_path({"path": "/a b", "raw_path": None}) == b"/a%20b"


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 414)])
def test_the_address_may_have_so_many_bytes(more, status):
    half = TARGET_BYTES // 2
    assert TARGET_BYTES == 16_384
    assert asked(scope(raw_path=b"/" + b"a" * (half - 1), query=b"b" * (half + more)))[0] == status


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 431)])
def test_the_headers_may_have_so_many_bytes(more, status):
    assert HEADER_BYTES == 32_768
    given = [(b"a", b"x" * 99)] * 10
    left = HEADER_BYTES - 10 * 100 - len(b"hosthere") - 1
    assert asked(scope([*given, (b"b", b"x" * (left + more))]))[0] == status


@pytest.mark.parametrize(
    ("length", "status"), [(b"100", 200), (b"101", 413), (b"-1", 400), (b"1e1", 400), ("\u00b2".encode(), 400)]
)
def test_the_length_that_is_announced(length, status):
    answer, seen, headers = asked(scope([(b"content-length", length)]), [b"x" * 100])
    assert answer == status
    assert len(seen) == (status == 200)
    assert headers.get("connection") == (None if status == 200 else "close")  # the body is not read


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        (b"there", [], 421),
        (None, [], 421),
        (b"here", [(b"host", b"here")], 421),
        (b"here", [(b"origin", b"http://HERE")], 200),
        (b"here", [(b"origin", b"http://there")], 403),
        (b"here", [(b"sec-fetch-site", b"cross-site")], 403),
        (b"here", [(b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate")], 200),
        (b"here", [(b"sec-fetch-site", b"same-origin"), (b"sec-fetch-mode", b"cors")], 200),
    ],
)
def test_names_and_sites(host, headers, status):
    assert asked(scope(headers, host=host))[0] == status


@pytest.mark.parametrize(("parts", "fine"), [([60, 40], True), ([60, 41], False), ([101], False)])
def test_a_body_in_parts_is_counted(parts, fine):
    async def read():
        left = [b"x" * size for size in parts]

        async def receive():
            body = left.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(left)}

        exchange = Exchange(scope([(b"transfer-encoding", b"chunked")]), receive, None, LIMITS)
        assert not exchange.complete
        for number in range(len(parts)):
            assert not exchange.complete
            await exchange.receive()
            assert exchange.complete == (number == len(parts) - 1)

    if fine:
        anyio.run(read)
    else:
        with pytest.raises(HTTPException, match="larger than 0 MiB; send smaller files") as refused:
            anyio.run(read)
        assert refused.value.status_code == 413


def test_a_body_that_does_not_come_in_time():
    async def read():
        exchange = Exchange(scope([(b"content-length", b"5")]), anyio.sleep_forever, None, LIMITS)
        with anyio.fail_after(20):
            await exchange.receive()

    with pytest.raises(HTTPException, match=r"took longer than 0\.05 s; send it faster") as refused:
        anyio.run(read)
    assert refused.value.status_code == 408


def test_without_a_body_there_is_no_hurry():
    """A client that has sent everything may wait for the answer as long as it likes."""

    async def read():
        async def disconnect():
            await anyio.sleep(0.1)
            return {"type": "http.disconnect"}

        return await Exchange(scope([(b"content-length", b"0")]), disconnect, None, LIMITS).receive()

    assert anyio.run(read) == {"type": "http.disconnect"}


def test_starting_and_stopping_pass_and_other_protocols_do_not():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    async def both():
        for kind in ("lifespan", "websocket"):
            await Guard(app, LIMITS, bool)({"type": kind}, None, None)

    anyio.run(both)
    assert seen == ["lifespan"]


def test_limits_of_a_client():
    assert Limits() == Limits(
        body_bytes=33_554_432, pixels=40_000_000, sound_seconds=600, header_seconds=10, body_seconds=60,
        answer_seconds=60, stall_seconds=30, at_once=4, waiting=64, uploads=8, connections=256, hits=200,
        characters=2000, terms=16,
    )  # fmt: skip
