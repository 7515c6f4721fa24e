"""Features -> a saved aligner: one space, which others can take as their base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from calmrl._support.output import check_directory
from calmrl._support.text import plural
from calmrl.aligner.estimator import Aligner
from calmrl.errors import InputError
from calmrl.sources import DATASET, FEATURES, FOLDER, MANIFEST, form_of, open_source


def align(
    features: Any,
    out: str | Path,
    *,
    base: Any = None,
    groups: str | None = None,
    relevant: str | None = None,
    compact: bool = False,
    report: Callable[[str], None] | None = None,
) -> Aligner:
    """Fit an aligner on features and save it.

    Parameters
    ----------
    features : FeatureSet, dict, str or Path
        Features, where they are, or the name of a bundled data set. Those of `calmrl extract` say which encoders made them, so
        that the aligner reads files, and is recognised as a base.
    out : str or Path
        The folder to write; nothing is overwritten.
    base : str, path, Aligner or list of these, optional
        What was learned elsewhere, to stand beside the own space; see `Aligner`.
    groups, relevant : str, optional
        Names of columns; see `Aligner.fit`.
    compact : bool
        Write about a tenth of the bytes; see `Aligner.save`.
    report : callable, optional
        Gets sentences for people: rows, what was chosen, recall to expect.

    Examples
    --------
    >>> align("features", "mine", compact=True)  # doctest: +SKIP
    """
    check_directory(out)
    if Path(out).exists():
        raise InputError(f"{out} exists; choose another name")
    if not isinstance(features, dict) and form_of(features) in (FOLDER, MANIFEST):
        raise InputError(
            f"{features} holds files, not features; encode them first: calmrl extract {features} --out FEATURES"
        )
    opened = open_source(features, accept=(FEATURES, DATASET), holes=True)
    given = opened.features
    assert given is not None
    labels = None if groups is None else list(given.column(groups))
    known = {name: encoder for name, encoder in opened.indexing.encoders.items() if name in given.z}
    aligner = Aligner(base=base, random_state=0).fit(given, groups=labels, relevant=relevant, encoders=known)
    if report is not None:
        for line in [f"{plural(len(given), 'row')} of {opened.root}", *aligner.summary()]:
            report(line)
    aligner.save(out, compact=compact)
    return aligner
