"""An index: built, searched, grown, served; in Python and on the command line."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from calmrl import Index
from calmrl.data import open_features
from calmrl.search import parse_query
from tests.golden import golden_inputs as inputs
from tests.golden.cases_data import MEDIA
from tests.golden.cases_measures import refused
from tests.golden.golden_record import SINGLE, Place, case
from tests.support import colour_world

SEARCH = ("lancedb", *MEDIA)
COLOUR = "the colour 10 200 30"


def found(hits: Any) -> list[Any]:
    """Hits, shortly."""
    return [[hit.id, hit.similarity, hit.certainty, list(hit.modalities), hit.text, hit.label] for hit in hits]


def items(given: Any) -> list[Any]:
    return [[item.id, list(item.modalities), item.text, item.label, sorted(item.paths)] for item in given]


@case("search/index of features", SINGLE, ("lancedb",))
def _(place: Place) -> Any:
    inputs.write_rows("f", 60)
    data = open_features("f")
    index = Index.build(data.select(np.arange(50)), "ix", model=colour_world.settings())
    vector = {"image": data.z["image"][0]}
    result: dict[str, Any] = {
        "length": len(index),
        "hits": found(index.search(image=vector["image"], k=3)),
        "two": found(index.search(image=vector["image"], text=data.z["text"][0], k=3)),
        "weighted": found(index.search(image=[(2.0, vector["image"]), (-0.5, data.z["image"][1])], k=3)),
        "like": found(index.search(like="r3", k=3)),
        "having": found(index.search(image=vector["image"], k=3, having=["sound"], lacking="text")),
        "where": found(index.search(image=vector["image"], k=3, where="label = 'dog' and year > 1910")),
        "hubs": found(index.search(image=vector["image"], k=3, hubs=True)),
        "items": items(index.items(2, 3, having="sound")),
        "item": index.item("r3"),
        "rows": index.rows(["id", "label"], "id = 'r5' or id = 'r7'"),
        "labels": index.labels(),
        "modalities": index.modalities(),
        "summary": [place.text(line) for line in index.summary()],
        "expected": index.expected,
        "features": {name: index.features_of("r3")[name] for name in inputs.WIDTHS if name in index.features_of("r3")},
    }
    change = index.add(data)
    result["added"] = [change, change.lines(), len(index)]
    result["after"] = found(index.search(image=data.z["image"][55], k=2))
    result["removed"] = [index.remove(["r1", "r2"]), index.remove("r4"), len(index)]
    result["opened again"] = [len(Index.open("ix")), found(Index.open("ix").search(image=vector["image"], k=2))]
    said = refused(
        lambda: index.search(),
        lambda: index.search(text="words"),
        lambda: index.search(image=np.zeros(3)),
        lambda: index.search(smell=np.zeros(3)),
        lambda: index.search(like="nobody"),
        lambda: index.search(like="r3", k=0),
        lambda: index.search(like="r3", having="imag"),
        lambda: index.search(like="r3", where="yeer > 3"),
        lambda: index.search(like="r3", where="year >"),
        lambda: index.search(like="r3", where="year = 'x'"),
        lambda: index.remove("nobody"),
        lambda: index.item("nobody"),
        lambda: Index.open("nowhere"),
        lambda: Index.open("f"),
        lambda: Index.build(data, "ix", model=colour_world.settings()),
        lambda: Index.build("nowhere", "iy"),
    )
    return result | {"refused": [place.text(line) for line in said]}


@case("search/queries")
def _(place: Place) -> Any:
    texts = ("a dog", "2:dog + ./pool.jpg - fruit", "- .5:cat", "a - b", "1:2 + 3", "black-and-white", "dog + cat")
    return {
        "parsed": [parse_query(text) for text in texts],
        "not parsed": refused(*(lambda text=text: parse_query(text) for text in ("", "dog +", "0:dog", "x: + y", "+"))),
    }


def _index(place: Place, count: int = 60) -> Path:
    """A folder of colours, its index "ix", and what to ask it with."""
    colour_world.register(place.patch)
    colour_world.make_folder(root := place.path / "colours", count)
    Index.build(root, place.path / "trial", colour_world.NAMES, model=colour_world.settings()).aligner.save(
        place.path / "aligner"
    )
    colour_world.write_picture(place.path / "q.png", np.array([10, 200, 30]))
    colour_world.write_sound(place.path / "q.wav", np.array([10, 200, 30]))
    return root


def _named() -> list[str]:
    return [part for name, encoder in colour_world.NAMES.items() for part in ("--encoder", f"{name}={encoder}")]


def _hits(result: dict[str, Any]) -> dict[str, Any]:
    """A search with --json, with its hits as numbers."""
    told = json.loads(result.pop("out"))
    short = [[hit["id"], hit["similarity"], hit["certainty"], hit["modalities"]] for hit in told["hits"]]
    return result | {"hubs": told["hubs"], "keys": sorted(told["hits"][0]), "hits": short}


@case("search/commands", SINGLE, SEARCH)
def _(place: Place) -> Any:
    _index(place)
    run = place.calmrl
    result: dict[str, Any] = {"index": run("index", "colours", "--out", "ix", "--model", "aligner", *_named())}
    result["index"]["wrote"] = sorted({name.split("/")[1] for name in result["index"]["wrote"] if "/" in name})
    result |= {
        "again": run("index", "colours", "--out", "ix", "--model", "aligner", *_named()),
        "check": run("check", "ix"),
        "words": run("search", "ix", COLOUR, "-k", "3"),
        "json": _hits(run("search", "ix", COLOUR, "-k", "3", "--json")),
        "image": _hits(run("search", "ix", "--image", "q.png", "-k", "3", "--json")),
        "sound": _hits(run("search", "ix", "--sound", "q.wav", "-k", "3", "--json")),
        "with": _hits(run("search", "ix", "--with", "sound=q.wav", "-k", "3", "--json")),
        "terms": _hits(run("search", "ix", f"2:{COLOUR} + ./q.png - .1:colour 255 255 255", "-k", "3", "--json")),
        "like": _hits(run("search", "ix", "--like", "dark/c8", "-k", "3", "--json")),
        "having": run("search", "ix", COLOUR, "--having", "text,image", "-k", "2"),
        "lacking": run("search", "ix", COLOUR, "--lacking", "sound", "-k", "2"),
        "where": run("search", "ix", COLOUR, "--where", "label = 'light'", "-k", "2"),
        "paths": run("search", "ix", COLOUR, "--having", "image", "--paths", "-k", "2"),
        "hubs": run("search", "ix", COLOUR, "--hubs", "-k", "2"),
        "nothing": run("search", "ix", COLOUR, "--where", "label = 'nothing'"),
    }
    return result


@case("search/commands that change", SINGLE, SEARCH)
def _(place: Place) -> Any:
    root = _index(place)
    os.rename("trial", "ix")
    run = place.calmrl
    colour_world.write_item(root, 1000, {"image", "text"})
    (root / "dark/c0.png").unlink(missing_ok=True)
    (root / "broken.png").write_text("x")
    result = {
        "grown": run("search", "ix", COLOUR, "-k", "1"),
        "add": run("add", "ix", "colours", "--json"),
        "add again": run("add", "ix", "colours"),
        "prune": run("add", "ix", "colours", "--prune"),
        "found": _hits(
            run("search", "ix", f"colour {' '.join(map(str, colour_world.colour(1000)))}", "-k", "1", "--json")
        ),
        "remove": run("remove", "ix", "dark/c1000", "light/c1"),
        "left out": run("add", "ix", "colours"),
        "by name": run("add", "ix", "colours/light/c1.png"),
        "removed": run("add", "ix", "colours", "--removed", "--json"),
    }
    for change in result.values():
        change.pop("wrote", None)
    return result


@case("search/commands refuse", needs=SEARCH)
def _(place: Place) -> Any:
    _index(place)
    os.rename("trial", "ix")
    lines = (
        ("search", "ix"),
        ("search", "ix", "dog", "-k", "0"),
        ("search", "ix", "dog", "--having", "imag"),
        ("search", "ix", "dog", "--where", "x = 1"),
        ("search", "ix", "dog + ./no.png"),
        ("search", "ix", "--image", "no.png"),
        ("search", "ix", "--image", "q.wav"),
        ("search", "ix", "--with", "smell"),
        ("search", "ix", "--with", "smell=q.png"),
        ("search", "ix", "--like", "nobody"),
        ("search", "nothing", "dog"),
        ("remove", "colours", "dog"),
        ("remove", "ix", "nobody"),
        ("add", "ix", "nowhere"),
        ("add", "nowhere", "colours"),
        ("index", "colours", "--out", "colours"),
        ("index", "stamps", "--out", "ix"),
        ("index", "nowhere", "--out", "iy"),
        ("index", "colours", "--out", "iy", "--encoder", "image=se"),
        ("index", "colours", "--out", "iy", "--encoder", "image"),
        ("index", "colours", "--out", "iy", "--model", "nowhere", *_named()),
        ("index", "colours", "--out", "iy", "--groups", "nothing", *_named()),
        ("serve", "nowhere"),
        ("serve", "colours"),
    )
    result = {" ".join(line): place.calmrl(*line) for line in lines}
    for said in result.values():
        said.pop("wrote")
    return result


# ---- served


def _ask(app: Any, method: str, target: str, host: str = "127.0.0.1:8000", body: bytes = b"", kind: str = "") -> Any:
    """One request to an application, without a network: [status, kind of content, content]."""
    path, _, query = target.partition("?")
    headers = [(b"host", host.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(b"content-type", kind.encode())] if kind else []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    content = b"".join(message.get("body", b"") for message in sent[1:])
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    what = told.get("content-type", "")
    return [sent[0]["status"], what, json.loads(content) if "json" in what else len(content)]


@case("search/served", SINGLE, (*SEARCH, "starlette", "python_multipart"))
def _(place: Place) -> Any:
    from calmrl.server import Limits, build_app

    _index(place)
    app = build_app(Index.open("trial"))
    words = quote(COLOUR)
    form = b'--x\r\ncontent-disposition: form-data; name="image"; filename="q.png"\r\n\r\n' + Path("q.png").read_bytes()
    form += b'\r\n--x\r\ncontent-disposition: form-data; name="k"\r\n\r\n2\r\n--x--\r\n'
    about = _ask(app, "GET", "/api/about")
    openapi = _ask(app, "GET", "/api/openapi.json")
    return {
        "health": _ask(app, "GET", "/healthz"),
        "page": _ask(app, "GET", "/")[:2],
        "about": [
            *about[:2],
            sorted(about[2]),
            about[2]["items"],
            about[2]["modalities"],
            about[2]["limits"],
            about[2]["labels"],
        ],
        "expected": [direction["sentence"] for direction in about[2]["expected"]],
        "openapi": {path: sorted(methods) for path, methods in openapi[2]["paths"].items()},
        "search": _ask(app, "GET", f"/api/search?text={words}&k=2"),
        "like": _ask(app, "GET", "/api/search?like=dark%2Fc8&k=2"),
        "upload": _ask(app, "POST", "/api/search", body=form, kind="multipart/form-data; boundary=x"),
        "items": _ask(app, "GET", "/api/items?limit=2&having=sound"),
        "item": _ask(app, "GET", "/api/items/dark%2Fc8"),
        "thumbnail": _ask(app, "GET", "/api/items/dark%2Fc8/thumbnail")[:2],
        "file": _ask(app, "GET", "/api/items/dark%2Fc8/files/image")[:2],
        "empty": _ask(app, "GET", "/api/search"),
        "unknown": _ask(app, "GET", "/api/search?text=a&q=3"),
        "k": _ask(app, "GET", "/api/search?text=a&k=0"),
        "nobody": _ask(app, "GET", "/api/items/nobody"),
        "nowhere": _ask(app, "GET", "/api/nothing"),
        "another method": _ask(app, "PUT", "/api/items"),
        "not allowed": _ask(app, "DELETE", "/api/items/dark%2Fc8"),
        "another name": _ask(app, "GET", "/healthz", host="example.org"),
        "limits": Limits(),
    }
