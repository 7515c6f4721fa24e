"""A collection for programs that speak the Model Context Protocol: two tools, which only read, over stdin and stdout."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from calmrl.errors import InputError, need
from calmrl.search.hits import Hit, Item
from calmrl.search.syntax import parse_query
from calmrl.server.schemas import plain

INSTRUCTIONS = (
    "A collection of items of which some lack a picture, a text or a sound; words find items that have no text too. Search, "
    "then ask for an item by its name. The paths of an answer are files on this machine. The verdict says whether "
    "something is close, perhaps what was meant, or nothing is close; a hit that is weak may have nothing to do with the query."
)
MOST = 50  # hits of an answer


def build_tools(index: Any) -> Any:
    """The server of a collection; its `run` answers until stdin ends.

    Parameters
    ----------
    index : Index
        The collection.
    """
    server_of = need("mcp.server", "mcp", "Serving a collection to programs").MCPServer
    refusal = need("mcp.server.mcpserver.exceptions", "mcp", "Serving a collection to programs").ToolError
    from calmrl import __version__

    server = server_of("calmrl", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")

    @server.tool(title="Search the collection")
    def search(
        text: Annotated[str, Field(description="Words, or terms with weights: 2:dog + snow - cat")] = "",
        like: Annotated[str, Field(description="The name of an item; finds items that are like it.")] = "",
        having: Annotated[
            list[str], Field(description="Only items that have these, such as image, text or sound.")
        ] = [],  # noqa: B006
        lacking: Annotated[list[str], Field(description="Only items that lack these.")] = [],  # noqa: B006
        k: Annotated[int, Field(ge=1, le=MOST, description="How many items.")] = 10,
    ) -> dict[str, Any]:
        """The items nearest to words or to an item, the nearest first."""
        try:
            terms = {"text": parse_query(text) if text.strip() else None, "like": like or None}
            hits = index.search(**terms, having=having or None, lacking=lacking or None, k=k)
            return {"verdict": hits.verdict, "hits": [_told(index, hit) for hit in hits]}
        except InputError as error:
            raise refusal(str(error)) from None

    @server.tool(title="One item")
    def item(name: Annotated[str, Field(description="The name of an item, as a search gave it.")]) -> dict[str, Any]:
        """All that is known about an item: what it has and lacks, its text, its files and other columns."""
        try:
            found = index.item(name)
            return {**_told(index, found), "columns": plain(dict(found.columns))}
        except InputError as error:
            raise refusal(str(error)) from None

    return server


def _told(index: Any, item: Hit | Item) -> dict[str, Any]:
    """An item with the full paths of the files that are still there."""
    files = {}
    for modality in item.paths:
        try:
            files[modality] = str(index.file(item.id, modality))
        except InputError:
            continue  # gone since
    lacks = [name for name in index.modalities() if name not in item.modalities]
    told: dict[str, Any] = {
        "name": item.id,
        "text": item.text,
        "label": item.label,
        "has": list(item.modalities),
        "lacks": lacks,
    }
    if isinstance(item, Hit):
        told |= {
            "similarity": round(item.similarity, 4),
            "weak": item.weak,
            "close": item.close,
            "found": list(item.found),
            **({"segment": list(item.segment)} if item.segment else {}),
        }
    return plain({**told, "files": files})
