"""The description of the interface is true: it names every route and method, and answers have the form it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.routing import Route

from calmrl.server import Limits, build_app

ROOT = Path(__file__).resolve().parents[2]
FILTERS = {"having", "lacking", "label", "where"}
SEARCH = {"text", "like", "k", "hubs", *FILTERS}
PARAMETERS = {
    "/api/search": SEARCH,
    "/api/items": {"offset", "limit", *FILTERS},
    "/api/items/{id}/files/{modality}": {"id", "modality", "Range"},
}
STATUSES = {
    ("/healthz", "get"): "200 default",
    ("/api/about", "get"): "200 400 503 504 default",
    ("/api/search", "get"): "200 400 503 504 default",
    ("/api/search", "post"): "200 400 408 413 415 503 504 default",
    ("/api/items", "get"): "200 400 503 504 default",
    ("/api/items", "post"): "201 400 403 408 413 415 503 504 default",
    ("/api/items/{id}", "get"): "200 400 404 503 504 default",
    ("/api/items/{id}", "patch"): "200 400 403 404 408 413 415 503 504 default",
    ("/api/items/{id}", "delete"): "204 400 403 404 503 504 default",
    ("/api/items/{id}/thumbnail", "get"): "200 400 404 503 504 default",
    ("/api/items/{id}/files/{modality}", "get"): "200 400 404 416 503 504 default",
}


@pytest.fixture
def described(shapes, client_of):
    """The description that a server with these options gives."""

    def get(**options):
        with client_of(shapes, **options) as client:
            return client.get("/api/openapi.json").json()

    return get


def test_every_route_and_every_status_is_described(shapes, described):
    paths, found = described()["paths"], {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation["summary"]
            found[path, method] = " ".join(sorted(operation["responses"]))
            for status, response in operation["responses"].items():
                if not status.startswith("2"):
                    schema = {"$ref": "#/components/schemas/Error"}
                    assert response["content"] == {"application/json": {"schema": schema}}
                    assert response["description"].endswith(".")
    assert found == STATUSES
    real = {(route.path, method.lower()) for route in build_app(shapes).app.routes if isinstance(route, Route)
            for method in route.methods - {"HEAD"} if route.path.startswith(("/api/", "/healthz"))}  # fmt: skip
    assert real == {*STATUSES, ("/api/openapi.json", "get")}
    binary = {"schema": {"type": "string", "format": "binary"}}
    assert paths["/api/items/{id}/thumbnail"]["get"]["responses"]["200"]["content"] == {"image/*": binary}
    assert paths["/api/items/{id}/files/{modality}"]["get"]["responses"]["200"]["content"] == {"*/*": binary}
    assert "content" not in paths["/api/items/{id}"]["delete"]["responses"]["204"]


def test_every_parameter_is_described(described):
    known = described(limits=Limits(hits=50))
    schemas = {}
    for path, methods in known["paths"].items():
        for method, operation in methods.items():
            given = {one["name"]: one for one in operation.get("parameters", [])}
            inside = {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert set(given) == (PARAMETERS.get(path, inside) if method == "get" else inside)
            assert all(one["required"] is (one["in"] == "path") for one in given.values())
            assert ("requestBody" in operation) is (method in ("post", "patch"))
            schemas |= {name: one["schema"] for name, one in given.items()}
    for name, least, most, default in (("k", 1, 50, 24), ("limit", 1, 50, 50), ("offset", 0, 10**9, 0)):
        whole = {"type": "integer", "minimum": least, "maximum": most, "default": default}
        assert schemas[name].items() >= whole.items()
    assert schemas["hubs"].items() >= {"type": "boolean", "default": False}.items()
    for path, fields in (("/api/search", SEARCH), ("/api/items", {"id", "text", "label"})):
        body = known["paths"][path]["post"]["requestBody"]
        assert body["required"] is True
        form = known["components"]["schemas"][body["content"]["multipart/form-data"]["schema"]["$ref"].split("/")[-1]]
        assert set(form["properties"]) == {"image", "sound", *fields}
        assert form["properties"]["image"]["anyOf"][0]["type"] == "string"
        assert form["additionalProperties"] is True  # a file may have the name of a modality


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/healthz", "/healthz"),
        ("/api/about", "/api/about"),
        ("/api/search?text=red", "/api/search"),
        ("/api/items", "/api/items"),
        ("/api/items/red%2Fcircle", "/api/items/{id}"),
        ("/api/items/nothing", "/api/items/{id}"),
        ("/api/search?k=0", "/api/search"),
    ],
)
def test_answers_have_the_form_that_is_described(shapes, client_of, described, path, named):
    known = described()
    with client_of(shapes) as client:
        answer = client.get(path)
    content = known["paths"][named]["get"]["responses"][str(answer.status_code)]["content"]
    check(answer.json(), content["application/json"]["schema"], known["components"]["schemas"])


def check(value, schema, known) -> None:
    """A value against the part of JSON Schema that the description uses."""
    if "$ref" in schema:
        return check(value, known[schema["$ref"].rpartition("/")[2]], known)
    kinds = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool,
             "null": type(None)}  # fmt: skip
    if "anyOf" in schema:
        schema = next(one for one in schema["anyOf"] if isinstance(value, kinds[one["type"]]))
    assert "type" not in schema or isinstance(value, kinds[schema["type"]]), (value, schema)
    assert set(schema.get("required", ())) <= set(schema.get("properties", ()))
    for name, inner in schema.get("properties", {}).items():
        check(value[name], inner, known)
    for inner in value if "items" in schema else ():
        check(inner, schema["items"], known)
    more = schema.get("additionalProperties")
    for inner in value.values() if isinstance(more, dict) else ():
        check(inner, more, known)
