"""The description of the interface is true: it names every route and method, and answers have the form it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from calmrl.serve import Limits, build_app
from calmrl.serve.api import Api
from calmrl.serve.app import PAGE, routes
from calmrl.serve.openapi import description
from calmrl.serve.parameters import BROWSE, SEARCH

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
