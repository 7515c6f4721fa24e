"""Results become a page: the answer, the main table, and a section for everything that was measured."""

from collections.abc import Sequence
from dataclasses import replace

from calmrl._support.tables import Table
from calmrl.metrics.registry import describe, names_of
from calmrl.report.blocks import Block, Page, PageSection, Text
from calmrl.report.estimates import better, matrix
from calmrl.report.results import ResultRow, Results
from calmrl.report.sections import comparison, completion, course, data
from calmrl.report.sentences import headline, several, verdict


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
        "Missing rates": course.rates(results),
        "Complete rows": course.complete_rows(results),
        "Imputed vectors": completion.imputation(results),
        "Predicted uncertainty": completion.coverage(results),
        "Anchor shift": completion.shift(results),
        "Maps": course.maps(results),
        "Nearest neighbours": data.neighbours(results),
        "Training": course.training(results),
        "Other measurements": _other(results),
        "Data and missing patterns": data.data(results),
        "Methods": data.methods(results),
        "Repeat it": data.repeat(results),
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
    rows = [row for row in results.rows if not _shown(row) and (row.task, row.metric) != first]
    for place, here in results.by_place(rows):
        for metric in dict.fromkeys(row.metric for row in here):
            at = [row for row in here if row.metric == metric]
            caption = f"{place}: {describe(metric).axis}{better(metric)}."
            blocks.append(matrix(results, at, lambda row: row.task, caption))
    return blocks


def _shown(row: ResultRow) -> bool:
    if row.metric in names_of("retrieval"):
        return row.task == "average" or "->" in row.task or row.task.startswith("mixed-pool")
    if row.metric in names_of("classification"):
        return row.task.startswith("classification")
    return row.metric in completion.SHOWN


def _title(results: Results) -> str:
    datasets = list(dict.fromkeys(row.dataset for row in results.rows))
    methods = list(dict.fromkeys(row.method for row in results.rows))
    what = f"{len(methods)} methods" if len(methods) > 1 else f"Evaluation of {methods[0]}"
    missing = " with missing modalities" if results.settings else ""
    return f"{what} on {', '.join(datasets)}{missing}"
