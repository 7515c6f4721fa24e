"""A collection of files or features -> an index that any modality can search."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from calmrl.search.index import Index


def index(
    source: Any,
    out: str | Path,
    encoders: Mapping[str, str] | None = None,
    *,
    report: Callable[[str], None] | None = None,
    **options: Any,
) -> Index:
    """Encode, align in closed form, and write a searchable table.

    Parameters
    ----------
    source : str, Path, FeatureSet or dict
        A folder, a manifest, features, or the name of a bundled data set.
    out : str or Path
        The index to write. Call it again to continue where it stopped.
    encoders, **options
        See `calmrl.Index.build`.
    report : callable, optional
        Gets sentences for people: problems, items, patterns, recall to expect, what cannot be searched.

    Examples
    --------
    >>> index("photos", "photos.index")  # doctest: +SKIP
    """
    made = Index.build(source, out, encoders, **options)
    if report is not None:
        for line in [*made.layout["problems"], *made.summary()]:
            report(line)
    return made
