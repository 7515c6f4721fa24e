"""Hostile requests against a real server: each is refused, nothing is served, nothing is changed."""

from __future__ import annotations

import http.client
import json
import socket
import time

import psutil
import pytest

from calmrl.server import Limits
from tests.support import shapes as data
from tests.support.hostile_requests import FILE, FORM, LIMITS, REQUESTS, SHORT, get, refused, request
from tests.support.serving import digest, exchange, served, status


@pytest.fixture(scope="module")
def port(shapes):
    with served(shapes, LIMITS) as port:
        yield port


def test_there_are_enough():
    assert len(REQUESTS) >= 50


@pytest.fixture(scope="module")
def before(shapes):
    return digest(shapes.folder)


@pytest.mark.parametrize("name", REQUESTS)
def test_hostile_requests_are_refused(name, port, before, shapes):
    refused(port, name, shapes.folder)
    assert digest(shapes.folder) == before


def test_a_body_larger_than_it_may_be_in_chunks(port, shapes, before):
    head = request("POST /api/search", f"Content-Type: {FORM}", "Transfer-Encoding: chunked")
    piece = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    start = b'--xx\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    first = f"{len(start):x}\r\n".encode() + start + b"\r\n"
    answer = exchange(port, [head, first, *[piece] * 40])
    assert status(answer) in (413, None)  # None: closed while the client was still sending
    assert digest(shapes.folder) == before


SLOW = {
    "headers letter by letter": [bytes([letter]) for letter in get("/")[:40]],
    "headers that never end": [b"GET / HTTP/1.1\r\n", *[b"X-More: 1\r\n"] * 40],
    "silence": [b""] * 40,
    "a body letter by letter": [
        request("POST /api/search", f"Content-Type: {FORM}", "Content-Length: 1000"),
        b'--xx\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n',
        *[b"a"] * 40,
    ],
    "a body for an address that takes none": [
        request("POST /api/about", "Content-Length: 1000").replace(b"close", b"keep-alive"), *[b"-"] * 40,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_slow_clients_are_closed(name, shapes):
    """The server ends the connection long before the client has sent all: each would take 4 s and then go on waiting."""
    with served(shapes, SHORT) as port:
        answer = exchange(port, SLOW[name], pause=0.1)
    assert status(answer) in (None, 405, 408), answer


def peers():
    """The addresses that sockets of this process are connected to."""
    return [other.raddr for other in psutil.Process().net_connections("tcp4")]


def test_a_client_that_does_not_read_is_closed(tmp_path):
    """A file larger than all buffers is not kept open for a client that reads none of it."""
    index = data.ShapeIndex(data.write_shapes(tmp_path / "items"))
    index.file("red/circle", "sound").write_bytes(bytes(64 * 2**20))
    with served(index, SHORT) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(300)
        connection.sendall(get(FILE))
        for open_there in (True, False):  # the server, which is in this process, opens its side and closes it
            while (connection.getsockname() in peers()) is not open_there:
                time.sleep(0.02)
        assert status(exchange(port, get("/healthz"))) == 200
        received = 0
        try:
            while piece := connection.recv(2**20):
                received += len(piece)
        except ConnectionResetError:
            pass
    assert 0 < received < 64 * 2**20


def test_connections_beyond_the_limit_are_refused_and_it_recovers(shapes):
    with served(shapes, Limits(connections=20)) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        while status(exchange(port, get("/healthz"))) != 503:
            time.sleep(0.01)  # until the server has accepted them
        for connection in idle:
            connection.close()
        while status(exchange(port, get("/healthz"))) != 200:
            time.sleep(0.01)


def test_the_server_still_answers(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/api/search?text=red+ring")
    assert json.load(connection.getresponse())["hits"][0]["id"] == "red/ring"
