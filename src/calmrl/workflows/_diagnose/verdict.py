"""From numbers to verdicts, each with the number it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from calmrl.workflows._diagnose.result import Diagnosis

LIKELY, LITTLE = 0.2, 0.1  # explained share of what is missing, from which filling in is likely to help, or a little
MEET = 0.6  # partners that meet so often can be told from strangers
RIDGE = 0.05  # ridge regression is worth a word when it explains so much more


@dataclass(frozen=True)
class Verdict:
    """What is said `about` "all" or a modality: a fixed phrase, a sentence, and the number with its meaning."""

    about: str
    verdict: str
    sentence: str
    number: float
    meaning: str


def overall(found: Diagnosis) -> Verdict:
    """Whether filling in is expected to help."""
    rows = f"{found.rows:,} rows"
    if found.incomplete == 0:
        said = (
            f"Nothing is missing: all {rows} have all {len(found.modalities)} modalities; there is nothing to fill in."
        )
        return Verdict("all", "nothing missing", said, 0.0, "share of rows that lack something")
    if not found.directions:
        if len(found.modalities) == 1:
            said = "There is one modality only, so that there is nothing to predict it from."
        else:
            said = "It cannot be told whether filling in helps: no two modalities occur together in enough rows."
        return Verdict("all", "cannot tell", said, 0.0, "modalities that can be predicted from another")
    meaning = "share of the variance of the missing blocks that comes back in a test on hidden blocks"
    much = f"{percent(found.back)} of the variance of what is missing can be predicted from what is there"
    lost = [f"{v.about} ({percent(v.number)})" for v in by_modality(found) if v.verdict == "cannot be filled in"]
    if lost and found.back >= LITTLE:
        much += f"; not so {', '.join(lost)}"
    if found.back >= LIKELY:
        return Verdict("all", "likely to help", f"Filling in is likely to help: {much}.", found.back, meaning)
    if found.back >= LITTLE:
        return Verdict("all", "may help a little", f"Filling in may help a little: {much}.", found.back, meaning)
    only = much if found.back < 0.0005 else f"only {much}"
    return Verdict("all", "unlikely to help", f"Filling in is unlikely to help: {only}.", found.back, meaning)


def by_modality(found: Diagnosis) -> list[Verdict]:
    """One verdict for each modality that some rows lack."""
    return [_modality(found, m.name, m.missing, found.rows - m.rows) for m in found.modalities if m.rows < found.rows]


def _modality(found: Diagnosis, name: str, missing: float, blocks: int) -> Verdict:
    lacks = f"{name} is missing in {percent(missing)} of the rows ({blocks:,})"
    if name not in found.recoverable:
        said = f"{lacks}; too few rows have it together with others to learn it from them."
        return Verdict(name, "cannot tell", said, 0.0, "share of its variance that can be predicted")
    share, _ = found.recoverable[name]
    singles = [d for d in found.directions if d.target == name and len(d.sources) == 1]
    best = max(singles, key=lambda d: d.explained, default=None)
    whole = found.whole(name)
    tested = "" if whole is None else f", tested on {whole.n:,} hidden blocks"
    source = (
        ""
        if best is None or share < LITTLE
        else f"; the best single source is {best.sources[0]} ({percent(best.explained)})"
    )
    meaning = f"share of the variance of {name} that comes back from what rows without it have"
    if share >= LIKELY:
        said = f"{lacks} and can be filled in: {percent(share)} of its variance comes back{tested}{source}."
        return Verdict(name, "can be filled in", said, share, meaning)
    if share >= LITTLE:
        said = f"{lacks} and can be filled in roughly: {percent(share)} of its variance comes back{tested}{source}."
        return Verdict(name, "can be filled in roughly", said, share, meaning)
    said = f"{lacks} and cannot be filled in: {percent(share)} of its variance comes back{tested}."
    return Verdict(name, "cannot be filled in", said, share, meaning)


def percent(share: float) -> str:
    """A share in percent, with a decimal below 10; below 0 is no better than the mean, which is 0."""
    value = max(0.0, 100 * share)
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"
