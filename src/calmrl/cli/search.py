"""`calmrl search`: items found by any subset of modalities."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calmrl._support.places import check_index, holds_index, index_of, is_remote
from calmrl._support.text import plural
from calmrl.cli.printing import Progress, as_json, data, note
from calmrl.cli.shared_options import IndexOption
from calmrl.errors import InputError
from calmrl.search.running import address_file, answer, ask_server

if TYPE_CHECKING:
    from calmrl.search import Index

SELDOM = (100_000, 50, 100)  # objects until garbage is looked for, and rounds until older ones are looked at too
FOUND_BY = {"name": "name", "words": "words", "file": "same file"}
VERDICTS = {
    "nothing close": "nothing close: nine of ten queries for items that are here are nearer to them",
    "perhaps": "perhaps: queries for what is not here often find hits as near as these",
}


def search(
    index: Annotated[
        str, typer.Argument(help="An index; or a folder of files, whose index is made or brought up to date.")
    ],
    text: Annotated[
        str | None, typer.Argument(help='Words, or terms with weights: "2:dog + ./pool.jpg - fruit".')
    ] = None,
    image: Annotated[list[str] | None, typer.Option(help="A picture.")] = None,
    sound: Annotated[list[str] | None, typer.Option(help="A sound.")] = None,
    with_: Annotated[list[str] | None, typer.Option("--with", help="A text or a file of any modality.")] = None,
    like: Annotated[list[str] | None, typer.Option(help="The id of an item of the index.")] = None,
    having: Annotated[str | None, typer.Option(help="Only items that really have these modalities.")] = None,
    lacking: Annotated[str | None, typer.Option(help="Only items without these modalities.")] = None,
    where: Annotated[str | None, typer.Option(help="A condition, as in: label = 'dog' and certainty > 0.5")] = None,
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    hubs: Annotated[bool, typer.Option("--hubs", help="Correct for hubs (CSLS).")] = False,
    why: Annotated[bool, typer.Option("--why", help="Say what each similarity is the sum of.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Hits as JSON.")] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Only the files of the hits, one per line.")] = False,
    place: IndexOption = None,
    server: Annotated[
        bool, typer.Option("--server/--no-server", help="Ask a server of the same index, if one runs on this machine.")
    ] = True,
) -> None:
    """Find items by words, images, sounds or other items.

    Or by any mix of them. A server of the same index on this machine (calmrl open, calmrl serve) is asked, if there is one: it
    has everything loaded.

    Example:
      calmrl search photos "a dog by the sea"
      calmrl search photos.index "a dog by the sea" --having image
      calmrl search photos.index "a dog by the sea" --lacking text
      calmrl search photos.index "2:dog + ./pool.jpg - fruit" -k 5
      calmrl search photos.index --sound bark.wav --where "label = 'pets'" --paths
    """
    own = is_remote(index) or holds_index(index) or not Path(index).exists()
    if own:
        check_index(index)
        if place is not None:
            raise InputError(f"{index} is an index itself, so --index says nothing; leave it out")
    wanted, unwanted = (
        None if given is None else [name.strip() for name in given.split(",")] for given in (having, lacking)
    )
    request: dict[str, Any] = {"having": wanted, "lacking": unwanted, "where": where, "k": k, "hubs": hubs}
    terms = _terms(text, image, sound, with_, like)
    if not any(terms.values()):  # said before an index is made
        from calmrl.search.syntax import EMPTY

        raise InputError(EMPTY)
    request |= {"why": why or json, "files": paths, "terms": terms}
    found = _served(index, place, own, request) if server else None
    if found is None:
        there = own or holds_index(place or index_of(index))
        with _few_collections() if there else nullcontext():
            found = answer(_opened(index, place, own), request)
    hits = found["hits"]
    if json:
        verdict = {name: found[name] for name in ("verdict", "nothing_close")}
        as_json({"hubs": "csls" if hubs else None, **verdict, "hits": hits})
    elif paths:
        _print_paths(found["files"])
    else:
        if hubs:
            note("similarity is corrected for hubs (CSLS): 2 cos - r(query) - r(item)")
        if hits:
            note("similarity, certainty, id, [what was observed], (what found it besides vectors), caption, file:")
        if found["verdict"] in VERDICTS:
            note(VERDICTS[found["verdict"]])
        for hit in hits:
            data(_line(hit))
            if hit["why"]:
                data(_reasons(hit))
    if not hits:
        note("nothing was found: no item matches --having, --lacking and --where")


def _served(index: str, place: str | None, own: bool, request: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of a server of the same index; None if there is none, or if the index is to be brought up to date first."""
    at = index if own else place or index_of(index)
    if is_remote(str(at)) or not address_file(at).exists():
        return None
    source = {} if own else {"source": str(Path(index).resolve())}
    found = ask_server(at, {**request, **source, "cwd": os.getcwd(), "name": index})
    if found is None or "declined" in found:
        return None
    if not own:
        note(f"searching the index of {index}: {at}")
        note("nothing has changed")
    elif found["changes"]:
        note(found["changes"])
    if "error" in found:
        raise InputError(found["error"])
    return found


@contextmanager
def _few_collections() -> Iterator[None]:
    """For a block, and for the end of the process, look less for garbage.

    Importing makes half a million objects that stay. Looking through them again and again takes a quarter of a search.
    """
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _opened(index: str, place: str | None, own: bool) -> Index:
    """An index, or that of a folder of files, made or brought up to date."""
    if own:
        from calmrl.search import Index

        opened = Index.open(index)
        since = opened.folder_changes()
        if since:
            note(since.sentence(index))
        return opened
    from calmrl.workflows.index import open_index

    where = place or index_of(index)
    note(f"searching the index of {index}: {where}")
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
    from calmrl.search.syntax import is_path, parse_query

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
            raise InputError(f"{term} is no picture, video or sound by its name; ask with --with MODALITY={term}")
        terms.setdefault(str(modality), []).append((weight, str(Path(term).expanduser())))
    return {name: values or None for name, values in terms.items()}


def _line(hit: dict[str, Any]) -> str:
    """similarity, certainty, id, what it has, what found it, caption, file"""
    parts = [
        f"{hit['similarity']:6.3f}",
        f"{hit['certainty'] or 0.0:4.2f}",
        hit["id"],
        f"[{', '.join(hit['modalities'])}]",
    ]
    found = [FOUND_BY[part] for part in hit["found"] if part in FOUND_BY] + ["weak"] * bool(hit["weak"])
    found += ["close"] * bool(hit["close"] and not found)
    parts += [f"({', '.join(found)})"] if found else []
    caption, path = " ".join((hit["text"] or "").split()), next(iter(hit["paths"].values()), None)
    parts += [caption[:80]] * bool(caption) + [path] * bool(path)
    return "  ".join(
        parts + ([f"at {_clock(hit['segment'][0])} to {_clock(hit['segment'][1])}"] if hit["segment"] else [])
    )


def _clock(seconds: float) -> str:
    """65.2 -> 1:05"""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _reasons(hit: dict[str, Any]) -> str:
    """Which modality of the query met which of the item, and how much each gave."""
    met = [
        ("hubs" if one["query"] is None else f"{one['query']} met {one['item']}", one["share"]) for one in hit["why"]
    ]
    return "        " + ", ".join(f"{what} {share:+.3f}" for what, share in met)


def _print_paths(files: list[str | None]) -> None:
    for file in files:
        if file is not None:
            data(file)
    if without := files.count(None):
        note(f"{without} of {plural(len(files), 'hit')} without a file")
