"""Items and errors as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

import shapes as data
from calmrl.server.answers import Json, item_json, media_type, problem

KINDS = {"photo": {"kind": "image"}, "text": {"kind": "text"}, "hum": {"kind": "audio"}}


def test_json_is_compact_and_has_no_numbers_that_browsers_refuse():
    value = {1: np.float32("nan"), "a": (np.int64(2), np.float64(0.5)), "ä": [object], "\ud800": float("-inf")}
    assert Json(value).body == b'{"1":null,"a":[2,0.5],"\xc3\xa4":["<class \'object\'>"],"\\ud800":null}'


def test_a_problem_is_a_sentence_with_its_headers():
    answer = problem(503, "busy", {"Retry-After": "2"})
    assert (answer.status_code, json.loads(answer.body)) == (503, {"error": "busy"})
    assert answer.headers["retry-after"] == "2"
    assert problem(400, "x").headers["content-type"] == "application/json"


def test_an_item_and_a_hit():
    item = data.ShapeItem("a/b", 0.5, ("photo", "gone"), None, "red", {"photo": "x.PNG"}, {"size": 0, "made": None})
    said = item_json(item, KINDS)
    assert said == {
        "id": "a/b", "text": None, "label": "red", "modalities": ["photo", "gone"], "missing": ["text", "hum"],
        "certainty": 0.5, "url": "/api/items/a%2Fb", "thumbnail": "/api/items/a%2Fb/thumbnail",
        "files": {"photo": {"url": "/api/items/a%2Fb/files/photo", "type": "image/png"}}, "columns": {"size": 0},
    }  # fmt: skip
    hit = data.ShapeHit("c", 0.5, ("hum",), "t", None, None, similarity=0.25)
    said = item_json(hit, KINDS)
    assert (said["similarity"], said["thumbnail"], said["files"]) == (0.25, None, {})
    assert "columns" not in said


@pytest.mark.parametrize(
    ("path", "kind"),
    [("sounds/a.WAV", "audio/wav"), ("a.html", "application/octet-stream"), ("a", "application/octet-stream")],
)
def test_types_of_files(path, kind):
    assert media_type(path) == kind
