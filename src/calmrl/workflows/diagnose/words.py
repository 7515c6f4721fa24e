"""The diagnosis in sentences, the answer first."""

from __future__ import annotations

from calmrl.workflows.diagnose.result import Diagnosis
from calmrl.workflows.diagnose.verdict import LITTLE, MEET, RIDGE, by_modality, overall, percent


def sentences(found: Diagnosis) -> list[str]:
    """All that is worth saying, the most important first."""
    return [overall(found).sentence, *gain_words(found), *(v.sentence for v in by_modality(found)), *remarks(found)]


def gain_words(found: Diagnosis) -> list[str]:
    """How much filling in is expected to bring: of the values, and of the anchors of items."""
    said = []
    if found.incomplete and found.directions:
        said.append(
            f"Expected gain: {100 * found.missing:.1f} % of the blocks are missing, and {percent(found.back)} of that comes "
            f"back, which is {100 * found.gain:.1f} % of the variance of complete data."
        )
    shift = found.shift
    if shift is not None:
        kind = "complete rows" if shift.complete else "rows with two modalities or more"
        how = "with holes like those in the data" if found.incomplete else "that lose one modality"
        change = f"{percent(shift.reduction)} less" if shift.reduction >= 0.005 else "no less"
        said.append(
            f"Anchors of {shift.n:,} {kind} {how} move by {shift.before:.2f} on average, and by {shift.after:.2f} after "
            f"filling in: {change}."
        )
    return said


def remarks(found: Diagnosis) -> list[str]:
    """What else a reader should know: signs of trouble in the data, and better ideas than filling in."""
    said = []
    empty = sum(p.rows for p in found.patterns if not p.modalities)
    if empty:
        said.append(f"{empty:,} rows have no modality at all; they count as missing everywhere and are not tested.")
    for m in found.modalities:
        if m.zeros:
            said.append(
                f"{m.name} is zero throughout in {m.zeros:,} rows that count as observed; if zeros stand for missing, "
                "mark these rows as missing and diagnose again."
            )
        if m.constant and m.rows:
            said.append(f"{m.constant:,} of the {m.width:,} columns of {m.name} never vary.")
    for group in found.groups[1:]:
        said.append(
            f"Too few rows have {_listed(group)} together with {_listed(found.groups[0])}: nothing can be learned "
            "between them, and they are left out below."
        )
    for d in found.directions:
        if len(d.sources) == len(found.groups[0]) - 1 and d.ridge > max(d.explained, 0) + RIDGE:
            said.append(
                f"Ridge regression predicts {d.target} better than the chosen imputer ({percent(d.ridge)} against "
                f"{percent(d.explained)}): compare calmrl impute with imputer.method=ridge."
            )
    said += _partners(found)
    said.append(_space(found))
    return [sentence for sentence in said if sentence]


def _partners(found: Diagnosis) -> list[str]:
    """Modalities whose values do not come back: can their rows be found all the same?"""
    said, alone = [], []
    for m in found.examined:
        pairs = [p for p in found.latent if m.name in (p.first, p.second)]
        whole = found.whole(m.name)
        if not pairs or whole is None or whole.explained >= LITTLE:
            continue
        best = max(pairs, key=lambda p: p.meet)
        if best.meet < MEET:
            alone.append((m.name, best))
            continue
        other = best.second if best.first == m.name else best.first
        said.append(
            f"{m.name} belongs together with {other} all the same: a row's own pair is more alike than a mixed one in "
            f"{percent(best.meet)} of comparisons (50 % is chance), so that searching one by the other can work where "
            "filling in does not."
        )
    if alone:
        names, best = _listed(tuple(name for name, _ in alone)), max((pair for _, pair in alone), key=lambda p: p.meet)
        who = f"{names} has" if len(alone) == 1 else f"{names} have"
        whom = "one another" if len(alone) == len(found.examined) else "the others"
        said.append(
            f"{who} nothing in common with {whom}: a row's own pair is more alike than a mixed one in at best "
            f"{percent(best.meet)} of comparisons ({best.first} and {best.second}; 50 % is chance)."
        )
    return said


def _space(found: Diagnosis) -> str:
    if not found.latent:
        return ""
    if found.shared_space:
        widest = max(found.as_given, key=lambda p: p.gap)
        return (
            f"The features are in one space already; the largest modality gap is {widest.gap:.2f} "
            f"({widest.first} and {widest.second}; 0 is none, 2 the most)."
        )
    why = (
        "have one width but are not in one space: own pairs are hardly more alike than mixed ones"
        if found.as_given
        else f"differ in width ({', '.join(f'{m.name} {m.width}' for m in found.examined)}), which leaves the gap undefined"
    )
    widest = max(found.latent, key=lambda p: p.gap)
    return (
        f"The features {why}. In the common space of the latent model, which the anchors above are in, the largest gap is "
        f"{widest.gap:.2f} ({widest.first} and {widest.second})."
    )


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
