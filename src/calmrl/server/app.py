"""The application: its routes, what is checked before they are read, and what an error looks like from outside."""

import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Form, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from calmrl.errors import InputError, MissingExtraError
from calmrl.search.running import ANSWERED, ASKED, HELLO, MAC, NONCE, ROUTE, mac, served
from calmrl.server.guard import Guard, problem
from calmrl.server.limits import Limits, host_check
from calmrl.server.schemas import (
    About,
    BrowseParams,
    Error,
    Health,
    Hits,
    Item,
    ItemFields,
    Items,
    NameFields,
    NoParams,
    SearchParams,
    Uploads,
    check_once,
    check_query,
    media_type,
)
from calmrl.server.served_index import ServedIndex

JAVASCRIPT = "text/javascript; charset=utf-8"
PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}": (name, JAVASCRIPT) for name in ("page.js", "changing.js", "dropping.js", "parts.js")},
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
MULTIPART = "multipart/form-data"
MOST_FILES, MOST_FIELDS, FIELD_BYTES = 8, 30, 16_384  # of a form
CHANGES = "changes"  # the tag of routes that need allow_add
RANGE = re.compile(r"bytes=(\d{1,18}-\d{0,18}|-\d{1,18})")
# A file of the collection opened on its own runs no script and loads nothing, whatever is in it.
ALONE = "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; sandbox"
MINUTE = "private, max-age=60"
IMAGE_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp", b"GIF8": "image/gif"}
PROBLEMS = {
    400: "A parameter, a condition or a file that cannot be used; the sentence says what to do.",
    403: "Changes are not allowed, or a page of another site sent the request.",
    404: "No such item, modality or file.",
    408: "The request was sent too slowly.",
    413: "The request, the image or the audio is too large.",
    415: "The body is not multipart/form-data.",
    416: "The range of bytes is not in the file.",
    503: "Too many requests are waiting; Retry-After says when to try again.",
    504: "The collection took too long.",
}
Responses = dict[int | str, dict[str, Any]]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def build_app(
    index: Any,
    *,
    host: str = "127.0.0.1",
    allow_add: bool = False,
    limits: Limits | None = None,
    secret: str | None = None,
) -> ASGIApp:
    """The page and the JSON interface of a collection, as an ASGI application.

    Parameters
    ----------
    index : Index
        The collection.
    host : str
        The address that the server is bound to; it decides which names the server answers to.
    allow_add : bool
        Whether clients may add and remove items.
    limits : Limits, optional
        What one client may ask for.
    secret : str, optional
        What searches from the shell (`calmrl.search.running`) prove to know; without one they are not answered.

    Returns
    -------
    ASGIApp
        For uvicorn or any other ASGI server.

    Examples
    --------
    >>> from calmrl import Index
    >>> app = build_app(Index.open("photos.index"))  # doctest: +SKIP
    """
    from calmrl import __version__

    limits = limits or Limits()
    collection = ServedIndex(index, limits, allow_add)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        collection.close()

    app = FastAPI(
        title="calmrl serve",
        version=__version__,
        description="Search items that lack modalities.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers=_exception_handlers(str(index.path)),
        responses={"default": {"model": Error, "description": "Any other problem."}},
        generate_unique_id_function=lambda route: route.name,
    )
    app.router.route_class = _route_class(collection)
    _add_page(app)
    _add_collection_routes(app, collection)
    _add_item_routes(app, collection)
    if secret is not None:
        _add_shell(app, collection, secret)
    for route in list(app.routes):
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)
    return Guard(app, limits, host_check(host))


def _add_page(app: FastAPI) -> None:
    def static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        content = (files("calmrl.server") / "page" / name).read_bytes()

        async def answer(request: Request) -> Response:
            return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

        return answer

    for path, (name, kind) in PAGE.items():
        app.add_route(path, static(name, kind), include_in_schema=False)


