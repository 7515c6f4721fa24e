"""The diagnosis as text for a terminal of 80 columns."""

import textwrap
from collections.abc import Sequence

from calmrl.report.svg import clip
from calmrl.workflows.diagnose.models import FOLDS
from calmrl.workflows.diagnose.result import Diagnosis
from calmrl.workflows.diagnose.verdict import by_modality, overall
from calmrl.workflows.diagnose.words import gain_words, remarks

WIDTH = 80
MOST_PATTERNS = 8
LONGEST = 16  # letters of a name in a table


def as_text(diagnosis: Diagnosis) -> str:
    """The verdict, then the tables it rests on, then remarks."""
    k = len(diagnosis.modalities)
    many = "modality" if k == 1 else "modalities"
    head = f"{diagnosis.rows:,} rows, {k} {many}, {100 * diagnosis.missing:.1f} % of blocks missing"
    parts = [head, _fill(overall(diagnosis).sentence)]
    parts += [_fill(sentence) for sentence in gain_words(diagnosis)]
    parts += ["\n".join(_fill(v.sentence, "- ") for v in by_modality(diagnosis))]
    parts += [_patterns(diagnosis), _modalities(diagnosis), _singles(diagnosis), _pairs(diagnosis)]
    parts += ["\n".join(_fill(sentence, "- ") for sentence in remarks(diagnosis))]
    return "\n\n".join(part for part in parts if part)


def _patterns(diagnosis: Diagnosis) -> str:
    lines = [["patterns", "rows", "share"]]
    for pattern in diagnosis.patterns[:MOST_PATTERNS]:
        names = " + ".join(pattern.modalities) or "nothing"
        lines.append([clip(names, 50), f"{pattern.rows:,}", f"{100 * pattern.share:.1f} %"])
    rest = diagnosis.patterns[MOST_PATTERNS:]
    if rest:
        rows = sum(pattern.rows for pattern in rest)
        lines.append([f"{len(rest)} rarer patterns", f"{rows:,}", f"{100 * rows / diagnosis.rows:.1f} %"])
    return _table(lines)


def _modalities(diagnosis: Diagnosis) -> str:
    lines = [["modality", "width", "missing", "explained by all others", "ridge", "n"]]
    for m in diagnosis.modalities:
        d = diagnosis.whole(m.name)
        shares = ["-", "-", "-"] if d is None else [_share(d.explained, d.spread), _share(d.ridge), f"{d.n:,}"]
        lines.append([clip(m.name, LONGEST), str(m.width), f"{100 * m.missing:.1f} %", *shares])
    note = (
        f"explained: share of the variance of hidden blocks that is predicted, ± standard deviation over {FOLDS} folds; n: "
        f"hidden blocks. Tested on {diagnosis.tested:,} of {diagnosis.rows:,} rows"
    )
    return _table(lines) + ("\n" + _fill(note) if diagnosis.directions else "")


def _singles(diagnosis: Diagnosis) -> str:
    """Targets down, sources across, as many as fit."""
    singles = {(d.target, d.sources[0]): d for d in diagnosis.directions if len(d.sources) == 1}
    names = [m.name for m in diagnosis.examined]
    if len(names) < 3 or not singles:
        return ""
    short = [clip(name, 10) for name in names]
    blocks = []
    for start in range(0, len(names), 5):
        lines = [["explained (%) by", *short[start : start + 5]]]
        for row, target in enumerate(names):
            cells = [singles.get((target, source)) for source in names[start : start + 5]]
            shares = ("-" if d is None else f"{100 * d.explained:.0f} ± {100 * d.spread:.0f}" for d in cells)
            lines.append([short[row], *shares])
        blocks.append(_table(lines))
    return "\n".join(blocks)


def _pairs(diagnosis: Diagnosis) -> str:
    given = {(p.first, p.second): p for p in diagnosis.as_given}
    lines = [["pair", "gap", "gap, latent space", "own pair nearer", "n"]]
    for p in diagnosis.latent[:10]:
        same = given.get((p.first, p.second))
        own = f"{100 * p.meet:.0f} ± {100 * p.spread:.0f} %"
        gap = "undefined" if same is None else f"{same.gap:.2f}"
        lines.append([f"{clip(p.first, 11)} - {clip(p.second, 11)}", gap, f"{p.gap:.2f}", own, f"{p.n:,}"])
    return _table(lines) if diagnosis.latent else ""


def _table(lines: Sequence[Sequence[str]]) -> str:
    """The first column to the left, numbers to the right."""
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    aligned = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join(map("  ".join, aligned))


def _share(value: float, spread: float | None = None) -> str:
    return f"{100 * value:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}") + " %"


def _fill(text: str, mark: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark))
