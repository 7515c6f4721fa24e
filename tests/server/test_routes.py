"""Routes at their limits: pages, what is kept for some seconds, which threads are asked, kinds of files, and errors."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

import shapes as data
from calmrl.errors import InputError, MissingExtraError
from calmrl.server import Limits
from calmrl.server import api as api_module
from calmrl.server.api import Api, _picture_type
from calmrl.server.app import build_app
from calmrl.server.parameters import Asked
from calmrl.server.workers import Workers


@pytest.fixture
def api(shapes):
    made = Api(shapes, Limits(), False)
    yield made
    made.close()


def test_the_last_page_says_that_it_is(api):
    for limit, offset, count, more in ((48, 0, 48, False), (47, 0, 47, True), (47, 1, 47, False), (5, 48, 0, False)):
        page = api._items(Asked(limit=limit, offset=offset))
        assert (page["offset"], page["count"], page["more"], len(page["items"])) == (offset, count, more, count)


def test_what_is_said_about_the_collection_is_counted_again_after_five_seconds(api, monkeypatch):
    now, counted = [0.5], []
    monkeypatch.setattr(api_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(api, "_about", lambda: counted.append(now[0]) or {"at": now[0]})
    for moment, said in ((0.5, 0.5), (5.25, 0.5), (5.5, 5.5), (10.25, 5.5)):
        now[0] = moment
        assert api._recent_about() == {"at": said}
    assert counted == [0.5, 5.5]


def test_changes_are_counted_at_once(tmp_path, client_of, monkeypatch):
    """Also on a machine that has just been started, whose clock is near 0."""
    index = data.ShapeIndex(data.write_shapes(tmp_path / "items"))
    monkeypatch.setattr(api_module, "time", SimpleNamespace(monotonic=lambda: 0.5))
    monkeypatch.setattr(api_module.additions, "remove", lambda index, id: index.rows.pop(id))

    def add(index, form, kinds, limits):
        index.rows["new"] = index._item({"id": "new", "text": "x"})
        return "new"

    monkeypatch.setattr(api_module.additions, "add", add)
    with client_of(index, allow_add=True) as client:
        assert client.get("/api/about").json()["items"] == 48
        gone = client.delete("/api/items/red%2Fcircle")
        assert (gone.status_code, gone.content) == (204, b"")
        assert client.get("/api/about").json()["items"] == 47
        made = client.post("/api/items", files={"text": (None, "x")})
        assert (made.status_code, made.json()["id"]) == (201, "new")
        assert client.get("/api/about").json()["items"] == 48


def test_about_has_the_limits_and_nothing_private(api, monkeypatch):
    kept = dict.fromkeys(("path", "source", "problems", "modalities", "made"), "x")
    monkeypatch.setattr(type(api.index), "about", lambda self: kept)
    about = api._about()
    assert about["about"] == {"made": "x"}
    assert about["limits"] == {"body_bytes": 32 * 2**20, "pixels": 40_000_000, "sound_seconds": 600.0, "hits": 200}
    assert about["allow_add"] is False
    assert set(about["modalities"]) == {"image", "text", "sound"}


@pytest.mark.parametrize(
    ("asked", "files", "of"),
    [
        (Asked(text="a"), {}, "encoders"),
        (Asked(like="a"), {"image": b"x"}, "encoders"),
        (Asked(), {"image": b"x"}, "encoders"),
        (Asked(like="a"), {}, "workers"),
        (Asked(), {}, None),
    ],
)
def test_only_what_is_encoded_waits_for_the_encoders(asked, files, of, api, monkeypatch):
    used = []

    def noting(name):
        async def run(function, *arguments):
            used.append((name, arguments))
            return {}

        return run

    for name in ("encoders", "workers"):
        monkeypatch.setattr(getattr(api, name), "run", noting(name))
    if of is None:
        with pytest.raises(InputError, match="the query is empty"):
            asyncio.run(api._found(asked, files))
    else:
        asyncio.run(api._found(asked, files))
        assert used == [(of, (asked, files))]
    assert api.encoders.limits.at_once == 1
    assert api.workers.limits.at_once == 4


def test_uploads_are_counted_until_they_end(shapes):
    api = Api(shapes, Limits(uploads=1), False)
    with api._upload():
        with pytest.raises(HTTPException, match="too many requests") as refused, api._upload():
            pass
        assert refused.value.status_code == 503
        assert api.uploading == 1
    assert api.uploading == 0
    with pytest.raises(RuntimeError, match="broken"), api._upload():
        raise RuntimeError("broken")
    assert api.uploading == 0
    api.close()


def test_files_are_shown_or_saved(tmp_path, client_of):
    index = data.ShapeIndex(data.write_shapes(tmp_path / "items"))
    (tmp_path / "items" / "a.html").write_text("<script>")
    index.rows["red/circle"].paths["sound"] = "a.html"
    index.rows["red/star"].paths["sound"] = "nowhere.wav"
    with client_of(index) as client:
        picture = client.get("/api/items/red%2Fcircle/files/image")
        assert picture.headers["content-disposition"] == 'inline; filename="0.png"'
        assert picture.headers["cache-control"] == "private, max-age=60"
        page = client.get("/api/items/red%2Fcircle/files/sound")
        assert page.headers["content-disposition"] == 'attachment; filename="a.html"'
        assert page.headers["content-type"] == "application/octet-stream"
        gone = client.get("/api/items/red%2Fstar/files/sound")
        assert (gone.status_code, gone.json()) == (404, {"error": "the file is no longer there"})
        wrong = client.get("/api/items/red%2Fcircle/files/image", headers={"Range": "bytes=a-"})
        assert wrong.status_code == 416
        assert wrong.json()["error"].startswith("send one range of bytes")
        small = client.get("/api/items/red%2Fcircle/thumbnail")
        assert small.headers["cache-control"] == "private, max-age=60"
        none = client.get("/api/items/red%2Fsquare/thumbnail")
        assert (none.status_code, none.json()) == (404, {"error": "this item has no picture"})
        unknown = client.get("/api/items/nothing")
        assert unknown.status_code == 404
        assert unknown.json()["error"] == "the collection has no such item, or no such file of it"


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"RIFF", "image/webp"), (b"GIF89a", "image/gif"),
     (b"BM", "application/octet-stream")],
)  # fmt: skip
def test_kinds_of_small_pictures(start, kind):
    assert _picture_type(start + b"rest") == kind


def test_errors_from_outside(tmp_path, client_of):
    index = data.ShapeIndex(data.write_shapes(tmp_path / "items"))

    def missing(*arguments, **options):
        raise MissingExtraError("install calmrl[search]")

    def refused(*arguments, **options):
        raise InputError(f"{index.path} cannot be searched")

    with client_of(index) as client:
        nowhere, wrong = client.get("/nowhere"), client.patch("/api/items")
        assert (nowhere.status_code, nowhere.json()) == (404, {"error": "there is nothing at this address"})
        assert (wrong.status_code, wrong.json()) == (405, {"error": "PATCH is not possible here"})
        assert wrong.headers["allow"]
        index.search = missing
        answer = client.get("/api/search?text=a")
        assert (answer.status_code, answer.json()) == (501, {"error": "install calmrl[search]"})
        index.search = refused
        assert client.get("/api/search?text=a").json() == {"error": "the collection cannot be searched"}
        assert client.get("/page.js").headers["cache-control"] == "no-cache"
        assert client.get("/api/about?x=1").status_code == 400
        files = {"image": ("a.png", data.png("red", "bar"), "image/png")}
        assert client.post("/api/search?k=1", files=files).status_code == 400


def test_an_application_by_default_changes_nothing_and_ends_its_threads(shapes, monkeypatch):
    closed = []
    monkeypatch.setattr(Workers, "close", lambda self: closed.append(self.limits.at_once))
    guard = build_app(shapes)
    assert guard.allowed("127.0.0.1")
    assert not guard.allowed("192.168.1.5")
    assert guard.limits == Limits()
    lifespan = guard.app.router.lifespan_context

    async def live():
        async with lifespan(guard.app):
            assert closed == []

    asyncio.run(live())
    assert closed == [4, 1]
    about = next(route for route in guard.app.routes if route.path == "/api/about").endpoint.__self__
    assert about.allow_add is False


def test_as_many_functions_wait_as_may():
    go = threading.Event()

    async def ask():
        workers = Workers(Limits(at_once=1, waiting=1))
        waiting = [asyncio.create_task(workers.run(go.wait, timeout=600)) for _ in range(2)]
        await asyncio.sleep(0)
        assert workers.pending == 2
        with pytest.raises(HTTPException, match="too many requests") as refused:
            await workers.run(int)
        assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "2"})
        go.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await workers.run(int, "7", base=8) == 7
        while workers.pending:
            await asyncio.sleep(0)
        workers.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await workers.run(int)

    asyncio.run(ask())


def test_closing_forgets_what_waits_and_does_not_wait_itself():
    go = threading.Event()
    workers = Workers(Limits(at_once=1))
    running, waiting = workers.pool.submit(go.wait, 20), workers.pool.submit(int)
    while not running.running():
        pass
    workers.close()
    assert waiting.cancelled()
    assert not running.done()
    go.set()


def test_an_answer_that_takes_too_long():
    go = threading.Event()

    async def ask():
        workers = Workers(Limits(answer_seconds=0.02))
        with pytest.raises(HTTPException, match=r"no answer within 0\.02 s; ask for less") as refused:
            await workers.run(go.wait, 20)
        assert refused.value.status_code == 504
        assert workers.pending == 1  # its thread is still busy
        go.set()
        workers.close()

    asyncio.run(ask())
