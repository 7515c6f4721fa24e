"""`calmrl demo`: the main job on bundled real data: compare, align, search."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calmrl.cli.printing import note

if TYPE_CHECKING:
    from calmrl.search import Index
    from calmrl.workflows.demo import DemoSearch

EXAMPLE = """Example:
  calmrl demo --out demo-out
  calmrl demo --out quick 'seeds=[0]' 'methods=[pmrl, calmrl]' steps=50"""


def run(
    out: Annotated[Path, typer.Option("--out", help="The directory to write; a run that was stopped goes on there.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    config: Annotated[str, typer.Option("--config", help="A config file or a shipped config.")] = "demo",
    force: Annotated[bool, typer.Option("--force", help="Begin anew: remove an earlier output of calmrl.")] = False,
) -> None:
    """Compare methods on bundled real data with missing modalities, then search two collections by words and sounds."""
    import shlex

    from calmrl._support.output import check_free
    from calmrl.cli.comparison_table import compare_and_show
    from calmrl.config import CompareConfig, load

    resolved = load(config, overrides or [], kind="compare")
    assert isinstance(resolved, CompareConfig)
    if force and out.exists():
        check_free(out, force=True)
        shutil.rmtree(out)
    note("1. Methods compared on rows that lack modalities: one to two minutes")
    compare_and_show(resolved, out, shlex.join(["calmrl", "demo", "--out", str(out), *(overrides or [])]))
    _search(out)


def _search(out: Path) -> None:
    """Index emoji and stamps and show what some queries find; without the extra `search`, say what is missing."""
    from calmrl.errors import MissingExtraError
    from calmrl.workflows.demo import emoji_index, sound_searches, stamps_index, word_searches

    emoji, stamps = out / "emoji.index", out / "stamps.index"
    note("\n2. Search: emoji by words, although the words of 70 % of them were hidden")
    try:
        index = emoji_index(emoji)
    except MissingExtraError as absent:
        note(f"left out: {absent}")
        return
    _show_expected(index)
    _show_hits(word_searches(index))
    index = stamps_index(stamps)
    note(f"\n3. Search: {len(index)} stamps by a sound; pictures of other stamps")
    _show_hits(sound_searches(index))
    note(f'\nsearch it yourself: calmrl search {emoji} "weather"')
    note(f"or in a browser:    calmrl serve {emoji}")


def _show_hits(searches: list[DemoSearch]) -> None:
    for search in searches:
        names = ", ".join((hit.text or hit.id).rstrip(".") for hit in search.hits)
        note(textwrap.fill(f"{search.query}: {names}", 80, initial_indent="  ", subsequent_indent="    "))


def _show_expected(index: Index) -> None:
    """What the aligner expects of new items."""
    expected = index.expected["text->image"]
    text = (
        f"{len(index):,} items. Expected for a new item: its name finds its picture first in {expected['R@1']:.0f} %, among "
        f"the first ten in {expected['R@10']:.0f} % of {expected['n']} pictures. Nearest pictures without words:"
    )
    note(textwrap.fill(text, 80))
