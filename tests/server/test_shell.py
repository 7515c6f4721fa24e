"""A search from the shell through a server of the same index: the same answers, and no answer of anyone else."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

import uvicorn

from calmrl import Index
from calmrl.cli import main
from calmrl.search import running
from calmrl.search.running import address_file, announced, ask_server
from calmrl.search.update import FolderChanges
from calmrl.server.limits import Limits
from calmrl.server.run import listen, server_config
from tests.support.waiting import patience

SECRET = "a" * 64
REQUEST = {"terms": {"text": ["red"]}, "k": 2, "having": None, "lacking": None, "where": None, "hubs": False}
REQUEST |= {"why": False, "files": False, "name": "index"}


@contextmanager
def serving(index, secret=SECRET):
    """The port of a server of an index, which says where it is."""
    with listen("127.0.0.1", 0) as socket:
        server = uvicorn.Server(server_config(index, "127.0.0.1", False, Limits(), SECRET))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
        thread.start()
        try:
            with announced(index.path, "127.0.0.1", socket.getsockname()[1], secret):
                yield socket.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(patience(60))


@pytest.fixture
def served(real_index):
    with serving(real_index):
        yield real_index


def printed(capsys, *words) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["search", *words])
    return stop.value.code, *capsys.readouterr()


@pytest.fixture
def asked(monkeypatch):
    """Answers of servers, as searches got them."""
    answers = []

    def ask(*given):
        answers.append(ask_server(*given))
        return answers[-1]

    monkeypatch.setattr("calmrl.cli.search.ask_server", ask)
    return answers


def test_the_same_is_printed(served, asked, capsys, monkeypatch) -> None:
    item = next(item for item in served.items(limit=50) if "image" in item.paths)
    picture = served.file(item.id, "image")
    monkeypatch.chdir(picture.parent)
    for words in (
        ["red"],
        ["2:red - circle", "-k", "3", "--why"],
        ["red", "--json"],
        ["--image", picture.name, "--json"],
        [f"red + ./{picture.name}", "--paths"],
        ["--like", item.id, "--having", "text", "--hubs"],
        ["red", "--having", "smell"],
        ["red", "--where", "label ="],
    ):
        through = printed(capsys, str(served.path), *words)
        assert asked.pop() is not None
        assert through == printed(capsys, str(served.path), *words, "--no-server"), words
    assert not asked


def test_who_does_not_know_the_secret_gets_no_answer(served, client_of) -> None:
    client = client_of(served, secret=SECRET)
    for headers in ({}, {running.NONCE: "1", running.MAC: "0" * 64}, {running.MAC: b"\xe9"}):
        assert client.post(running.ROUTE, content=json.dumps(REQUEST), headers=headers).status_code == 403
    assert client_of(served).post(running.ROUTE, content="{}").status_code == 404


def test_a_server_with_another_secret_is_not_believed(real_index) -> None:
    with serving(real_index, secret="b" * 64):
        assert ask_server(real_index.path, REQUEST) is None


def test_a_stranger_at_the_port_learns_nothing(real_index) -> None:
    heard = []

    class Stranger(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header(running.MAC, self.headers[running.MAC])
            self.end_headers()
            self.wfile.write(b'{"hits": []}')

        def log_message(self, *parts):
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with announced(real_index.path, "127.0.0.1", server.server_port, SECRET):
            assert ask_server(real_index.path, REQUEST) is None
        server.shutdown()
    assert heard == [b"{}"]


def test_a_file_that_is_left_behind_or_that_others_can_read(served) -> None:
    file = address_file(served.path)
    assert ask_server(served.path, REQUEST) is not None
    content = file.read_text()
    file.chmod(0o644)
    assert ask_server(served.path, REQUEST) is None
    file.chmod(0o600)
    for wrong in ("", "[]", "{}", content.replace('"version": "', '"version": "other ')):
        file.write_text(wrong)
        assert ask_server(served.path, REQUEST) is None
    with listen("127.0.0.1", 0) as closed:
        port = closed.getsockname()[1]
    file.write_text(json.dumps({**json.loads(content), "port": port}))
    assert ask_server(served.path, REQUEST) is None


def test_the_file_goes_with_its_server(tmp_path) -> None:
    with announced(tmp_path, "127.0.0.1", 1, "first"):
        with announced(tmp_path, "127.0.0.1", 2, "second"):
            assert json.loads(address_file(tmp_path).read_text())["port"] == 2
        assert not address_file(tmp_path).exists()
        with announced(tmp_path, "127.0.0.1", 3, "third"):
            pass
    with announced(tmp_path, "127.0.0.1", 1, "first"):
        address_file(tmp_path).write_text(json.dumps({"host": "127.0.0.1", "port": 2, "secret": "second"}))
    assert address_file(tmp_path).exists()


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch) -> None:
    (tmp_path / "calmrl").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = []
    with announced(tmp_path, "127.0.0.1", 1, SECRET, told.append):
        assert "searches from the shell cannot use this server" in told[0]


def test_the_index_of_a_folder_is_brought_up_to_date_first(real_index, monkeypatch) -> None:
    source = real_index.layout["source"]["path"]
    assert len(running.served(real_index, {**REQUEST, "source": source})["hits"]) == 2
    assert running.served(real_index, {**REQUEST, "source": os.path.dirname(source)}) == {"declined": True}
    changes = FolderChanges(new=("a.png",), folders=(source,))
    monkeypatch.setattr(Index, "folder_changes", lambda self: changes)
    assert running.served(real_index, {**REQUEST, "source": source}) == {"declined": True}
    assert running.served(real_index, REQUEST)["changes"] == changes.sentence("index")
