"""From numbers to verdicts, each with the number it rests on."""

from dataclasses import dataclass

from calmrl.workflows.diagnose.result import Diagnosis

LIKELY, LITTLE = 0.2, 0.1  # explained share of what is missing from which imputing is likely to help, or a little
MEET = 0.6  # own pairs that are nearer so often are distinguishable from mixed ones
RIDGE = 0.05  # ridge regression is worth a word when it explains so much more


@dataclass(frozen=True)
class Verdict:
    """What is sentence `about` "all" or a modality: a fixed phrase, a sentence, and the number with its meaning."""

    about: str
    verdict: str
    sentence: str
    number: float
    meaning: str


def overall(diagnosis: Diagnosis) -> Verdict:
    """Whether imputing is expected to help."""
    rows = f"{diagnosis.rows:,} rows"
    if diagnosis.incomplete == 0:
        every = f"all {rows} have all {len(diagnosis.modalities)} modalities"
        sentence = f"Nothing is missing: {every}; there is nothing to impute."
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
    tested = "" if whole is None else f", tested on {whole.n:,} hidden blocks"
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
