"""The JSON interface: what it answers, and which sentences it gives for mistakes."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.errors import InputError, MissingExtraError
from calmrl.server import Limits, served_index
from tests.support import shapes as data


@pytest.fixture
def client(shapes, client_of):
    with client_of(shapes) as client:
        yield client


def test_a_picture_a_sound_and_words_in_one_query(client):
    files = {
        "image": ("q.png", data.png("green", "cross"), "image/png"),
        "sound": ("q.wav", data.tone(data.pitch("green", "cross")), "audio/wav"),
    }
    for part in ({"image": files["image"]}, {"sound": files["sound"]}, files):
        answer = client.post("/api/search", files=part, data={"k": "2", "having": "image,sound"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["hits"][0]["id"] == "green/cross"
    answer = client.post("/api/search", files={"image": files["image"]}, data={"text": "green cross", "label": "red"})
    assert {hit["label"] for hit in answer.json()["hits"]} == {"red"}


def test_pages_of_items_are_the_collection_once(client):
    ids, offset, more = [], 0, True
    while more:
        page = client.get("/api/items", params={"offset": offset, "limit": 20}).json()
        ids += [item["id"] for item in page["items"]]
        offset, more = offset + 20, page["more"]
    assert len(ids) == len(set(ids)) == 48
    for limit, offset, count, more in ((48, 0, 48, False), (47, 0, 47, True), (47, 1, 47, False), (5, 48, 0, False)):
        page = client.get("/api/items", params={"offset": offset, "limit": limit}).json()
        assert (page["offset"], page["count"], page["more"], len(page["items"])) == (offset, count, more, count)


def test_an_item_its_thumbnail_and_its_files(client, shapes):
    item = client.get("/api/items/red%2Fcircle").json()
    address = "/api/items/red%2Fcircle"
    assert item == {
        "id": "red/circle", "text": "A red circle on white", "label": "red", "modalities": ["image", "text", "sound"],
        "missing": [], "certainty": 1.0, "url": address, "thumbnail": f"{address}/thumbnail",
        "files": {"image": {"url": f"{address}/files/image", "type": "image/png"},
                  "sound": {"url": f"{address}/files/sound", "type": "audio/wav"}},
        "columns": {"shape": "circle"},
        "added": False,
    }  # fmt: skip
    found = client.get("/api/search?like=red%2Fcircle&k=1").json()
    hit = found["hits"][0]
    assert set(hit) == {*item, "similarity", "found", "weak", "close", "why", "segment"} - {"columns", "added"}
    assert hit["segment"] is None
    assert (found["verdict"], found["nothing_close"], hit["weak"], hit["close"]) == ("close", False, False, True)
    assert hit["why"] == [{"query": "text", "item": "text", "share": 0.25}]
    assert client.get(item["thumbnail"]).headers["content-type"] == "image/png"
    sound = client.get(item["files"]["sound"]["url"])
    assert sound.content == shapes.file("red/circle", "sound").read_bytes()
    assert sound.headers["content-type"] == "audio/wav"
    assert "sandbox" in sound.headers["content-security-policy"]


def test_files_are_shown_or_saved(tmp_path, client_of):
    index = data.ShapeIndex(data.write_shapes(tmp_path / "items"))
    (tmp_path / "items" / "a.html").write_text("<script>")
    index.rows["red/circle"].paths["sound"] = "a.html"
    index.rows["red/star"].paths |= {"image": "nowhere", "sound": "nowhere.WAV"}
    index.rows["red/bar"].paths = None
    with client_of(index) as client:
        image = client.get("/api/items/red%2Fcircle/files/image")
        assert image.headers["content-disposition"] == 'inline; filename="0.png"'
        assert image.headers["cache-control"] == "private, max-age=60"
        page = client.get("/api/items/red%2Fcircle/files/sound")
        assert page.headers["content-disposition"] == 'attachment; filename="a.html"'
        assert page.headers["content-type"] == "application/octet-stream"
        assert client.get("/api/items/red%2Fcircle/thumbnail").headers["cache-control"] == "private, max-age=60"
        assert client.get("/api/items/red%2Fsquare").json()["thumbnail"] is None
        types = {name: one["type"] for name, one in client.get("/api/items/red%2Fstar").json()["files"].items()}
        assert types == {"image": "application/octet-stream", "sound": "audio/wav"}
        assert client.get("/api/items/red%2Fbar").json()["files"] == {}
        for path, sentence in (
            ("red%2Fstar/files/sound", "the file is no longer there"),
            ("red%2Fsquare/thumbnail", "this item has no picture"),
            ("nothing", "the collection has no such item, or no such file of it"),
        ):
            answer = client.get(f"/api/items/{path}")
            assert (answer.status_code, answer.json()) == (404, {"error": sentence})


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"RIFF", "image/webp"), (b"GIF89a", "image/gif"),
     (b"BM", "application/octet-stream")],
)  # fmt: skip
def test_kinds_of_thumbnails(shapes, client_of, monkeypatch, start, kind):
    monkeypatch.setattr(data.ShapeIndex, "thumbnail", lambda self, id: start + b"rest")
    with client_of(shapes) as client:
        assert client.get("/api/items/red%2Fcircle/thumbnail").headers["content-type"] == kind


def test_ranges(client, shapes):
    url = "/api/items/red%2Fcircle/files/sound"
    whole = shapes.file("red/circle", "sound").read_bytes()
    part = client.get(url, headers={"Range": "bytes=100-199"})
    assert part.status_code == 206
    assert part.content == whole[100:200]
    assert part.headers["content-range"] == f"bytes 100-199/{len(whole)}"
    assert client.get(url, headers={"Range": "bytes=-10"}).content == whole[-10:]
    for wrong in ("bytes=9999999-", "bytes=a-b", "bytes=0-1,5-6", "lines=1-2", "bytes=5-1"):
        assert client.get(url, headers={"Range": wrong}).status_code in (400, 416), wrong
    assert client.get(url, headers={"Range": "bytes=a-"}).json()["error"].startswith("send one range of bytes")


def test_head_gives_the_headers_of_get(client):
    for path in ("/", "/healthz", "/api/items", "/api/openapi.json", "/api/items/red%2Fcircle/files/sound"):
        whole, head = client.get(path), client.head(path)
        assert head.status_code == 200
        assert head.headers["content-length"] == whole.headers["content-length"]


def test_about_has_the_limits_and_nothing_private(shapes, client_of, monkeypatch):
    kept = dict.fromkeys(("path", "source", "problems", "modalities", "made"), "x")
    monkeypatch.setattr(data.ShapeIndex, "about", lambda self: kept)
    with client_of(shapes) as client:
        about = client.get("/api/about").json()
    assert about["about"] == {"made": "x"}
    assert about["limits"] == {"body_bytes": 32 * 2**20, "pixels": 40_000_000, "sound_seconds": 600.0, "hits": 200}
    assert about["allow_add"] is False
    assert set(about["modalities"]) == {"image", "text", "sound"}


def test_what_is_said_about_the_collection_is_counted_again_after_five_seconds(shapes, client_of, monkeypatch):
    now = [0.5]  # a machine that has just been started
    monkeypatch.setattr(served_index, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(data.ShapeIndex, "about", lambda self: {"at": now[0]})
    with client_of(shapes) as client:
        for moment, counted in ((0.5, 0.5), (5.25, 0.5), (5.5, 5.5), (10.25, 5.5)):
            now[0] = moment
            assert client.get("/api/about").json()["about"] == {"at": counted}


def test_json_has_no_numbers_that_browsers_refuse(shapes, client_of, monkeypatch):
    odd = {1: np.float32("nan"), "a": (np.int64(2), np.float64(0.5)), "ä": [object], "\ud800": float("-inf")}
    monkeypatch.setattr(data.ShapeIndex, "about", lambda self: odd)
    monkeypatch.setattr(data.ShapeIndex, "item", lambda self, id: data.ShapeItem(
        "x", float("inf"), ("gone",), "\udcff", None, {}, {"size": np.float32(0.5), "made": None}))  # fmt: skip
    with client_of(shapes) as client:
        about, item = client.get("/api/about"), client.get("/api/items/x").json()
    assert about.json()["about"] == {"1": None, "a": [2, 0.5], "ä": ["<class 'object'>"], "\\ud800": None}
    assert '{"1":null,"a":[2,0.5],"ä":'.encode() in about.content  # compact UTF-8
    assert (item["certainty"], item["columns"], item["text"]) == (None, {"size": 0.5}, "\\udcff")


def test_about_says_how_good_a_search_is(client):
    about = client.get("/api/about").json()
    assert about["items"] == 48
    assert about["labels"] == sorted(data.COLOURS)
    best = about["expected"][0]
    assert best["sentence"] == (
        "A search by words should put the right picture among 38 first in 62 of 100 searches (likely 52 to 71) and among "
        "the first ten in 93 of 100; guessing gives 2.6 % and 26 %."
    )


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/api/search?text=a&having=smell", "unknown modality"),
        ("/api/search?text=a&where=label", "is no condition"),
        ("/api/search?like=nothing", "no item"),
    ],
)
def test_what_the_index_refuses_is_400_with_its_sentence(client, path, sentence):
    answer = client.get(path)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


def test_nothing_changes_without_leave(client):
    for answer in (client.post("/api/items", data={"text": "x"}), client.delete("/api/items/red%2Fcircle")):
        assert answer.status_code == 403
        assert "--allow-add" in answer.json()["error"]


def test_errors_from_outside(tmp_path, client_of):
    index = data.ShapeIndex(data.write_shapes(tmp_path / "items"))

    def missing(*arguments, **options):
        raise MissingExtraError("install calmrl[search]")

    def refused(*arguments, **options):
        raise InputError(f"{index.path} cannot be searched by \udcff")

    with client_of(index) as client:
        nowhere, wrong = client.get("/nowhere"), client.patch("/api/items")
        assert (nowhere.status_code, nowhere.json()) == (404, {"error": "there is nothing at this address"})
        assert (wrong.status_code, wrong.json()) == (405, {"error": "PATCH is not possible here"})
        assert wrong.headers["allow"]
        assert client.put("/api/items").status_code == client.post("/api/about").status_code == 405
        index.search = missing
        answer = client.get("/api/search?text=a")
        assert (answer.status_code, answer.json()) == (501, {"error": "install calmrl[search]"})
        index.search = refused
        answer = client.get("/api/search?text=a")
        assert (answer.status_code, answer.json()) == (400, {"error": "the collection cannot be searched by \\udcff"})
        assert client.get("/page.js").headers["cache-control"] == "no-cache"
        assert {client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")} == {404}


class Broken(data.ShapeIndex):
    def item(self, id):
        raise RuntimeError("/secret/path")


def test_a_failure_tells_the_client_nothing(shapes, client_of):
    with client_of(Broken(shapes.folder / "items.jsonl")) as client:
        answer = client.get("/api/items/red%2Fcircle")
    assert answer.status_code == 500
    assert answer.json() == {"error": "the server failed to answer; its log says why"}


class Slow(data.ShapeIndex):
    """Searches by words or files wait until they may go on."""

    def __init__(self, manifest):
        super().__init__(manifest)
        self.go = threading.Event()
        self.at_work = self.most_at_work = 0

    def search(self, *arguments, **options):
        if options["like"] is None:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
            self.go.wait(30)
            self.at_work -= 1
        return super().search(*arguments, **options)


@contextmanager
def asked_at_once(index, requests):
    """The answers to requests, each from a thread; they are complete when the block ends."""
    answers = []
    threads = [threading.Thread(target=lambda ask=ask: answers.append(ask())) for ask in requests]
    for thread in threads:
        thread.start()
    yield answers
    index.go.set()
    for thread in threads:
        thread.join()


@pytest.fixture
def slow(shapes):
    return Slow(shapes.folder / "items.jsonl")


def test_only_searches_by_files_wait_for_one_another(slow, client_of):
    image = {"image": ("q.png", data.png("red", "ring"), "image/png")}
    with client_of(slow) as client:
        by_file = partial(client.post, "/api/search", files=image)
        with asked_at_once(slow, [by_file] * 3) as answers:
            while not (slow.at_work or answers):
                time.sleep(0.01)
            assert client.get("/api/search?like=red%2Fring").status_code == 200
            assert client.get("/api/items").status_code == 200
            assert answers == []
    assert [answer.status_code for answer in answers] == [200] * 3
    assert slow.most_at_work == 1


def test_requests_beyond_the_queue_get_503_and_come_back_later(slow, client_of):
    with client_of(slow, limits=Limits(at_once=1, waiting=1)) as client:
        ask = partial(client.get, "/api/search?text=red")
        with asked_at_once(slow, [ask] * 5) as answers:
            while len(answers) < 3:
                time.sleep(0.01)
        refused = [answer for answer in answers if answer.status_code == 503]
        assert len(refused) == 3
        assert all(answer.headers["retry-after"] == "2" for answer in refused)
        assert ask().status_code == 200


def test_uploads_beyond_their_number_get_503(slow, client_of):
    image = {"image": ("q.png", data.png("red", "ring"), "image/png")}
    with client_of(slow, limits=Limits(uploads=2)) as client:
        ask = partial(client.post, "/api/search", files=image)
        with asked_at_once(slow, [ask] * 3) as answers:
            while not answers:
                time.sleep(0.01)
            assert client.get("/api/items").status_code == 200
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503]
        wrong = [client.post("/api/search", files={"image": b"noise"}).status_code for _ in range(3)]
        assert wrong == [400] * 3  # an upload counts until it ends, however it ends


def test_a_search_that_takes_too_long_is_504_and_its_thread_stays_busy(slow, client_of):
    with client_of(slow, limits=Limits(answer_seconds=0.2, at_once=1, waiting=0)) as client:
        answer = client.get("/api/search?text=red")
        assert (answer.status_code, answer.json()) == (504, {"error": "no answer within 0.2 s; ask for less"})
        assert client.get("/api/search?text=red").status_code == 503
        slow.go.set()
        while client.get("/api/search?text=red").status_code == 503:
            time.sleep(0.01)


def test_stopping_forgets_what_waits_and_ends_the_threads(slow, client_of):
    workers = served_index.Workers(Limits(at_once=1))
    running, waiting = workers.pool.submit(slow.go.wait, 20), workers.pool.submit(int)
    while not running.running():
        pass
    workers.close()
    assert waiting.cancelled()
    assert not running.done()
    slow.go.set()
    before = set(threading.enumerate())
    with client_of(slow) as client:
        assert client.get("/api/search?text=red").status_code == client.get("/api/items").status_code == 200
        made = [one for one in set(threading.enumerate()) - before if one.name.startswith("calmrl-server")]
        assert len(made) == 2
    for thread in made:
        thread.join()


def test_every_answer_is_strict(client):
    for path in ("/", "/page.js", "/api/about", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_loads_nothing_from_elsewhere(client):
    for path in ("/", "/page.css", "/page.js", "/parts.js", "/changing.js", "/dropping.js"):
        text = client.get(path).text
        links = re.findall(r"""(?:https?:|["'(])//[^\s"')]+""", text)
        assert links in ([], ["http://www.w3.org/2000/svg"])
        assert "@import" not in text
        assert "<script>" not in text
        assert "style=" not in text
