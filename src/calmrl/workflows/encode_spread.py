"""Rows through a trained model with an engine."""

from collections.abc import Mapping

import numpy as np

from calmrl._support.engine import Engine
from calmrl.convention import blocks_of_rows
from calmrl.models.saved import ROWS, Trained

ENCODE_ROWS = 4 * ROWS  # rows of a task: a whole number of the blocks that a model works in itself


def encode_spread(
    model: Trained, z: Mapping[str, np.ndarray], present: np.ndarray, engine: Engine
) -> dict[str, np.ndarray]:
    """`model.encode`, a block of rows per task."""
    blocks = (
        ({name: array[start:stop] for name, array in z.items()}, present[start:stop])
        for start, stop in blocks_of_rows(len(present), 1, ENCODE_ROWS)
    )
    parts = list(engine.map(_encode_block, blocks, model))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _encode_block(block: tuple[dict[str, np.ndarray], np.ndarray], model: Trained) -> dict[str, np.ndarray]:
    return model.encode(*block)