def _add_shell(app: FastAPI, collection: ServedIndex, secret: str) -> None:
    async def shell(request: Request) -> Response:
        body, nonce = await request.body(), request.headers.get(NONCE, "")
        proof = request.headers.get(MAC, "").encode("latin-1")
        if not hmac.compare_digest(proof, mac(secret, ASKED, nonce, body).encode()):
            raise HTTPException(
                403, "only searches from the shell of the user who started this server are answered here"
            )
        asked = json.loads(body)
        answer = await collection.encoders.run(served, collection.index, asked) if asked != HELLO else {}
        content = json.dumps(answer, default=str).encode()
        return Response(content, media_type="application/json", headers={MAC: mac(secret, ANSWERED, nonce, content)})

    app.add_route(ROUTE, shell, methods=["POST"], include_in_schema=False)


def _add_collection_routes(app: FastAPI, collection: ServedIndex) -> None:
    limits = collection.limits

    class Search(SearchParams):
        bounds = limits
        k: int = Field(min(24, limits.hits), ge=1, le=limits.hits, description="How many items.")

    class SearchForm(Search, Uploads):
        pass

    class Browse(BrowseParams):
        bounds = limits
        limit: int = Field(min(60, limits.hits), ge=1, le=limits.hits, description="How many items.")

    @app.get("/healthz", summary="Whether the server answers")
    async def health() -> Health:
        return Health()

    @app.get("/api/about", summary="The collection and its expected quality", responses=_problems(400, 503, 504))
    async def about(params: Annotated[NoParams, Query()]) -> About:
        return await collection.workers.run(collection.about)

    @app.get("/api/search", summary="Search by words, or by an item", responses=_problems(400, 503, 504))
    async def search(params: Annotated[Search, Query()]) -> Hits:
        return await collection.search(params, {})

    @app.post(
        "/api/search",
        operation_id="searchByFiles",
        summary="Search by files, alone or together with words and an item; a file may also have the name of a modality",
        responses=_problems(400, 408, 413, 415, 503, 504),
    )
    async def search_by_files(
        params: Annotated[NoParams, Query()], form: Annotated[SearchForm, Form(media_type=MULTIPART)]
    ) -> Hits:
        return await collection.search(form, await form.contents())

    @app.get("/api/items", summary="Browse the collection", responses=_problems(400, 503, 504))
    async def items(params: Annotated[Browse, Query()]) -> Items:
        return await collection.workers.run(collection.items, params)


def _add_item_routes(app: FastAPI, collection: ServedIndex) -> None:
    index, not_here = collection.index, "" if collection.allow_add else " (not allowed here)"

    class ItemForm(ItemFields, Uploads):
        bounds = collection.limits

    class NameForm(NameFields):
        bounds = collection.limits

    @app.post(
        "/api/items",
        status_code=201,
        tags=[CHANGES],
        summary=f"Add an item{not_here}",
        responses=_problems(400, 403, 408, 413, 415, 503, 504),
    )
    async def add(form: Annotated[ItemForm, Form(media_type=MULTIPART)]) -> Item:
        named = [file.filename or "" for file in form.sent().values()]
        return await collection.add(form, await form.contents(), named)

    @app.get("/api/items/{id}", summary="One item", responses=_problems(400, 404, 503, 504))
    async def item(id: str) -> Item:
        return await collection.known(collection.item, id=id)

    @app.patch(
        "/api/items/{id}",
        tags=[CHANGES],
        summary=f"Rename an item that was added{not_here}",
        responses=_problems(400, 403, 404, 408, 413, 415, 503, 504),
    )
    async def rename(id: str, form: Annotated[NameForm, Form(media_type=MULTIPART)]) -> Item:
        return await collection.rename(id, (form.id or "").strip())

    @app.delete(
        "/api/items/{id}",
        status_code=204,
        tags=[CHANGES],
        summary=f"Remove an item{not_here}",
        responses=_problems(400, 403, 404, 503, 504),
    )
    async def remove(id: str) -> Response:
        await collection.remove(id)
        return Response(status_code=204)

    @app.get(
        "/api/items/{id}/thumbnail",
        summary="A small image of an item",
        response_class=Response,
        responses=_content("image/*") | _problems(400, 404, 503, 504),
    )
    async def thumbnail(id: str) -> Response:
        content = await collection.known(index.thumbnail, id=id)
        if content is None:
            raise HTTPException(404, "this item has no picture")
        kinds = [kind for start, kind in IMAGE_TYPES.items() if content.startswith(start)]
        return Response(content, headers={"cache-control": MINUTE}, media_type=(*kinds, "application/octet-stream")[0])

    @app.get(
        "/api/items/{id}/files/{modality}",
        summary="The file of an observed modality, whole or in part",
        response_class=Response,
        responses=_content("*/*") | _problems(400, 404, 416, 503, 504),
    )
    async def file(
        id: str,
        modality: str,
        part: Annotated[str | None, Header(alias="Range", description="One range of bytes.")] = None,
    ) -> Response:
        path = Path(await collection.known(index.file, id=id, modality=modality))
        if not path.is_file():
            raise HTTPException(404, "the file is no longer there")
        if part is not None and not RANGE.fullmatch(part.strip()):
            raise HTTPException(416, "send one range of bytes, for instance Range: bytes=0-999")
        kind = media_type(path)
        headers = {"content-security-policy": ALONE, "cache-control": MINUTE, "accept-ranges": "bytes"}
        place = "inline" if kind.partition("/")[0] in ("image", "audio", "video", "text") else "attachment"
        return FileResponse(path, media_type=kind, headers=headers, filename=path.name, content_disposition_type=place)


