"""The application: routes, and what an error looks like from outside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from calmrl.errors import InputError, MissingExtraError
from calmrl.server.answers import problem
from calmrl.server.api import Api
from calmrl.server.guard import Guard
from calmrl.server.hosts import host_check
from calmrl.server.limits import Limits

PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/adding.js": ("adding.js", "text/javascript; charset=utf-8"),
    "/dropping.js": ("dropping.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}


def build_app(index: Any, *, host: str = "127.0.0.1", allow_add: bool = False, limits: Limits | None = None) -> ASGIApp:
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

    Returns
    -------
    ASGIApp
        For uvicorn or any other ASGI server.

    Examples
    --------
    >>> from calmrl import Index
    >>> app = build_app(Index.open("photos.index"))  # doctest: +SKIP
    """
    limits = limits or Limits()
    api = Api(index, limits, allow_add)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        api.close()

    def refused(request: Request, error: Exception) -> Response:
        """The sentence of the collection, without where it lies on the disk of the server."""
        return problem(400, str(error).replace(str(index.path), "the collection"))

    handlers = {**HANDLERS, InputError: refused}
    app = Starlette(routes=routes(api), lifespan=lifespan, exception_handlers=handlers)  # type: ignore[arg-type]
    return Guard(app, limits, host_check(host))


def routes(api: Api) -> list[Route]:
    """All addresses that the server answers."""
    return [
        *(Route(path, _static(name, kind)) for path, (name, kind) in PAGE.items()),
        Route("/healthz", api.health),
        Route("/api/openapi.json", api.openapi),
        Route("/api/about", api.about),
        Route("/api/search", api.search, methods=["GET", "POST"]),
        Route("/api/items", api.items, methods=["GET"]),
        Route("/api/items", api.add, methods=["POST"]),
        Route("/api/items/{id}", api.item, methods=["GET"]),
        Route("/api/items/{id}", api.remove, methods=["DELETE"]),
        Route("/api/items/{id}/thumbnail", api.thumbnail),
        Route("/api/items/{id}/files/{modality}", api.file),
    ]


def _static(name: str, kind: str) -> Any:
    content = (files("calmrl.server") / "page" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return answer


def _http(request: Request, error: HTTPException) -> Response:
    sentences = {404: "there is nothing at this address", 405: f"{request.method} is not possible here"}
    plain = error.detail in ("Not Found", "Method Not Allowed", "")
    return problem(error.status_code, sentences.get(error.status_code, "") if plain else error.detail, error.headers)


def _extra(request: Request, error: MissingExtraError) -> Response:
    return problem(501, str(error))


def _failed(request: Request, error: Exception) -> Response:
    """The traceback goes to the log of the server only."""
    return problem(500, "the server failed to answer; its log says why")


HANDLERS = {HTTPException: _http, MissingExtraError: _extra, Exception: _failed}
