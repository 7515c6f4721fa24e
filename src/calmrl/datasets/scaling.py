"""One scale per modality, measured on chosen rows."""

import numpy as np


def centre_and_scale(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Centred on the mean of these rows, and scaled so that their mean square is 1."""
    centred = values - values[rows].mean(axis=0)
    return centred / np.sqrt(np.mean(centred[rows] ** 2))
