"""`diagnose`: features in, a diagnosis out, and its directory: report.html, report.md, figures and diagnosis.json.

A diagnosis in words are verdicts, each with the number it rests on, and sentences, the answer first.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calmrl._support.output import WRITTEN_BY, check_free, new_directory
from calmrl._support.text import Line, Number, Table, listed, plural, to_text
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.protocols import Progress, no_progress
from calmrl.report import Code, Figure, Page, PageSection, Text, write_page
from calmrl.report.figures import Mark, clip, dots, upset
from calmrl.report.page import Block
from calmrl.report.style import style_of
from calmrl.sources import dataset_or_path
from calmrl.workflows.diagnose.examine import Diagnosis, examine
from calmrl.workflows.diagnose.predictable import FOLDS

LIKELY, LITTLE = 0.2, 0.1  # explained share of what is missing from which imputing is likely to help, or a little
MEET = 0.6  # own pairs that are nearer so often are distinguishable from mixed ones
RIDGE = 0.05  # ridge regression is worth a word when it explains so much more


@dataclass(frozen=True)
class Verdict:
    """What is said `about` "all" or a modality: a fixed phrase, a sentence, and the number with its meaning."""

    about: str
    verdict: str
    sentence: str
    number: float
    meaning: str


def overall(diagnosis: Diagnosis) -> Verdict:
    """Whether imputing is expected to help."""
    if diagnosis.incomplete == 0:
        rows, modalities = plural(diagnosis.rows, "row"), plural(len(diagnosis.modalities), "modality", "modalities")
        sentence = f"Nothing is missing in {rows} of {modalities}; there is nothing to impute."
        return Verdict("all", "nothing missing", sentence, 0.0, "share of rows that lack something")
    if not diagnosis.directions:
        if len(diagnosis.modalities) == 1:
            sentence = "There is only one modality, so there is nothing to predict it from."
        else:
            sentence = "Whether imputing helps cannot be measured: no two modalities occur together in enough rows."
        return Verdict("all", "cannot tell", sentence, 0.0, "modalities that can be predicted from another")
    meaning = "explained share of the variance of the missing blocks, in a test on hidden blocks"
    much = f"{percent(diagnosis.back)} of the variance of what is missing can be predicted from what is there"
    lost = [f"{v.about} ({percent(v.number)})" for v in by_modality(diagnosis) if v.verdict == "cannot be imputed"]
    if lost and diagnosis.back >= LITTLE:
        much += f", except {', '.join(lost)}"
    if 0.0005 <= diagnosis.back < LITTLE:
        much = f"only {much}"
    phrase = _graded(diagnosis.back, "is likely to help", "may help a little", "is unlikely to help")
    return Verdict("all", phrase.removeprefix("is "), f"Imputing {phrase}: {much}.", diagnosis.back, meaning)


def by_modality(diagnosis: Diagnosis) -> list[Verdict]:
    """One verdict for each modality that some rows lack."""
    return [
        _modality(diagnosis, m.name, m.missing, diagnosis.rows - m.rows)
        for m in diagnosis.modalities
        if m.rows < diagnosis.rows
    ]


def _modality(diagnosis: Diagnosis, name: str, missing: float, blocks: int) -> Verdict:
    lacks = f"{name} is missing in {percent(missing)} of the rows ({blocks:,})"
    if name not in diagnosis.recoverable:
        sentence = f"{lacks}; too few rows have it together with others to learn from."
        return Verdict(name, "cannot tell", sentence, 0.0, "share of its variance that can be predicted")
    share, _ = diagnosis.recoverable[name]
    singles = [d for d in diagnosis.directions if d.target == name and len(d.sources) == 1]
    best = max(singles, key=lambda d: d.explained, default=None)
    whole = diagnosis.whole(name)
    tested = "" if whole is None else f", tested on {plural(whole.n, 'hidden block')}"
    if best is not None and share >= LITTLE:
        tested += f"; the best single source is {best.sources[0]} ({percent(best.explained)})"
    phrase = _graded(share, "can be imputed", "can be imputed roughly", "cannot be imputed")
    sentence = f"{lacks} and {phrase}: {percent(share)} of its variance is explained{tested}."
    meaning = f"share of the variance of {name} that is explained by what rows without it have"
    return Verdict(name, phrase, sentence, share, meaning)


def _graded(share: float, likely: str, little: str, hardly: str) -> str:
    return likely if share >= LIKELY else little if share >= LITTLE else hardly


def percent(share: float) -> str:
    """A share in percent, with a decimal below 10; below 0 is no better than the mean, which is 0."""
    value = max(0.0, 100 * share)
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


def sentences(diagnosis: Diagnosis) -> list[str]:
    """All that is worth saying, the most important first."""
    first, *others = (verdict.sentence for verdict in (overall(diagnosis), *by_modality(diagnosis)))
    return [first, *gain_words(diagnosis), *others, *remarks(diagnosis)]


def gain_words(diagnosis: Diagnosis) -> list[str]:
    """What imputing is expected to bring: for the values, and for the anchors of items."""
    sentences = []
    if diagnosis.incomplete and diagnosis.directions:
        sentences.append(
            f"Expected gain: {100 * diagnosis.missing:.1f} % of the blocks are missing, and imputing explains "
            f"{percent(diagnosis.back)} of their variance: {100 * diagnosis.gain:.1f} % of the variance of complete data."
        )
    shift = diagnosis.shift
    if shift is not None:
        kind = "complete rows" if shift.complete else "rows with two modalities or more"
        how = (
            "that lose modalities as they are missing in the data" if diagnosis.incomplete else "that lose one modality"
        )
        change = f"{percent(shift.reduction)} less" if shift.reduction >= 0.005 else "no less"
        sentences.append(
            f"Anchors of {shift.n:,} {kind} {how} move by {shift.before:.2f} on average, and by {shift.after:.2f} after "
            f"imputing: {change}."
        )
    return sentences


def remarks(diagnosis: Diagnosis) -> list[str]:
    """What else a reader should know: signs of trouble in the data, and alternatives to imputing."""
    sentences = []
    empty = sum(p.rows for p in diagnosis.patterns if not p.modalities)
    if empty:
        sentences.append(
            f"{plural(empty, 'row has', 'rows have')} no modality at all; such rows lack everything and are not tested."
        )
    for m in diagnosis.modalities:
        if m.zeros:
            rows = plural(m.zeros, "row that counts", "rows that count")
            sentences.append(
                f"{m.name} is zero throughout in {rows} as observed; if zeros stand for missing, "
                "mark these rows as missing and diagnose again."
            )
        if m.constant and m.rows:
            sentences.append(f"{m.constant:,} of the {m.width:,} columns of {m.name} never vary.")
    for group in diagnosis.groups[1:]:
        sentences.append(
            f"Too few rows have {listed(group)} together with {listed(diagnosis.groups[0])}: neither can be "
            "learned from the other, and they are left out below."
        )
    for d in diagnosis.directions:
        if len(d.sources) == len(diagnosis.groups[0]) - 1 and d.ridge > max(d.explained, 0) + RIDGE:
            sentences.append(
                f"Ridge regression predicts {d.target} better than the chosen imputer ({percent(d.ridge)} against "
                f"{percent(d.explained)}): compare calmrl impute with imputer.method=ridge."
            )
    sentences += _partners(diagnosis)
    sentences.append(_one_space(diagnosis))
    return [sentence for sentence in sentences if sentence]


def _partners(diagnosis: Diagnosis) -> list[str]:
    """Modalities that cannot be imputed: can their rows be found all the same?"""
    sentences, alone = list[str](), []
    for m in diagnosis.examined:
        pairs = [p for p in diagnosis.latent if m.name in (p.first, p.second)]
        whole = diagnosis.whole(m.name)
        if not pairs or whole is None or whole.explained >= LITTLE:
            continue
        best = max(pairs, key=lambda p: p.meet)
        if best.meet < MEET:
            alone.append((m.name, best))
            continue
        other = best.second if best.first == m.name else best.first
        sentences.append(
            f"{m.name} and {other} are related all the same: a row's own pair is more alike than a mixed one in "
            f"{percent(best.meet)} of comparisons (50 % is chance), so searching one by the other can work where imputing "
            "does not."
        )
    if alone:
        names, best = listed([name for name, _ in alone]), max((pair for _, pair in alone), key=lambda p: p.meet)
        who = f"{names} has" if len(alone) == 1 else f"{names} have"
        whom = "one another" if len(alone) == len(diagnosis.examined) else "the others"
        sentences.append(
            f"{who} nothing in common with {whom}: a row's own pair is more alike than a mixed one in at best "
            f"{percent(best.meet)} of comparisons ({best.first} and {best.second}; 50 % is chance)."
        )
    return sentences


def _one_space(diagnosis: Diagnosis) -> str:
    if not diagnosis.latent:
        return ""
    if diagnosis.shared_space:
        widest = max(diagnosis.as_given, key=lambda p: p.gap)
        return (
            f"The features are in one space already; the largest modality gap is {widest.gap:.2f} "
            f"({widest.first} and {widest.second}; 0 is none, 2 the most)."
        )
    why = (
        "have the same width but are not in one space: own pairs are hardly more alike than mixed ones"
        if diagnosis.as_given
        else f"differ in width ({', '.join(f'{m.name} {m.width}' for m in diagnosis.examined)}), which leaves the gap undefined"
    )
    widest = max(diagnosis.latent, key=lambda p: p.gap)
    return (
        f"The features {why}. In the latent model's space, where the anchors above were measured, the largest gap is "
        f"{widest.gap:.2f} ({widest.first} and {widest.second})."
    )


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
    alt = "; ".join(f"{' + '.join(p.modalities) or 'nothing'}: {plural(p.rows, 'row')}" for p in diagnosis.patterns[:8])
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
        marks.append(Mark(d.target, 100 * d.explained, style_of("gaussian"), *spread, label="chosen imputer"))
        marks.append(Mark(d.target, 100 * d.ridge, style_of("ridge"), label="ridge regression"))
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
        Mark(name, value, style_of(kind), *(() if spread is None else (value - spread, value + spread)))
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


WIDTH = 80
MOST_PATTERNS = 8
LONGEST = 16  # letters of a name in a table


def as_text(diagnosis: Diagnosis) -> str:
    """The verdict, then the tables it rests on, then remarks."""
    many = plural(len(diagnosis.modalities), "modality", "modalities")
    head = f"{plural(diagnosis.rows, 'row')}, {many}, {100 * diagnosis.missing:.1f} % of blocks missing"
    parts = [head, _fill(overall(diagnosis).sentence)]
    parts += [_fill(sentence) for sentence in gain_words(diagnosis)]
    parts += ["\n".join(_fill(v.sentence, "- ") for v in by_modality(diagnosis))]
    parts += [_patterns(diagnosis), _modalities(diagnosis), _singles(diagnosis), _pairs(diagnosis)]
    parts += ["\n".join(_fill(sentence, "- ") for sentence in remarks(diagnosis))]
    return "\n\n".join(part for part in parts if part)


def _patterns(diagnosis: Diagnosis) -> str:
    lines = []
    for pattern in diagnosis.patterns[:MOST_PATTERNS]:
        names = " + ".join(pattern.modalities) or "nothing"
        lines.append([clip(names, 50), f"{pattern.rows:,}", f"{100 * pattern.share:.1f} %"])
    rest = diagnosis.patterns[MOST_PATTERNS:]
    if rest:
        rows = sum(pattern.rows for pattern in rest)
        lines.append([plural(len(rest), "rarer pattern"), f"{rows:,}", f"{100 * rows / diagnosis.rows:.1f} %"])
    return to_text(Table("", ["patterns", "rows", "share"], lines))


def _modalities(diagnosis: Diagnosis) -> str:
    head, lines = ["modality", "width", "missing", "explained by all others", "ridge", "n"], []
    for m in diagnosis.modalities:
        d = diagnosis.whole(m.name)
        shares = ["-", "-", "-"] if d is None else [_share(d.explained, d.spread), _share(d.ridge), f"{d.n:,}"]
        lines.append([clip(m.name, LONGEST), str(m.width), f"{100 * m.missing:.1f} %", *shares])
    note = (
        f"explained: share of the variance of hidden blocks that is predicted, ± standard deviation over {FOLDS} folds; n: "
        f"hidden blocks. Tested on {diagnosis.tested:,} of {diagnosis.rows:,} rows"
    )
    return to_text(Table("", head, lines)) + ("\n" + _fill(note) if diagnosis.directions else "")


def _singles(diagnosis: Diagnosis) -> str:
    """Targets down, sources across, as many as fit."""
    singles = {(d.target, d.sources[0]): d for d in diagnosis.directions if len(d.sources) == 1}
    names = [m.name for m in diagnosis.examined]
    if len(names) < 3 or not singles:
        return ""
    short = [clip(name, 10) for name in names]
    blocks = []
    for start in range(0, len(names), 5):
        lines = []
        for row, target in enumerate(names):
            cells = [singles.get((target, source)) for source in names[start : start + 5]]
            shares = ("-" if d is None else f"{100 * d.explained:.0f} ± {100 * d.spread:.0f}" for d in cells)
            lines.append([short[row], *shares])
        blocks.append(to_text(Table("", ["explained (%) by", *short[start : start + 5]], lines)))
    return "\n".join(blocks)


def _pairs(diagnosis: Diagnosis) -> str:
    given = {(p.first, p.second): p for p in diagnosis.as_given}
    lines = []
    for p in diagnosis.latent[:10]:
        same = given.get((p.first, p.second))
        own = f"{100 * p.meet:.0f} ± {100 * p.spread:.0f} %"
        gap = "undefined" if same is None else f"{same.gap:.2f}"
        lines.append([f"{clip(p.first, 11)} - {clip(p.second, 11)}", gap, f"{p.gap:.2f}", own, f"{p.n:,}"])
    return to_text(Table("", ["pair", "gap", "gap, latent space", "own pair nearer", "n"], lines)) if lines else ""


def _share(value: float, spread: float | None = None) -> str:
    return f"{100 * value:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}") + " %"


def _fill(text: str, mark: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark))


def diagnose(
    features: FeatureSet | Mapping[str, np.ndarray] | str | Path,
    present: np.ndarray | None = None,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
    command: str = "",
    progress: Progress = no_progress,
) -> Diagnosis:
    """Missing patterns, modality gap, predictability, anchor shift, and the expected gain of imputing; no training.

    Counts are over all rows; what needs a fit uses a sample of at most 5,000 rows in three folds: each row is tested by
    models that were fitted on the other two folds.

    Parameters
    ----------
    features: a feature directory or file, the name of a bundled data set, what `open_features` gives (memory-mapped ones
        are read in chunks), or `z` of the shared convention.
    present: bool (N, k), with `z`.
    out: a directory to write report.html, report.md, figures and diagnosis.json into.
    seed: which rows are drawn, and their folds.
    force: replace an earlier output of calmrl.
    command: what the report shows as the way to repeat it.
    progress: called with (steps done, of how many, what is being done); 0 of 0 where that is not known.
    """
    if out is not None:
        check_free(Path(out), force=force)
    if isinstance(features, (str, Path)):
        features = dataset_or_path(features)
    if isinstance(features, (str, Path)):
        features = open_features(Path(features))
    elif not isinstance(features, FeatureSet):
        features = FeatureSet(dict(features), present)
    diagnosis = examine(features, seed, progress)
    if out is not None:
        with new_directory(Path(out), force=force) as draft:
            _write(diagnosis, draft, command or f"calmrl.workflows.diagnose(..., seed={seed})")
    return diagnosis


def _write(diagnosis: Diagnosis, folder: Path, command: str) -> None:
    numbers = {"command": command, **diagnosis.as_dict()}
    (folder / "diagnosis.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    write_page(as_page(diagnosis, command), folder / "report.html")
    (folder / "config.yaml").write_text(f"{WRITTEN_BY}: {command}\n", encoding="utf-8")