def _problems(*statuses: int) -> Responses:
    return {status: {"model": Error, "description": PROBLEMS[status]} for status in statuses}


def _content(kind: str) -> Responses:
    return {200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}}}}}


def _route_class(collection: ServedIndex) -> type[APIRoute]:
    """Routes that check a request before FastAPI reads its parameters, and bound the forms that it reads."""

    class CheckedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def checked(request: Request) -> Response:
                if CHANGES in self.tags and not collection.allow_add:
                    raise HTTPException(403, "this server does not change its collection; start it with --allow-add")
                if self.dependant.query_params:
                    check_query(request.scope["query_string"])
                if self.body_field is None:
                    return await handle(request)
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != MULTIPART:
                    said = f"send {MULTIPART} with the files image and sound; got {kind or 'no type'}"
                    raise HTTPException(415, said)
                with collection.upload():
                    form = await _read_form(request)
                    try:
                        check_once(form.multi_items())
                        return await handle(request)  # the request keeps its form for FastAPI
                    finally:
                        await form.close()

            return checked

    return CheckedRoute


async def _read_form(request: Request) -> FormData:
    try:
        return await request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=FIELD_BYTES)
    except ValueError:  # clients choose the charset, and not every codec of Python fails in the same way
        raise InputError("the form cannot be read; send its texts as UTF-8") from None


def _exception_handlers(
    folder: str,
) -> dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]]:
    async def http(request: Request, error: HTTPException) -> Response:
        sentences = {404: "there is nothing at this address", 405: f"{request.method} is not possible here"}
        unsaid = error.detail in ("Not Found", "Method Not Allowed", "")
        sentence = sentences.get(error.status_code, "") if unsaid else error.detail
        return problem(error.status_code, sentence, error.headers)

    async def wrong_params(request: Request, error: RequestValidationError) -> Response:
        """The first mistake; `Params` has made a sentence of it."""
        first = error.errors()[0]
        return problem(400, str(first.get("ctx", {}).get("error", first["msg"])))

    async def refused(request: Request, error: InputError) -> Response:
        """The sentence of the collection, without where it lies on the disk of the server."""
        return problem(400, str(error).replace(folder, "the collection"))

    async def missing_extra(request: Request, error: MissingExtraError) -> Response:
        return problem(501, str(error))

    async def failed(request: Request, error: Exception) -> Response:
        """The traceback goes to the log of the server only."""
        return problem(500, "the server failed to answer; its log says why")

    return {
        HTTPException: http,
        RequestValidationError: wrong_params,
        InputError: refused,
        MissingExtraError: missing_extra,
        Exception: failed,
    }
