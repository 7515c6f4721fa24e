"""Which names the server answers to."""

from __future__ import annotations

import pytest

from calmrl.errors import InputError
from calmrl.server.hosts import host_check, host_name, is_loopback
from calmrl.server.run import listen


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"), ("LocalHost:80", "localhost"), ("127.0.0.1:8000", "127.0.0.1"), ("[::1]:1", "::1"),
        ("[::1]", "::1"), ("a b", None), ("a:b", None), ("a:99999", None), ("", None), ("[evil]", None), ("[::1]x", None),
        ("a@b", None), ("a/b", None), ("ä", None), ("a:٣", None),
    ],
)  # fmt: skip
def test_names_of_headers(header, name):
    assert host_name(header) == name


def test_bound_to_loopback_only_loopback_is_answered():
    allowed = host_check("127.0.0.1")
    assert all(map(allowed, ["localhost:8000", "127.0.0.1", "[::1]:8000"]))
    assert not any(map(allowed, ["192.168.1.5:8000", "evil.example", "localhost.evil.example", ""]))


def test_bound_to_all_addresses_names_of_others_are_still_refused():
    allowed = host_check("0.0.0.0")
    assert all(map(allowed, ["192.168.1.5:8000", "localhost", "[fe80::1]:8000"]))
    assert not any(map(allowed, ["evil.example", "192.168.1.5.evil.example"]))
    assert host_check("box.local")("box.local:8000")


def test_what_is_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.5", "example.org"]))


def test_a_port_that_is_taken_is_an_error_with_advice():
    with listen("127.0.0.1", 0) as taken, pytest.raises(InputError, match="choose another --port"):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("a:65535", "a"), ("a:65536", None), ("a:", None), ("[::1]:65536", None), ("[::1]:", None), ("[::1", None),
        ("[127.0.0.1]:80", "127.0.0.1"), (" a-b._c ", "a-b._c"), ("[::1]80", None), ("a:-1", None),
    ],
)  # fmt: skip
def test_ports_and_brackets(header, name):
    assert host_name(header) == name


def test_the_names_of_the_machine_are_answered_only_by_a_server_that_others_reach(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Box")
    monkeypatch.setattr("socket.getfqdn", lambda: "Box.Lan")
    assert all(map(host_check("0.0.0.0"), ["box", "BOX.lan:80", "0.0.0.0"]))
    assert not any(map(host_check("127.0.0.1"), ["box", "box.lan"]))
    assert not host_check("0.0.0.0")("box:x")
