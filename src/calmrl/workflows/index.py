"""A collection of files or features -> an index that any modality can search."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calmrl._support.engine import Engine
from calmrl.protocols import Progress
from calmrl.search.index import Index


def index(
    source: Any,
    out: str | Path,
    encoders: Mapping[str, str] | None = None,
    *,
    model: Any = None,
    groups: str | Sequence[Any] | None = None,
    relevant: str | Sequence[Any] | None = None,
    engine: str | Engine = "local",
    address: str | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Index:
    """Encode, align in closed form, and write a searchable table.

    Parameters
    ----------
    source : str, Path, FeatureSet or dict
        A folder, a manifest, features, or the name of a bundled data set.
    out : str or Path
        The index to write. Call it again to continue where it stopped.
    encoders, model, groups, relevant, engine, address, progress
        See `calmrl.Index.build`.
    tell : callable, optional
        Gets sentences for people: problems, items, patterns, recall to expect, what cannot be searched.

    Examples
    --------
    >>> index("photos", "photos.index")  # doctest: +SKIP
    """
    given: dict[str, Any] = {"model": model, "groups": groups, "relevant": relevant, "progress": progress}
    made = Index.build(source, out, encoders, engine=engine, address=address, **given)
    for line in [*made.layout["problems"], *made.summary()]:
        (tell or (lambda line: None))(line)
    return made
