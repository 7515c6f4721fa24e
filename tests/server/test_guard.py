"""What stands before every route, at its limits: one byte less is let through, one more is refused."""

from __future__ import annotations

import anyio
import pytest
from starlette.exceptions import HTTPException

from calmrl.server import Limits
from calmrl.server.guard import Guard
from calmrl.server.limits import host_check, host_name, is_loopback

LIMITS = Limits(body_bytes=100, body_seconds=0.05)


def scope(headers=(), raw_path=b"/a%2Fb", query=b"", host=b"here"):
    return {
        "type": "http",
        "path": "/a b",
        "raw_path": raw_path,
        "query_string": query,
        "headers": [*([(b"host", host)] if host else []), *headers],
    }


def asked(what, parts=(b"",), receive=None):
    """(status, path that the route saw, headers) of one request with these parts of a body"""
    seen, sent, left = [], [], list(parts)

    async def route(scope, receive, send):
        seen.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def next_part():
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    async def ask():
        with anyio.fail_after(20):
            await Guard(route, LIMITS, lambda name: name == "here")(what, receive or next_part, send)

    anyio.run(ask)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], seen, headers


def test_a_request_within_the_limits_is_passed_on_as_it_was_sent():
    status, seen, headers = asked(scope())
    assert (status, seen) == (200, ["/a%2Fb"])
    assert headers["cache-control"] == "no-store"
    assert headers["x-frame-options"] == "DENY"
    assert "connection" not in headers
    assert asked(scope(raw_path=None))[1] == ["/a%20b"]  # a server that does not keep it


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 414)])
def test_the_address_may_have_so_many_bytes(more, status):
    assert asked(scope(raw_path=b"/" + b"a" * 8191, query=b"b" * (8192 + more)))[0] == status


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 431)])
def test_the_headers_may_have_so_many_bytes(more, status):
    left = 32_768 - 10 * 100 - len(b"hosthere") - 1
    assert asked(scope([*[(b"a", b"x" * 99)] * 10, (b"b", b"x" * (left + more))]))[0] == status


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
    chunked, bodies = scope([(b"transfer-encoding", b"chunked")]), [b"x" * size for size in parts]
    if fine:
        status, _, headers = asked(chunked, bodies)
        assert (status, "connection" in headers) == (200, False)  # read to its end
    else:
        with pytest.raises(HTTPException, match="larger than 0 MiB; send smaller files") as refused:
            asked(chunked, bodies)
        assert refused.value.status_code == 413


def test_a_body_that_does_not_come_in_time():
    with pytest.raises(HTTPException, match=r"took longer than 0\.05 s; send it faster") as refused:
        asked(scope([(b"content-length", b"5")]), receive=anyio.sleep_forever)
    assert refused.value.status_code == 408


def test_without_a_body_there_is_no_hurry():
    """A client that has sent everything may wait for the answer as long as it likes."""

    async def disconnect():
        await anyio.sleep(0.1)
        return {"type": "http.disconnect"}

    assert asked(scope([(b"content-length", b"0")]), receive=disconnect)[0] == 200


def test_starting_and_stopping_pass_and_other_protocols_do_not():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    async def both():
        for kind in ("lifespan", "websocket"):
            await Guard(app, LIMITS, bool)({"type": kind}, None, None)

    anyio.run(both)
    assert seen == ["lifespan"]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"), ("LocalHost:80", "localhost"), ("127.0.0.1:8000", "127.0.0.1"), ("[::1]:1", "::1"),
        ("[::1]", "::1"), ("a b", None), ("a:b", None), ("a:99999", None), ("", None), ("[evil]", None), ("[::1]x", None),
        ("a@b", None), ("a/b", None), ("ä", None), ("a:٣", None), ("a:65535", "a"), ("a:65536", None), ("a:", None),
        ("[::1]:65536", None), ("[::1]:", None), ("[::1", None), ("[127.0.0.1]:80", "127.0.0.1"), (" a-b._c ", "a-b._c"),
        ("[::1]80", None), ("a:-1", None),
    ],
)  # fmt: skip
def test_names_of_headers(header, name):
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("bound", "answered", "refused"),
    [
        ("127.0.0.1", ["localhost:8000", "127.0.0.1", "[::1]:8000"],
         ["192.168.1.5:8000", "evil.example", "localhost.evil.example", "", "box", "box.lan"]),
        ("0.0.0.0", ["192.168.1.5:8000", "localhost", "[fe80::1]:8000", "box", "BOX.lan:80", "0.0.0.0"],
         ["evil.example", "192.168.1.5.evil.example", "box:x"]),
        ("box.local", ["box.local:8000"], ["evil.example"]),
    ],
)  # fmt: skip
def test_names_that_are_answered(monkeypatch, bound, answered, refused):
    monkeypatch.setattr("socket.gethostname", lambda: "Box")
    monkeypatch.setattr("socket.getfqdn", lambda: "Box.Lan")
    allowed = host_check(bound)
    assert all(map(allowed, answered))
    assert not any(map(allowed, refused))


def test_what_is_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.5", "example.org"]))
