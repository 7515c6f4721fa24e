"""Impute features on disk: fit an imputer on what is observed, impute what is missing, block by block.

What was observed stays as it is, bit for bit. `present.npy` stays as it is too and still says what was observed;
`imputed.npy` says what was imputed. So whoever reads `z` with `present` goes on treating imputed blocks as missing,
and whoever wants them has to ask for `imputed`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, opened
from calmrl._support.output import check_free, new_directory
from calmrl.config import ImputeConfig, dump
from calmrl.convention import blocks_of_rows, check
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.row_table import described
from calmrl.data.features.writer import FeatureWriter
from calmrl.imputers.calibration import coverage_fault
from calmrl.imputers.registry import make_imputer
from calmrl.protocols import FittableImputer
from calmrl.workflows.imputation import IMPUTE_BYTES, Imputation, Progress

USELESS = 0.98  # normalised error from which imputed values count as no better than the column means
FEW_BLOCKS = 10  # held-out blocks of a modality, below which they check little


def impute(
    features: FeatureSet | str | Path,
    out: str | Path,
    config: ImputeConfig | None = None,
    *,
    engine: str | Engine = "local",
    address: str | None = None,
    allow_missing: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Imputation:
    """Impute the missing modalities of features and write a new feature directory.

    Parameters
    ----------
    features : FeatureSet, str or Path
        Features, or where they are.
    out : str or Path
        The directory to write; it appears whole or not at all.
    config : ImputeConfig, optional
        Imputer, seed, and whether to write standard deviations; by default what imputes held-out blocks best.
    engine : {"local", "ray"} or Engine
        Where the work is done: in this process, or on a Ray cluster that shares files with it. The result is the same.
    address : str, optional
        Of the Ray cluster; by default the one of this machine, or one that is started on its cores.
    allow_missing : bool
        Count observed blocks with values that are not finite as missing, and impute them too. Otherwise they are an
        error.
    force : bool
        Replace an earlier output of calmrl.
    progress : callable, optional
        Called with (rows done, rows in all) after every block.

    Examples
    --------
    >>> impute("features", "imputed")  # doctest: +SKIP
    """
    config = ImputeConfig(kind="impute") if config is None else config
    out = Path(out)
    if engine != "local" or address is not None or allow_missing:
        from calmrl.workflows.impute_spread import impute_spread

        with opened(engine, address) as started:
            return impute_spread(
                features, out, config, started, allow_missing=allow_missing, force=force, progress=progress
            )
    check_free(out, force=force)
    source = features if isinstance(features, FeatureSet) else open_features(features)
    settings = config.model_dump(mode="json")
    with new_directory(out, force=force) as draft:
        imputer = make_imputer(seed=config.seed, **config.imputer.model_dump())
        info = {"made_by": "calmrl impute", "config": settings, "features": source.info}
        write_imputed(source, imputer, draft, std=config.std, info=info, progress=progress)
        dump(config, draft / "config.yaml")
    choice = getattr(imputer, "choice_", None)
    return Imputation(out, len(source), source.present.size, int((~source.present).sum()), choice)


def imputation_warnings(choice: Mapping[str, Any]) -> list[str]:
    """What to know before imputed values are used, from the `choice_` of an imputer that chooses, as sentences.

    Examples
    --------
    >>> checked = {"held_out_by_modality": {"text": 90}, "coverage_by_modality": {"text": 84.0}}
    >>> imputation_warnings({"error_by_modality": {"text": 0.7}, **checked})
    ['95 % intervals of text hold 84 % of the held-out values: they are too narrow']
    """
    sentences = []
    errors = choice["error_by_modality"].items()
    useless = [f"{name} ({error:.3f})" for name, error in errors if error is not None and error >= USELESS]
    if useless:
        sentences.append(
            f"what is observed does not predict {', '.join(useless)}: imputed values are about the column means, and carry "
            "no information about the single item"
        )
    for name, covered in choice["coverage_by_modality"].items():
        fault = None if covered is None else coverage_fault(covered)
        if fault:
            sentences.append(f"95 % intervals of {name} hold {covered:.0f} % of the held-out values: they are {fault}")
    few = [f"{name} ({n})" for name, n in choice["held_out_by_modality"].items() if n < FEW_BLOCKS]
    if few:
        sentences.append(
            f"few blocks could be held out of {', '.join(few)}: error and intervals are hardly checked there"
        )
    return sentences


def write_imputed(
    features: FeatureSet,
    imputer: FittableImputer,
    out: str | Path,
    *,
    std: bool = False,
    info: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> FeatureSet:
    """Fit `imputer` on `features` and write the imputed features to the new directory `out`.

    `std=True` also writes `<modality>.std.npy`, the standard deviation of every imputed value (0 where observed).
    """
    check(features.z, features.present)
    imputer.fit(features.z, features.present)
    widths = {name: array.shape[1] for name, array in features.z.items()}
    dtype = np.result_type(*(array.dtype for array in features.z.values()))
    about = described(features.meta)
    with FeatureWriter(out, widths, features.ids, dtype=dtype.name, std=std, info=info, **about) as writer:
        for start, stop in blocks_of_rows(
            len(features), sum(widths.values()) * dtype.itemsize, IMPUTE_BYTES
        ):
            z = {name: np.asarray(array[start:stop]) for name, array in features.z.items()}
            present = np.asarray(features.present[start:stop])
            imputed = imputer.impute(z, present, return_std=std)
            values, deviation = imputed if std else (imputed, None)
            writer.fill(slice(start, stop), values, present, imputed=~present, std=deviation)
            if progress is not None:
                progress(stop, len(features))
        return writer.finish()
