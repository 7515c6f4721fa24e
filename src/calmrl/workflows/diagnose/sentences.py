"""A diagnosis in words: verdicts, each with the number it rests on, and sentences, the answer first."""

from __future__ import annotations

from dataclasses import dataclass

from calmrl._support.text import listed, plural
from calmrl.workflows.diagnose.examine import Diagnosis

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
        names, best = listed([name for name, _ in alone]), max((pair for _, pair in alone), key=lambda p: p.meet)
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
