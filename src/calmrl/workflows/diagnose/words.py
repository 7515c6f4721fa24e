"""The diagnosis in sentences, the answer first."""

from __future__ import annotations

from calmrl.workflows.diagnose.result import Diagnosis
from calmrl.workflows.diagnose.verdict import LITTLE, MEET, RIDGE, by_modality, overall, percent


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
            f"{empty:,} rows have no modality at all; they count as missing everything and are not tested."
        )
    for m in diagnosis.modalities:
        if m.zeros:
            sentences.append(
                f"{m.name} is zero throughout in {m.zeros:,} rows that count as observed; if zeros stand for missing, "
                "mark these rows as missing and diagnose again."
            )
        if m.constant and m.rows:
            sentences.append(f"{m.constant:,} of the {m.width:,} columns of {m.name} never vary.")
    for group in diagnosis.groups[1:]:
        sentences.append(
            f"Too few rows have {_listed(group)} together with {_listed(diagnosis.groups[0])}: neither can be "
            "learned from the other, and they are left out below."
        )
    for d in diagnosis.directions:
        if len(d.sources) == len(diagnosis.groups[0]) - 1 and d.ridge > max(d.explained, 0) + RIDGE:
            sentences.append(
                f"Ridge regression predicts {d.target} better than the chosen imputer ({percent(d.ridge)} against "
                f"{percent(d.explained)}): compare calmrl impute with imputer.method=ridge."
            )
    sentences += _partners(diagnosis)
    sentences.append(_space(diagnosis))
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
        names, best = _listed(tuple(name for name, _ in alone)), max((pair for _, pair in alone), key=lambda p: p.meet)
        who = f"{names} has" if len(alone) == 1 else f"{names} have"
        whom = "one another" if len(alone) == len(diagnosis.examined) else "the others"
        sentences.append(
            f"{who} nothing in common with {whom}: a row's own pair is more alike than a mixed one in at best "
            f"{percent(best.meet)} of comparisons ({best.first} and {best.second}; 50 % is chance)."
        )
    return sentences


def _space(diagnosis: Diagnosis) -> str:
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


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
