"""The page of results: its sections in their order, and those that tables and pictures alone make.

What the numbers are about (data sets, settings, patterns, methods), what single queries find, and how to repeat it.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Protocol

import yaml

from calmrl._support.text import Cell, Line, Number, Picture, Sound, Table, listed, plural
from calmrl.data.features.feature_set import ROW
from calmrl.data.media.images import open_image
from calmrl.data.media.problems import Unreadable
from calmrl.data.media.streams import clip, read_audio
from calmrl.metrics.registry import describe, names_of
from calmrl.report import comparison, completion
from calmrl.report.estimates import better, headline, matrix, readable, several, verdict
from calmrl.report.figures import Panel, upset
from calmrl.report.page import Block, Code, Figure, Page, PageSection, Text
from calmrl.report.results import FoundItem, Neighbours, ResultRow, Results, TrainingRows


def build_page(results: Results, title: str = "") -> Page:
    """The report. Only what there is data for is shown.

    Examples
    --------
    >>> page = build_page(read_results(["run-1", "run-2"]))  # doctest: +SKIP
    """
    parts = {
        "Read this first": _notes(results),
        "Comparison": comparison.comparison(results) if several(results) else [],
        "Retrieval": comparison.retrieval(results),
        "Classification": comparison.classification(results),
        "Missing rates": comparison.rates(results),
        "Complete rows": comparison.complete_rows(results),
        "Imputed vectors": completion.imputation(results),
        "Predicted uncertainty": completion.coverage(results),
        "Anchor shift": completion.shift(results),
        "Maps": comparison.maps(results),
        "Nearest neighbours": neighbours(results),
        "Training": comparison.training(results),
        "Other measurements": _other(results),
        "Data and missing patterns": data(results),
        "Methods": methods(results),
        "Repeat it": repeat(results),
    }
    sections = [PageSection(name, _captioned(blocks, results.left_out)) for name, blocks in parts.items() if blocks]
    first = _captioned([comparison.main_table(results)], results.left_out)
    return Page(title or _title(results), verdict(results), first, sections)


def _captioned(blocks: Sequence[Block], sentence: str) -> list[Block]:
    """The same blocks, with the sentence below every table."""
    if not sentence:
        return list(blocks)
    return [
        replace(block, caption=f"{block.caption} {sentence}") if isinstance(block, Table) else block for block in blocks
    ]


def _notes(results: Results) -> list[Block]:
    """Remarks on the data and on what could not be measured."""
    return [Text(note) for source in results.sources for note in source.meta.notes]


def _other(results: Results) -> list[Block]:
    """Whatever no other section shows, a table per setting and metric."""
    blocks: list[Block] = []
    first = headline(results.rows)
    rows = [row for row in results.rows if not _in_sections(row) and (row.task, row.metric) != first]
    for place, here in results.by_place(rows):
        for metric in dict.fromkeys(row.metric for row in here):
            at = [row for row in here if row.metric == metric]
            caption = f"{place}: {describe(metric).axis}{better(metric)}."
            blocks.append(matrix(results, at, lambda row: row.task, caption))
    return blocks


def _in_sections(row: ResultRow) -> bool:
    if row.metric in names_of("retrieval"):
        return row.task == "average" or "->" in row.task or row.task.startswith(("mixed-pool", "fused"))
    if row.metric in names_of("classification"):
        return row.task.startswith("classification")
    return row.metric in completion.SHOWN


def _title(results: Results) -> str:
    datasets = list(dict.fromkeys(row.dataset for row in results.rows))
    methods = list(dict.fromkeys(row.method for row in results.rows))
    what = f"{len(methods)} methods" if len(methods) > 1 else f"Evaluation of {methods[0]}"
    missing = " with missing modalities" if results.settings else ""
    return f"{what} on {listed(datasets)}{missing}"


def data(results: Results) -> list[Block]:
    """Datasets and settings as tables, missing patterns as figures."""
    blocks: list[Block] = []
    if results.datasets:
        lines: list[Line] = [
            [
                name,
                Number(f"{known.rows:,}", known.rows),
                ", ".join(f"{modality} ({width})" for modality, width in known.modalities.items()),
                known.source,
            ]
            for name, known in results.datasets.items()
        ]
        blocks.append(Table("The data.", ["dataset", "rows", "modalities (width)", "source"], lines))
    if results.settings:
        blocks.append(_settings(results))
    panels: list[Panel] = []
    for source in results.sources:
        for setting, found in source.meta.patterns.items():
            order = list(dict.fromkeys(m for known in source.meta.datasets.values() for m in known.modalities))
            order += sorted({m for pattern in found for m in pattern.has} - set(order))
            order = [m for m in order if any(m in pattern.has for pattern in found)]
            counts = [(pattern.has, pattern.rows) for pattern in found]
            rows = sum(pattern.rows for pattern in found)
            if not rows:
                continue
            where = f"{setting} ({source.name})" if len(results.sources) > 1 else setting
            has, most = max(counts, key=lambda item: item[1])
            alt = f"Missing patterns of {where}: {plural(len(counts), 'pattern')} in {plural(rows, 'row')}. "
            alt += f"The most frequent has {', '.join(has) or 'nothing'}: {plural(most, 'row')}."
            panels.append(
                upset(f"patterns-{len(panels) + 1}", alt, counts, order, title=f"{where}: {plural(rows, 'row')}")
            )
    if panels:
        caption = (
            "Which modalities occur together. Every line is a pattern: filled dots are the modalities that are there, "
            "the bar says how many training rows have exactly these. A line without open dots is complete."
        )
        blocks.append(Figure(caption, panels))
    return blocks


def _settings(results: Results) -> Table:
    """What is hidden, and how complete that leaves the training rows."""
    lines: list[Line] = [[name, about] for name, about in results.settings.items()]
    head, caption, known = ["setting", "what it is"], "The settings: what is missing.", results.training
    if known:
        head += ["training rows", "blocks missing (%)", "complete rows (%)", "pairs seen (%)", "rarest pair"]
        caption += (
            " Pairs seen: of the pairs of modalities of all rows, those of which the row has both. Rarest pair: how many rows "
            "have the two modalities that are together least often."
        )
        lines = [[*line, *_completeness_cells(known.get(str(line[0])))] for line in lines]
    return Table(caption, head, lines, sortable=False)


def _completeness_cells(rows: TrainingRows | None) -> Line:
    if rows is None:
        return [""] * 5
    shares = (100 * share for share in (rows.missing, rows.complete, rows.pairs))
    return [
        Number(f"{rows.rows:,}", rows.rows),
        *(Number(f"{share:.1f}", share) for share in shares),
        Number(f"{rows.rarest:,}", rows.rarest),
    ]


def methods(results: Results) -> list[Block]:
    """What the methods are."""
    described = {name: method for name, method in results.methods.items() if method.about}
    kind = {(True, False): "ours", (False, True): "nothing missing", (True, True): "ours, nothing missing"}
    lines: list[Line] = [
        [results.marked(name), method.about, kind.get((results.ours(name), results.ideal(name)), "")]
        for name, method in described.items()
    ]
    return [Table("The methods.", ["method", "what it does", "kind"], lines, sortable=False)] if lines else []


def repeat(results: Results) -> list[Block]:
    """The exact command and config."""
    blocks: list[Block] = []
    for source in results.sources:
        whose = f" of {source.name}" if len(results.sources) > 1 else ""
        version = f" (calmrl {source.meta.version})" if source.meta.version else ""
        if source.meta.command:
            blocks.append(Code(f"Command{whose}{version}:", source.meta.command, "console"))
        else:
            blocks.append(Text(f"The command{whose} was not recorded{version}."))
        if source.meta.config:
            text = yaml.safe_dump(source.meta.config, sort_keys=False, allow_unicode=True, width=100).rstrip("\n")
            blocks.append(Code(f"Config{whose}, every key spelled out:", text, "yaml"))
        else:
            blocks.append(Text(f"The config{whose} was not recorded."))
    return blocks


QUERIES = 8  # per method and direction
FOUND = 5  # per query


def neighbours(results: Results) -> list[Block]:
    """A table per direction: query, method, rank of the first item that counts, the first found."""
    album = Album()
    return [
        _table(task, [each for each in source.meta.neighbours if each.task == task], source.folder, album)
        for source in results.sources
        for task in dict.fromkeys(each.task for each in source.meta.neighbours)
    ]


def _table(task: str, every: list[Neighbours], folder: Path, album: Album) -> Table:
    shown = _first(every)
    width = max(min(FOUND, len(each.found)) for each in shown)
    before = len(album.unread)
    lines: list[Line] = []
    for each in shown:
        items = [album.cell(folder, item, _caption(item), item.caption) for item in each.found[:FOUND]]
        query = album.cell(folder, each, each.query, each.query)
        lines.append([query, each.method, Number(str(each.rank), each.rank), *items, *[""] * (width - len(items))])
    mark, rank = _counting(shown)
    caption = f"{readable(task)}: what is found for a query, nearest first; {mark}."
    if len(shown) < len(every):
        caption += f" The first {QUERIES} queries of each method; results.json has {len(every)} lines."
    if any(isinstance(cell, Cell) and cell.sound for line in lines for cell in line):
        caption += " Sounds are cut after some seconds."
    if len(album.unread) > before:
        caption += f" {plural(len(album.unread) - before, 'file')} could not be read, first {album.unread[before]}."
    return Table(caption, ["query", "method", rank, *(f"found {i + 1}" for i in range(width))], lines)


def _counting(shown: list[Neighbours]) -> tuple[str, str]:
    """(what the mark means, heading of the rank)"""
    columns = [column for column in dict.fromkeys(each.relevant_by for each in shown) if column != ROW]
    if not columns:
        return "✓ is the query's own item", "rank of its own"
    return f"✓ has the {' or '.join(columns)} of the query", "rank of the first ✓"


def _caption(item: FoundItem) -> str:
    return f"{item.caption or item.id}{' ✓' if item.own or item.relevant else ''}"


def _first(every: list[Neighbours]) -> list[Neighbours]:
    """The first queries of each method, query by query, so that methods can be compared."""
    taken: dict[str, list[Neighbours]] = {}
    for each in every:
        taken.setdefault(each.method, []).append(each)
    kept = [each for found in taken.values() for each in found[:QUERIES]]
    order = list(dict.fromkeys(each.query for each in kept))
    return sorted(kept, key=lambda each: order.index(each.query))


SIDE = 96  # pixels
INSIDE = "data:"  # begins a picture or sound that results.json holds itself
MP3 = "audio/mpeg"


class Media(Protocol):
    """What may have a picture and a sound: paths from the directory of results.json, or data URIs."""

    picture: str | None
    sound: str | None


class Album:
    """Turns sources into pictures and sounds; `unread` names those that are not there or cannot be read."""

    def __init__(self) -> None:
        self.pictures, self.sounds, self.unread = count(1), count(1), list[str]()

    def cell(self, folder: Path, media: Media, text: str, about: str) -> Cell:
        """A cell with the text and what there is to see and hear; paths begin at `folder`."""
        return Cell(text, self._picture(folder, media.picture, about), self._sound(folder, media.sound, about))

    def _picture(self, folder: Path, source: str | None, about: str) -> Picture | None:
        if source is None:
            return None
        try:
            small = open_image(_content(folder, source))
        except Unreadable:
            self._note(source)
            return None
        small.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=80)
        return Picture(f"picture-{next(self.pictures)}.jpg", buffer.getvalue(), f"picture: {about}")

    def _sound(self, folder: Path, source: str | None, about: str) -> Sound | None:
        if source is None:
            return None
        try:
            content = _content(folder, source)
            if isinstance(content, bytes) and source.startswith(f"{INSIDE}{MP3};"):
                read_audio(content)  # a clip already, if it is a sound at all
                mp3 = content
            else:
                mp3 = clip(content)
        except Unreadable:
            self._note(source)
            return None
        return Sound(f"sound-{next(self.sounds)}.mp3", mp3, MP3, f"sound: {about}")

    def _note(self, source: str) -> None:
        self.unread.append("one inside results.json" if source.startswith(INSIDE) else source)


def _content(folder: Path, source: str) -> bytes | Path:
    if not source.startswith(INSIDE):
        return folder / source
    try:
        return base64.b64decode(source.partition(",")[2])
    except binascii.Error as error:
        raise Unreadable("not base64", f"one inside results.json: {error}") from error
