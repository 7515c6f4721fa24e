"""The tools of `calmrl mcp`, asked by the client of the protocol's own package over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

mcp = pytest.importorskip("mcp", reason='mcp (pip install "calmrl[mcp]") is not installed')


@pytest.fixture(scope="module")
def found(real_index):
    """What the client gets: names of tools, then (whether it is an error, text) per question."""
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "calmrl", "mcp", str(real_index.path)], env=dict(os.environ)
    )
    questions = [
        ("search", {"like": "red/circle", "k": 3, "having": ["text"], "lacking": ["image"]}),
        ("item", {"name": "red/circle"}),
        ("item", {"name": "nothing"}),
        ("search", {}),
        ("search", {"like": "red/circle", "having": ["smell"]}),
        ("search", {"like": "red/circle", "k": 0}),
    ]

    async def ask():
        async with mcp.Client(command) as client:
            tools = await client.list_tools()
            answers = [await client.call_tool(name, arguments) for name, arguments in questions]
        return {tool.name: tool for tool in tools.tools}, [(one.is_error, one.content[0].text) for one in answers]

    return asyncio.run(ask())


def test_the_tools_say_what_they_take(found):
    tools = found[0]
    assert set(tools) == {"search", "item"}
    assert set(tools["search"].input_schema["properties"]) == {"text", "like", "having", "lacking", "k"}
    assert all(one["description"] for one in tools["search"].input_schema["properties"].values())


def test_an_assistant_finds_items_and_reads_them(found, real_index):
    (failed, text), (no, item) = found[1][:2]
    assert not failed
    assert not no
    hits = json.loads(text)["hits"]
    assert len(hits) == 3
    assert all("image" in hit["lacks"] and "text" in hit["has"] for hit in hits)
    assert [hit["name"] for hit in hits] == [
        hit.id for hit in real_index.search(like="red/circle", k=3, having="text", lacking="image")
    ]
    item = json.loads(item)
    assert (item["name"], item["text"], item["label"]) == ("red/circle", "A red circle on white", "red")
    assert item["files"] == {name: str(real_index.file("red/circle", name)) for name in ("image", "sound")}


@pytest.mark.parametrize(
    ("number", "sentence"), [(2, "no item 'nothing'"), (3, "empty"), (4, "smell"), (5, "greater than or equal to 1")]
)
def test_mistakes_are_sentences(found, number, sentence):
    failed, text = found[1][number]
    assert failed
    assert sentence in text
