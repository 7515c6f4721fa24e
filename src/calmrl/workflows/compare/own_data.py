"""The comparison of features that nobody wrote a config for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calmrl.config import CompareConfig
from calmrl.config.loading import load_values
from calmrl.data.features.feature_set import open_features

SMALL = 2000  # rows, below which more of them are set apart to test


def config_for(path: str | Path, overrides: Sequence[str] = ()) -> CompareConfig:
    """A config that compares features as they are: nothing is hidden, rows lack what they lack.

    The split column is used if it names test rows; otherwise items are split anew for every seed.

    Parameters
    ----------
    path : str or Path
        A feature directory or file.
    overrides : sequence of str
        `key=value`, as on the command line.

    Examples
    --------
    >>> config_for("features", ["seeds=[0]"]).settings  # doctest: +SKIP
    """
    features = open_features(path)
    source: dict[str, Any] = {"features": str(path)}
    if features.split is None or not (features.split == "test").any():
        source["resplit"] = {"by": "id", "val": 0.1, "test": 0.3 if len(features) < SMALL else 0.2}
    config = load_values({"kind": "compare", "source": source, "settings": "as-is"}, overrides, name=str(path))
    assert isinstance(config, CompareConfig)
    return config
