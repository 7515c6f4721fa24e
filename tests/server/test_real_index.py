"""The server with a real index: what it finds, what it refuses, what it changes when it may."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from tests.support import shapes as data
from tests.support.browser import WHY_NOT, chromium, drop, page_of, settled
from tests.support.hostile_requests import LIMITS, REQUESTS, refused
from tests.support.serving import digest, served
from tests.support.waiting import patience

PICTURE = ("a.png", "image/png", data.png("blue", "star"))


@pytest.fixture
def index(real_index):
    return real_index


@pytest.fixture
def client(index, client_of):
    with client_of(index) as client:
        yield client


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


def test_words_pictures_and_items_find_each_other(client):
    assert ids(client.get("/api/search?text=red+circle"))[0] == "red/circle"
    picture = {"image": ("a.png", data.png("green", "cross"), "image/png")}
    assert ids(client.post("/api/search", files=picture))[0] == "green/cross"
    both = {**picture, "sound": ("a.wav", data.tone(data.pitch("green", "cross")), "audio/wav")}
    assert "green/cross" in ids(client.post("/api/search", files=both, data={"text": "green cross"}))[:2]
    assert "red/circle" not in ids(client.get("/api/search?like=red%2Fcircle&k=60"))


def test_items_without_words_are_found_by_words(client):
    hits = client.get("/api/search?text=red+ring&lacking=text&k=48").json()["hits"]
    assert len(hits) == 9
    assert all("text" in hit["missing"] for hit in hits)
    assert client.get("/api/items?lacking=text&limit=200").json()["count"] == 9


def test_about_hides_where_things_lie(client, index):
    about = client.get("/api/about")
    assert str(index.path.parent) not in about.text
    assert about.json()["about"]["patterns"]["image + text + sound"] == 19
    assert len(about.json()["expected"]) == 6
    assert client.get("/api/search?like=nothing").status_code == 400
    assert str(index.path.parent) not in client.get("/api/search?like=nothing").text


def test_hostile_requests_change_nothing(index):
    before = digest(index.path.parent)
    with served(index, LIMITS) as port:
        for name in REQUESTS:
            refused(port, name, index.path.parent)
    assert digest(index.path.parent) == before


def test_items_come_and_go_when_they_may(index, client_of):
    with client_of(index, allow_add=True) as client:
        before = len(index)
        files = {
            "image": ("../../evil.png", data.png("green", "star"), "image/png"),
            "sound": ("a.wav", data.tone(990), "audio/wav"),
        }
        made = client.post("/api/items", files=files, data={"id": "new/one", "text": "a green star", "label": "new"})
        assert made.status_code == 201, made.text
        assert set(made.json()["modalities"]) == {"image", "text", "sound"}
        assert client.get(made.json()["files"]["image"]["url"]).content == files["image"][1]
        assert ids(client.get("/api/search?text=green+star&label=new")) == ["new/one"]
        assert client.post("/api/items", data={"id": "new/one"}, files={"image": files["image"]}).status_code == 400
        folder = index.file("new/one", "image").parent
        assert folder.parent == index.path / "added"
        assert client.delete("/api/items/new%2Fone").status_code == 204
        assert client.delete("/api/items/new%2Fone").status_code == 404
        assert len(index) == before
        assert not folder.exists()


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ({}, {"image": ("a.png", b"no picture", "image/png")}),
        ({"text": "x", "path": "/etc/passwd"}, {"image": ("a.png", data.png("red", "bar"), "image/png")}),
        ({"id": "red/circle"}, {"image": ("a.png", data.png("red", "bar"), "image/png")}),
        ({}, {"smell": ("a.png", data.png("red", "bar"), "image/png")}),
        ({"label": "x"}, {"sound": ("a.wav", data.tone(440)[:30], "audio/wav")}),
    ],
)
def test_what_cannot_be_added_leaves_nothing_behind(index, client_of, fields, files):
    with client_of(index, allow_add=True) as client:
        answer = client.post("/api/items", data=fields, files=files)
        assert answer.status_code == 400, answer.text
    assert len(index) == 48
    assert not any((index.path / "added").glob("*"))
    assert index.item("red/circle").text == "A red circle on white"


def test_weights_and_negation_as_on_the_command_line(client):
    both = ids(client.get("/api/search", params={"text": "red + circle", "k": 48}))
    assert both[0] == "red/circle"
    without = ids(client.get("/api/search", params={"text": "red - circle", "k": 48}))
    assert without.index("red/circle") > both.index("red/circle")
    heavy, light = (ids(client.get("/api/search", params={"text": f"{w}:red + star", "k": 6})) for w in ("9", ".1"))
    assert sum(id.startswith("red/") for id in heavy) > sum(id.startswith("red/") for id in light)
    quoted = ids(client.get("/api/search", params={"text": '"red - circle"', "k": 1}))
    assert quoted == ["red/circle"]
    for text, sentence in (("red + - star", "empty term"), ("0:red", "other than 0"), ("a + " * 16 + "a", "17 terms")):
        answer = client.get("/api/search", params={"text": text})
        assert answer.status_code == 400
        assert sentence in answer.json()["error"]
    path = client.get("/api/search", params={"text": "/etc/passwd"})
    assert path.status_code == 200  # words, not a file


@contextmanager
def opened(index, **options):
    """The page of an index in a browser that must not complain."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    complaints: list[str] = []
    with (
        served(index, **options) as port,
        chromium() as browser,
        page_of(browser, f"http://127.0.0.1:{port}", complaints=complaints) as page,
    ):
        page.goto("/")
        settled(page, "24 of 48 shown")
        yield page
    assert complaints == []


