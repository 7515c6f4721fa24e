"""The description of the interface is true: it names every route and method, and answers have the form it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from calmrl.server import Limits, build_app
from calmrl.server.api import Api
from calmrl.server.app import PAGE, routes
from calmrl.server.openapi import description
from calmrl.server.parameters import BROWSE, SEARCH

ROOT = Path(__file__).resolve().parents[2]

DESCRIBED = description(Limits(), allow_add=True)


def test_every_route_is_described_and_every_description_is_a_route(shapes):
    real = {
        (route.path, method.lower())
        for route in routes(Api(shapes, Limits(), True))
        for method in route.methods - {"HEAD"}
        if route.path not in PAGE
    }
    assert real == {(path, method) for path, methods in DESCRIBED["paths"].items() for method in methods}


def test_every_parameter_is_described():
    named = {
        path: {one["name"] for one in DESCRIBED["paths"][path]["get"]["parameters"]}
        for path in ("/api/search", "/api/items")
    }
    assert named == {"/api/search": set(SEARCH), "/api/items": set(BROWSE)}
    for path, methods in DESCRIBED["paths"].items():
        for operation in methods.values():
            inside = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
            assert inside == {part[1:-1] for part in path.split("/") if part.startswith("{")}


@pytest.mark.parametrize(
    ("path", "described"),
    [
        ("/healthz", "/healthz"),
        ("/api/openapi.json", "/api/openapi.json"),
        ("/api/about", "/api/about"),
        ("/api/search?text=red", "/api/search"),
        ("/api/items", "/api/items"),
        ("/api/items/red%2Fcircle", "/api/items/{id}"),
        ("/api/items/nothing", "/api/items/{id}"),
        ("/api/search?k=0", "/api/search"),
    ],
)
def test_answers_have_the_form_that_is_described(shapes, path, described):
    with TestClient(build_app(shapes), base_url="http://localhost") as client:
        answer = client.get(path)
    schema = DESCRIBED["paths"][described]["get"]["responses"][str(answer.status_code)]["content"]["application/json"]
    check(answer.json(), schema["schema"])


def check(value, schema) -> None:
    """A value against the part of JSON Schema that the description uses."""
    if "$ref" in schema:
        check(value, DESCRIBED["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        return
    for part in schema.get("allOf", ()):
        check(value, part)
    kinds = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool}
    kinds["null"] = type(None)
    wanted = schema.get("type", [])
    names = [wanted] if isinstance(wanted, str) else wanted
    assert not names or isinstance(value, tuple(k for name in names for k in _tuple(kinds[name]))), (value, names)
    for name in schema.get("required", ()):
        assert name in value
    for name, inner in schema.get("properties", {}).items():
        check(value[name], inner)
    for inner in value if "items" in schema else ():
        check(inner, schema["items"])
    if "additionalProperties" in schema:
        for inner in value.values():
            check(inner, schema["additionalProperties"])


def _tuple(kinds):
    return kinds if isinstance(kinds, tuple) else (kinds,)


def test_pictures_and_sounds_are_described_as_files():
    content = description(Limits(), allow_add=True)["paths"]["/api/search"]["post"]["requestBody"]["content"]
    properties = content["multipart/form-data"]["schema"]["properties"]
    assert properties["image"] == properties["sound"] == {"type": "string", "format": "binary"}


def test_limits_are_those_of_the_page():
    page = " ".join((ROOT / "docs" / "how-to" / "serve.md").read_text("utf-8").split())
    limits = Limits()
    assert limits.body_bytes == 32 * 1024 * 1024
    assert "32 MiB per request" in page
    assert limits.characters == 2000
    assert "2,000 characters" in page


STATUSES = {
    ("/healthz", "get"): "200",
    ("/api/openapi.json", "get"): "200",
    ("/api/about", "get"): "200 503 504",
    ("/api/search", "get"): "200 400 503 504",
    ("/api/search", "post"): "200 400 408 413 415 503 504",
    ("/api/items", "get"): "200 400 503 504",
    ("/api/items", "post"): "201 400 403 408 413 415 503 504",
    ("/api/items/{id}", "get"): "200 400 404 503 504",
    ("/api/items/{id}", "delete"): "204 400 403 404 503 504",
    ("/api/items/{id}/thumbnail", "get"): "200 400 404 503 504",
    ("/api/items/{id}/files/{modality}", "get"): "200 400 404 416 503 504",
}


def test_every_status_is_described():
    described, found = description(Limits(), allow_add=True), {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            found[path, method] = " ".join(operation["responses"])
            good, *problems = operation["responses"].values()
            assert good["description"] == operation["summary"]
            for problem in problems:
                assert problem["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
                assert problem["description"].endswith(".")
    assert found == STATUSES
    kinds = {
        path: described["paths"][path]["get"]["responses"]["200"]["content"]
        for path in ("/api/items/{id}/thumbnail", "/api/items/{id}/files/{modality}")
    }
    binary = {"schema": {"type": "string", "format": "binary"}}
    assert list(kinds.values()) == [{"image/*": binary}, {"*/*": binary}]
    assert "content" not in described["paths"]["/api/items/{id}"]["delete"]["responses"]["204"]


def test_what_is_required():
    described = description(Limits(), allow_add=True)
    for methods in described["paths"].values():
        for operation in methods.values():
            for one in operation.get("parameters", []):
                assert one["required"] is (one["in"] == "path"), one
    posts = [described["paths"][path]["post"] for path in ("/api/search", "/api/items")]
    assert [post["requestBody"]["required"] for post in posts] == [True, True]
    fields = [post["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"] for post in posts]
    assert [set(one) for one in fields] == [{"image", "sound", *SEARCH}, {"id", "text", "label", "image", "sound"}]
    for path in ("/healthz", "/api/openapi.json", "/api/about"):
        assert {"parameters", "requestBody"}.isdisjoint(described["paths"][path]["get"])


def test_changes_that_are_not_allowed_are_described_as_such():
    paths = description(Limits(), allow_add=False)["paths"]
    said = [paths["/api/items"]["post"]["summary"], paths["/api/items/{id}"]["delete"]["summary"]]
    assert said == ["Add an item (not allowed here)", "Remove an item (not allowed here)"]
    paths = description(Limits(), allow_add=True)["paths"]
    allowed = [paths["/api/items"]["post"]["summary"], paths["/api/items/{id}"]["delete"]["summary"]]
    assert allowed == ["Add an item", "Remove an item"]
