"""`calmrl demo`: the main job on bundled real data: compare, align, search."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import note

if TYPE_CHECKING:
    from calmrl.workflows.demo import DemoSearch, Searched

INDEXES = "the indexes of emoji and stamps"  # as the progress line has them
EXAMPLE = """Example:
  calmrl demo --out demo-out
  calmrl demo --out quick 'seeds=[0]' 'methods=[pmrl, aligner]' steps=50"""


def run(
    out: Annotated[Path, typer.Option("--out", help="The directory to write; a run that was stopped continues there.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    config: Annotated[str, typer.Option("--config", help="A config file or a shipped config.")] = "demo",
    force: Annotated[bool, typer.Option("--force", help="Begin anew: remove an earlier output of calmrl.")] = False,
) -> None:
    """Compare methods on real data with holes, then search it.

    Seven methods on two bundled collections with missing modalities; both are then searched by words and sounds.
    """
    from calmrl._support.output import check_directory, check_free
    from calmrl.config import CompareConfig, load

    resolved = load(config, overrides or [], kind="compare")
    assert isinstance(resolved, CompareConfig)
    if force and out.exists():
        check_free(out, force=True)
        shutil.rmtree(out)
    check_directory(out)
    from calmrl.cli.compare import compare_and_show
    from calmrl.workflows.demo import search_both

    emoji, stamps = out / "emoji.index", out / "stamps.index"
    note("1. Methods compared on rows that lack modalities: about a minute")
    trials, steps = plural(resolved.trials, "trial"), plural(resolved.steps, "step")
    note(f"every method has {trials} of at most {steps}, chosen on validation rows")
    comparison = compare_and_show(
        resolved,
        out,
        shlex.join(["calmrl", "demo", "--out", str(out), *(overrides or [])]),
        extra_jobs={INDEXES: partial(search_both, emoji, stamps)},
    )
    _show_searches(comparison.extra_jobs[INDEXES], emoji)


def _show_searches(found: tuple[Searched, Searched] | str, path: Path) -> None:
    """What some queries find; without the extra `search`, what is missing."""
    note("\n2. Search: emoji by words, although the words of 70 % of them were hidden")
    if isinstance(found, str):
        note(f"skipped: {found}")
        return
    emoji, stamps = found
    _show_expected(emoji)
    _show_hits(emoji.searches)
    note(f"\n3. Search: {stamps.items} stamps by a sound; pictures of other stamps")
    _show_hits(stamps.searches)
    index = shlex.quote(str(path))
    note(f'\nsearch it yourself: calmrl search {index} "weather"')
    note(f"or in a browser:    calmrl serve {index}")


def _show_hits(searches: list[DemoSearch]) -> None:
    for search in searches:
        names = ", ".join((hit.text or hit.id).rstrip(".") for hit in search.hits)
        note(textwrap.fill(f"{search.query}: {names}", 80, initial_indent="  ", subsequent_indent="    "))


def _show_expected(index: Searched) -> None:
    """What the aligner expects of new items."""
    expected = index.expected["text->image"]
    text = (
        f"{index.items:,} items. Expected for a new item: its name finds its picture first in {expected['R@1']:.0f} %, among "
        f"the first ten in {expected['R@10']:.0f} % of {expected['n']} pictures. Nearest pictures without words:"
    )
    note(textwrap.fill(text, 80))
