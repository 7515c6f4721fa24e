"""Encoding with an engine: a batch of texts or files is a task, and every worker loads an encoder once.

The vector of an item depends on nothing but the item, so that it does not matter who encodes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calmrl._support.engine import Engine
from calmrl.data.media.unreadable import Unreadable
from calmrl.encoders.encoder_set import Cell, EncoderSet


def spread_files(
    engine: Engine, encoders: EncoderSet, modality: str, sources: Sequence[Cell], batch_size: int
) -> Iterator[tuple[int, list[np.ndarray | Unreadable]]]:
    """As `EncoderSet.encode_files`; workers decode, too, wherever they run."""
    absolute = [os.path.abspath(source) if isinstance(source, (str, os.PathLike)) else source for source in sources]
    return _spread(engine, _files, encoders, modality, absolute, batch_size)


def spread_texts(
    engine: Engine, encoders: EncoderSet, modality: str, texts: Sequence[Sequence[str]], batch_size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first item, vectors) for every batch, as from `EncoderSet.encode_texts`."""
    return _spread(engine, _texts, encoders, modality, texts, batch_size)


def _spread(
    engine: Engine, encode: Any, encoders: EncoderSet, modality: str, cells: Sequence[Any], batch_size: int
) -> Iterator[tuple[int, Any]]:
    starts = range(0, len(cells), batch_size)
    batches = (list(cells[start : start + batch_size]) for start in starts)
    return zip(starts, engine.map(encode, batches, encoders, modality, device=encoders.device), strict=True)


def _files(batch: list[Cell], encoders: EncoderSet, modality: str) -> list[np.ndarray | Unreadable]:
    return [vector for _, vectors in encoders.encode_files(modality, batch) for vector in vectors]


def _texts(batch: list[Sequence[str]], encoders: EncoderSet, modality: str) -> np.ndarray:
    return encoders.encode_texts(modality, batch)
