"""The diagnosis as a page: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from calmrl.report import Code, Figure, Number, Page, PageSection, Table, Text
from calmrl.report.blocks import Block, Line
from calmrl.report.figures import Mark, dots, upset
from calmrl.report.look import look
from calmrl.workflows.diagnose.models import FOLDS
from calmrl.workflows.diagnose.result import Diagnosis
from calmrl.workflows.diagnose.verdict import LITTLE, by_modality, overall, percent
from calmrl.workflows.diagnose.words import gain_words, remarks


def as_page(diagnosis: Diagnosis, command: str) -> Page:
    """The page that `calmrl diagnose` writes."""
    sections = [
        PageSection("What is missing", _missing(diagnosis)),
        *([PageSection("What can be predicted", _predicted(diagnosis))] if diagnosis.directions else []),
        *([PageSection("Anchors", _anchors(diagnosis))] if diagnosis.shift is not None else []),
        *([PageSection("One space", _space(diagnosis))] if diagnosis.latent else []),
        PageSection("How this was measured", [Text(_method(diagnosis)), Code("Repeat it", command, "bash")]),
    ]
    return Page(
        f"Diagnosis of {diagnosis.name or 'features'}",
        [overall(diagnosis).sentence, *gain_words(diagnosis)],
        [*_verdicts(diagnosis), *(Text(sentence) for sentence in remarks(diagnosis))],
        sections,
    )


def _verdicts(diagnosis: Diagnosis) -> list[Block]:
    verdicts = by_modality(diagnosis)
    if not verdicts:
        return []
    lines: list[Line] = []
    for v in verdicts:
        blocks = next(diagnosis.rows - m.rows for m in diagnosis.modalities if m.name == v.about)
        share = "–" if v.verdict == "cannot tell" else Number(percent(v.number), v.number)
        lines.append([v.about, v.verdict, share, Number(f"{blocks:,}", blocks)])
    caption = "Each modality that some rows lack: whether it can be imputed, and the explained share of its variance."
    return [Table(caption, ["modality", "verdict", "explained", "rows without it"], lines)]


def _missing(diagnosis: Diagnosis) -> list[Block]:
    counts = [(p.modalities, p.rows) for p in diagnosis.patterns]
    alt = "; ".join(f"{' + '.join(p.modalities) or 'nothing'}: {p.rows} rows" for p in diagnosis.patterns[:8])
    names = [m.name for m in diagnosis.modalities]
    caption = (
        f"Which modalities rows have. All {diagnosis.rows:,} rows are counted; {100 * diagnosis.incomplete:.1f} % of them lack "
        f"something, {100 * diagnosis.missing:.1f} % of the blocks are missing."
    )
    lines: list[Line] = [
        [
            m.name,
            Number(f"{m.width:,}", m.width),
            Number(f"{m.rows:,}", m.rows),
            Number(f"{100 * m.missing:.1f} %", m.missing),
            Number(f"{m.zeros:,}", m.zeros),
            Number(f"{m.norm:.2f}", m.norm),
        ]
        for m in diagnosis.modalities
    ]
    head = ["modality", "width", "rows that have it", "missing", "rows of zeros", "mean length"]
    return [
        Figure(caption, [upset("patterns", alt, counts, names)]),
        Table("Every modality over all rows.", head, lines),
    ]


def _predicted(diagnosis: Diagnosis) -> list[Block]:
    every = len(diagnosis.groups[0]) - 1
    whole = [d for d in diagnosis.directions if len(d.sources) == every]
    marks = []
    for d in whole:
        spread = (100 * (d.explained - d.spread), 100 * (d.explained + d.spread))
        marks.append(Mark(d.target, 100 * d.explained, look("gaussian"), *spread, label="chosen imputer"))
        marks.append(Mark(d.target, 100 * d.ridge, look("ridge"), label="ridge regression"))
    alt = "; ".join(
        f"{d.target}: {100 * d.explained:.0f} % by the chosen imputer, {100 * d.ridge:.0f} % by ridge" for d in whole
    )
    caption = (
        "How much of each modality can be predicted from all others, in hidden blocks: 100 % is perfect, 0 is as good as "
        f"the mean. Bars are one standard deviation over {FOLDS} folds. Left of {100 * LITTLE:.0f} %, imputing is "
        "not worth it."
    )
    panel = dots(
        "predicted",
        alt,
        marks,
        x="explained share of the variance (%)",
        line=(100 * LITTLE, f"{100 * LITTLE:.0f} %: worth imputing"),
    )
    lines: list[Line] = [
        [
            f"{d.target} ← {'all others' if len(d.sources) == every > 1 else ', '.join(d.sources)}",
            Number(f"{100 * d.explained:.1f} ± {100 * d.spread:.1f} %", d.explained),
            Number(f"{d.nmse:.3f}", d.nmse),
            Number(f"{100 * d.ridge:.1f} %", d.ridge),
            Number(f"{d.n:,}", d.n),
        ]
        for d in diagnosis.directions
    ]
    head = ["predicted ← from", "explained", "error (1 = the mean)", "ridge regression", "hidden blocks"]
    return [Figure(caption, [panel]), Table(f"Every direction; ± is over {FOLDS} folds.", head, lines)]


def _anchors(diagnosis: Diagnosis) -> list[Block]:
    s = diagnosis.shift
    assert s is not None
    rows: Sequence[tuple[str, float, float | None, str]] = (
        ("modalities missing", s.before, s.before_spread, "contrastive"),
        ("mean imputed", s.mean, None, "mean"),
        ("chosen imputer", s.after, s.after_spread, "gaussian"),
    )
    marks = [
        Mark(name, value, look(kind), *(() if spread is None else (value - spread, value + spread)))
        for name, value, spread, kind in rows
    ]
    alt = "; ".join(f"{name}: {value:.3f}" for name, value, _, _ in rows)
    caption = (
        f"How far the anchors of {s.n:,} {'complete' if s.complete else 'multi-modal'} rows are from where they belong when "
        f"modalities are hidden (0 is no shift, 1.41 a right angle), and after imputing. {100 * s.nearer:.0f} % of the rows "
        f"come closer. Bars are one standard deviation over {FOLDS} folds."
    )
    return [Figure(caption, [dots("anchors", alt, marks, x="mean anchor shift |u − u'| (0 to 2)")])]


def _space(diagnosis: Diagnosis) -> list[Block]:
    given = {(p.first, p.second): p for p in diagnosis.as_given}
    lines: list[Line] = []
    for p in diagnosis.latent:
        same = given.get((p.first, p.second))
        lines.append(
            [
                f"{p.first} – {p.second}",
                "undefined (widths differ)" if same is None else Number(f"{same.gap:.3f}", same.gap),
                "–" if same is None else Number(f"{100 * same.meet:.1f} ± {100 * same.spread:.1f} %", same.meet),
                Number(f"{p.gap:.3f}", p.gap),
                Number(f"{100 * p.meet:.1f} ± {100 * p.spread:.1f} %", p.meet),
                Number(f"{p.n:,}", p.n),
            ]
        )
    caption = (
        "Distance between the centres of two modalities (unit vectors, 0 to 2), and how often the pair of one row is more "
        f"alike than a mixed pair (50 % is chance; ± over {FOLDS} folds): of the features as given, and in the latent "
        "model's space."
    )
    head = ["pair", "gap", "own pair nearer", "gap, latent space", "own pair nearer, latent space", "rows with both"]
    return [Table(caption, head, lines)]


def _method(diagnosis: Diagnosis) -> str:
    return (
        f"Counts are over all {diagnosis.rows:,} rows. Everything else is from {diagnosis.tested:,} rows, each tested by "
        f"models that were fitted on the other rows: {FOLDS} folds, sizes chosen on hidden blocks of the first. "
        "Nothing was trained. The explained share is 1 − squared error / squared deviation from the mean. An anchor is the "
        "leading singular vector of a row's unit vectors; its shift is measured in rows whose modalities are known, some of "
        "which are hidden."
    )
