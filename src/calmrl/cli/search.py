"""`calmrl search`: items found by any subset of modalities."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmrl._support.places import check_index, holds_index, index_of, is_remote
from calmrl._support.text import plural
from calmrl.cli.printing import Progress, as_json, data, note
from calmrl.cli.shared_options import IndexOption
from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.search import Hit, Index

EXAMPLE = """Example:
  calmrl search photos "a dog by the sea"
  calmrl search photos.index "a dog by the sea" --having image
  calmrl search photos.index "a dog by the sea" --lacking text
  calmrl search photos.index "2:dog + ./pool.jpg - fruit" -k 5
  calmrl search photos.index --sound bark.wav --where "label = 'pets'" --paths"""

FOUND_BY = {"name": "name", "words": "words", "file": "same file"}


def run(
    index: Annotated[
        str, typer.Argument(help="An index; or a folder of files, whose index is made or brought up to date.")
    ],
    text: Annotated[
        str | None, typer.Argument(help='Words, or terms with weights: "2:dog + ./pool.jpg - fruit".')
    ] = None,
    image: Annotated[list[str] | None, typer.Option(help="A picture.")] = None,
    sound: Annotated[list[str] | None, typer.Option(help="A sound.")] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", help="MODALITY=VALUE, a text or a file of any modality.")
    ] = None,
    like: Annotated[list[str] | None, typer.Option(help="The id of an item of the index.")] = None,
    having: Annotated[str | None, typer.Option(help="Only items that really have these modalities: m,...")] = None,
    lacking: Annotated[str | None, typer.Option(help="Only items without these modalities: m,...")] = None,
    where: Annotated[str | None, typer.Option(help="A condition, as in: label = 'dog' and certainty > 0.5")] = None,
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    hubs: Annotated[bool, typer.Option("--hubs", help="Correct for hubs (CSLS).")] = False,
    why: Annotated[bool, typer.Option("--why", help="Say what each similarity is the sum of.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Hits as JSON.")] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Only the files of the hits, one per line.")] = False,
    place: IndexOption = None,
) -> None:
    """Find items by words, pictures, sounds, other items, or any mix of them."""
    opened = _opened(index, place)
    wanted, unwanted = (
        None if given is None else [name.strip() for name in given.split(",")] for given in (having, lacking)
    )
    terms = _terms(text, image, sound, with_, like)
    hits = opened.search(**terms, k=k, having=wanted, lacking=unwanted, where=where, hubs=hubs, why=why or json)
    if json:
        correction = "csls" if hubs else None
        found = [_as_dict(hit) for hit in hits]
        as_json({"hubs": correction, "nothing_close": hits.nothing_close, "hits": found})
    elif paths:
        _print_paths(opened, hits, wanted)
    else:
        if hubs:
            note("similarity is corrected for hubs (CSLS): 2 cos - r(query) - r(item)")
        if hits:
            note("similarity, certainty, id, [what was observed], (what found it besides vectors), caption, file:")
        if hits.nothing_close:
            note("nothing close: of ten queries for items that are here, nine fare better")
        for hit in hits:
            data(_line(hit))
            if hit.why:
                data(_reasons(hit))
    if not hits:
        note("nothing was found: no item matches --having, --lacking and --where")


def _opened(index: str, place: str | None) -> Index:
    """An index, or that of a folder of files, made or brought up to date."""
    if is_remote(index) or holds_index(index) or not Path(index).exists():
        check_index(index)
        if place is not None:
            raise InputError(f"{index} is an index itself, so --index says nothing; leave it out")
        from calmrl.search import Index

        opened = Index.open(index)
        since = opened.folder_changes()
        if since:
            note(since.sentence(index))
        return opened
    from calmrl.workflows.open import open_index

    where = place or index_of(index)
    note(f"{index} is no index: searching that of its files, {where}")
    told: list[str] = []
    with Progress() as progress:
        found = open_index(index, place, progress=progress, report=told.append)
    for line in told[2:]:  # what could not be used, and what is new; the first two say what and where it is
        note(line)
    note(found.done)
    return found.index


def _terms(
    text: str | None,
    image: list[str] | None,
    sound: list[str] | None,
    others: list[str] | None,
    like: list[str] | None,
) -> dict[str, Any]:
    """All terms of the command line, by modality."""
    from calmrl.data.media.manifest import modality_of
    from calmrl.search.query import is_path, parse_query

    terms: dict[str, list[Any]] = {"text": [], "image": list(image or []), "sound": list(sound or [])}
    terms["like"] = list(like or [])
    for given in others or []:
        name, equals, value = given.partition("=")
        if not (name and equals and value):
            raise InputError(f"--with {given} is not MODALITY=VALUE; for instance --with speech=voice.wav")
        terms.setdefault(name, []).append(value)
    for weight, term in parse_query(text) if text is not None else []:
        if not is_path(term):
            terms["text"].append((weight, term))
            continue
        modality = modality_of(term)
        if modality in (None, "text"):
            raise InputError(f"{term} is no picture, film or sound by its name; ask with --with MODALITY={term}")
        terms.setdefault(str(modality), []).append((weight, str(Path(term).expanduser())))
    return {name: values or None for name, values in terms.items()}


def _as_dict(hit: Hit) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(hit)


def _line(hit: Hit) -> str:
    """similarity, certainty, id, what it has, what found it, caption, file"""
    parts = [f"{hit.similarity:6.3f}", f"{hit.certainty or 0.0:4.2f}", hit.id, f"[{', '.join(hit.modalities)}]"]
    found = [FOUND_BY[part] for part in hit.found if part in FOUND_BY] + ["weak"] * bool(hit.weak)
    parts += [f"({', '.join(found)})"] if found else []
    caption = " ".join((hit.text or "").split())
    return "  ".join([*parts, *([caption[:80]] if caption else []), *([hit.path] if hit.path else [])])


def _reasons(hit: Hit) -> str:
    """Which modality of the query met which of the item, and how much each gave."""
    met = [("hubs" if one.query is None else f"{one.query} met {one.item}", one.share) for one in hit.why]
    return "        " + ", ".join(f"{what} {share:+.3f}" for what, share in met)


def _print_paths(index: Index, hits: list[Hit], having: list[str] | None) -> None:
    """A file per hit: of the first modality that was asked for, else the first it has."""
    without = 0
    for hit in hits:
        files: Mapping[str, str] = {name: hit.paths[name] for name in having or [] if name in hit.paths} or hit.paths
        if files:
            data(str(index.file(hit.id, next(iter(files)))))
        without += not files
    if without:
        note(f"{without} of {plural(len(hits), 'hit')} without a file")
