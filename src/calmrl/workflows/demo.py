"""What `calmrl demo` shows: a comparison of methods, and a search by words for pictures whose names were hidden."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from calmrl.data.features.feature_set import FeatureSet
from calmrl.search.sources import OpenSource, open_source

if TYPE_CHECKING:
    from calmrl.search import Hit, Index

WORDS = ("fruit", "love", "insects", "public transport", "laughing")
NAMED = ("text", "keywords")  # modalities that hold words
SEEN = ("image", "drawing")
HIDDEN = 0.7  # share of the emoji whose words are hidden


@dataclass(frozen=True)
class WordSearch:
    """A word and what it found among pictures without words."""

    word: str
    hits: list[Hit]


def emoji_without_names(rate: float = HIDDEN, seed: int = 0) -> tuple[OpenSource, np.ndarray]:
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
    return OpenSource("dataset", source.root, features=part), hidden


def emoji_index(path: str | Path) -> Index:
    """Index the emoji with most of their words hidden; siblings share a fold of the cross-validation."""
    from calmrl.aligner import Aligner
    from calmrl.search import Index

    source, _ = emoji_without_names()
    return Index.build(source, path, model=Aligner(refine="never", random_state=0), groups="group")


def word_searches(index: Index, k: int = 5) -> list[WordSearch]:
    """The pictures nearest to each word, among items of which no word was seen."""
    return [WordSearch(word, index.search(text=word, k=k, where="words = 'hidden'")) for word in WORDS]
