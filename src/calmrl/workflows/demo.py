"""What `calmrl demo` searches: emoji by words, although most names were hidden, and stamps by sounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import MissingExtraError
from calmrl.sources import DATASET, Source, open_source

if TYPE_CHECKING:
    from calmrl.search import Hit, Index

WORDS = ("love", "insects", "public transport")
SOUNDS = ("animals/birds/cuckoo", "hobbies/music/string/violin")  # stamps whose sounds are queries
NAMED = ("text", "keywords")  # modalities that hold words
SEEN = ("image", "drawing")
HIDDEN = 0.7  # share of the emoji whose words are hidden
KERNEL: dict[str, Any] = {
    "features": "kernel",
    "unit_rows": True,
    "whitening": 0.5,
    "latent_dim": 256,
    "refine": "never",
}
EMOJI = {**KERNEL, "prior": 1000.0}  # what cross-validation chooses; to choose again would take half a minute
STAMPS = {**KERNEL, "prior": 300.0}


@dataclass(frozen=True)
class DemoSearch:
    """What was asked, and what it found."""

    query: str
    hits: list[Hit]


@dataclass(frozen=True)
class Searched:
    """An index that was built and searched, in plain values that a process can send back."""

    items: int
    expected: dict[str, dict[str, Any]]  # of new items, by direction
    searches: list[DemoSearch]


def emoji_without_names(rate: float = HIDDEN, seed: int = 0) -> tuple[Source, np.ndarray]:
    """(the emoji as pictures and words, with the words of a random share hidden; which rows those are)."""
    source = open_source("emoji")
    assert source.features is not None
    data = source.features
    names = [*SEEN, *NAMED]
    present = data.present[:, [data.names.index(name) for name in names]].copy()
    hidden = np.random.default_rng(seed).random(len(data)) < rate
    present[:, [name in NAMED for name in names]] &= ~hidden[:, None]
    table = data.meta.append_column("words", pa.array(np.where(hidden, "hidden", "seen").tolist()))
    part = FeatureSet({name: data.z[name] for name in names}, present, table, name=data.name, source=data.source)
    return Source(DATASET, source.root, features=part), hidden


def emoji_index(path: str | Path) -> Index:
    """Index the emoji with most of their words hidden, with fixed settings; siblings share a fold of the cross-validation."""
    from calmrl.aligner import Aligner
    from calmrl.search import Index

    source, _ = emoji_without_names()
    return Index.build(source, path, model=Aligner(**EMOJI, random_state=0), groups="group")


def stamps_index(path: str | Path) -> Index:
    """Index the stamps as they are, with fixed settings."""
    from calmrl.aligner import Aligner
    from calmrl.search import Index

    return Index.build("stamps", path, model=Aligner(**STAMPS, random_state=0), groups="group")


def word_searches(index: Index, k: int = 5) -> list[DemoSearch]:
    """The pictures nearest to each word, among emoji of which no word was seen."""
    return [DemoSearch(word, index.search(text=word, k=k, where="words = 'hidden'", words=False)) for word in WORDS]


def sound_searches(index: Index, k: int = 5) -> list[DemoSearch]:
    """The pictures of other stamps nearest to the sound of one."""
    searches = []
    for id in SOUNDS:
        others = "id != '{}'".format(id.replace("'", "''"))
        hits = index.search(sound=index.features_of(id)["sound"], k=k, having="image", where=others)
        caption = (index.item(id).text or id).rstrip(".")
        searches.append(DemoSearch(f"the sound of {caption[0].lower()}{caption[1:]}", hits))
    return searches


def search_both(emoji: str | Path, stamps: str | Path) -> tuple[Searched, Searched] | str:
    """Index the emoji and search them by words, then the stamps by sounds; without the extra `search`, what is missing.

    One after the other in one process, which then loads the store once.
    """
    try:
        return _searched(emoji_index(emoji), word_searches), _searched(stamps_index(stamps), sound_searches)
    except MissingExtraError as absent:
        return str(absent)


def _searched(index: Index, search: Callable[[Index], list[DemoSearch]]) -> Searched:
    return Searched(len(index), dict(index.expected), search(index))