def search(page, words: str) -> list[str]:
    page.fill("#words", words)
    page.press("#words", "Enter")
    settled(page, "nearest first")
    return page.locator(".card h3").all_inner_texts()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_journey_in_the_page(index):
    with opened(index) as page:
        assert search(page, "red circle")[0] == "red/circle"
        assert "by name, words" in page.locator(".card .score").first.inner_text()
        assert "red/circle" not in search(page, "red - circle")[:3]
        drop(page, PICTURE)
        page.wait_for_selector("#parts li")
        page.fill("#words", "")
        page.press("#words", "Enter")
        page.wait_for_function("() => document.querySelector('.card h3').textContent === 'blue/star'")
        page.locator(".card .score", has_text="by same file").wait_for()  # the card may have been first before
        page.get_by_role("button", name="Filters").click()
        page.select_option("#label", "blue")
        settled(page, "8 items, nearest first")
        page.locator(".card h3 a", has_text="blue/star").click()
        page.get_by_role("dialog").wait_for()
        assert page.locator("#item-body .modality h3").all_inner_texts() == [
            "Why it was found",
            "picture",
            "text",
            "sound",
        ]
        length = page.evaluate(
            """async () => {
              const player = document.querySelector("#item-body audio");
              await player.play();
              await new Promise((done) => player.addEventListener("ended", done, {once: true}));
              return player.duration;
            }"""
        )
        assert length == pytest.approx(1.0, abs=0.05)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_page_adds_renames_and_removes_an_item_where_it_may(index):
    with opened(index) as page:
        assert not page.locator("#adding-open").is_visible()
    name, kind, content = ("star.png", "image/png", data.png("green", "star"))
    with opened(index, allow_add=True) as page:
        page.locator("#adding-open").click()
        page.fill("#adding input[name=text]", "a star that was added")
        page.set_input_files("#adding input[name=image]", {"name": name, "mimeType": kind, "buffer": content})
        page.locator("#adding-form button").click()
        page.locator("#item-title", has_text="star").wait_for()  # as its file is called
        assert "49 items" in page.locator("#summary").inner_text()
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("New name").fill("added/star")
        page.get_by_role("button", name="Rename").click()
        page.locator("#item-title", has_text="added/star").wait_for()
        assert set(index.item("added/star").modalities) == {"image", "text"}
        assert index.file("added/star", "image").read_bytes() == content
        assert len(index) == 49
        page.get_by_role("button", name="Remove").click()
        page.get_by_role("button", name="Keep it").click()
        page.get_by_role("button", name="Remove").click()
        page.get_by_role("button", name="Remove it").click()
        page.get_by_role("dialog").wait_for(state="hidden")
        page.wait_for_function("() => document.getElementById('summary').textContent.startsWith('48 items')")
    assert len(index) == 48
    assert not any((index.path / "added").glob("*"))


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_page_says_why_an_item_cannot_be_added(index):
    pytest.importorskip("playwright", reason="playwright is not installed")
    with (
        served(index, allow_add=True) as port,
        chromium() as browser,
        page_of(browser, f"http://127.0.0.1:{port}") as page,
    ):
        page.goto("/")
        settled(page, "24 of 48 shown")
        page.locator("#adding-open").click()
        page.locator("#adding-form button").click()
        page.locator("#adding-problem", has_text="the item is empty").wait_for()
        broken = {"name": "<b>.png", "mimeType": "image/png", "buffer": b"no picture"}
        page.set_input_files("#adding input[name=image]", broken)
        page.locator("#adding-form button").click()
        page.locator("#adding-problem", has_text="cannot be read").wait_for()
    assert len(index) == 48


def test_the_command_serves_until_it_is_interrupted(index):
    run = [sys.executable, "-m", "calmrl", "serve", str(index.path), "--port", "0"]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        port = int(re.fullmatch(r"48 items at http://127\.0\.0\.1:(\d+)/ \(Ctrl-C stops\)\n", line)[1])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/search?like=red%2Fcircle&k=2") as answer:
            assert len(json.load(answer)["hits"]) == 2
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=patience(60)) == 0
        assert server.stderr.read() == ""
