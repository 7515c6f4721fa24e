"""The routes of the JSON interface: read the request, ask the collection in a thread, answer."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from calmrl.errors import InputError
from calmrl.server import additions
from calmrl.server.answers import Json, item_json, media_type
from calmrl.server.limits import Limits
from calmrl.server.openapi import description
from calmrl.server.parameters import BROWSE, SEARCH, Asked, checked_text, from_pairs, from_query, weighted_words
from calmrl.server.uploads import checked_files, modality_named, read_form
from calmrl.server.words import expected_sentences
from calmrl.server.workers import Workers, busy

RANGE = re.compile(r"bytes=(\d{1,18}-\d{0,18}|-\d{1,18})")
# A file of the collection opened on its own runs no script and loads nothing, whatever is in it.
ALONE = "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; sandbox"
PRIVATE = ("path", "source", "problems", "modalities")  # paths on the disk of the server, and what is said already
ABOUT_SECONDS = 5.0
MINUTE = "private, max-age=60"


class Api:
    """What the routes share: the collection, its threads and the limits."""

    def __init__(self, index: Any, limits: Limits, allow_add: bool) -> None:
        self.index = index
        self.limits = limits
        self.allow_add = allow_add
        self.workers = Workers(limits)
        self.modalities = {name: dict(entry) for name, entry in index.modalities().items()}
        self.kinds = {name: str(entry["kind"]) for name, entry in self.modalities.items()}
        self.about_kept: dict[str, Any] = {}
        self.about_until = 0.0
        self.uploading = 0
        self.counting = threading.Lock()
        self.encoders = Workers(replace(limits, at_once=1))  # not every encoder may be used by two threads at once

    def close(self) -> None:
        """Let go of the threads."""
        self.workers.close()
        self.encoders.close()

    async def health(self, request: Request) -> Response:
        """The server answers."""
        return Json({"status": "ok"})

    async def openapi(self, request: Request) -> Response:
        """The description of this interface."""
        return Json(description(self.limits, self.allow_add))

    async def about(self, request: Request) -> Response:
        """What the collection is, and how well it can be searched."""
        from_query(request.scope["query_string"], (), self.limits)
        return Json(await self.workers.run(self._recent_about))

    def _recent_about(self) -> dict[str, Any]:
        """Counting a large collection takes a while, so that the answer is kept for some seconds."""
        with self.counting:
            if time.monotonic() >= self.about_until:
                self.about_kept = self._about()
                self.about_until = time.monotonic() + ABOUT_SECONDS
            return self.about_kept

    def _about(self) -> dict[str, Any]:
        from calmrl import __version__

        modalities = self.index.modalities()
        about = {name: value for name, value in self.index.about().items() if name not in PRIVATE}
        return {
            "version": __version__,
            "items": len(self.index),
            "modalities": modalities,
            "labels": list(self.index.labels()),
            "expected": expected_sentences(self.index.expected, modalities),
            "about": about,
            "allow_add": self.allow_add,
            "limits": {
                "body_bytes": self.limits.body_bytes,
                "pixels": self.limits.pixels,
                "sound_seconds": self.limits.sound_seconds,
                "hits": self.limits.hits,
            },
        }

    async def search(self, request: Request) -> Response:
        """Items by words, by an item, and by uploaded files."""
        if request.method != "POST":
            return await self._found(from_query(request.scope["query_string"], SEARCH, self.limits), {})
        from_query(request.scope["query_string"], (), self.limits)
        with self._upload():
            form = await read_form(request)
            return await self._found(from_pairs(form.fields, SEARCH, self.limits), form.files)

    async def _found(self, asked: Asked, files: dict[str, bytes]) -> Response:
        if not (asked.text or asked.like or files):
            raise InputError("the query is empty; give text, like, or the files image and sound")
        workers = self.encoders if asked.text or files else self.workers
        return Json(await workers.run(self._search, asked, files))

    @contextmanager
    def _upload(self) -> Iterator[None]:
        """Bounds how many bodies are in memory at once."""
        if self.uploading >= self.limits.uploads:
            raise busy()
        self.uploading += 1
        try:
            yield
        finally:
            self.uploading -= 1

    def _search(self, asked: Asked, files: dict[str, bytes]) -> dict[str, Any]:
        given: dict[str, Any] = checked_files(files, self.kinds, self.limits)
        given |= {} if asked.text is None else {"text": weighted_words(asked.text, self.limits)}
        terms = {modality_named(name, self.kinds): value for name, value in given.items()}
        hits = self.index.search(**terms, like=asked.like, k=asked.k, hubs=asked.hubs, **asked.filters())
        return {"count": len(hits), "hits": [item_json(hit, self.modalities) for hit in hits]}

    async def items(self, request: Request) -> Response:
        """A page of the collection in its own order."""
        asked = from_query(request.scope["query_string"], BROWSE, self.limits)
        return Json(await self.workers.run(self._items, asked))

    def _items(self, asked: Asked) -> dict[str, Any]:
        page = self.index.items(offset=asked.offset, limit=asked.limit + 1, **asked.filters())
        items = page[: asked.limit]
        return {
            "offset": asked.offset,
            "count": len(items),
            "more": len(page) > len(items),
            "items": [item_json(item, self.modalities) for item in items],
        }

    async def item(self, request: Request) -> Response:
        """One item."""
        item = await self._known(self.index.item, self._part(request, "id"))
        return Json(item_json(item, self.modalities))

    async def thumbnail(self, request: Request) -> Response:
        """A small picture of an item."""
        content = await self._known(self.index.thumbnail, self._part(request, "id"))
        if content is None:
            raise HTTPException(404, "this item has no picture")
        return Response(content, headers={"cache-control": MINUTE}, media_type=_picture_type(content))

    async def file(self, request: Request) -> Response:
        """The file of an observed modality, whole or in part."""
        path = await self._known(self.index.file, self._part(request, "id"), self._part(request, "modality"))
        if not Path(path).is_file():
            raise HTTPException(404, "the file is no longer there")
        wanted = request.headers.get("range")
        if wanted is not None and not RANGE.fullmatch(wanted.strip()):
            raise HTTPException(416, "send one range of bytes, for instance Range: bytes=0-999")
        kind = media_type(path)
        headers = {"content-security-policy": ALONE, "cache-control": MINUTE, "accept-ranges": "bytes"}
        place = "inline" if kind.partition("/")[0] in ("image", "audio", "video", "text") else "attachment"
        return FileResponse(
            path, media_type=kind, headers=headers, filename=Path(path).name, content_disposition_type=place
        )

    async def add(self, request: Request) -> Response:
        """A new item from a form."""
        self._may_change()
        with self._upload():
            form = await read_form(request)
            id = await self.encoders.run(additions.add, self.index, form, self.kinds, self.limits)
        self.about_until = 0.0
        item = await self.workers.run(self.index.item, id)
        return Json(item_json(item, self.modalities), status_code=201)

    async def remove(self, request: Request) -> Response:
        """Take an item out of the collection."""
        self._may_change()
        id = self._part(request, "id")
        await self._known(self.index.item, id)
        await self.workers.run(additions.remove, self.index, id)
        self.about_until = 0.0
        return Response(status_code=204)

    def _may_change(self) -> None:
        if not self.allow_add:
            raise HTTPException(403, "this server does not change its collection; start it with --allow-add")

    def _part(self, request: Request, name: str) -> str:
        """A part of the path, decoded once."""
        try:
            text = unquote(request.path_params[name], errors="strict")
        except UnicodeDecodeError:
            raise InputError(f"the {name} in the address is not UTF-8") from None
        return checked_text(name, text, self.limits)

    async def _known(self, function: Any, *names: str) -> Any:
        """What the collection has under these names, or 404."""
        try:
            return await self.workers.run(function, *names)
        except InputError:
            raise HTTPException(404, "the collection has no such item, or no such file of it") from None


def _picture_type(content: bytes) -> str:
    starts = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp", b"GIF8": "image/gif"}
    kinds = [kind for start, kind in starts.items() if content.startswith(start)]
    return kinds[0] if kinds else "application/octet-stream"
