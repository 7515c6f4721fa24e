"""The JSON interface as an OpenAPI 3.1 description."""

from typing import Any

from calmrl.server.limits import Limits

Schema = dict[str, Any]
STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
STRINGS: Schema = {"type": "array", "items": STRING}
PROBLEMS = {
    400: "A parameter, a condition or a file that cannot be used; the sentence says what to do.",
    403: "Changes are not allowed, or a page of another site sent the request.",
    404: "No such item, modality or file.",
    408: "The request was sent too slowly.",
    413: "The request, the picture or the sound is too large.",
    415: "The body is not multipart/form-data.",
    416: "The range of bytes is not in the file.",
    503: "Too many requests are waiting; Retry-After says when to try again.",
    504: "The collection took too long.",
}


def description(limits: Limits, allow_add: bool) -> Schema:
    """What every address takes and gives."""
    from calmrl import __version__

    paths: Schema = {
        "/healthz": {"get": _operation("health", "Whether the server answers", _object(status=STRING))},
        "/api/openapi.json": {"get": _operation("openapi", "This description", {"type": "object"})},
        "/api/about": {"get": _operation("about", "The collection and its expected quality", _ref("About"), 503, 504)},
        "/api/search": {
            "get": _operation(
                "search", "Search by words, or by an item", _ref("Hits"), 400, 503, 504, parameters=_search(limits)
            ),
            "post": _operation(
                "searchByFiles",
                "Search by files, alone or together with words and an item; a file may also have the name of a modality",
                _ref("Hits"), 400, 408, 413, 415, 503, 504,
                body=_form({"image": _file(), "sound": _file(), **_fields(_search(limits))}),
            ),
        },
        "/api/items": {
            "get": _operation(
                "items", "Browse the collection", _ref("Items"), 400, 503, 504, parameters=_browse(limits)
            ),
            "post": _operation(
                "add",
                "Add an item" if allow_add else "Add an item (not allowed here)",
                _ref("Item"), 400, 403, 408, 413, 415, 503, 504,
                status=201,
                body=_form({"id": STRING, "text": STRING, "label": STRING, "image": _file(), "sound": _file()}),
            ),
        },
        "/api/items/{id}": {
            "get": _operation("item", "One item", _ref("Item"), 400, 404, 503, 504, parameters=[_path("id")]),
            "delete": _operation(
                "remove",
                "Remove an item" if allow_add else "Remove an item (not allowed here)",
                None, 400, 403, 404, 503, 504,
                status=204,
                parameters=[_path("id")],
            ),
        },
        "/api/items/{id}/thumbnail": {
            "get": _operation(
                "thumbnail", "A small picture of an item", "image/*", 400, 404, 503, 504, parameters=[_path("id")]
            )
        },
        "/api/items/{id}/files/{modality}": {
            "get": _operation(
                "file",
                "The file of an observed modality; takes Range",
                "*/*", 400, 404, 416, 503, 504,
                parameters=[_path("id"), _path("modality")],
            )
        },
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "calmrl serve", "version": __version__, "description": "Search items that lack modalities."},
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _search(limits: Limits) -> list[Schema]:
    return [
        _query("text", STRING, 'Words to search by; terms may have weights: 2:dog - fruit + "rock - paper".'),
        _query("like", STRING, "The id of an item to search by."),
        _query("k", _whole(1, limits.hits, 24), "How many items."),
        *_filters(),
        _query("hubs", {"type": "boolean", "default": False}, "Correct for items that are near to everything."),
    ]


def _browse(limits: Limits) -> list[Schema]:
    return [
        _query("offset", _whole(0, 10**9, 0), "How many items to skip."),
        _query("limit", _whole(1, limits.hits, 60), "How many items."),
        *_filters(),
    ]


def _filters() -> list[Schema]:
    return [
        _query("having", STRING, "Modalities, separated by commas, that were really observed."),
        _query("lacking", STRING, "Modalities, separated by commas, that were not observed."),
        _query("label", STRING, "Only items with this label."),
        _query("where", STRING, "A condition on the columns of the collection."),
    ]


def _schemas() -> Schema:
    file = _object(url=STRING, type=STRING)
    item = _object(
        id=STRING,
        text={"type": ["string", "null"]},
        label={"type": ["string", "null"]},
        modalities={**STRINGS, "description": "Really observed."},
        missing={**STRINGS, "description": "Not observed."},
        certainty={"type": ["number", "null"]},
        url=STRING,
        thumbnail={"type": ["string", "null"]},
        files={"type": "object", "additionalProperties": file},
    )
    similarity, columns = _object(similarity=NUMBER), _object(columns={"type": "object"})
    return {
        "Error": _object(error=STRING),
        "Described": item,
        "Item": {"allOf": [_ref("Described"), columns]},
        "Hit": {"allOf": [_ref("Described"), similarity]},
        "Hits": _object(count={"type": "integer"}, hits={"type": "array", "items": _ref("Hit")}),
        "Items": _object(
            offset={"type": "integer"},
            count={"type": "integer"},
            more={"type": "boolean"},
            items={"type": "array", "items": _ref("Item")},
        ),
        "About": _object(
            version=STRING,
            items={"type": "integer"},
            modalities={"type": "object"},
            labels=STRINGS,
            expected={"type": "array", "items": {"type": "object"}},
            about={"type": "object"},
            allow_add={"type": "boolean"},
            limits={"type": "object"},
        ),
    }


def _operation(
    name: str,
    summary: str,
    answer: Schema | str | None,
    *problems: int,
    status: int = 200,
    parameters: list[Schema] | None = None,
    body: Schema | None = None,
) -> Schema:
    """One method of an address; `answer` is a JSON schema, another media type, or nothing."""
    good: Schema = {"description": summary}
    if isinstance(answer, str):
        good["content"] = {answer: {"schema": {"type": "string", "format": "binary"}}}
    elif answer is not None:
        good["content"] = _json(answer)
    failures = {str(code): {"description": PROBLEMS[code], "content": _json(_ref("Error"))} for code in problems}
    operation: Schema = {"operationId": name, "summary": summary, "responses": {str(status): good, **failures}}
    if parameters:
        operation["parameters"] = parameters
    if body:
        operation["requestBody"] = body
    return operation


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _form(properties: Schema) -> Schema:
    schema = {"type": "object", "properties": properties}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def _file() -> Schema:
    return {"type": "string", "format": "binary"}


def _fields(parameters: list[Schema]) -> Schema:
    return {one["name"]: one["schema"] for one in parameters}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _whole(least: int, most: int, default: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, schema: Schema, about: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": about}


def _path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": STRING}
