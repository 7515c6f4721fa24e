"""A table as Markdown, LaTeX (booktabs) and CSV."""

import csv
import io
import re
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from calmrl._support.output import new_file
from calmrl._support.parsing import visible
from calmrl._support.text import escaped, pipes
from calmrl.metrics.registry import describe
from calmrl.report.tables import Column, ResultCell, ResultLine, ResultTable, all_tables

EMPTY = "-"
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "–": "--",
    "†": r"$\dagger$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "′": "$'$",
}


def number(cell: ResultCell, metric: str) -> str:
    """26.4 ± 1.2"""
    places = describe(metric).decimals
    mean, half, _ = cell.interval
    return f"{mean:.{places}f}" + ("" if half is None else f" ± {half:.{places}f}")


def to_markdown(table: ResultTable) -> str:
    """A pipe table; the best bold, the second underlined, `ideal` in italics at the end."""
    heads = ["<br>".join(map(escaped, _head(column))) for column in table.columns]
    lines = list[list[str]]()
    for title, some in table.blocks:
        if title:
            lines.append([f"*{escaped(title)}*", *[""] * len(heads)])
        for line in some:
            mark = {"ideal": "*", "ours": "**"}.get(line.kind, "")
            lines.append([mark + escaped(line.method) + mark, *_cells(line, table, _markdown_cell)])
    parts = [f"**{escaped(table.title)}**", pipes(["method", *heads], lines), escaped(" ".join(table.notes))]
    return "\n\n".join(parts).rstrip() + "\n"


def to_latex(table: ResultTable, label: str = "") -> str:
    """A table environment that needs booktabs alone; rules set apart baselines, ours, `ideal` and the settings."""
    width = 1 + len(table.columns)
    levels = [level for level in zip(*(_head(column, False) for column in table.columns), strict=True) if any(level)]
    body = [r"\toprule"]
    for depth, level in enumerate(levels):
        spans = [(name, 1) for name in level]
        if depth == 0:
            spans = [(name, len(list(same))) for name, same in groupby(level)]
        names = (rf"\multicolumn{{{n}}}{{c}}{{{latex(name)}}}" if n > 1 else latex(name) for name, n in spans)
        body.append(" & ".join(["", *names]) + r" \\")
        if depth == 0 and any(n > 1 for _, n in spans):
            body.append(_rules(spans))
    for title, some in table.blocks:
        body.append(r"\midrule")
        if title:
            body += [rf"\multicolumn{{{width}}}{{l}}{{\emph{{{latex(title)}}}}} \\", r"\midrule"]
        for j, (kind, lines) in enumerate(groupby(some, key=lambda line: line.kind)):
            body += [r"\midrule"] if j else []
            for line in lines:
                name = rf"\textbf{{{latex(line.method)}}}" if kind == "ours" else latex(line.method)
                body.append(" & ".join([name, *_cells(line, table, _latex_cell)]) + r" \\")
    body.append(r"\bottomrule")
    caption = latex(" ".join([f"{table.title}.", *table.notes]))
    head = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", *([rf"\label{{{label}}}"] if label else [])]
    head.append(rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}")
    return "\n".join([*head, *body, r"\end{tabular}", r"\end{table}", ""])


def to_csv(table: ResultTable) -> str:
    """The same cells for machines: per column the mean, half of the 95 % interval, n and p; empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [" ".join(filter(None, (c.group, c.name.replace("→", "->"), c.metric))) for c in table.columns]
    text = any(isinstance(cell, str) for _, some in table.blocks for line in some for cell in line.cells)
    parts = [""] if text else ["", " ci95", " n", " seeds", " p"]
    writer.writerow(["setting", "method", *(visible(name) + part for name in names for part in parts)])
    for title, some in table.blocks:
        for line in some:
            values: list[Any] = []
            for cell in line.cells:
                if isinstance(cell, ResultCell):
                    mean, half, seeds = cell.interval
                    spread, p = ("" if number is None else repr(number) for number in (half, cell.p))
                    values += [repr(mean), spread, cell.n.replace("–", "-"), seeds, p]
                else:
                    values += [cell or "", *[""] * (len(parts) - 1)]
            writer.writerow([visible(title), visible(line.method), *values])
    return out.getvalue()


def write_tables(results: Mapping[str, Any], directory: str | Path) -> list[Path]:
    """Write every table that `results` has something for as NAME.md, NAME.tex and NAME.csv, replacing older ones."""
    written = []
    for name, table in all_tables(results).items():
        forms = {"md": to_markdown(table), "tex": to_latex(table, f"tab:{name}"), "csv": to_csv(table)}
        for ending, text in forms.items():
            target = Path(directory) / f"{name}.{ending}"
            with new_file(target, force=True) as draft:
                draft.write_text(text, encoding="utf-8")
            written.append(target)
    return written


def latex(text: str) -> str:
    """Text that LaTeX prints as it is, on one line."""
    return re.sub("|".join(map(re.escape, _LATEX)), lambda sign: _LATEX[sign[0]], visible(" ".join(text.split())))


def _head(column: Column, tight: bool = True) -> list[str]:
    """Dataset, task, metric and number of items; with `tight` only what is not empty."""
    parts = [column.group, column.name, column.metric, f"n = {column.n}" if column.n else ""]
    return [part for part in parts if part] if tight else parts


def _cells(line: ResultLine, table: ResultTable, form: Callable[[ResultCell, str], str]) -> list[str]:
    escape = latex if form is _latex_cell else escaped
    return [
        form(cell, column.metric) if isinstance(cell, ResultCell) else EMPTY if cell is None else escape(cell)
        for cell, column in zip(line.cells, table.columns, strict=True)
    ]


def _markdown_cell(cell: ResultCell, metric: str) -> str:
    text = number(cell, metric)
    text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(cell.rank, text)
    return text + cell.mark.replace("*", r"\*")


def _latex_cell(cell: ResultCell, metric: str) -> str:
    text = latex(number(cell, metric))
    text = {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(cell.rank, text)
    return text + {"*": "$^{*}$", "†": r"$^{\dagger}$"}.get(cell.mark, "")


def _rules(spans: list[tuple[str, int]]) -> str:
    """A short rule under every spanning name."""
    rules, start = [], 2
    for name, n in spans:
        if name and n > 1:
            rules.append(rf"\cmidrule(lr){{{start}-{start + n - 1}}}")
        start += n
    return " ".join(rules)
