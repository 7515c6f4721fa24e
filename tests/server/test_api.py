"""The JSON interface: what it answers, and which sentences it gives for mistakes."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

import shapes as data
from calmrl.errors import InputError
from calmrl.server import Limits


@pytest.fixture
def client(shapes, client_of):
    with client_of(shapes) as client:
        yield client


def test_words_find_items_and_say_what_was_observed(client):
    answer = client.get("/api/search", params={"text": "blue star", "k": 3})
    assert answer.status_code == 200
    first = answer.json()["hits"][0]
    assert first["id"] == "blue/star"
    assert set(first["modalities"]) | set(first["missing"]) == {"image", "text", "sound"}
    assert set(first["files"]) == {name for name in first["modalities"] if name != "text"}
    assert len(answer.json()["hits"]) == answer.json()["count"] == 3


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


def test_more_like_this(client):
    hits = client.get("/api/search", params={"like": "yellow/bar", "k": 5}).json()["hits"]
    assert all("yellow" in hit["id"] or "bar" in hit["id"] for hit in hits)
    assert "yellow/bar" not in [hit["id"] for hit in hits]


def test_filters(client):
    items = client.get("/api/items", params={"having": "image", "label": "red", "limit": 200}).json()["items"]
    assert items
    assert all("image" in item["modalities"] and item["label"] == "red" for item in items)
    assert client.get("/api/items", params={"where": "label = 'red'"}).json()["count"] == 8


def test_pages_of_items_are_the_collection_once(client):
    ids, offset, more = [], 0, True
    while more:
        page = client.get("/api/items", params={"offset": offset, "limit": 20}).json()
        ids += [item["id"] for item in page["items"]]
        offset, more = offset + 20, page["more"]
    assert len(ids) == len(set(ids)) == 48


def test_an_item_its_thumbnail_and_its_files(client, shapes):
    item = client.get("/api/items/red%2Fcircle").json()
    assert item["id"] == "red/circle"
    assert "similarity" not in item
    assert client.get(item["thumbnail"]).headers["content-type"] == "image/png"
    sound = client.get(item["files"]["sound"]["url"])
    assert sound.content == shapes.file("red/circle", "sound").read_bytes()
    assert sound.headers["content-type"] == "audio/wav"
    assert "sandbox" in sound.headers["content-security-policy"]


def test_an_item_without_a_picture_has_no_thumbnail(client):
    item = client.get("/api/items/red%2Fsquare").json()
    assert item["thumbnail"] is None
    assert client.get("/api/items/red%2Fsquare/thumbnail").status_code == 404


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
        ("/api/search", "the query is empty"),
        ("/api/search?text=", "the query is empty"),
        ("/api/search?text=a&k=0", "k must be a whole number from 1 to 200"),
        ("/api/search?text=a&k=ten", "k must be a whole number"),
        ("/api/search?text=a&k=1&k=2", "k is given twice"),
        ("/api/search?txt=a", 'did you mean "text"?'),
        ("/api/search?text=a&having=smell", "unknown modality"),
        ("/api/search?text=a&where=label", "is no condition"),
        ("/api/search?text=a&label=red&where=label='a')or(label='b'", "balance them"),
        ("/api/search?text=a&hubs=perhaps", "hubs must be true or false"),
        ("/api/search?text=a%00b", "control characters"),
        ("/api/search?text=%ff", "cannot be read"),
        ("/api/search?like=nothing", "no item"),
        ("/api/items?offset=-1", "offset must be a whole number"),
        ("/api/items?limit=1000000", "limit must be a whole number from 1 to 200"),
        ("/api/items/%ff", "is not UTF-8"),
        ("/api/search?text=" + "a" * 3000, "at most 2000"),
    ],
)
def test_mistakes_are_400_with_a_sentence(client, path, sentence):
    answer = client.get(path)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


def test_nothing_changes_without_leave(client):
    for answer in (client.post("/api/items", data={"text": "x"}), client.delete("/api/items/red%2Fcircle")):
        assert answer.status_code == 403
        assert "--allow-add" in answer.json()["error"]


def test_a_wrong_method_is_405(client):
    assert client.put("/api/items").status_code == 405
    assert client.post("/api/about").status_code == 405


class Broken(data.ShapeIndex):
    def item(self, id):
        raise RuntimeError("/secret/path")


def test_a_failure_tells_the_client_nothing(shapes, client_of):
    with client_of(Broken(shapes.folder / "items.jsonl")) as client:
        answer = client.get("/api/items/red%2Fcircle")
    assert answer.status_code == 500
    assert answer.json() == {"error": "the server failed to answer; its log says why"}


class Slow(data.ShapeIndex):
    def __init__(self, manifest):
        super().__init__(manifest)
        self.go = threading.Event()

    def search(self, *arguments, **options):
        self.go.wait(30)
        return super().search(*arguments, **options)


def test_requests_beyond_the_queue_get_503_and_come_back_later(shapes, client_of):
    index = Slow(shapes.folder / "items.jsonl")
    with client_of(index, limits=Limits(at_once=1, waiting=1)) as client:
        answers = []
        ask = lambda: answers.append(client.get("/api/search?text=red"))  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        while len(answers) < 3:
            time.sleep(0.01)
        index.go.set()
        for thread in threads:
            thread.join()
        refused = [answer for answer in answers if answer.status_code == 503]
        assert len(refused) == 3
        assert all(answer.headers["retry-after"] == "2" for answer in refused)
        assert client.get("/api/search?text=red").status_code == 200


def test_uploads_beyond_their_number_get_503(shapes, client_of):
    index = Slow(shapes.folder / "items.jsonl")
    with client_of(index, limits=Limits(uploads=2)) as client:
        answers = []
        picture = {"image": ("q.png", data.png("red", "ring"), "image/png")}
        threads = [
            threading.Thread(target=lambda: answers.append(client.post("/api/search", files=picture))) for _ in "123"
        ]
        for thread in threads:
            thread.start()
        while not answers:
            time.sleep(0.01)
        assert client.get("/api/items").status_code == 200
        index.go.set()
        for thread in threads:
            thread.join()
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503]


def test_a_search_that_takes_too_long_is_504(shapes, client_of):
    index = Slow(shapes.folder / "items.jsonl")
    with client_of(index, limits=Limits(answer_seconds=0.2)) as client:
        assert client.get("/api/search?text=red").status_code == 504
        index.go.set()


def test_every_answer_is_strict(client):
    for path in ("/", "/page.js", "/api/about", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_loads_nothing_from_elsewhere(client):
    for path in ("/", "/page.css", "/page.js", "/parts.js", "/adding.js", "/dropping.js"):
        text = client.get(path).text
        links = re.findall(r"""(?:https?:|["'(])//[^\s"')]+""", text)
        assert links in ([], ["http://www.w3.org/2000/svg"])
        assert "@import" not in text
        assert "<script>" not in text
        assert "style=" not in text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8000"},
        {"Host": "localhost:8000:8000"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_other_names_and_other_sites_are_refused(client, headers):
    assert client.get("/api/about", headers=headers).status_code in (403, 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_own_names_are_answered(client, host):
    assert client.get("/api/about", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


def test_numbers_that_json_lacks(shapes):
    from calmrl.server.answers import Json

    assert json.loads(Json({"a": float("nan"), "b": [float("inf"), 1.5]}).body) == {"a": None, "b": [None, 1.5]}


def test_errors_of_a_collection_are_sentences(shapes, client_of):
    class Refusing(data.ShapeIndex):
        def search(self, *arguments, **options):
            raise InputError("this collection cannot be searched by sound")

    with client_of(Refusing(shapes.folder / "items.jsonl")) as client:
        answer = client.get("/api/search?text=a")
    assert (answer.status_code, answer.json()) == (400, {"error": "this collection cannot be searched by sound"})
